// SPDX-License-Identifier: Apache-2.0
// Which factor each layer's K and V gets: the coarsest on a ladder with which an
// agreement holds.
//
//   rung r   factor 2^(r / 2 - 4): from 1/16 to 2
//   first    one rung for all, by bisection
//   then     twice: rows (a layer's K or V) in the order of the bits that a rung more
//            saves, half of them at once; where that does not hold, halves of those.
//            Who could not go on in the first round is not asked again in the second.
//
// Thread: a pure function but for what it calls. Ownership: values.
// Invariants: asks at most kKvTrialsMost times; what it answers was asked last with the
// answer yes, or is the finest of all with `holds` false.
// Failure: what `holds` answers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"

namespace loralei {

inline constexpr int32_t kKvRungs = 11;
inline constexpr int32_t kKvTrialsMost = 48;
float kv_rung_factor(int32_t rung);

using KvRungs = std::vector<int32_t>;  // [layers][2]

struct KvSearch {
  KvRungs rungs;
  bool holds = false;
  int32_t trials = 0;
};

// `holds(rungs)`: whether the agreement does. `bits(row, rung)`: of a number of that row.
Result<KvSearch> search_kv_rungs(size_t rows, const std::function<Result<bool>(const KvRungs&)>& holds,
                                 const std::function<double(size_t row, int32_t rung)>& bits);

}  // namespace loralei
