// SPDX-License-Identifier: Apache-2.0
// ProgressPrinter: long work as one line with rate and time left on a terminal, as a few
// log lines elsewhere. Called from one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/log.h"

namespace loralei {

class ProgressPrinter {
 public:
  // `log_s`: seconds from one log line to the next.
  ProgressPrinter(std::string what, LogSink& log, int log_s = 5);
  ~ProgressPrinter();
  void update(int64_t done_bytes, int64_t total_bytes);
  // Of the work, so much was done before: it says nothing about the rate.
  void begin_at(int64_t done_bytes) { begin_bytes_ = done_bytes; }

 private:
  const std::string what_;
  LogSink& log_;
  const SteadyClock clock_;
  const int64_t start_ns_;
  const int64_t log_ns_;
  const bool terminal_;
  int64_t begin_bytes_ = 0;
  int64_t last_ns_ = 0;
  bool drawn_ = false;
};

}  // namespace loralei
