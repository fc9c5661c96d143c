// SPDX-License-Identifier: Apache-2.0
// The vectorised kernels of this build. Null where the machine cannot run them or the
// build has none (other architectures).
#pragma once

#include "ops/op_table.h"

namespace loralei {

const OpTable* avx2_op_table();
const OpTable* avx2_vnni_op_table();
const OpTable* avx512_op_table();
const OpTable* avx512_vnni_op_table();
const OpTable* avx512_bf16_op_table();
const OpTable* amx_op_table();
const OpTable* neon_op_table();
const OpTable* neon_dotprod_op_table();
const OpTable* neon_i8mm_op_table();

}  // namespace loralei
