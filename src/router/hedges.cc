// SPDX-License-Identifier: Apache-2.0
#include "router/hedges.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "sys/threads.h"

namespace loralei {

Status Hedges::start() {
  TRY_ASSIGN(thread_, start_thread([this] {
               name_this_thread("hedges");
               run();
             }));
  return {};
}

void Hedges::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Hedges::add(std::weak_ptr<Hedged> request) {
  const std::lock_guard lock(mutex_);
  saved_ = std::min(kSavedMost, saved_ + kShare);
  due_.push_back({clock_.now_ns() + after_ns_, std::move(request)});
  if (due_.size() == 1) changed_.notify_all();
}

bool Hedges::take() {
  const std::lock_guard lock(mutex_);
  if (saved_ < 1) return false;
  saved_ -= 1;
  return true;
}

void Hedges::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const int64_t left_ns = due_.front().at_ns - clock_.now_ns();
    if (left_ns > 0) {
      changed_.wait_for(lock, std::chrono::nanoseconds(left_ns));
      continue;
    }
    const std::shared_ptr<Hedged> request = due_.front().request.lock();
    due_.pop_front();
    if (!request) continue;
    lock.unlock();
    request->hedge();
    lock.lock();
  }
}

}  // namespace loralei
