// SPDX-License-Identifier: Apache-2.0
#include "engine/packed_mender.h"

#include <utility>

#include "sys/threads.h"

namespace loralei {

void PackedMender::begin(Make make) {
  auto thread = start_thread([this, make = std::move(make), stop = stop_.get_token()] {
    name_this_thread("mender");
    auto made = make(stop);
    const std::lock_guard lock(mutex_);
    made_ = std::move(made);
  });
  if (thread.ok()) {
    thread_ = std::move(thread).value();
  } else {
    made_ = std::move(thread).error();
  }
}

std::optional<Result<std::string>> PackedMender::take() {
  std::optional<Result<std::string>> made;
  {
    const std::lock_guard lock(mutex_);
    made.swap(made_);
  }
  if (made && thread_.joinable()) thread_.join();
  return made;
}

void PackedMender::stop() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace loralei
