// SPDX-License-Identifier: Apache-2.0
// What a served workload says as rows of a report: the same rows live and simulated.
// A pure function.
#pragma once

#include <optional>
#include <string>

#include "bench/report.h"
#include "workload/served.h"

namespace loralei {

// Names begin with `prefix` ("simulate.", "trace.").
void add_load_rows(const std::string& prefix, const ServedSummary& summary, std::optional<double> slo_first_s,
                   BenchReport& report);

}  // namespace loralei
