// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_table.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "device/host/isa.h"
#include "ops/cpu/attention/attention_plan.h"
#include "ops/cpu/delta/delta_table.h"
#include "ops/cpu/lora/lora_plan.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/cpu/tiles/tile_table.h"
#include "ops/tiles.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

LORALEI_TARGET_BEGIN_AVX2
namespace loralei {
namespace {
namespace avx2 {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_avx2.inl.h"
#include "ops/cpu/lanes/math.inl.h"
#include "ops/cpu/plain/decode.inl.h"
#include "ops/cpu/plain/product_out.inl.h"
#include "ops/cpu/plain/lane_product.inl.h"
#include "ops/cpu/plain/matmul.inl.h"
#include "ops/cpu/elementwise.inl.h"
#include "ops/cpu/lora/lora_factors.inl.h"
#include "ops/cpu/lora/lora.inl.h"
#include "ops/cpu/attention/attention_tile.inl.h"
#include "ops/cpu/attention/attention.inl.h"
// clang-format on

}  // namespace avx2
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {

const OpTable* avx2_op_table() {
  static constexpr OpTable table{
      .name = "avx2",
      .matmul = avx2::matmul,
      .matmul_tiles = matmul_tiles_avx2,
      .matmul_tile_runs = matmul_tile_runs_avx2,
      .lora = avx2::lora,
      .lora_embed = avx2::lora_embed,
      .lora_add = avx2::lora_add,
      .kv_store = avx2::kv_store,
      .attention = avx2::attention,
      .rms_norm = avx2::rms_norm,
      .rope_angles = avx2::rope_angles,
      .rope = avx2::rope,
      .swiglu = avx2::swiglu,
      .embed = avx2::embed,
      .add = avx2::add_rows,
      .scale = avx2::scale_rows,
      .cap = avx2::cap_rows,
      .causal_conv = causal_conv_avx2,
      .delta_rule = delta_rule_avx2,
      .gated_norm = gated_norm_avx2,
      .scratch_bytes = cpu_scratch_bytes,
  };
  return host_isa().avx2 ? &table : nullptr;
}

const OpTable* avx2_vnni_op_table() {
  const OpTable* base = avx2_op_table();
  if (base == nullptr || !host_isa().avx_vnni) return nullptr;
  static const OpTable table = [&] {
    OpTable with_vnni = *base;
    with_vnni.name = "avx2_vnni";
    with_vnni.matmul_tiles = matmul_tiles_avx2_vnni;
    with_vnni.matmul_tile_runs = matmul_tile_runs_avx2_vnni;
    return with_vnni;
  }();
  return &table;
}

}  // namespace loralei

#else

namespace loralei {
const OpTable* avx2_op_table() { return nullptr; }
const OpTable* avx2_vnni_op_table() { return nullptr; }
}  // namespace loralei

#endif
