// SPDX-License-Identifier: Apache-2.0
// What this machine can do besides kernels: disk and wake-up. One thread calls; the probes start their own. Kernel ceilings are in ops/probe.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace loralei {

// Reads `path` past the page cache in blocks of block_bytes, `depth` at a time, for about `seconds`. GB/s (1e9).
Result<double> probe_disk_gb_s(const std::string& path, int64_t block_bytes, int depth, double seconds);

// Median time in microseconds from one thread's notify to another thread running, over `rounds` round trips.
double probe_wakeup_us(int rounds);

}  // namespace loralei
