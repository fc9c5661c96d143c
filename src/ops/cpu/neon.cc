// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>

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

namespace loralei {
namespace {
namespace neon {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_neon.inl.h"
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

}  // namespace neon
}  // namespace

const OpTable* neon_op_table() {
  static constexpr OpTable table{
      .name = "neon",
      .matmul = neon::matmul,
      .matmul_tiles = matmul_tiles_neon,
      .matmul_tile_runs = matmul_tile_runs_neon,
      .lora = neon::lora,
      .lora_embed = neon::lora_embed,
      .lora_add = neon::lora_add,
      .kv_store = neon::kv_store,
      .attention = neon::attention,
      .rms_norm = neon::rms_norm,
      .rope_angles = neon::rope_angles,
      .rope = neon::rope,
      .swiglu = neon::swiglu,
      .embed = neon::embed,
      .add = neon::add_rows,
      .scale = neon::scale_rows,
      .cap = neon::cap_rows,
      .causal_conv = causal_conv_neon,
      .delta_rule = delta_rule_neon,
      .gated_norm = gated_norm_neon,
      .scratch_bytes = cpu_scratch_bytes,
  };
  return &table;
}

const OpTable* neon_dotprod_op_table() {
  if (!host_isa().dotprod) return nullptr;
  static const OpTable table = [] {
    OpTable with_dotprod = *neon_op_table();
    with_dotprod.name = "neon_dotprod";
    with_dotprod.matmul_tiles = matmul_tiles_neon_dotprod;
    with_dotprod.matmul_tile_runs = matmul_tile_runs_neon_dotprod;
    return with_dotprod;
  }();
  return &table;
}

const OpTable* neon_i8mm_op_table() {
  if (!host_isa().dotprod || !host_isa().i8mm) return nullptr;
  static const OpTable table = [] {
    OpTable with_i8mm = *neon_op_table();
    with_i8mm.name = "neon_i8mm";
    with_i8mm.matmul_tiles = matmul_tiles_neon_i8mm;
    with_i8mm.matmul_tile_runs = matmul_tile_runs_neon_i8mm;
    return with_i8mm;
  }();
  return &table;
}

}  // namespace loralei

#else

namespace loralei {
const OpTable* neon_op_table() { return nullptr; }
const OpTable* neon_dotprod_op_table() { return nullptr; }
const OpTable* neon_i8mm_op_table() { return nullptr; }
}  // namespace loralei

#endif
