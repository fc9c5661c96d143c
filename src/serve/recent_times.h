// SPDX-License-Identifier: Apache-2.0
// RecentTimes: the median and the tails of what was measured in the last seconds, as
// percentiles by nearest rank of the measured values themselves.
//
// Thread-safe. Adding costs a lock and a store.
// Ownership: owns at most kKept values.
// Invariant: what is told is of the last kWindowNs, or of the newest kKept values where
// more came in that time: then `window_s` is what these span.
// Failure: none.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace loralei {

class RecentTimes {
 public:
  static constexpr size_t kKept = 16'384;
  static constexpr int64_t kWindowNs = 10'000'000'000;

  struct Shown {
    int64_t count = 0;  // 0: the rest means nothing
    double p50 = 0, p90 = 0, p99 = 0;
    double window_s = 0;
  };

  void add(int64_t now_ns, double seconds);
  Shown shown(int64_t now_ns) const;

 private:
  struct Value {
    int64_t at_ns = 0;
    double seconds = 0;
  };
  mutable std::mutex mutex_;
  std::vector<Value> values_;  // a ring once it is full
  size_t next_ = 0;            // where the next one goes, of a full ring
};

// Of answers: until the first token, and between two tokens of a choice.
struct RecentAnswerTimes {
  RecentTimes first_token, between_tokens;
};

}  // namespace loralei
