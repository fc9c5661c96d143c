// SPDX-License-Identifier: Apache-2.0
// make_workload: arrivals, lengths, adapters and prefixes put together. What each word
// may be stands in arrivals.h, lengths.h, adapters.h, documents.h and agents.h.
//
// Thread: a pure function of its options and the files they name.
// Invariants: what WorkloadRules asks for. The same options give the same requests.
// Each of the four draws from a stream of its own, so that a change of one leaves the
// others as they were.
// Failure: a sentence about the option, or FILE:LINE about a file.
#pragma once

#include <cstdint>
#include <string>

#include "base/limits.h"
#include "workload/workload.h"

namespace loralei {

struct WorkloadOptions {
  std::string arrivals;
  std::string lengths;            // empty only with prefixes of agents
  std::string adapters = "none";  // so too
  double adapters_shift_s = 0;    // AdapterMix::shift_every()
  std::string prefixes;           // empty: none; documents:... or agents:...
  double seconds = 0;             // 0: no such limit
  int64_t count = 0;              // requests; 0: no such limit
  double rate_scale = 1, length_scale = 1;
  int64_t prompt_max = kMaxModelLen, output_max = kMaxModelLen;
  uint64_t seed = 1;
};

Result<Workload> make_workload(const WorkloadOptions& options);

}  // namespace loralei
