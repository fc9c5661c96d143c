// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: a Collective whose ranks are threads of this process. Short sums each rank
// adds up for itself, so that all meet once. With long ones they work on each other's
// memory in place: each adds up a part and writes it to all.
//
// Thread: rank r's Collective by r's thread; fail() by any.
// Ownership: owns the ranks' Collectives. What a rank gives to a call is touched by the
// others until all have left it: whoever fails must keep it until their threads ended.
// Invariants: Collective's. A wait spins for some microseconds, yields for some more,
// then sleeps.
// Failure: Collective's. A rank that is late: not in a call that all others are in,
// within `late_ns`.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/collective.h"

namespace loralei {

struct ThreadGroupOptions {
  int64_t late_ns = int64_t{60} * 1'000'000'000;
};

class ThreadGroup {
 public:
  // 1 <= size <= kRanksMax.
  explicit ThreadGroup(int size, const ThreadGroupOptions& options = {});
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int size() const;
  Collective& rank(int rank);

 private:
  struct State;
  class Rank;
  std::unique_ptr<State> state_;
};

}  // namespace loralei
