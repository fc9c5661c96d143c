// SPDX-License-Identifier: Apache-2.0
// LogSink: where rooms report events. Libraries never print; apps/ supplies the sink (spdlog), tests a collecting one.
// Thread-safe. Must not block for long: it is called from the engine thread between steps.
#pragma once

#include <string_view>

namespace loralei {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError };

class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void log(LogLevel level, std::string_view message) = 0;
};

class NullLogSink final : public LogSink {
 public:
  void log(LogLevel, std::string_view) override {}
};

}  // namespace loralei
