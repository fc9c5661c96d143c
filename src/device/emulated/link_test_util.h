// SPDX-License-Identifier: Apache-2.0
// For tests: a link whose copies go when the test lets them, and fail when it says so.
// Thread-safe. The test's side outlives the link.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>

#include "device/emulated/link.h"

namespace loralei::testing_support {

class LinkHand {
 public:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max() / 2;
  // `copies` go without being let.
  explicit LinkHand(int64_t copies = 0) : allowed_(copies) {}

  // So many copies more may go.
  void let(int64_t copies) {
    const std::lock_guard lock(mutex_);
    allowed_ = std::min(kAll, allowed_ + copies);
    changed_.notify_all();
  }
  // None go any more but those that are let anew.
  void stall() {
    const std::lock_guard lock(mutex_);
    allowed_ = 0;
  }
  // Copies that are let end with it and bring nothing; nullopt: they go well.
  void fail(std::optional<Error> error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  // That were asked for: those that wait among them.
  int64_t asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  // Until so many were.
  void wait_asked(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_ >= count; });
  }
  std::unique_ptr<Link> link() { return std::make_unique<Held>(*this); }

 private:
  class Held final : public Link {
   public:
    explicit Held(LinkHand& hand) : hand_(hand) {}
    Status copy(std::span<const LinkPart> parts, int64_t, const std::stop_token& stop) override {
      return hand_.copy(parts, stop);
    }

   private:
    LinkHand& hand_;
  };
  Status copy(std::span<const LinkPart> parts, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    if (!changed_.wait(lock, stop, [&] { return allowed_ > 0; }))
      return Error{ErrorCode::kUnavailable, "the link of the test was closed"};
    if (allowed_ < kAll) --allowed_;
    if (error_) return *error_;
    lock.unlock();
    for (const LinkPart& part : parts) std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
    return {};
  }

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  int64_t allowed_ = 0, asked_ = 0;
  std::optional<Error> error_;
};

}  // namespace loralei::testing_support
