// SPDX-License-Identifier: Apache-2.0
// ConsoleLog: the LogSink of the commands, formatted by spdlog, to standard output
// (servers) or standard error (tools).
//
// Thread-safe; nobody who logs waits: a thread of its own writes (sys/line_writer.h).
// Ownership: owns its logger and its writer.
// Invariants: one line per event, as a JSON object with --log-format json; all text
// passes printable() here, and here alone.
// Failure: what a pipe that nobody reads leaves no room for is dropped,
// counted and told later.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "sys/line_writer.h"

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
    int descriptor = -1;  // another one, for tests
    LineWriter::Limits limits;
  };
  explicit ConsoleLog(const Options& options);
  ~ConsoleLog() override;  // waits half a second at most for what is queued

  void log(LogLevel level, std::string_view message) override;
  void event(LogLevel level, std::string_view name, const LogFields& fields, std::string_view sentence = {}) override;
  LogState state() const override { return {writer_->dropped_lines(), writer_->stuck_ms()}; }
  bool flush(int64_t timeout_ms) override { return writer_->flush(timeout_ms); }
  // What is said whatever the level: `text`, line by line and without a time before it,
  // or as JSON the event.
  void announce(std::string_view name, const LogFields& fields, std::string_view text);
  void set_level(LogLevel level);
  // Of a server: to standard output, by the words of --log-level and --log-format.
  static Options of_server(const std::string& level, const std::string& format);

 private:
  const bool json_;
  const std::shared_ptr<LineWriter> writer_;
  const std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace loralei
