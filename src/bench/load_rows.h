// SPDX-License-Identifier: Apache-2.0
// What a served workload says as rows of a report: the same rows live and simulated.
// Pure functions.
#pragma once

#include <string>

#include "bench/report.h"
#include "engine/api.h"
#include "workload/served.h"

namespace loralei {

// Names begin with `prefix` ("simulate.", "trace.").
void add_load_rows(const std::string& prefix, const ServedSummary& summary, const ServedObjectives& objectives,
                   BenchReport& report);

// What the servers counted meanwhile: waiting by cause (a request's mean), hits, what
// moved. `counted`: the sum of all replicas.
void add_count_rows(const std::string& prefix, const EngineStats& counted, int64_t requests, BenchReport& report);

// Of counters alone: `now` less `before`, or added up.
EngineStats counts_since(const EngineStats& now, const EngineStats& before);
void add_counts(const EngineStats& other, EngineStats& sum);

}  // namespace loralei
