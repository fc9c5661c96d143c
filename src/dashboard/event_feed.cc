// SPDX-License-Identifier: Apache-2.0
#include "dashboard/event_feed.h"

#include <chrono>
#include <utility>

#include "sys/threads.h"

namespace loralei {

Status EventFeed::begin_thread() {
  const std::lock_guard lock(mutex_);
  if (stopping_) return Error{ErrorCode::kUnavailable, "The server is shutting down."};
  if (thread_.joinable()) return {};
  TRY_ASSIGN(thread_, start_thread([this] { run(); }));
  return {};
}

Status EventFeed::follow(const EventQuery& query, const std::function<std::shared_ptr<ResponseWriter>()>& begin) {
  TRY(listeners_.open());
  Status running = begin_thread();
  std::shared_ptr<ResponseWriter> writer = running.ok() ? begin() : nullptr;
  if (writer == nullptr) {
    listeners_.give_back();
    return running;
  }
  listeners_.add(std::move(writer), query, clock_.now_ns());
  wake();
  return {};
}

void EventFeed::drain() {
  listeners_.drain();
  wake();
}

void EventFeed::wake() {
  const std::lock_guard lock(mutex_);
  ++changes_;
  changed_.notify_all();
}

void EventFeed::stop() {
  drain();
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

void EventFeed::run() {
  name_this_thread("events");
  for (;;) {
    uint64_t seen = 0;
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      seen = changes_;
      stopping = stopping_;
    }
    const int64_t now_ns = clock_.now_ns();
    const std::optional<int64_t> next_ns = listeners_.next_ns();
    if (next_ns && *next_ns <= now_ns) {
      listeners_.tick(now_ns, snapshot_);
      continue;
    }
    if (stopping) return;
    std::unique_lock lock(mutex_);
    const auto news = [&] { return changes_ != seen || stopping_ != stopping; };
    if (next_ns) {
      changed_.wait_for(lock, std::chrono::nanoseconds(*next_ns - now_ns), news);
    } else {
      changed_.wait(lock, news);
    }
  }
}

}  // namespace loralei
