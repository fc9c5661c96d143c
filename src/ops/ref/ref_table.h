// SPDX-License-Identifier: Apache-2.0
// The reference kernels: plain loops, sums in double, every format through the codecs.
// They define what the fast kernels must compute and serve machines for which no fast
// kernels exist. Threads and ownership as in op_table.h.
#pragma once

#include "ops/op_table.h"

namespace loralei {

const OpTable& ref_op_table();
void ref_matmul_tiles(OpContext& ctx, const TileMatmulArgs& args);
void ref_matmul_tile_runs(OpContext& ctx, const TileRunsArgs& args);
void ref_causal_conv(OpContext& ctx, const CausalConvArgs& args);
void ref_delta_rule(OpContext& ctx, const DeltaRuleArgs& args);
void ref_gated_norm(OpContext& ctx, const GatedNormArgs& args);

}  // namespace loralei
