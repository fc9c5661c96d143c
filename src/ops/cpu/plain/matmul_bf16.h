// SPDX-License-Identifier: Apache-2.0
// OpTable::matmul for bf16 weights (layout kPlain) with inputs rounded to bf16, on a
// machine with AVX512_BF16. Scratch: rounded_scratch_bytes (scratch.h).
#pragma once

#include "ops/op_table.h"

namespace loralei {

void matmul_rounded_bf16(OpContext& ctx, const MatmulArgs& args);

}  // namespace loralei
