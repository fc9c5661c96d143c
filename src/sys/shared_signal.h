// SPDX-License-Identifier: Apache-2.0
// SharedSignal: a number in memory that processes share. One side posts values, the other
// waits for the next one.
//
// Thread: one poster and one waiter at a time, in any processes; nothing is locked, so
// that either may die at any moment: the other has the last value that was posted.
// Ownership: none; lies in somebody's SharedMemory, where zeroed bytes are a signal of
// value 0.
// Invariant: what was written before post(v) is seen by who has read v.
// Posting makes a system call only while the other side sleeps.
// Failure: none; wait() may come back early, its answer is the value.
#pragma once

#include <atomic>
#include <cstdint>

namespace loralei {

class SharedSignal {
 public:
  void post(uint32_t value);
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  // Waits while the value is `seen`, at most so long; the first `spin_ns` without giving
  // the core up. Answers the value.
  uint32_t wait(uint32_t seen, int64_t spin_ns, int64_t at_most_ns);

 private:
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  alignas(64) std::atomic<uint32_t> value_{0};
  alignas(64) std::atomic<uint32_t> sleeps_{0};  // written by the waiter alone
};

}  // namespace loralei
