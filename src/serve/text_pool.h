// SPDX-License-Identifier: Apache-2.0
// TextPool: the threads that parse, render and tokenise, and the order in which
// jobs have them.
//
// Few jobs run at once, each with a turn. What a job costs is the bytes it was announced
// with or, where that is more, what it has spent; a factor of four is a class. After each
// slice of its work a job queues up again, and turns go to the cheapest class, within
// one to who came first, so that dear work holds nobody up for longer than a slice. Every
// fourth turn goes to who came first of all, so that dear work ends as well, however
// much cheap work comes. Cheap work has one turn more where dear work has them all: not
// everything that a job does is cut into slices. Thread-safe.
// Ownership: owns threads and jobs; the destructor runs what is queued.
// Invariants: a job that was taken is run once, to its end; a job that has begun keeps
// its thread until then, so what is begun is bounded, dear jobs to half of that.
// Failure: try_run() answers false when full or stopped.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/heartbeats.h"
#include "base/work.h"

namespace loralei {

struct TextJob {
  int64_t bytes = 0;               // of text that it begins with
  std::function<void(Work&)> run;  // ends soon when the work is stopped
  std::function<bool()> wanted;    // asked on its thread after each slice; false stops the work. Empty: always
};

class TextPool {
 public:
  static constexpr int kPlaces = 4;  // begun jobs for each turn

  TextPool(int turns, size_t capacity, const char* name, Heartbeats* beats = nullptr);
  ~TextPool();
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  bool try_run(TextJob job);
  bool wait_idle(int64_t timeout_ms);   // true: nothing runs or waits
  void cancel() { cancelled_ = true; }  // from now on all work stops at its next slice
  void stop();                          // runs what is queued, takes no more, joins

 private:
  class Begun;  // the watch of a job
  struct Entry {
    TextJob job;
    uint64_t order = 0;  // of arrival
    int cost_class = 0;
    bool begun = false;
    bool has_turn = false;
    std::condition_variable turn_comes;  // of one that has begun
  };
  using Entries = std::list<Entry>;

  void serve_jobs(Heartbeats* beats);
  // What follows holds the mutex.
  void give_turns();
  Entries::iterator choose();
  bool may_have_turn(const Entry& entry) const;
  // Ends the turn of one that has begun, and waits for its next.
  void queue_again(std::unique_lock<std::mutex>& lock, Entry& entry);

  const size_t turns_, places_, capacity_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::condition_variable job_comes_, idle_;
  Entries waiting_;                         // to begin, or to go on
  Entries running_;                         // have a turn
  std::deque<Entries::iterator> to_begin_;  // of those, who need a thread
  size_t not_begun_ = 0;                    // of those that wait
  size_t begun_ = 0, dear_begun_ = 0;
  uint64_t arrived_ = 0, turns_given_ = 0;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace loralei
