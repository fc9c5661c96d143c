// SPDX-License-Identifier: Apache-2.0
// What `simulate` and `bench trace --simulate` share: a profile by name or file, a run,
// and what it says as rows and plots.
//
// One thread. Failure: sentences that name file or option.
#pragma once

#include <string>

#include "bench/report.h"
#include "cost/profile.h"
#include "sim/simulate.h"

namespace loralei {

inline constexpr int32_t kSimulationSamples = 300;

// A file, or one of those that come with the program.
Result<Profile> find_profile(const std::string& name);

// Rows begin with `prefix`; curves are named "simulated".
void add_simulation(const std::string& prefix, const Workload& workload, const sim::SimulatedRun& run,
                    const ServedObjectives& objectives, BenchReport& report);

}  // namespace loralei
