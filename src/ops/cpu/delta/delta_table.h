// SPDX-License-Identifier: Apache-2.0
// The kernels of gated linear attention, for the tables in avx2.cc, avx512.cc and
// neon.cc; each is compiled apart from the others' bodies. Thread, ownership and
// failure as in op_table.h; a function is there where its instruction set's file is
// compiled.
#pragma once

#include "ops/op_table.h"

namespace loralei {

void causal_conv_avx2(OpContext& ctx, const CausalConvArgs& args);
void delta_rule_avx2(OpContext& ctx, const DeltaRuleArgs& args);
void gated_norm_avx2(OpContext& ctx, const GatedNormArgs& args);
void causal_conv_avx512(OpContext& ctx, const CausalConvArgs& args);
void delta_rule_avx512(OpContext& ctx, const DeltaRuleArgs& args);
void gated_norm_avx512(OpContext& ctx, const GatedNormArgs& args);
void causal_conv_neon(OpContext& ctx, const CausalConvArgs& args);
void delta_rule_neon(OpContext& ctx, const DeltaRuleArgs& args);
void gated_norm_neon(OpContext& ctx, const GatedNormArgs& args);

// Rows of all groups of a call.
inline int64_t rows_of(std::span<const StateRows> groups) {
  int64_t rows = 0;
  for (const StateRows& group : groups) rows += group.row_count;
  return rows;
}

}  // namespace loralei
