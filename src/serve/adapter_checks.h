// SPDX-License-Identifier: Apache-2.0
// AdapterChecks: config and headers of registered adapters, looked at before anybody asks
// for them, so that a broken one is told at start and not by its first request.
//
// Thread: any; the looking is done by a few threads of its own that end with the work.
// Ownership: borrows everything; outlived by it.
// Invariants: every adapter given to begin() is looked at once; the end of the work
// has one line in the log, with how many were broken, and the first kNamed broken
// ones a line each. The engine is told of each (Engine::check_adapter), so that
// AdapterStatus says it too.
// Failure: where the system gives no thread the log says that nobody looks; the first
// request of an adapter does.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/api.h"
#include "store/catalogue.h"

namespace loralei {

class AdapterChecks {
 public:
  static constexpr size_t kNamed = 20;  // broken ones that are named
  AdapterChecks(Engine& engine, const Clock& clock, LogSink& log) : engine_(engine), clock_(clock), log_(log) {}
  ~AdapterChecks() { stop(); }

  struct Broken {
    std::string name, sentence;
  };
  struct State {
    size_t all = 0, checked = 0, broken = 0;
    std::vector<Broken> named;  // the first kNamed that were found broken
    bool complete() const { return checked == all; }
  };
  // What is being looked at already goes on.
  void begin(std::vector<CatalogueEntry> adapters);
  // Of the work begun last, after waiting up to so long for its end.
  State wait(int64_t timeout_ms);
  void stop();  // leaves what was not begun; idempotent

 private:
  void work();
  void look_at(const CatalogueEntry& adapter, std::unique_lock<std::mutex>& lock);
  void finish(const State& state, double seconds);
  Engine& engine_;
  const Clock& clock_;
  LogSink& log_;
  std::mutex begin_mutex_;  // held by begin() and stop() as a whole
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<CatalogueEntry> todo_;
  State state_;
  size_t working_ = 0;
  int64_t begun_ns_ = 0;
  bool stopped_ = false;
};

}  // namespace loralei
