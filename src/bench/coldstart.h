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

}  // namespace loralei
