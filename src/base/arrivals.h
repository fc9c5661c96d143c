// SPDX-License-Identifier: Apache-2.0
// Arrivals: how much of something is there that comes piece by piece in a known order
// (the layers of an adapter), told by who brings it to those who wait for it.
//
// Thread: advance() and fail() by one thread, the others by any.
// Ownership: a plain object, shared by both sides.
// Invariants: there() grows from 0 to total() and whoever has seen it (acquire) may read
// those pieces; after fail() nothing more comes, and it is never whole.
// Failure: status() has the sentence of fail().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/result.h"

namespace loralei {

class Arrivals {
 public:
  explicit Arrivals(int32_t total) : total_(total) {}
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // --- who brings it
  void advance();          // one piece more
  void fail(Error error);  // the first one counts; not after the last piece

  // --- who waits for it
  int32_t total() const { return total_; }
  int32_t there() const { return there_.load(std::memory_order_acquire); }
  bool whole() const { return there() == total_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const;
  // Until `pieces` are there: true; false where it failed or so much time has passed.
  bool wait(int32_t pieces, int64_t at_most_ns) const;

 private:
  const int32_t total_;
  std::atomic<int32_t> there_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Status status_;
};

}  // namespace loralei
