// SPDX-License-Identifier: Apache-2.0
// merge_chart(): what belongs in one picture. Thread: any; pure. Failure: none; what does
// not fit together (bars and curves of one title) stands in a chart of its own.
#pragma once

#include <vector>

#include "report/chart.h"

namespace loralei {

// The series of `chart` join those of the chart of the same title, or it becomes one of
// its own. Categories meet by name.
void merge_chart(const Chart& chart, std::vector<Chart>& charts);

}  // namespace loralei
