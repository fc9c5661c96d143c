// SPDX-License-Identifier: Apache-2.0
// ExpertRows: which experts the rows of a step use in a layer, and in which order the
// rows meet them.
//
//   assignments   one for each (row, expert it uses), sorted by expert, then by row
//   run_of(e)     those of expert e, a run of them
//   uses(row)     a row's, by ascending expert: in this order its results are summed
//
// A row uses the experts with the highest scores; of equal scores the lower number wins.
// Its weights are the softmax of its scores over all experts, in f32, divided by their
// sum where the config says so. Both depend on the row's scores alone.
//
// Thread: the executor's; choose() shares rows out to the pool. Ownership: its lists,
// made once for the most rows. No failure: scores that are no numbers choose some
// experts, and give weights that are none either.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/host/thread_pool.h"
#include "formats/expert_config.h"

namespace loralei {

class ExpertRows {
 public:
  struct Run {
    int32_t begin = 0, count = 0;
  };
  struct Use {
    int32_t expert = 0;
    int32_t at = 0;  // its assignment
    float weight = 0;
  };

  ExpertRows() = default;
  ExpertRows(const ExpertConfig& config, int32_t rows_max);
  static int64_t bytes(const ExpertConfig& config, int32_t rows_max);  // that it holds

  // Of scores [rows, config.count].
  void choose(const float* scores, int32_t rows, ThreadPool& pool);

  std::span<const int32_t> chosen() const { return {chosen_.data(), chosen_count_}; }  // experts, ascending
  int32_t assignments() const { return rows_ * used_; }
  Run run_of(int32_t expert) const {
    const auto index = static_cast<size_t>(expert);
    return {begins_[index], begins_[index + 1] - begins_[index]};
  }
  int32_t row_of(int32_t assignment) const { return row_of_[static_cast<size_t>(assignment)]; }
  std::span<const int32_t> rows_of(Run run) const {
    return {row_of_.data() + run.begin, static_cast<size_t>(run.count)};
  }
  std::span<const Use> uses(int32_t row) const {
    return {uses_.data() + int64_t{row} * used_, static_cast<size_t>(used_)};
  }

 private:
  void choose_of(const float* scores, std::span<Use> uses) const;

  int32_t experts_ = 0, used_ = 0, rows_ = 0;
  bool normed_ = false;
  std::vector<Use> uses_;        // [rows][used]
  std::vector<int32_t> begins_;  // [experts + 1], of runs
  std::vector<int32_t> row_of_;  // [rows * used]
  std::vector<int32_t> chosen_;  // [experts]
  size_t chosen_count_ = 0;
};

}  // namespace loralei
