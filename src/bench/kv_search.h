// SPDX-License-Identifier: Apache-2.0
// Which factor each layer's K and V gets: the fewest bits with which an agreement holds.
//
//   rung r   factor 2^(r / 2 - 4): from 1/16 to 8
//   probes   one row (a layer's K or V) coarse, the others as fine as can be: what that
//            adds to the divergence. Of many rows some layers' K, or V, go together.
//   path     from the finest of all on, always the rung more that saves the most bits for
//            the divergence it adds
//   search   the farthest on the path where the agreement holds, by bisection; then once
//            more with probes near what was found, as two points tell how steep a row is
//
// The divergence is a mean and hardly noisy, so it says which row; the agreement is what
// is asked for, but hangs on few answers, so it only says how far.
//
// Thread: a pure function but for what it calls. Ownership: values.
// Invariants: asks at most kKvTrialsMost times; what it answers was asked with the answer
// yes, or is the finest of all with `holds` false.
// Failure: what the trials answer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr int32_t kKvRungs = 15;
inline constexpr int32_t kKvTrialsMost = 64;
float kv_rung_factor(int32_t rung);

using KvRungs = std::vector<int32_t>;  // [layers][2]

struct KvTrials {
  // Mean divergence with these factors, not less than 0.
  std::function<Result<double>(const KvRungs&)> divergence;
  // Whether the agreement holds with them.
  std::function<Result<bool>(const KvRungs&)> holds;
  // Of a number of that row. Costs no trial.
  std::function<double(size_t row, int32_t rung)> bits;
};
struct KvSearch {
  KvRungs rungs;
  bool holds = false;
  int32_t trials = 0;
};

Result<KvSearch> search_kv_rungs(size_t rows, const KvTrials& trials);

}  // namespace loralei
