// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)

#if !defined(__clang__)
// As in avx512.cc.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/delta/delta_table.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"

LORALEI_TARGET_BEGIN_AVX512
namespace loralei {
namespace {
namespace avx512_delta {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_avx512.inl.h"
#include "ops/cpu/lanes/math.inl.h"
#include "ops/cpu/delta/gates.inl.h"
#include "ops/cpu/delta/causal_conv.inl.h"
#include "ops/cpu/delta/delta_panel.inl.h"
#include "ops/cpu/delta/delta_rule.inl.h"
#include "ops/cpu/delta/gated_norm.inl.h"
// clang-format on

}  // namespace avx512_delta
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {

void causal_conv_avx512(OpContext& ctx, const CausalConvArgs& args) { avx512_delta::causal_conv(ctx, args); }
void delta_rule_avx512(OpContext& ctx, const DeltaRuleArgs& args) { avx512_delta::delta_rule(ctx, args); }
void gated_norm_avx512(OpContext& ctx, const GatedNormArgs& args) { avx512_delta::gated_norm(ctx, args); }

}  // namespace loralei

#endif
