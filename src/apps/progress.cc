// SPDX-License-Identifier: Apache-2.0
#include "apps/progress.h"

#include <unistd.h>

#include <cstdio>

#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kRedrawNs = 100'000'000;
constexpr int64_t kSecondNs = 1'000'000'000;

}  // namespace

ProgressPrinter::ProgressPrinter(std::string what, LogSink& log, int log_s)
    : what_(std::move(what)),
      log_(log),
      start_ns_(clock_.now_ns()),
      log_ns_(log_s * kSecondNs),
      terminal_(isatty(STDERR_FILENO) != 0),
      last_ns_(start_ns_) {}

ProgressPrinter::~ProgressPrinter() {
  if (drawn_ && terminal_) std::fputs("\r\033[K", stderr);
}

void ProgressPrinter::update(int64_t done_bytes, int64_t total_bytes) {
  const int64_t now = clock_.now_ns();
  if (now - last_ns_ < (terminal_ ? kRedrawNs : log_ns_)) return;
  last_ns_ = now;
  const double seconds = static_cast<double>(now - start_ns_) * 1e-9;
  const double rate = static_cast<double>(done_bytes - begin_bytes_) / seconds;
  const double left_s = rate > 0 ? static_cast<double>(total_bytes - done_bytes) / rate : 0;
  char line[160];
  std::snprintf(line, sizeof line, "%s %s of %s, %s/s, %.0f s left", what_.c_str(), format_bytes(done_bytes).c_str(),
                format_bytes(total_bytes).c_str(), format_bytes(static_cast<int64_t>(rate)).c_str(), left_s);
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line);
    drawn_ = true;
  } else {
    log_.log(LogLevel::kInfo, line);
  }
}

}  // namespace loralei
