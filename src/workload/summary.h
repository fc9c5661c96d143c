// SPDX-License-Identifier: Apache-2.0
// What a workload asks for, in figures: rate and burstiness, lengths, who is asked, what
// is shared.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workload/workload.h"

namespace loralei {

struct WorkloadSummary {
  struct Lengths {
    double mean = 0;
    int32_t p50 = 0, p99 = 0;  // the smallest that so many percent do not exceed
    int64_t sum = 0;
  };
  struct RankShare {
    int32_t rank = 0;  // 0: not stated
    int64_t adapters = 0, requests = 0;
  };
  int64_t requests = 0;
  double seconds = 0;  // from the start to the last request
  double rate = 0;     // a second, between the first and the last
  double gap_cv = 0;   // standard deviation of the gaps by their mean
  Lengths prompt, output;
  int64_t base_requests = 0;  // of no adapter
  int64_t adapters = 0;
  std::string most_asked;  // the adapter with the most requests
  int64_t most_asked_requests = 0;
  std::vector<RankShare> ranks;  // ascending
  // Tokens of prompts that an earlier request began with, and of those what an earlier
  // one of the same adapter did.
  int64_t shared_tokens = 0, shared_by_adapter_tokens = 0;
  int64_t apps = 0, keys = 0;
};
WorkloadSummary summarise_workload(std::span<const WorkloadRequest> requests);

// Lines for a terminal.
std::string summary_text(const WorkloadSummary& summary);

}  // namespace loralei
