// SPDX-License-Identifier: Apache-2.0
// Figures of this process. Any thread; each call reads /proc.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace loralei {

struct ProcessMemory {
  int64_t rss_bytes = 0;       // resident now
  int64_t rss_peak_bytes = 0;  // the most since start
};
Result<ProcessMemory> process_memory();
double process_cpu_s();  // user and system time of all threads since start

}  // namespace loralei
