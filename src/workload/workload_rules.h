// SPDX-License-Identifier: Apache-2.0
// What every request of a workload must hold to, alone and beside those before it. The
// reader and the writer ask the same rules, so that each reads what the other wrote.
//
// Thread: one at a time. Ownership: keeps the names of adapters it has seen.
// Failure: the sentence without the place.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "workload/workload.h"

namespace loralei {

class WorkloadRules {
 public:
  // The next request, which stands in line `line`.
  Status check(const WorkloadRequest& request, int64_t line);

 private:
  struct StatedRank {
    int32_t rank = 0;
    int64_t line = 0;
  };
  int64_t last_ns_ = 0;
  std::unordered_map<std::string, StatedRank> ranks_;  // by adapter
};

}  // namespace loralei
