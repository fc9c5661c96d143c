// SPDX-License-Identifier: Apache-2.0
#include "apps/console_log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>
#include <map>

#include <cmath>
#include <mutex>
#include <type_traits>

#include "base/printable.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

constexpr const char* kName = "loralei";

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::unique_ptr<spdlog::formatter> make_formatter(bool json) {
  return std::make_unique<spdlog::pattern_formatter>(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})" : "%H:%M:%S.%e %L %v",
      spdlog::pattern_time_type::local, "");
}

std::string formatted(spdlog::formatter& formatter, const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter.format(message, line);
  return {line.data(), line.size()};
}

class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(std::shared_ptr<LineWriter> writer) : writer_(std::move(writer)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override { writer_->push(formatted(*formatter_, message)); }
  void flush_() override {}
  const std::shared_ptr<LineWriter> writer_;
};

// The inside of a JSON object.
std::string json_message(std::string_view message) {
  JsonOut out;
  out.key("message").string(printable(message));
  return out.take();
}

std::string json_event(std::string_view name, const LogFields& fields, std::string_view sentence) {
  JsonOut out;
  out.key("event").string(name);
  for (const LogField& field : fields) {
    out.key(field.name);
    std::visit(
        [&out](auto value) {
          if constexpr (std::is_same_v<decltype(value), std::string_view>)
            out.string(printable(value));
          else if constexpr (std::is_same_v<decltype(value), int64_t>)
            out.number(value);
          else
            out.real(std::round(value * 10) / 10);
        },
        field.value);
  }
  if (!sentence.empty()) out.key("message").string(printable(sentence));
  return out.take();
}

std::string dropped_payload(bool json, uint64_t count) {
  const std::string sentence =
      std::to_string(count) + " lines of this log were dropped: nobody read them as fast as they came.";
  return json ? json_event("log lines dropped", {{"lines", count}}, sentence) : sentence;
}

std::shared_ptr<LineWriter> make_writer(const ConsoleLog::Options& options) {
  int descriptor = options.to_stdout ? STDOUT_FILENO : STDERR_FILENO;
  if (options.descriptor >= 0) descriptor = options.descriptor;
  // With a formatter of its own, since it may outlive the log.
  const std::shared_ptr<spdlog::formatter> formatter = make_formatter(options.json);
  const auto dropped_line = [formatter, json = options.json](uint64_t count) {
    return formatted(*formatter, {kName, spdlog::level::warn, dropped_payload(json, count)});
  };
  return std::make_shared<LineWriter>(descriptor, dropped_line, options.limits);
}

}  // namespace

ConsoleLog::ConsoleLog(const Options& options)
    : json_(options.json),
      writer_(make_writer(options)),
      logger_(std::make_shared<spdlog::logger>(kName, std::make_shared<QueueSink>(writer_))) {
  logger_->set_formatter(make_formatter(json_));
  set_level(options.level);
}

ConsoleLog::~ConsoleLog() = default;

void ConsoleLog::set_level(LogLevel level) { logger_->set_level(spdlog_level(level)); }

void ConsoleLog::log(LogLevel level, std::string_view message) {
  if (!logger_->should_log(spdlog_level(level))) return;
  logger_->log(spdlog_level(level), json_ ? json_message(message) : printable(message));
}

void ConsoleLog::event(LogLevel level, std::string_view name, const LogFields& fields, std::string_view sentence) {
  if (!logger_->should_log(spdlog_level(level))) return;
  logger_->log(spdlog_level(level),
               json_ ? json_event(name, fields, sentence) : printable(event_text(name, fields, sentence)));
}

void ConsoleLog::announce(std::string_view name, const LogFields& fields, std::string_view text) {
  if (json_) {
    writer_->push(formatted(*make_formatter(true), {kName, spdlog::level::info, json_event(name, fields, {})}));
    return;
  }
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    writer_->push(printable(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

ConsoleLog::Options ConsoleLog::of_server(const std::string& level, const std::string& format) {
  static const std::map<std::string, LogLevel> kLevels = {{"debug", LogLevel::kDebug},
                                                          {"info", LogLevel::kInfo},
                                                          {"warning", LogLevel::kWarning},
                                                          {"error", LogLevel::kError}};
  Options options;
  options.level = kLevels.at(level);
  options.json = format == "json";
  options.to_stdout = true;
  return options;
}

}  // namespace loralei
