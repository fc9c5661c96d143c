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
  ProgressPrinter(std::string what, LogSink& log);
  ~ProgressPrinter();
  void update(int64_t done_bytes, int64_t total_bytes);

 private:
  const std::string what_;
  LogSink& log_;
  const SteadyClock clock_;
  const int64_t start_ns_;
  const bool terminal_;
  int64_t last_ns_ = 0;
  bool drawn_ = false;
};

}  // namespace loralei
