// SPDX-License-Identifier: Apache-2.0
#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/delta/delta_table.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"

namespace loralei {
namespace {
namespace neon_delta {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_neon.inl.h"
#include "ops/cpu/lanes/math.inl.h"
#include "ops/cpu/delta/gates.inl.h"
#include "ops/cpu/delta/causal_conv.inl.h"
#include "ops/cpu/delta/delta_panel.inl.h"
#include "ops/cpu/delta/delta_rule.inl.h"
#include "ops/cpu/delta/gated_norm.inl.h"
// clang-format on

}  // namespace neon_delta
}  // namespace
}  // namespace loralei

namespace loralei {

void causal_conv_neon(OpContext& ctx, const CausalConvArgs& args) { neon_delta::causal_conv(ctx, args); }
void delta_rule_neon(OpContext& ctx, const DeltaRuleArgs& args) { neon_delta::delta_rule(ctx, args); }
void gated_norm_neon(OpContext& ctx, const GatedNormArgs& args) { neon_delta::gated_norm(ctx, args); }

}  // namespace loralei

#endif
