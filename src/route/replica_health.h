// SPDX-License-Identifier: Apache-2.0
// ReplicaHealth: whether a replica is asked, and for how much. One that fails is left
// out, for longer each time; an answer to a look at it brings it back, slowly: what it
// may have at once grows from one request to all that it has room for.
//
// Thread: one. No clock: times are handed in. Failure: none.
// Invariants: a replica of which nothing was heard is not asked, and is up as soon as it
// is heard; only heard() ends the time out, and not before it is over, unless another
// process answers than the one that failed.
#pragma once

#include <cstdint>

namespace loralei {

struct HealthOptions {
  int64_t out_first_ns = 1'000'000'000;  // left out after a failure; twice as long after each further one
  int64_t out_most_ns = 30'000'000'000;
  int64_t return_ns = 10'000'000'000;  // until it has all that it has room for again
  int64_t forget_ns = 60'000'000'000;  // without a failure: the next one is a first one
};

// kLeft: it is no longer of the fleet, and what runs there ends.
enum class HealthState : uint8_t { kUnknown, kUp, kReturning, kNotReady, kOut, kLeft };
const char* health_state_name(HealthState state);

class ReplicaHealth {
 public:
  explicit ReplicaHealth(const HealthOptions& options = {}) : options_(options) {}

  // It answered, and says whether it takes requests; anew: for the first time since it
  // was started.
  void heard(bool ready, int64_t now_ns, bool anew = false);
  void failed(int64_t now_ns);  // it could not be reached, or broke off
  HealthState state(int64_t now_ns) const;
  bool usable(int64_t now_ns) const;
  // Of `most` requests at once, how many it may have now.
  int32_t allowed(int32_t most, int64_t now_ns) const;
  uint64_t failures() const { return failures_; }

 private:
  HealthOptions options_;
  bool heard_ = false, ready_ = false, out_ = false;
  int64_t out_until_ns_ = 0, failed_ns_ = 0, back_ns_ = 0;
  bool returns_ = false;
  int32_t in_row_ = 0;  // failures
  uint64_t failures_ = 0;
};

}  // namespace loralei
