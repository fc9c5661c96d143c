// SPDX-License-Identifier: Apache-2.0
#include "model/expert_rows.h"

#include <cmath>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace loralei {
namespace {

constexpr int64_t kRowsTogether = 16;

}  // namespace

ExpertRows::ExpertRows(const ExpertConfig& config, int32_t rows_max)
    : experts_(config.count), used_(config.used), normed_(config.normed) {
  CHECK(used_ > 0 && used_ <= experts_ && experts_ <= kMaxExperts);
  const auto uses = static_cast<size_t>(rows_max) * static_cast<size_t>(used_);
  uses_.resize(uses);
  row_of_.resize(uses);
  begins_.resize(static_cast<size_t>(experts_) + 1);
  chosen_.resize(static_cast<size_t>(experts_));
}

int64_t ExpertRows::bytes(const ExpertConfig& config, int32_t rows_max) {
  const int64_t uses = int64_t{rows_max} * config.used;
  return uses * static_cast<int64_t>(sizeof(Use) + sizeof(int32_t)) +
         (2 * int64_t{config.count} + 1) * static_cast<int64_t>(sizeof(int32_t));
}

// A number that is none counts as the lowest.
void ExpertRows::choose_of(const float* scores, std::span<Use> uses) const {
  bool taken[kMaxExperts] = {};
  float most = -std::numeric_limits<float>::infinity();
  for (int32_t expert = 0; expert < experts_; ++expert) most = std::max(most, scores[expert]);
  float sum = 0;
  for (int32_t expert = 0; expert < experts_; ++expert) sum += std::exp(scores[expert] - most);
  for (Use& use : uses) {
    int32_t best = -1;
    for (int32_t expert = 0; expert < experts_; ++expert) {
      if (!taken[expert] &&
          (best < 0 || scores[expert] > scores[best] || (std::isnan(scores[best]) && !std::isnan(scores[expert]))))
        best = expert;
    }
    taken[best] = true;
    use = {.expert = best, .weight = std::exp(scores[best] - most) / sum};
  }
  if (normed_) {
    float used = 0;
    for (const Use& use : uses) used += use.weight;
    for (Use& use : uses) use.weight /= used;
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.expert < b.expert; });
}

void ExpertRows::choose(const float* scores, int32_t rows, ThreadPool& pool) {
  CHECK(int64_t{rows} * used_ <= std::ssize(uses_));
  rows_ = rows;
  pool.parallel_for(rows, kRowsTogether, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      choose_of(scores + row * experts_, {uses_.data() + row * used_, static_cast<size_t>(used_)});
  });
  std::fill(begins_.begin(), begins_.end(), 0);
  const std::span<Use> uses = std::span(uses_).first(static_cast<size_t>(rows) * static_cast<size_t>(used_));
  for (const Use& use : uses) ++begins_[static_cast<size_t>(use.expert)];
  int32_t begin = 0;
  chosen_count_ = 0;
  for (int32_t expert = 0; expert < experts_; ++expert) {
    const int32_t count = begins_[static_cast<size_t>(expert)];
    if (count > 0) chosen_[chosen_count_++] = expert;
    begins_[static_cast<size_t>(expert)] = begin;
    begin += count;
  }
  // Each begin moves to its run's end, that is to the next one's begin.
  for (size_t index = 0; index < uses.size(); ++index) {
    Use& use = uses[index];
    use.at = begins_[static_cast<size_t>(use.expert)]++;
    row_of_[static_cast<size_t>(use.at)] = static_cast<int32_t>(index / static_cast<size_t>(used_));
  }
  for (size_t expert = static_cast<size_t>(experts_); expert > 0; --expert) begins_[expert] = begins_[expert - 1];
  begins_[0] = 0;
}

}  // namespace loralei
