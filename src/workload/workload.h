// SPDX-License-Identifier: Apache-2.0
// A workload: which requests come when, without their texts. It lies in a file, a JSON
// object a line, that a live server's bench and the simulator both read
// (docs/workloads.md).
//
// Thread: plain values and pure functions, any thread; a file is read and written by
// the caller's thread.
// Invariants: what read_workload() answers and what write_workload() takes are the same.
// Times ascend; every length is at least 1; an adapter's rank is the same wherever it is
// stated; a file that was written reads back as what it was, to the nanosecond.
// Failure: "FILE:LINE: what is wrong there and what to do".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace loralei {

// Requests with the same id begin with the same tokens, as far as both say.
struct WorkloadPrefix {
  std::string id;
  int32_t tokens = 0;
  friend bool operator==(const WorkloadPrefix&, const WorkloadPrefix&) = default;
};

struct WorkloadRequest {
  int64_t at_ns = 0;    // from the start of the workload
  std::string adapter;  // empty: the base
  int32_t rank = 0;     // of the adapter; 0: not stated
  int32_t prompt_tokens = 0, output_tokens = 0;
  std::vector<WorkloadPrefix> prefixes;  // each longer than the one before, none longer than the prompt
  std::string app, key;                  // the application; the user or conversation
  friend bool operator==(const WorkloadRequest&, const WorkloadRequest&) = default;
};
using Workload = std::vector<WorkloadRequest>;

inline constexpr int64_t kWorkloadLinesMax = 10'000'000;
inline constexpr int64_t kWorkloadLineBytesMax = 1 << 20;
inline constexpr size_t kWorkloadPrefixesMax = 64;     // of one request
inline constexpr size_t kWorkloadNameBytesMax = 1024;  // of adapters, prefixes, apps and keys
// A double tells the nanoseconds of its seconds apart for about 50 days.
inline constexpr int64_t kWorkloadSecondsMax = 30 * 86400;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

// Empty lines and lines that begin with # hold nothing.
Result<Workload> read_workload(const std::string& path);

// One JSON object without a line's end; the keys always stand in the same order, and
// what is empty is left out.
std::string workload_line(const WorkloadRequest& request);

// The file is there completely or not at all. A request that read_workload() would
// refuse is refused here too, with the number of its line.
Status write_workload(const std::string& path, std::span<const WorkloadRequest> requests);

// "3.25" for 3,250,000,000 ns: as few digits as say it exactly.
std::string seconds_text(int64_t ns);

}  // namespace loralei
