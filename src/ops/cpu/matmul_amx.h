// SPDX-License-Identifier: Apache-2.0
// OpTable::matmul for bf16 weights on a machine with AMX-BF16, and the scratch it needs.
#pragma once

#include "ops/op_table.h"

namespace loralei {

void matmul_bf16_amx(OpContext& ctx, const MatmulArgs& args);

}  // namespace loralei
