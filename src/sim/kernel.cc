// SPDX-License-Identifier: Apache-2.0
#include "sim/kernel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace loralei::sim {

int64_t simulated_ns(double seconds) {
  constexpr double kMostS = 1e4;
  return std::llround(std::clamp(seconds, 0.0, kMostS) * 1e9);
}

void Kernel::at(int64_t time_ns, EventOrder order, Event event) {
  CHECK(time_ns >= now_ns() && event);
  heap_.push_back({time_ns, order, next_sequence_++, std::move(event)});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

bool Kernel::step() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const Planned next = std::move(heap_.back());
  heap_.pop_back();
  CHECK(next.time_ns >= now_ns());
  clock_.advance_ns(next.time_ns - now_ns());
  ++events_;
  next.event();
  return true;
}

}  // namespace loralei::sim
