// SPDX-License-Identifier: Apache-2.0
// CollectingLog: keeps what tests look at in a log. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace loralei {

class CollectingLog final : public LogSink {
 public:
  void log(LogLevel, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(message);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    lines_.clear();
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::string text() const {  // each line with its end
    std::string all;
    for (const std::string& line : lines()) all += line + "\n";
    return all;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace loralei
