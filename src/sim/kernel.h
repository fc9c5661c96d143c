// SPDX-License-Identifier: Apache-2.0
// Kernel: virtual time. Events in the order of (time, priority, sequence of being
// planned); knows nothing of what they mean.
//
// Thread: one. Ownership: owns its events; whoever borrows the clock is outlived by it.
// Invariants: time never goes back; no event is planned for the past; two kernels that
// are told the same run the same. Cost: the logarithm of the events that are planned.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"

namespace loralei::sim {

// Of events at the same time: what has ended is known before anybody decides, and who
// arrives is seen by that decision, too.
enum class EventOrder : uint8_t { kEnded, kArrival, kDecision };

// Of seconds, to the nearest nanosecond, as long as a profile may say: 0 to 10,000 s, so
// that no sum of times is too large for a clock.
int64_t simulated_ns(double seconds);

class Kernel {
 public:
  using Event = std::function<void()>;

  int64_t now_ns() const { return clock_.now_ns(); }
  const Clock& clock() const { return clock_; }
  void at(int64_t time_ns, EventOrder order, Event event);
  void after(int64_t delay_ns, EventOrder order, Event event) { at(now_ns() + delay_ns, order, std::move(event)); }
  // Runs the next event; false: there is none.
  bool step();
  void run() {
    while (step()) {
    }
  }
  bool idle() const { return heap_.empty(); }  // nothing is planned
  uint64_t events() const { return events_; }  // that have run

 private:
  struct Planned {
    int64_t time_ns = 0;
    EventOrder order = EventOrder::kDecision;
    uint64_t sequence = 0;
    Event event;
    bool operator>(const Planned& other) const {
      if (time_ns != other.time_ns) return time_ns > other.time_ns;
      if (order != other.order) return order > other.order;
      return sequence > other.sequence;
    }
  };

  ManualClock clock_;
  std::vector<Planned> heap_;  // the next one at the front
  uint64_t next_sequence_ = 0, events_ = 0;
};

}  // namespace loralei::sim
