// SPDX-License-Identifier: Apache-2.0
// EventFeed: the thread that makes snapshots for EventListeners. It begins with the first
// listener and sleeps while there is none.
//
// Thread: any; stop() by one, not by the feed's own.
// Ownership: owns its thread; what `snapshot` borrows outlives stop().
// Invariant: `snapshot` is called on one thread, for listeners alone.
// Failure: follow() answers why no stream can be had.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "dashboard/event_listeners.h"

namespace loralei {

class EventFeed {
 public:
  // snapshot: JSON without a line end. It may wait for a while.
  EventFeed(const Clock& clock, std::function<std::string()> snapshot)
      : clock_(clock), snapshot_(std::move(snapshot)) {}
  ~EventFeed() { stop(); }

  // `begin` begins the stream; null: its client has left.
  Status follow(const EventQuery& query, const std::function<std::shared_ptr<ResponseWriter>()>& begin);
  void drain();  // streams end soon, and no more are taken; does not wait
  void stop();   // drains and waits; a second call does nothing
  size_t listeners() const { return listeners_.size(); }

 private:
  Status begin_thread();
  void run();
  void wake();

  const Clock& clock_;
  const std::function<std::string()> snapshot_;
  EventListeners listeners_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t changes_ = 0;   // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;     // guarded by mutex_; begun by the first listener
};

}  // namespace loralei
