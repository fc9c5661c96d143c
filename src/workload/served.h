// SPDX-License-Identifier: Apache-2.0
// What became of a workload's requests, live or simulated, and what that says: times to
// the first token, between tokens and to the end, by rank of the adapter and by length of
// the prompt.
//
// Plain values and pure functions. Times are from the start of the workload; a request's
// clock starts when it is due, not when it was sent. A percentile is the smallest value
// that so many reach (nearest rank). Percentiles of gaps are exact to 1 %.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "workload/workload.h"

namespace loralei {

struct ServedRequest {
  int64_t first_ns = -1, end_ns = -1;  // -1: it never came
  int32_t tokens = 0;                  // of the answer
  int32_t cached_tokens = 0;           // of the prompt
  bool failed = false;                 // it ended with an error, or was refused
};

// What a server, or all replicas together, held at a moment.
struct LoadSample {
  int64_t at_ns = 0;
  int32_t running = 0, waiting = 0;                // requests; waiting: for whatever
  int64_t kv_used_bytes = 0, kv_cached_bytes = 0;  // cached: of prefixes that nobody uses
  int64_t adapters_used_bytes = 0, adapters_idle_bytes = 0;
};

// Counts of durations in buckets that are 1 % wide.
class GapCounts {
 public:
  void add(int64_t ns);
  void add(const GapCounts& other);
  int64_t count() const { return count_; }
  double percentile_s(double share) const;  // 0 where there is none
  // Shares of the gaps that are no longer than so many seconds, ascending.
  std::vector<std::pair<double, double>> distribution() const;

 private:
  static size_t bucket_of(int64_t ns);
  static double seconds_of(size_t bucket);
  std::vector<int64_t> buckets_;
  int64_t count_ = 0;
};

// `share` of 0.99: the 99th percentile. 0 where there is no value.
double percentile(std::vector<double> values, double share);

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles_of(std::vector<double> values);

// What a request is to keep, in seconds; none: whatever.
struct ServedObjectives {
  std::optional<double> first_s;  // to its first token
  std::optional<double> token_s;  // of its time from when it is due to its end, for each token of its answer
  bool any() const { return first_s || token_s; }
};

// Requests that have something in common.
struct ServedClass {
  std::string name;  // "all", "rank_16", "base", "prompt_1k"
  int64_t requests = 0, failed = 0;
  // Of those that ended well. token_s: to the end, for each token.
  Percentiles first_s, end_s, token_s;
  double mean_first_s = 0, mean_end_s = 0, mean_token_s = 0;
};

struct ServedSummary {
  std::vector<ServedClass> classes;             // all, by rank, by length of the prompt
  Percentiles gap_s;                            // between two tokens
  double seconds = 0;                           // from the start to the last end
  double requests_per_s = 0, tokens_per_s = 0;  // that ended well, of answers
  double offered_per_s = 0;                     // requests that were due; 0 where all were at once
  // Of those that ended well, within all objectives: so many a second, and their share of
  // all requests; 0 without objectives.
  double good_per_s = 0, good_share = 0;
};

// `served` beside `workload`.
ServedSummary summarise(std::span<const WorkloadRequest> workload, std::span<const ServedRequest> served,
                        const GapCounts& gaps, const ServedObjectives& objectives);

}  // namespace loralei
