// SPDX-License-Identifier: Apache-2.0
// ConsoleLog: the LogSink of the commands, over spdlog, to standard output (servers) or standard error (tools).
// Thread-safe. Ownership: owns its logger. One line per event; as JSON objects with --log-format json.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"

namespace spdlog {
class logger;
}

namespace loralei {

class ConsoleLog final : public LogSink {
 public:
  struct Options {
    LogLevel level = LogLevel::kInfo;
    bool json = false;
    bool to_stdout = false;
  };
  explicit ConsoleLog(const Options& options);
  ~ConsoleLog() override;
  void log(LogLevel level, std::string_view message) override;
  void set_level(LogLevel level);

 private:
  std::shared_ptr<spdlog::logger> logger_;
  bool json_ = false;
};

}  // namespace loralei
