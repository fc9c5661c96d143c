// SPDX-License-Identifier: Apache-2.0
// row_charts(): the rows of a report as charts. Rows of one unit share one; where a part
// of their names is a number that goes up (b1, b8, b32; t1, t8; 1.5gb, 2.0gb) it is the x
// of a curve, else each row is a bar. A row's bound and its peer stand beside it.
//
// Thread: any; pure. Failure: none.
#pragma once

#include <string>
#include <vector>

#include "bench/report.h"
#include "report/chart.h"

namespace loralei {

std::vector<Chart> row_charts(const BenchReport& report);

// Of a served workload (bench trace, simulate): what its rows say by class, as bars.
std::vector<Chart> load_row_charts(const BenchReport& report);
bool is_load_report(const BenchReport& report);

// The row of this name behind its scenario ("all.first_token.p50_ms" of simulate and of
// trace), or null.
const BenchRow* find_row(const BenchReport& report, const std::string& name);

}  // namespace loralei
