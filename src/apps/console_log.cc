// SPDX-License-Identifier: Apache-2.0
#include "apps/console_log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace loralei {
namespace {

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

// The message as the inside of a JSON string.
std::string json_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

ConsoleLog::ConsoleLog(const Options& options) : json_(options.json) {
  spdlog::sink_ptr sink;
  if (options.to_stdout) {
    sink = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  logger_ = std::make_shared<spdlog::logger>("loralei", std::move(sink));
  logger_->set_pattern(options.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})"
                                    : "%H:%M:%S.%e %L %v");
  set_level(options.level);
  logger_->flush_on(spdlog::level::debug);
}

ConsoleLog::~ConsoleLog() = default;

void ConsoleLog::set_level(LogLevel level) { logger_->set_level(spdlog_level(level)); }

void ConsoleLog::log(LogLevel level, std::string_view message) {
  if (json_) {
    logger_->log(spdlog_level(level), json_text(message));
  } else {
    logger_->log(spdlog_level(level), message);
  }
}

}  // namespace loralei
