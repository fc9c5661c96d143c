// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

namespace loralei {
namespace {

constexpr int kRounds = 2;

class Search {
 public:
  Search(size_t rows, const std::function<Result<bool>(const KvRungs&)>& holds,
         const std::function<double(size_t row, int32_t rung)>& bits)
      : rows_(rows), holds_(holds), bits_(bits) {}

  Result<KvSearch> run() {
    TRY(bisect());
    if (!found_.holds) return found_;
    std::vector<size_t> candidates;
    for (size_t row = 0; row < rows_; ++row) candidates.push_back(row);
    for (int round = 0; round < kRounds; ++round) {
      TRY_ASSIGN(candidates, coarsen(candidates));
    }
    return found_;
  }

 private:
  // Keeps what holds.
  Result<bool> ask(const KvRungs& rungs) {
    ++found_.trials;
    TRY_ASSIGN(const bool holds, holds_(rungs));
    if (holds) found_.rungs = rungs, found_.holds = true;
    return holds;
  }

  Status bisect() {
    found_.rungs.assign(rows_, 0);
    int32_t low = -1, high = kKvRungs;
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      TRY_ASSIGN(const bool holds, ask(KvRungs(rows_, middle)));
      (holds ? low : high) = middle;
    }
    return {};
  }

  // A rung more for those of the rows that can; answers who could.
  Result<std::vector<size_t>> coarsen(std::vector<size_t> rows) {
    const auto saved = [&](size_t row) {
      return bits_(row, found_.rungs[row]) - bits_(row, std::min(found_.rungs[row] + 1, kKvRungs - 1));
    };
    std::erase_if(rows, [&](size_t row) { return found_.rungs[row] + 1 >= kKvRungs; });
    std::vector<std::pair<double, size_t>> order;
    for (const size_t row : rows) order.emplace_back(-saved(row), row);
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = order[i].second;
    std::deque<std::vector<size_t>> groups;
    split(rows, groups);
    std::vector<size_t> could;
    while (!groups.empty() && found_.trials < kKvTrialsMost) {
      const std::vector<size_t> group = std::move(groups.front());
      groups.pop_front();
      KvRungs rungs = found_.rungs;
      for (const size_t row : group) ++rungs[row];
      TRY_ASSIGN(const bool holds, ask(rungs));
      if (holds) could.insert(could.end(), group.begin(), group.end());
      if (!holds && group.size() > 1) split(group, groups);
    }
    return could;
  }

  // Into halves, which come next.
  static void split(const std::vector<size_t>& rows, std::deque<std::vector<size_t>>& groups) {
    const auto middle = rows.begin() + static_cast<int64_t>((rows.size() + 1) / 2);
    if (middle != rows.end()) groups.emplace_front(middle, rows.end());
    if (middle != rows.begin()) groups.emplace_front(rows.begin(), middle);
  }

  const size_t rows_;
  const std::function<Result<bool>(const KvRungs&)>& holds_;
  const std::function<double(size_t row, int32_t rung)>& bits_;
  KvSearch found_;
};

}  // namespace

float kv_rung_factor(int32_t rung) { return std::exp2(0.5f * static_cast<float>(rung) - 4); }

Result<KvSearch> search_kv_rungs(size_t rows, const std::function<Result<bool>(const KvRungs&)>& holds,
                                 const std::function<double(size_t row, int32_t rung)>& bits) {
  return Search(rows, holds, bits).run();
}

}  // namespace loralei
