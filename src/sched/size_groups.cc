// SPDX-License-Identifier: Apache-2.0
#include "sched/size_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace loralei {
namespace {

// Sums over sorted numbers, less their mean so that squares stay exact where all are far
// from zero.
class RangeCosts {
 public:
  explicit RangeCosts(std::span<const double> sorted) : sums_(sorted.size() + 1), squares_(sorted.size() + 1) {
    for (const double number : sorted) mean_ += number / static_cast<double>(sorted.size());
    for (size_t i = 0; i < sorted.size(); ++i) {
      const double number = sorted[i] - mean_;
      sums_[i + 1] = sums_[i] + number;
      squares_[i + 1] = squares_[i] + number * number;
    }
  }
  // Squared distances of [begin, end) to their mean.
  double within(size_t begin, size_t end) const {
    if (end - begin < 2) return 0;
    const double sum = sums_[end] - sums_[begin];
    return std::max(0.0, squares_[end] - squares_[begin] - sum * sum / static_cast<double>(end - begin));
  }
  double centre(size_t begin, size_t end) const {
    return mean_ + (sums_[end] - sums_[begin]) / static_cast<double>(end - begin);
  }

 private:
  double mean_ = 0;
  std::vector<double> sums_, squares_;
};

// One group more than `before`: cost[end] of the first `end` numbers and where the last
// group begins. That place never goes back while `end` grows, so halves of the ends look
// at halves of the places.
struct Layer {
  std::vector<double> cost;
  std::vector<size_t> begin;
};

void fill(const RangeCosts& costs, const Layer& before, size_t groups, size_t end_low, size_t end_high,
          size_t begin_low, size_t begin_high, Layer& layer) {
  if (end_low > end_high) return;
  const size_t end = end_low + (end_high - end_low) / 2;
  double best = std::numeric_limits<double>::infinity();
  size_t best_begin = std::max(begin_low, groups - 1);
  for (size_t begin = best_begin; begin <= std::min(begin_high, end - 1); ++begin) {
    const double cost = before.cost[begin] + costs.within(begin, end);
    if (cost < best) {
      best = cost;
      best_begin = begin;
    }
  }
  layer.cost[end] = best;
  layer.begin[end] = best_begin;
  if (end > end_low) fill(costs, before, groups, end_low, end - 1, begin_low, best_begin, layer);
  fill(costs, before, groups, end + 1, end_high, best_begin, begin_high, layer);
}

// Of one group up to so many: the best layers of each.
std::vector<Layer> best_layers(const RangeCosts& costs, size_t count, size_t groups_max) {
  std::vector<Layer> layers(groups_max, Layer{std::vector<double>(count + 1), std::vector<size_t>(count + 1)});
  for (size_t end = 0; end <= count; ++end) layers[0].cost[end] = costs.within(0, end);
  for (size_t groups = 2; groups <= groups_max; ++groups)
    fill(costs, layers[groups - 2], groups, groups, count, groups - 1, count - 1, layers[groups - 1]);
  return layers;
}

SizeGroups read_groups(const RangeCosts& costs, std::span<const Layer> layers, size_t count, size_t groups,
                       size_t* smallest = nullptr) {
  SizeGroups found{.within = layers[groups - 1].cost[count]};
  found.centres.resize(groups);
  size_t end = count, least = count;
  for (size_t group = groups; group > 0; --group) {
    const size_t begin = group == 1 ? 0 : layers[group - 1].begin[end];
    found.centres[group - 1] = costs.centre(begin, end);
    least = std::min(least, end - begin);
    end = begin;
  }
  for (size_t group = 1; group < groups; ++group)
    found.borders.push_back((found.centres[group - 1] + found.centres[group]) / 2);
  if (smallest != nullptr) *smallest = least;
  return found;
}

size_t different(std::span<const double> sorted, size_t most) {
  size_t count = sorted.empty() ? 0 : 1;
  for (size_t i = 1; i < sorted.size() && count < most; ++i) count += sorted[i] != sorted[i - 1] ? 1 : 0;
  return count;
}

void check_sorted(std::span<const double> sorted) {
  for (size_t i = 0; i < sorted.size(); ++i) {
    CHECK(std::isfinite(sorted[i]) && sorted[i] >= 0);
    CHECK(i == 0 || sorted[i - 1] <= sorted[i]);
  }
}

}  // namespace

int32_t SizeGroups::of(double size) const {
  return static_cast<int32_t>(std::upper_bound(borders.begin(), borders.end(), size) - borders.begin());
}

SizeGroups group_sizes(std::span<const double> sorted, int32_t groups) {
  CHECK(groups > 0);
  check_sorted(sorted);
  const size_t most = different(sorted, static_cast<size_t>(groups));
  if (most == 0) return {.centres = {0}};
  const RangeCosts costs(sorted);
  return read_groups(costs, best_layers(costs, sorted.size(), most), sorted.size(), most);
}

SizeGroups choose_size_groups(std::span<const double> sorted, int32_t groups_max) {
  CHECK(groups_max > 0);
  check_sorted(sorted);
  const size_t most = different(sorted, static_cast<size_t>(groups_max));
  if (most == 0) return {.centres = {0}};
  const RangeCosts costs(sorted);
  const size_t count = sorted.size();
  const std::vector<Layer> layers = best_layers(costs, count, most);
  SizeGroups chosen = read_groups(costs, layers, count, 1);
  const double all = chosen.within, mean = chosen.centres[0];
  if (all <= kAlike * kAlike * mean * mean * static_cast<double>(count)) return chosen;
  for (size_t groups = 2; groups <= most && chosen.within > kWithinMost * all; ++groups) {
    size_t smallest = 0;
    SizeGroups more = read_groups(costs, layers, count, groups, &smallest);
    if (static_cast<double>(smallest) < kShareLeast * static_cast<double>(count)) break;
    chosen = std::move(more);
  }
  return chosen;
}

}  // namespace loralei
