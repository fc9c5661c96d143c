// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/cpu_table.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable
// and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "device/host/isa.h"
#include "ops/cpu/amx/matmul_amx.h"
#include "ops/cpu/attention/attention_plan.h"
#include "ops/cpu/delta/delta_table.h"
#include "ops/cpu/lora/lora_plan.h"
#include "ops/cpu/plain/matmul_bf16.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/cpu/tiles/tile_table.h"
#include "ops/tiles.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

LORALEI_TARGET_BEGIN_AVX512
namespace loralei {
namespace {
namespace avx512 {

// Each body uses the ones above it, hence their order.
// clang-format off
#include "ops/cpu/lanes/simd_avx512.inl.h"
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

}  // namespace avx512

void matmul_with_bf16_pairs(OpContext& ctx, const MatmulArgs& args) {
  args.w.dtype == DType::kBF16 ? matmul_rounded_bf16(ctx, args) : avx512::matmul(ctx, args);
}

void matmul_with_matrix_unit(OpContext& ctx, const MatmulArgs& args) {
  const bool halves = args.w.dtype == DType::kBF16 || args.w.dtype == DType::kF16;
  halves ? matmul_halves_amx(ctx, args) : avx512::matmul(ctx, args);
}

}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {

const OpTable* avx512_op_table() {
  static constexpr OpTable table{
      .name = "avx512",
      .matmul = avx512::matmul,
      .matmul_tiles = matmul_tiles_avx512,
      .matmul_tile_runs = matmul_tile_runs_avx512,
      .lora = avx512::lora,
      .lora_embed = avx512::lora_embed,
      .lora_add = avx512::lora_add,
      .kv_store = avx512::kv_store,
      .attention = avx512::attention,
      .rms_norm = avx512::rms_norm,
      .rope_angles = avx512::rope_angles,
      .rope = avx512::rope,
      .swiglu = avx512::swiglu,
      .embed = avx512::embed,
      .add = avx512::add_rows,
      .scale = avx512::scale_rows,
      .cap = avx512::cap_rows,
      .causal_conv = causal_conv_avx512,
      .delta_rule = delta_rule_avx512,
      .gated_norm = gated_norm_avx512,
      .scratch_bytes = cpu_scratch_bytes,
      .has_register_sums = true,
  };
  return host_isa().avx512 ? &table : nullptr;
}

const OpTable* avx512_vnni_op_table() {
  const OpTable* base = avx512_op_table();
  if (base == nullptr || !host_isa().avx512_vnni) return nullptr;
  static const OpTable table = [&] {
    OpTable with_vnni = *base;
    with_vnni.name = "avx512_vnni";
    with_vnni.matmul_tiles = matmul_tiles_avx512_vnni;
    with_vnni.matmul_tile_runs = matmul_tile_runs_avx512_vnni;
    return with_vnni;
  }();
  return &table;
}

const OpTable* avx512_bf16_op_table() {
  const OpTable* base = avx512_vnni_op_table();
  if (base == nullptr || !host_isa().avx512_bf16) return nullptr;
  static const OpTable table = [&] {
    OpTable with_bf16 = *base;
    with_bf16.name = "avx512_bf16";
    with_bf16.matmul = matmul_with_bf16_pairs;
    with_bf16.rounds_bf16 = true;
    with_bf16.scratch_bytes = rounded_scratch_bytes;
    return with_bf16;
  }();
  return &table;
}

const OpTable* amx_op_table() {
  const OpTable* base = avx512_vnni_op_table();
  if (base == nullptr || !host_isa().amx_int8 || !request_amx()) return nullptr;
  static const OpTable table = [&] {
    OpTable with_amx = *base;
    with_amx.name = "amx";
    with_amx.matmul_tiles = matmul_tiles_amx;
    with_amx.matmul_tile_runs = matmul_tile_runs_amx;
    with_amx.has_matrix_unit = true;
    if (host_isa().amx_bf16) {
      with_amx.matmul = matmul_with_matrix_unit;
      with_amx.scratch_bytes = matrix_scratch_bytes;
    }
    return with_amx;
  }();
  return &table;
}

}  // namespace loralei

#else

namespace loralei {
const OpTable* avx512_op_table() { return nullptr; }
const OpTable* avx512_vnni_op_table() { return nullptr; }
const OpTable* avx512_bf16_op_table() { return nullptr; }
const OpTable* amx_op_table() { return nullptr; }
}  // namespace loralei

#endif
