// SPDX-License-Identifier: Apache-2.0
// What a served workload looks like: distributions, latency over time, memory over time.
// The same plots live and simulated, which share a plot where both are drawn.
//
// Pure functions.
#pragma once

#include <span>
#include <string>

#include "report/chart.h"
#include "workload/served.h"

namespace loralei {

struct LoadPicture {
  std::span<const WorkloadRequest> workload;
  std::span<const ServedRequest> served;  // beside it
  const GapCounts* gaps = nullptr;
  std::span<const LoadSample> samples;  // in the order of time
  ServedObjectives objectives;
};

// `who` names the curves ("live", "simulated"); curves are added to the plots of the same
// title.
void add_load_plots(const std::string& who, const LoadPicture& picture, std::vector<Chart>& plots);

}  // namespace loralei
