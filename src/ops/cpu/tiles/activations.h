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
//   s  f32  [1 or 2][rows] dx * sum of q, for formats with a minimum
//   or
//   z  int32[1 or 2][rows] what a dot product with unsigned weights starts from:
//                          -(zero point) * sum of q
//
// Both are of the whole block, or for formats with halves of each half.
//
// Which one it is depends on the format of the weights; inputs are written out in each
// form a call needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/args.h"

namespace loralei {

enum class ZeroPoint { kNone = 0, k4 = 4, k8 = 8, k12 = 12, k16 = 16, k32 = 32, k128 = 128 };

constexpr int zero_value(ZeroPoint zero) { return static_cast<int>(zero); }

// Which of them a format wants.
enum class RowForm { kSum, kHalfSums, kZero8, kZero12, kZero16, kZero128, kHalvesZero4, kHalvesZero32 };
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
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return RowForm::kZero128;
    case DType::kMXFP4:
      return RowForm::kZero12;
    case DType::kQ6_K:
      return RowForm::kHalvesZero32;
    case DType::kQ3_K:
      return RowForm::kHalvesZero4;
    case DType::kQ2_K:
      return RowForm::kHalfSums;
    default:
      return RowForm::kSum;
  }
}

constexpr int group_d_at(int rows) { return rows * kActivationBlock; }
constexpr int group_s_at(int rows, int half = 0) { return rows * (kActivationBlock + 4 + 4 * half); }
constexpr int group_z_at(int rows, int half = 0) { return group_s_at(rows, half); }
constexpr int group_block_bytes(int rows, bool halves) { return rows * (kActivationBlock + (halves ? 12 : 8)); }
constexpr bool has_halves(RowForm form) {
  return form == RowForm::kHalfSums || form == RowForm::kHalvesZero4 || form == RowForm::kHalvesZero32;
}

// The bytes of all groups of up to `rows` rows of `cols` inputs, whatever the sizes of
// the groups and their form.
constexpr int64_t activation_bytes(int64_t rows, int64_t cols) {
  constexpr int64_t kGroupMax = 16;
  return (rows + kGroupMax) * ((cols + kActivationBlock - 1) / kActivationBlock) * group_block_bytes(1, true);
}

// What a worker of the kernels for many rows holds: for each of two tiles sixteen
// blocks of weights in their wide form (eight word rows and up to four rows of scales and
// minima each, and a line between the tiles), and the sums of 128 rows.
constexpr int64_t tile_worker_bytes() { return 2 * (16 * (8 + 4) * 64 + 64 + 128 * 16 * 4); }

}  // namespace loralei
