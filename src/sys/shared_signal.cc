// SPDX-License-Identifier: Apache-2.0
#include "sys/shared_signal.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace loralei {
namespace {

int64_t steady_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kLooks = 16;  // between two looks at the clock

}  // namespace

void SharedSignal::post(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  // Either the waiter sees the value before it sleeps, or we see that it means to sleep.
  if (sleeps_.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t SharedSignal::wait(uint32_t seen, int64_t spin_ns, int64_t at_most_ns) {
  if (const uint32_t now = value(); now != seen) return now;
  const int64_t start = steady_ns(), end = start + std::max<int64_t>(at_most_ns, 0);
  const int64_t spin_end = start + std::min(spin_ns, at_most_ns);
  for (int64_t now_ns = start; now_ns < spin_end; now_ns = steady_ns()) {
    for (int i = 0; i < kLooks; ++i) {
      if (const uint32_t now = value(); now != seen) return now;
      cpu_relax();
    }
  }
  sleeps_.store(1, std::memory_order_seq_cst);
  uint32_t now = value_.load(std::memory_order_seq_cst);
  for (int64_t left = end - steady_ns(); now == seen && left > 0; left = end - steady_ns()) {
    const timespec most{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
    ::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &most, nullptr, 0);
    now = value();
  }
  sleeps_.store(0, std::memory_order_relaxed);
  return now;
}

}  // namespace loralei
