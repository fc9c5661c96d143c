// SPDX-License-Identifier: Apache-2.0
// The two loops of change.h in which its time goes, in the best instruction set that the
// machine has.
//
// Pure functions, any thread, no allocation. Each set sums in an order of its own, always
// the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace loralei {

inline constexpr int64_t kChangeRanks = 64;     // of a block
inline constexpr int64_t kChangeColumns = 512;  // zeros stand behind the end of a factor

using ChangeSquare = std::array<double, static_cast<size_t>(kChangeRanks* kChangeRanks)>;

struct ChangeProducts {
  const char* name = nullptr;
  // square[i, j] += row i of x times row j of y, blocks of [kChangeRanks, kChangeColumns]
  // of which so many rows count; where both are the same block, up to the diagonal at
  // least.
  void (*add)(const float* x, int64_t x_rows, const float* y, int64_t y_rows, ChangeSquare& square) = nullptr;
  // As decode_row, of plain formats.
  void (*decode)(DType dtype, const std::byte* source, float* out, int64_t count) = nullptr;
};

// The best one first; the last one runs everywhere.
std::span<const ChangeProducts> change_products();

}  // namespace loralei
