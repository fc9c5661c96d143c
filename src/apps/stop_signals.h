// SPDX-License-Identifier: Apache-2.0
// StopSignals: SIGTERM, SIGINT and SIGHUP of a server, taken by one thread from its start
// to its end, which also sees to it that the end comes in time.
//
// Thread: made and destroyed by the one that starts all others (they inherit that the
// signals are blocked); serving() and wait() from it, too.
// Ownership: owns its thread, borrows the log.
// Invariants: while the server starts, the first SIGTERM or SIGINT ends the process
// at once: nothing is being answered, and a model laid out in part is gone on with
// the next time. Once it serves, the first one is told by wait(), and the process ends
// with kExitSecondSignal at a second one and with kExitTimedOut when the time is over,
// whatever its other threads do: what is queued for the log is written within a moment,
// and nobody is waited for. SIGHUP is never lost: one that comes during the start
// is told afterwards.
// Failure: none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace loralei {

inline constexpr int kExitSecondSignal = 130;
inline constexpr int kExitTimedOut = 124;  // as timeout(1)

class StopSignals {
 public:
  enum class Event : unsigned char { kRescan, kEnd };

  explicit StopSignals(LogSink& log);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The start is over; from the first SIGTERM or SIGINT on, the process has so long
  // to end by itself.
  void serving(int64_t end_within_ms);
  Event wait();  // sleeps until there is something to do

 private:
  using Time = std::chrono::steady_clock::time_point;
  void run();
  int next_signal(Time deadline) const;  // 0: the time is over, or nothing has come
  // The caller holds mutex_.
  void take(int signal);
  [[noreturn]] void leave(int status);

  LogSink& log_;
  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool serving_ = false, rescan_ = false, ending_ = false, done_ = false;
  int64_t end_within_ms_ = 0;
  Time deadline_ = Time::max();  // once ending_
  std::thread thread_;
};

}  // namespace loralei
