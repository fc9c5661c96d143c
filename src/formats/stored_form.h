// SPDX-License-Identifier: Apache-2.0
// StoredForm: where the parts of a matrix lie that a checkpoint stores as several
// tensors (whole numbers, e4m3 or e2m1, their scales, and zero points), or with its
// numbers in another order.
//
// A plain value.
// Invariants after a successful read: parts lie within their files; shapes fit those of
// the matrix; `group` is a multiple of the blocks as which the matrix is given
// (TensorInfo::dtype), or all of a row.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace loralei {

// rows: outputs, cols: inputs. Words are 32 bits, little-endian.
enum class StoredKind : uint8_t {
  kGptq,     // words [cols * bits / 32, rows]: of each column's inputs the lowest bits first;
             // scales [groups, rows], zeros words [groups, rows * bits / 32]
  kAwq,      // words [cols, rows / 8]: outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight from the lowest
             // bits on; scales [groups, rows], zeros words [groups, rows / 8] as the
             // quants
  kPacked,   // words [rows, cols * bits / 32], of unsigned numbers; scales [rows, groups], zeros
             // words [rows * bits / 32, groups]
  kBytes,    // bytes [rows, cols], of int8 or e4m3; scales [rows / group_rows, groups]
  kMxfp4,    // e2m1 [rows * row_step, cols], the first of two in the low half of a byte;
             // scales [rows * row_step, cols / 32], of e8m0
  kCrossed,  // numbers [cols, rows * row_step] in the matrix's own format; of a vector of
             // `rows` cols is 1
};

struct StoredPart {
  uint32_t file = 0;
  int64_t offset = 0;
};

struct StoredForm {
  StoredKind kind = StoredKind::kBytes;
  int bits = 8;
  int64_t group = 0;       // inputs that share a scale
  int64_t groups = 0;      // of a row
  int64_t group_rows = 1;  // outputs that share a scale
  // Outputs that are stored, and the first that is the matrix's own, a multiple of 16:
  // others may lie in front of it and behind (fused_tensors.h).
  int64_t rows = 0, row_begin = 0;
  DType scale_dtype = DType::kF16;
  // What is added to a stored zero point; without zero points it is the middle, 8 or 128.
  int zero_offset = 0;
  bool zeros_are_middle = false;  // those that are stored must be the middle, or that less one
  bool has_zeros = false;
  // Row i is stored as row i * row_step + row_first: several matrices in turn.
  int64_t row_step = 1, row_first = 0;
  StoredPart quants, scales, zeros;
};

}  // namespace loralei
