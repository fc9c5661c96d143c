// SPDX-License-Identifier: Apache-2.0
#include "sched/wait_times.h"

#include "base/check.h"

namespace loralei {
namespace {

size_t index_of(WaitCause cause) { return static_cast<size_t>(cause); }

}  // namespace

void WaitTimes::advance(int64_t now_ns) {
  CHECK(now_ns >= queue_since_ns_);
  queue_ns_[index_of(queue_cause_)] += now_ns - queue_since_ns_;
  queue_since_ns_ = now_ns;
}

void WaitTimes::came(int64_t arrived_ns, int64_t now_ns) {
  CHECK(now_ns >= arrived_ns);
  totals_ns_[index_of(WaitCause::kTurn)] += now_ns - arrived_ns;
}

void WaitTimes::queue_waits_for(WaitCause cause, int64_t now_ns) {
  CHECK(index_of(cause) < WaitClock::kQueueCauses);
  advance(now_ns);
  queue_cause_ = cause;
}

void WaitTimes::waits_for(WaitClock& clock, std::optional<WaitCause> cause, int64_t now_ns) {
  if (clock.cause_ == cause) return;
  advance(now_ns);
  if (clock.cause_ == WaitCause::kTurn) {
    for (size_t i = 0; i < WaitClock::kQueueCauses; ++i) totals_ns_[i] += queue_ns_[i] - clock.queue_ns_[i];
  } else if (clock.cause_) {
    totals_ns_[index_of(*clock.cause_)] += now_ns - clock.since_ns_;
  }
  clock.cause_ = cause;
  clock.since_ns_ = now_ns;
  clock.queue_ns_ = queue_ns_;
}

}  // namespace loralei
