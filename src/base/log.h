// SPDX-License-Identifier: Apache-2.0
// LogSink: where rooms report events. Libraries never print; apps/ supplies the sink
// (spdlog), tests a collecting one.
//
// Thread-safe. Never blocks: it is called from the engine's thread between steps and from
// those that serve clients.
// Invariant: a message is one line. Text from outside may stand in it as it is: the sink
// makes it printable (base/printable.h).
// Failure: what has no room is dropped, and state() counts it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace loralei {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError };

// A named value of an event. Borrows its text.
struct LogField {
  LogField(std::string_view name, std::string_view text) : name(name), value(text) {}
  LogField(std::string_view name, const char* text) : name(name), value(std::string_view(text)) {}
  LogField(std::string_view name, const std::string& text) : name(name), value(std::string_view(text)) {}
  LogField(std::string_view name, double number) : name(name), value(number) {}
  LogField(std::string_view name, std::integral auto number) : name(name), value(static_cast<int64_t>(number)) {}

  std::string_view name;                                  // snake_case
  std::variant<std::string_view, int64_t, double> value;  // a double is written with one digit behind the point
};
using LogFields = std::vector<LogField>;

// How well the sink gets rid of what it is told.
struct LogState {
  uint64_t dropped_lines = 0;  // since the start
  int64_t stuck_ms = 0;        // for how long what is being written has not been taken; 0: nothing waits
};

class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void log(LogLevel level, std::string_view message) = 0;
  // What has a name, values, and a sentence if there is more to say. A sink without
  // fields logs the line that event_text() makes of it.
  virtual void event(LogLevel level, std::string_view name, const LogFields& fields, std::string_view sentence = {});
  virtual LogState state() const { return {}; }
  // Waits until what has been told is written, at most so long; false: not all of it is.
  virtual bool flush(int64_t /*timeout_ms*/) { return true; }
};

// "request refused id=7 status=404: There is no such route." A text that is empty
// is written as "-", one that could be taken for something else (spaces, quotes,
// '=') between quotes.
std::string event_text(std::string_view name, const LogFields& fields, std::string_view sentence = {});

// A text of ours that has several lines, each as a message of its own.
void log_lines(LogSink& log, LogLevel level, std::string_view text);

class NullLogSink final : public LogSink {
 public:
  void log(LogLevel, std::string_view) override {}
};

}  // namespace loralei
