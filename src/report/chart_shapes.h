// SPDX-License-Identifier: Apache-2.0
// The two shapes of a chart (report/chart.h), each whole.
#pragma once

#include <cstddef>
#include <string>

#include "report/chart.h"

namespace loralei {

std::string curves_svg(const Chart& chart);
std::string bars_svg(const Chart& chart);
// The colour of a series: a bound has that of what it bounds.
size_t colour_of(const Chart& chart, size_t series);
std::string missing_note(size_t missing, const char* what);  // what is in the table only

}  // namespace loralei
