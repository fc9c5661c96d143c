// SPDX-License-Identifier: Apache-2.0
// HelperKeeper: starts helpers, tells them the adapters there are, notices when one ends,
// and puts another one in its place, for as long as a pool lives.
//
// Thread: its own starts, watches and reaps; it sleeps in poll(). The rest is called by
// the pool's caller, one thread; helper_pids(), ready() and restarts() by any.
// Ownership: the processes until the caller takes them, then together with it.
// Invariants: a helper that is handed out knows every adapter that was learnt before and
// not forgotten. One that answered nothing before it ended is started again after a pause
// that grows from kPauseMinNs to kPauseMaxNs; others at once.
// Failure: create() answers why the first helpers did not start; later it is logged.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "assist/assist_factors.h"
#include "assist/helper_process.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "sys/readable.h"

namespace loralei {

class HelperKeeper {
 public:
  static constexpr int64_t kPauseMinNs = 10'000'000, kPauseMaxNs = 5'000'000'000;
  struct Options {
    std::string program;
    std::vector<std::string> args;
    int32_t helpers = 0;
    std::vector<int> cpus;
    AssistChannel::Settings settings;
    int64_t start_at_most_ns = 0;  // until a helper is ready
  };
  using Life = std::shared_ptr<HelperProcess>;

  // Waits until each helper is ready, or the time is over.
  static Result<std::unique_ptr<HelperKeeper>> create(Options options, const Clock& clock, LogSink& log);
  ~HelperKeeper();

  void learn(AdapterVersionId version, const AssistFactors& factors);
  void forget(AdapterVersionId version);
  bool knows(AdapterVersionId version) const { return known_.count(version.value) != 0; }

  // Whether a helper has come up in this place; cheap.
  bool has_news(size_t helper) const { return news_[helper].load(std::memory_order_acquire); }
  // Puts it in the place of the one before.
  void take(size_t helper, Life& life);

  int32_t ready() const { return ready_.load(std::memory_order_relaxed); }
  uint64_t restarts() const { return restarts_.load(std::memory_order_relaxed); }
  std::vector<int> helper_pids() const;

 private:
  // Where one helper after the other sits; of the keeper's thread.
  struct Seat {
    Life life;
    std::string last_words;
    int64_t start_ns = 0;  // without a life: when to start; before it is ready: when it is too late
    int64_t pause_ns = 0;
    bool ready = false;
    bool deaf = false;  // its socket has ended
  };

  HelperKeeper(Options options, const Clock& clock, LogSink& log, WakeEvent wakes);
  void run();
  void stop_all();
  void start_due();
  void start(size_t index);
  void watch();
  void hear(size_t index);
  void bring_up(size_t index);
  void bury(size_t index, const std::string& how);
  void fail(size_t index, const Error& error);
  int64_t next_due_ns() const;
  void tell_all(ControlKind kind, uint64_t version, const AssistFactors* factors);

  const Options options_;
  const Clock& clock_;
  LogSink& log_;
  const WakeEvent wakes_;
  std::vector<Seat> seats_;
  std::vector<std::atomic<bool>> news_;  // [seat]
  std::atomic<int32_t> ready_{0};
  std::atomic<uint64_t> restarts_{0};

  mutable std::mutex mutex_;  // of all below
  std::condition_variable settled_;
  std::map<uint64_t, AssistFactors> known_;  // written by the caller's thread alone
  std::vector<Life> up_;                     // [seat] those that are told of adapters as they come
  std::vector<Life> fresh_;                  // [seat] and are not taken yet
  std::vector<Life> old_;                    // to be let go on the keeper's thread
  std::vector<bool> tried_;                  // [seat]
  std::optional<Error> first_error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loralei
