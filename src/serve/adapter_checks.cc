// SPDX-License-Identifier: Apache-2.0
#include "serve/adapter_checks.h"

#include <algorithm>
#include <chrono>

#include "serve/adapter_sources.h"
#include "sys/threads.h"

namespace loralei {
namespace {

constexpr size_t kThreads = 4;  // reading headers is mostly waiting for a disk, or for another machine

}  // namespace

void AdapterChecks::begin(std::vector<CatalogueEntry> adapters) {
  const std::lock_guard beginning(begin_mutex_);
  size_t wanted = 0;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || adapters.empty()) return;
    ended = working_ == 0;
    if (ended) {
      state_ = {};
      begun_ns_ = clock_.now_ns();
    }
    state_.all += adapters.size();
    for (CatalogueEntry& adapter : adapters) todo_.push_back(std::move(adapter));
    wanted = std::min(kThreads, todo_.size());
    wanted -= std::min(wanted, working_);
    working_ += wanted;
  }
  if (ended) {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  for (; wanted > 0; --wanted) {
    auto thread = start_thread([this] { work(); });
    if (thread.ok()) {
      threads_.push_back(std::move(*thread));
      continue;
    }
    const std::lock_guard lock(mutex_);
    working_ -= wanted;
    if (working_ > 0) return;
    log_.log(LogLevel::kWarning,
             std::to_string(todo_.size()) +
                 " adapters are not checked, their first requests will tell: " + thread.error().message);
    state_.all = state_.checked;
    todo_.clear();
    changed_.notify_all();
    return;
  }
}

AdapterChecks::State AdapterChecks::wait(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  // Whoever ends last tells what was found; it may be one that had nothing to look at.
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                    [&] { return stopped_ || (state_.complete() && working_ == 0); });
  return state_;
}

void AdapterChecks::stop() {
  const std::lock_guard beginning(begin_mutex_);
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    todo_.clear();
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void AdapterChecks::work() {
  name_this_thread("adapter-check");
  std::unique_lock lock(mutex_);
  while (!todo_.empty()) {
    const CatalogueEntry adapter = std::move(todo_.front());
    todo_.pop_front();
    look_at(adapter, lock);
  }
  // Who ends last has seen the others' work; more may be begun as soon as
  // the lock is gone.
  if (--working_ > 0 || stopped_) return;
  const State state = state_;
  const double seconds = static_cast<double>(clock_.now_ns() - begun_ns_) * 1e-9;
  finish(state, seconds);
  changed_.notify_all();
}

void AdapterChecks::look_at(const CatalogueEntry& adapter, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const Status status = engine_.check_adapter(source_spec(adapter));
  lock.lock();
  if (!status.ok()) {
    if (state_.broken++ < kNamed) {
      state_.named.push_back({adapter.name, status.error().message});
      log_.event(LogLevel::kWarning, "adapter broken", {{"adapter", adapter.name}}, status.error().message);
    }
  }
  ++state_.checked;
}

void AdapterChecks::finish(const State& state, double seconds) {
  std::string sentence;
  if (state.broken > state.named.size())
    sentence = std::to_string(state.broken - state.named.size()) +
               " more are broken than are named here; GET /v1/adapters tells of each.";
  log_.event(state.broken > 0 ? LogLevel::kWarning : LogLevel::kInfo, "adapters checked",
             {{"adapters", state.checked}, {"broken", state.broken}, {"seconds", seconds}}, sentence);
}

}  // namespace loralei
