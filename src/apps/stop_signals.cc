// SPDX-License-Identifier: Apache-2.0
#include "apps/stop_signals.h"

#include <algorithm>
#include <cstdlib>

namespace loralei {
namespace {

constexpr int kExitBySignal = 128;  // and its number, as shells count
constexpr int64_t kFlushMs = 200;   // for the last lines of the log

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
  Time deadline = Time::max();
  for (;;) {
    const int signal = next_signal(deadline);
    const std::lock_guard lock(mutex_);
    if (done_) return;
    if (signal != 0) {
      take(signal);
      changed_.notify_all();
    } else if (std::chrono::steady_clock::now() >= deadline_) {
      log_.log(LogLevel::kError, "The time to stop in is over: what is still under way is left behind.");
      leave(kExitTimedOut);
    }
    deadline = deadline_;
  }
}

int StopSignals::next_signal(Time deadline) const {
  int signal = 0;
  if (deadline == Time::max()) return sigwait(&signals_, &signal) == 0 ? signal : 0;
  const auto left = std::max(std::chrono::nanoseconds(0), deadline - std::chrono::steady_clock::now());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec time{.tv_sec = static_cast<time_t>(seconds.count()),
                      .tv_nsec = static_cast<long>((left - seconds).count())};
  return std::max(0, sigtimedwait(&signals_, nullptr, &time));
}

void StopSignals::take(int signal) {
  if (signal == SIGHUP) {
    rescan_ = true;
    return;
  }
  if (!serving_) {
    log_.log(LogLevel::kInfo, "stopped while starting");
    leave(kExitBySignal + signal);
  }
  if (ending_) leave(kExitSecondSignal);
  ending_ = true;
  deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(end_within_ms_);
}

void StopSignals::leave(int status) {
  log_.flush(kFlushMs);
  std::_Exit(status);
}

void StopSignals::serving(int64_t end_within_ms) {
  const std::lock_guard lock(mutex_);
  serving_ = true;
  end_within_ms_ = end_within_ms;
}

StopSignals::Event StopSignals::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || rescan_; });
  if (ending_) return Event::kEnd;
  rescan_ = false;
  return Event::kRescan;
}

}  // namespace loralei
