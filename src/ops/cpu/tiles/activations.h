// SPDX-License-Identifier: Apache-2.0
// How the integer products lay out a rounded layer input in the scratch: plain numbers,
// any thread, no ownership.
//
// Rows come in groups of `rows` (a compile-time number of the kernel that reads them);
// a group holds, block of 32 inputs after block, everything its rows need there, and
// nothing else, for all of it should stay in near caches:
//
//   q  int8 [rows][32]     rounded numbers
//   d  f32  [rows]         their scale dx
//   s  f32  [rows]         dx * sum of q, for formats with a minimum
//   or
//   z  int32[1 or 2][rows] what a dot product with unsigned weights starts from:
//                          -(zero point) * sum of q, for formats with halves for each
//                          half of the block
//
// Which one it is depends on the format of the weights; inputs are written out in each
// form a call needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/args.h"

namespace loralei {

enum class ZeroPoint { kNone = -1, k8 = 0, k16 = 1, k128 = 2, k32Low = 3, k32High = 4 };

constexpr int zero_value(ZeroPoint zero) {
  switch (zero) {
    case ZeroPoint::kNone:
      return 0;
    case ZeroPoint::k8:
      return 8;
    case ZeroPoint::k16:
      return 16;
    case ZeroPoint::k128:
      return 128;
    case ZeroPoint::k32Low:
    case ZeroPoint::k32High:
      return 32;
  }
  return 0;
}

// Which of them a format wants.
enum class RowForm { kSum, kZero8, kZero16, kZero128, kHalvesZero32 };
// Forms that are written out together, at most, where the scratch has room for both; one
// always fits. Products that need more follow in a turn of their own. The widest inputs
// of a model mostly belong to one matrix, so both fit.
constexpr int kRowFormsTogether = 2;

constexpr RowForm row_form(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return RowForm::kZero8;
    case DType::kQ5_0:
      return RowForm::kZero16;
    case DType::kQ8_0:
      return RowForm::kZero128;
    case DType::kQ6_K:
      return RowForm::kHalvesZero32;
    default:
      return RowForm::kSum;
  }
}

constexpr int group_d_at(int rows) { return rows * kActivationBlock; }
constexpr int group_s_at(int rows) { return rows * (kActivationBlock + 4); }  // or the first z
constexpr int group_z_at(int rows, ZeroPoint zero) {
  return group_s_at(rows) + (zero == ZeroPoint::k32High ? 4 * rows : 0);
}
constexpr int group_block_bytes(int rows, bool halves) { return rows * (kActivationBlock + (halves ? 12 : 8)); }
constexpr bool has_halves(RowForm form) { return form == RowForm::kHalvesZero32; }

// The bytes of all groups of up to `rows` rows of `cols` inputs, whatever the sizes of
// the groups and their form.
constexpr int64_t activation_bytes(int64_t rows, int64_t cols) {
  constexpr int64_t kGroupMax = 16;
  return (rows + kGroupMax) * ((cols + kActivationBlock - 1) / kActivationBlock) * group_block_bytes(1, true);
}

// What a worker of the kernels for many rows holds: for each of two tiles sixteen
// blocks of weights in their wide form (eight word rows and two rows of scales each),
// and the sums of 128 rows.
constexpr int64_t tile_worker_bytes() { return 2 * (16 * (8 + 2) * 64 + 128 * 16 * 4); }

}  // namespace loralei
