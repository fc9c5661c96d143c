// SPDX-License-Identifier: Apache-2.0
// What bench coldstart's parts share: the files that are measured.
//
// One thread. Failure: a sentence when the measurement cannot be made.
#pragma once

#include <string>
#include <vector>

#include "bench/scenarios.h"

namespace loralei {

// Adapters of the rank, or --adapter's.
Result<std::vector<std::string>> cold_adapter_files(const BenchOptions& options, int rank);
// In rows: ".r64.qkv"; 0: of --adapter's, ".own".
std::string rank_name(const BenchOptions& options, int rank);

// First requests to adapters that lie in files, on the cores.
Status bench_coldstart_plain(const BenchOptions& options, LogSink& log, BenchReport& report);
// What the ways cost where all adapters are on the device.
Status bench_coldstart_unused(const BenchOptions& options, LogSink& log, BenchReport& report);

}  // namespace loralei
