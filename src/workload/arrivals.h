// SPDX-License-Identifier: Apache-2.0
// When requests come, by a word of what they follow:
//   poisson:RPS           independent of each other, RPS a second in the mean
//   gamma:RPS:CV          gaps of a gamma distribution with that coefficient of variation
//   trace:FILE            the times of a CSV, from its first row on
//   servegen[:RPS[:CLIENTS[:START]]]:FILE   see servegen_arrivals.h
//
// Thread: a pure function of its options (and the file).
// Invariants: times ascend from 0; a change of anything but these options changes none
// of them. Random processes begin in their steady state: the expected number of arrivals
// of any interval is its length times the rate, also of the first.
// Failure: a sentence about the word, or FILE:LINE about the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/prng.h"
#include "base/result.h"

namespace loralei {

struct WorkloadArrival {
  int64_t at_ns = 0;
  int32_t client = -1;  // of a ServeGen file; -1: the others know none
  double source_s = 0;  // where in that file's time
};

struct ArrivalOptions {
  std::string spec;
  double rate_scale = 1;  // so many times as often
  double seconds = 0;     // 0: no such limit
  int64_t count = 0;      // 0: no such limit
  uint64_t seed = 1;
};

// In the order of time. Fewer than `count` where a file ends before.
Result<std::vector<WorkloadArrival>> make_arrivals(const ArrivalOptions& options);

// Mean of the gaps 1, in steady state: the first gap is what is left of one that began
// before. `shape` of the gamma or Weibull distribution.
struct GapShape {
  bool weibull = false;
  double shape = 1;
};
double gap_draw(Prng& random, const GapShape& gap);
double first_gap_draw(Prng& random, const GapShape& gap);

}  // namespace loralei
