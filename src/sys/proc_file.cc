// SPDX-License-Identifier: Apache-2.0
#include "sys/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "sys/os_error.h"

namespace loralei {

Result<std::string> read_proc_file(const std::string& path) {
  constexpr size_t kLimitBytes = size_t{1} << 20;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return os_error("cannot open", path, errno);
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while (text.size() < kLimitBytes && ((got = ::read(fd, buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR))) {
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
  }
  const int reason = errno;
  ::close(fd);
  if (got < 0) return os_error("cannot read", path, reason);
  return text;
}

std::optional<int64_t> leading_number(std::string_view text) {
  const size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

std::optional<int64_t> field_kib(std::string_view text, std::string_view name) {
  size_t line = 0;
  while (line < text.size()) {
    const size_t end = std::min(text.find('\n', line), text.size());
    const std::string_view row = text.substr(line, end - line);
    if (row.starts_with(name)) {
      const std::optional<int64_t> value = leading_number(row.substr(name.size()));
      if (!value || *value < 0 || *value > INT64_MAX / 1024) return std::nullopt;
      return *value * 1024;
    }
    line = end + 1;
  }
  return std::nullopt;
}

}  // namespace loralei
