// SPDX-License-Identifier: Apache-2.0
// Clock: the one source of time for policies. A seam with a simulated twin (ManualClock).
// Thread-safe. Monotonic: now_ns never decreases.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace loralei {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
  double now_s() const { return static_cast<double>(now_ns()) * 1e-9; }
};

class SteadyClock final : public Clock {
 public:
  int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
  void advance_ns(int64_t delta_ns) { now_ns_.fetch_add(delta_ns, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

}  // namespace loralei
