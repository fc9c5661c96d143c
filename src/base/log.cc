// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <algorithm>
#include <cstdio>

namespace loralei {
namespace {

std::string value_text(std::string_view text) {
  if (text.empty()) return "-";
  if (text != "-" && text.find_first_of(" \"=\\") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}
std::string value_text(int64_t number) { return std::to_string(number); }
std::string value_text(double number) {
  char text[340];  // the longest finite double
  std::snprintf(text, sizeof text, "%.1f", number);
  return text;
}

}  // namespace

std::string event_text(std::string_view name, const LogFields& fields, std::string_view sentence) {
  std::string line(name);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.name;
    line += '=';
    line += std::visit([](auto value) { return value_text(value); }, field.value);
  }
  if (!sentence.empty()) line.append(": ").append(sentence);
  return line;
}

void log_lines(LogSink& log, LogLevel level, std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    log.log(level, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void LogSink::event(LogLevel level, std::string_view name, const LogFields& fields, std::string_view sentence) {
  log(level, event_text(name, fields, sentence));
}

}  // namespace loralei
