// SPDX-License-Identifier: Apache-2.0
// What is done with every number of an adapter on its way to its place: it is looked at,
// and rows of B are transposed (load_plan.h says what goes where).
//
// Pure functions, any thread, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adapters/load_plan.h"
#include "tensor/dtype.h"

namespace loralei {

// Index of the first number that is NaN or infinite, or -1. Plain formats only.
int64_t first_not_finite(DType dtype, const std::byte* bytes, int64_t count);

// Rows [row, row + count) of the placement's tensor [rows, cols], in a plain format, to
// their places: those of them that the placement takes, from `place` on.
void place_rows(const Placement& placement, DType dtype, int64_t row, int64_t count, const std::byte* source,
                std::byte* place);

}  // namespace loralei
