// SPDX-License-Identifier: Apache-2.0
// What the disk can do. One thread calls; the probe starts its own. The ceilings of
// memory and arithmetic are in ops/probe.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "weights/disk_probe.h"

namespace loralei {

// Reads `path` past the page cache in blocks of block_bytes, `depth` at a time, for about
// `seconds`. GB/s (1e9).
Result<double> probe_disk_gb_s(const std::string& path, int64_t block_bytes, int depth, double seconds);

// Answers the path of a file of 1 GiB in the folder, made if absent, for reading
// with the probe above.
Result<std::string> disk_probe_file(const std::string& cache_dir);

// weights/disk_probe.h for 0.7 seconds; `round` moves the place in the file.
Result<double> probe_round_gb_s(const std::string& path, int round, ProbedBlocks blocks = ProbedBlocks::kUntouched);

}  // namespace loralei
