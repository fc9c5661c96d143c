// SPDX-License-Identifier: Apache-2.0
#include "apps/stop_signals.h"

#include <cstdlib>

namespace loralei {
namespace {

constexpr int kExitBySignal = 128;  // and its number, as shells count
constexpr int kExitSecondSignal = 130;

}  // namespace

StopSignals::StopSignals(LogSink& log) : log_(log) {
  sigemptyset(&signals_);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { run(); });
}

StopSignals::~StopSignals() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGHUP);
  thread_.join();
}

void StopSignals::run() {
  for (;;) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    const std::lock_guard lock(mutex_);
    if (done_) return;
    take(signal);
    changed_.notify_all();
  }
}

void StopSignals::take(int signal) {
  if (signal == SIGHUP) {
    rescan_ = true;
    return;
  }
  if (!serving_) {
    log_.log(LogLevel::kInfo, "stopped while starting");
    std::_Exit(kExitBySignal + signal);
  }
  if (ending_) std::_Exit(kExitSecondSignal);
  ending_ = true;
}

void StopSignals::serving() {
  const std::lock_guard lock(mutex_);
  serving_ = true;
}

StopSignals::Event StopSignals::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || rescan_; });
  if (ending_) return Event::kEnd;
  rescan_ = false;
  return Event::kRescan;
}

}  // namespace loralei
