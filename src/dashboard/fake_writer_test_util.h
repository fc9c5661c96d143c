// SPDX-License-Identifier: Apache-2.0
// A stream whose reader does as a test says.
// Thread-safe. Ownership: keeps what was written. Failure: none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"

namespace loralei {

class FakeWriter final : public ResponseWriter {
 public:
  bool respond(int, HttpHeaders, std::string) override { return false; }
  bool start_stream(int, HttpHeaders) override { return true; }
  bool respond_pieces(int, HttpHeaders, NextPiece) override { return false; }
  bool write(std::string_view chunk) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return false;
    written_.emplace_back(chunk);
    changed_.notify_all();
    return true;
  }
  bool wants_more() const override {
    const std::lock_guard lock(mutex_);
    return !slow_ && !gone_ && !finished_;
  }
  void on_room(std::function<void()>) override {}
  void finish() override {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
  }
  void on_closed(std::function<void()>) override {}
  bool closed() const override {
    const std::lock_guard lock(mutex_);
    return gone_;
  }

  void be_slow(bool slow) {
    const std::lock_guard lock(mutex_);
    slow_ = slow;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  bool finished() const {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  std::vector<std::string> written() const {
    const std::lock_guard lock(mutex_);
    return written_;
  }
  bool wait_for(size_t events) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return written_.size() >= events; });
  }
  bool wait_for_end() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return finished_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> written_;
  bool slow_ = false, gone_ = false, finished_ = false;
};

}  // namespace loralei
