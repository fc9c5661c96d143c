// SPDX-License-Identifier: Apache-2.0
// OpTable: the kernels of one backend and instruction set behind one struct of function
// pointers, chosen once at start.
//
// Thread: an OpTable is immutable; calls on one OpContext come from one thread at a time
// (the executor's), which the pool joins.
// Ownership: none; scratch belongs to the caller.
// Failure: none at run time: arguments are validated by the rooms above (DCHECK here).
// No allocation: every kernel works in ctx.scratch, whose size scratch_bytes()
// tells in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/host/thread_pool.h"
#include "ops/args.h"
#include "ops/delta_args.h"
#include "ops/tile_tuning.h"

namespace loralei {

struct OpContext {
  ThreadPool* pool = nullptr;
  std::span<std::byte> scratch;  // 64-byte aligned
  uint64_t op_count = 0;         // operations issued; lets a test show that base-only steps issue no LoRA work
  TileTuning tuning;
};

// The largest sizes a model will ask for; scratch is computed from them once.
struct OpLimits {
  int32_t rows_max = 0;  // token rows of a step
  int32_t in_max = 0;    // widest input of a product
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t rank_max = 0;
  int32_t segments_max = 0;
  int32_t threads = 1;
  int32_t key_dim = 0, value_dim = 0;  // of a head of gated linear attention; 0: the model has none
};

struct OpTable {
  const char* name = "";  // "ref", "avx2", "avx512_vnni", "neon_i8mm" ...: part of system_fingerprint
  void (*matmul)(OpContext&, const MatmulArgs&) = nullptr;            // layout kPlain
  void (*matmul_tiles)(OpContext&, const TileMatmulArgs&) = nullptr;  // layout kTile16
  void (*matmul_tile_runs)(OpContext&, const TileRunsArgs&) = nullptr;
  void (*lora)(OpContext&, const LoraArgs&) = nullptr;
  void (*lora_embed)(OpContext&, const LoraEmbedArgs&) = nullptr;
  void (*lora_add)(OpContext&, const LoraSumArgs&) = nullptr;
  void (*kv_store)(OpContext&, const KvStoreArgs&) = nullptr;
  void (*attention)(OpContext&, const AttentionArgs&) = nullptr;
  void (*rms_norm)(OpContext&, const RmsNormArgs&) = nullptr;
  void (*rope_angles)(OpContext&, const RopeAnglesArgs&) = nullptr;
  void (*rope)(OpContext&, const RopeArgs&) = nullptr;
  void (*swiglu)(OpContext&, const SwigluArgs&) = nullptr;
  void (*embed)(OpContext&, const EmbedArgs&) = nullptr;
  void (*add)(OpContext&, const AddArgs&) = nullptr;
  void (*scale)(OpContext&, const ScaleArgs&) = nullptr;
  void (*cap)(OpContext&, const CapArgs&) = nullptr;
  void (*causal_conv)(OpContext&, const CausalConvArgs&) = nullptr;
  void (*delta_rule)(OpContext&, const DeltaRuleArgs&) = nullptr;
  void (*gated_norm)(OpContext&, const GatedNormArgs&) = nullptr;
  int64_t (*scratch_bytes)(const OpLimits&) = nullptr;
  bool rounds_bf16 = false;  // matmul rounds the inputs of bf16 weights to bf16, to nearest even
  // What matmul_tiles has two kernels for, to choose from (tile_tuning.h):
  bool has_matrix_unit = false;    // many rows
  bool has_register_sums = false;  // few rows of formats of 32
};

// The tables this machine can run, best last: ref, then what the CPU offers.
std::vector<const OpTable*> available_op_tables();
// Those of them that differ in more than the products with tiles.
std::vector<const OpTable*> plain_op_tables();
// How layer inputs meet bf16 weights: rounded to bf16 where that is faster,
// or as they are.
enum class Bf16Inputs { kRounded, kExact };
// `name` empty: the best. An unknown or unavailable name, or that of a table that rounds
// where it must not, is an error that lists the choices.
Result<const OpTable*> select_op_table(std::string_view name, Bf16Inputs inputs = Bf16Inputs::kRounded);

}  // namespace loralei
