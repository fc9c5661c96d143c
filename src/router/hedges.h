// SPDX-License-Identifier: Apache-2.0
// Hedges: streams of which nothing has come for a while are sent to a second replica; who
// begins first goes on, and the other one is cancelled (Dean and Barroso, The Tail at
// Scale, 2013).
//
// Thread-safe; a thread of its own, on which entries are told.
// Ownership: shares entries weakly.
// Invariants: an entry is told once, `after_ns` behind add(). A slow fleet is not made to
// do everything twice: of requests at most kShare are hedged, and kSavedMost in a row.
// Failure: start() where no thread can be had.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/result.h"

namespace loralei {

// A request that may be hedged.
class Hedged {
 public:
  virtual ~Hedged() = default;
  virtual void hedge() = 0;
};

class Hedges {
 public:
  static constexpr double kShare = 0.1, kSavedMost = 10;

  Hedges(int64_t after_ns, const Clock& clock) : after_ns_(after_ns), clock_(clock) {}
  ~Hedges() { stop(); }
  Status start();
  void stop();  // nobody is told from then on

  void add(std::weak_ptr<Hedged> request);
  // Whether one more is to be sent twice; it is counted then.
  bool take();

 private:
  struct Due {
    int64_t at_ns = 0;
    std::weak_ptr<Hedged> request;
  };
  void run();

  const int64_t after_ns_;
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Due> due_;  // guarded by mutex_, as those below; in the order of time
  double saved_ = 1;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loralei
