// SPDX-License-Identifier: Apache-2.0
#include "base/arrivals.h"

#include <chrono>
#include <utility>

#include "base/check.h"

namespace loralei {

void Arrivals::advance() {
  {
    const std::lock_guard lock(mutex_);  // so that nobody begins to sleep in between
    CHECK(!failed() && there() < total_);
    there_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void Arrivals::fail(Error error) {
  {
    const std::lock_guard lock(mutex_);
    if (failed()) return;
    CHECK(!whole());
    status_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

Status Arrivals::status() const {
  if (!failed()) return {};
  const std::lock_guard lock(mutex_);
  return status_;
}

bool Arrivals::wait(int32_t pieces, int64_t at_most_ns) const {
  if (there() >= pieces) return true;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(at_most_ns), [&] { return there() >= pieces || failed(); });
  return there() >= pieces;
}

}  // namespace loralei
