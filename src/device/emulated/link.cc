// SPDX-License-Identifier: Apache-2.0
#include "device/emulated/link.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>

namespace loralei {
namespace {

// False: it was asked to stop.
bool sleep_for(int64_t ns, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, std::chrono::nanoseconds(ns), [] { return false; });
  return !stop.stop_requested();
}

}  // namespace

int64_t LinkTimes::copy_ns(int64_t bytes) const {
  return speed_.latency_ns + static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / speed_.bytes_per_s));
}

int64_t LinkTimes::deliver_ns(int64_t asked_ns, int64_t bytes) {
  free_at_ns_ = std::max(asked_ns, free_at_ns_) + copy_ns(bytes);
  return free_at_ns_;
}

Status ThrottledLink::copy(std::span<const LinkPart> parts, int64_t asked_ns, const std::stop_token& stop) {
  int64_t bytes = 0;
  for (const LinkPart& part : parts) bytes += part.bytes;
  const int64_t there_ns = times_.deliver_ns(asked_ns, bytes);
  for (int64_t left_ns = there_ns - clock_.now_ns(); left_ns > 0; left_ns = there_ns - clock_.now_ns()) {
    if (!sleep_for(left_ns, stop)) return Error{ErrorCode::kUnavailable, "The link to the device was closed."};
  }
  for (const LinkPart& part : parts) std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
  return {};
}

}  // namespace loralei
