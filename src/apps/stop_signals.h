// SPDX-License-Identifier: Apache-2.0
// StopSignals: SIGTERM, SIGINT and SIGHUP of a server, taken by one thread from its start to its end.
//
// Thread: made and destroyed by the one that starts all others (they inherit that the signals are blocked); serving()
// and wait() from it, too. Ownership: owns its thread, borrows the log. Invariants: while the server starts, the first
// SIGTERM or SIGINT ends the process at once: nothing is being answered, and a model laid out in part is gone on with
// the next time. Once it serves, the first one is told by wait() and a second one ends the process. SIGHUP is never
// lost: one that comes during the start is told afterwards. Failure: none.
#pragma once

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace loralei {

class StopSignals {
 public:
  enum class Event : unsigned char { kRescan, kEnd };

  explicit StopSignals(LogSink& log);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void serving();  // the start is over
  Event wait();    // sleeps until there is something to do

 private:
  void run();
  void take(int signal);  // caller holds mutex_

  LogSink& log_;
  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool serving_ = false, rescan_ = false, ending_ = false, done_ = false;
  std::thread thread_;
};

}  // namespace loralei
