// SPDX-License-Identifier: Apache-2.0
// OpTable::matmul for bf16 and f16 weights (layout kPlain) on a machine with AMX-BF16,
// which request_amx() has granted. Scratch: matrix_scratch_bytes (scratch.h).
#pragma once

#include "ops/op_table.h"

namespace loralei {

void matmul_halves_amx(OpContext& ctx, const MatmulArgs& args);

}  // namespace loralei
