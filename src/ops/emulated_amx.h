// SPDX-License-Identifier: Apache-2.0
// The table of a machine with AMX on one without: the kernels' own sources, compiled over
// tiles in software, for tests. One step further than the processor: what it would refuse
// ends the test (shapes that do not fit, tiles that are not configured or hold nothing),
// and sanitizers see which memory tiles touch.
//
// Thread: any; every thread has tiles of its own. Failure: none.
#pragma once

#include <vector>

#include "ops/op_table.h"

namespace loralei {

// Empty where the vectors of those kernels are missing (AVX-512 VNNI and AVX512_BF16).
std::vector<const OpTable*> emulated_amx_tables();

}  // namespace loralei
