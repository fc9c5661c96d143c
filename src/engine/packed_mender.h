// SPDX-License-Identifier: Apache-2.0
// PackedMender: makes a packed file that was found to be damaged again, while
// the server runs.
//
// Thread: begin(), take() and running() from one thread; the work runs on a thread of
// its own, which ends with the object, soon after it was told to.
// Failure: what the work answers; where the system gives no thread, that sentence.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/result.h"

namespace loralei {

class PackedMender {
 public:
  using Make = std::function<Result<std::string>(const std::stop_token&)>;  // answers the file's path

  PackedMender() = default;
  ~PackedMender() { stop(); }
  PackedMender(const PackedMender&) = delete;
  PackedMender& operator=(const PackedMender&) = delete;

  bool running() const { return thread_.joinable(); }  // begun, and what came of it not taken yet
  void begin(Make make);
  std::optional<Result<std::string>> take();  // nothing while it is under way
  void stop();

 private:
  mutable std::mutex mutex_;
  std::optional<Result<std::string>> made_;
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace loralei
