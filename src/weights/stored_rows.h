// SPDX-License-Identifier: Apache-2.0
// Rows of a matrix that a checkpoint stores in several parts (formats/stored_form.h), put
// together in the blocks of its dtype; or with inputs before outputs, put in order.
//
// Pure functions but for the files they read; any thread.
// Every byte of the parts is read once for each unit of rows that has some of it. Where
// inputs lie one after the other (GPTQ, AWQ, crossed), a unit is read in strips of 32, so
// that what is held beside the result does not depend on the width of a matrix.
// Numbers are kept: a scale that f16 does not hold, in a format whose blocks have one of
// f16, is refused, and so is what would be another number in the blocks (codes of NaN in
// e4m3 or e8m0, zero points that are not what the config says).
// Failure: read errors; sentences with the matrix and the row (corrupt, unsupported).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "formats/tensor_index.h"
#include "sys/file.h"

namespace loralei {

// Of `scratch` for so many rows of a tensor with a stored form.
int64_t stored_scratch_bytes(const TensorInfo& info, int64_t row_count);

// Rows [row_begin, row_begin + row_count), row_begin a multiple of 16, to `out`:
// row_count * row_bytes(info.dtype, cols).
Status read_stored_rows(std::span<const std::shared_ptr<File>> files, const TensorInfo& info, int64_t row_begin,
                        int64_t row_count, std::byte* out, std::span<std::byte> scratch);

}  // namespace loralei
