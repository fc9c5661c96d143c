// SPDX-License-Identifier: Apache-2.0
// StepFeatures: what a step is, as far as its time follows from it. StepRecord: one step
// of a server, with the time that it took.
//
// Plain values. Invariants: counts are not negative; `attended` is the sum over rows of
// the positions that each attends to, its own among them; an adapter that a step names is
// counted once, whatever its rows.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace loralei {

struct StepFeatures {
  int32_t prefill_rows = 0;  // of groups of several rows
  int32_t decode_rows = 0;   // of groups of one row
  int64_t prefill_attended = 0, decode_attended = 0;
  int32_t logits_rows = 0;
  int32_t adapters = 0;                // distinct
  int32_t rank_sum = 0, rank_max = 0;  // of these
  int32_t lora_rows = 0;               // pairs of a row and an adapter
  int64_t lora_row_ranks = 0;          // the adapter's rank, summed over these

  int32_t rows() const { return prefill_rows + decode_rows; }
  friend bool operator==(const StepFeatures&, const StepFeatures&) = default;
};

struct StepRecord {
  uint64_t step = 0;      // ascending, without gaps unless records were lost
  int64_t begin_ns = 0;   // of the engine's clock
  int64_t ns = 0;         // planning, computing, sampling, delivering
  int64_t waited_ns = 0;  // of that, for layers of adapters that were on their way
  StepFeatures features;
  int32_t waiting = 0;              // requests of which nothing was admitted yet, behind this step
  std::vector<RequestId> admitted;  // requests of which a choice began with this step, in order

  int64_t own_ns() const { return ns - waited_ns; }  // what follows from its features
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

}  // namespace loralei
