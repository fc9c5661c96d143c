// SPDX-License-Identifier: Apache-2.0
// The plain structs that cross the kernel boundary. Rooms above fill them; kernels read
// them. No ownership, no policy.
//
// All activations are f32, row-major, one row a token, `stride` floats from row to row.
// Pointers stay valid for the call. A row's result depends on that row alone (batch
// invariance, mechanisms §1): every kernel sums over the input dimension in one fixed
// order whatever the number of rows, and threads split rows and columns, never the sum.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/activation.h"
#include "base/ids.h"
#include "base/layer_norm.h"
#include "base/limits.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace loralei {

// --- dense products

// y[row, 0..w.rows) = x[row, 0..w.cols) * W^T (+ bias). With `accumulate`, adds to y
// instead. Some tables round the inputs of bf16 weights to bf16 (OpTable::rounds_bf16).
struct MatmulArgs {
  const float* x = nullptr;  // [rows, w.cols]
  int64_t x_stride = 0;
  int32_t rows = 0;
  WeightView w;                 // [out, in]
  const float* bias = nullptr;  // [out] or null
  float* y = nullptr;           // [rows, w.rows]
  int64_t y_stride = 0;
  bool accumulate = false;
};

// One projection of a layer input whose quantised weights lie in tiles.
struct TileProduct {
  WeightView w;                 // [out, in], layout kTile16
  const float* bias = nullptr;  // [out] or null
  float* y = nullptr;           // [rows, out]
  int64_t y_stride = 0;
};

// Products with quantised weights on integer dot products, for all projections that share
// a layer input. The input is rounded once, row by row and block by block of 32 numbers:
//
//   dx = max|x| / 127
//   q  = round to nearest even (x * (127 / max|x|))
//
// A block whose largest number is below 1e-30 counts as zero. One that holds a NaN or an
// infinity makes the row's results NaN.
//
// The number for (row, output) starts from zero and takes the blocks of 32 inputs in
// ascending order:
//
//   acc = fma(float(sum of q * w), dw * dx, acc)
//   acc = fma(m, dx * float(sum of q), acc)        only in formats with a minimum
//
//   w    the format's integers without their zero point, exact in int32; where a format
//        has a table of values (iq4_nl, iq4_xs, mxfp4), what the table says
//   dw   d, or d * sub-scale rounded to f32 (K blocks, iq4_xs)
//   m    -dmin * m_j for K blocks, -d * z for int4g
//
// q6_k, q3_k and q2_k take each half of a block by itself, with its own scale: q2_k both
// lines of the first half, then both of the second. mxfp4's table holds twice its numbers
// and d is half its scale, so all is whole. Then the bias is added, then y with
// `accumulate`. So the results are the same bits on every instruction set, for any number
// of rows.
struct TileMatmulArgs {
  const float* x = nullptr;  // [rows, in]
  int64_t x_stride = 0;
  int32_t rows = 0;
  std::span<const TileProduct> products;  // one `in` for all
  bool accumulate = false;
};
// Rows [row_begin, row_begin + row_count) of an input and the products that are of them
// alone: y of each is [row_count, out]. Neither is empty.
struct TileRows {
  int32_t row_begin = 0, row_count = 0;
  std::span<const TileProduct> products;  // one `in` for all of a call
};

// The same number for every (row, output) as TileMatmulArgs gives it: many small products
// with different weights in one call. Runs may have rows in common.
struct TileRunsArgs {
  const float* x = nullptr;  // [rows, in]
  int64_t x_stride = 0;
  std::span<const TileRows> runs;  // each of at most rows_max of OpLimits
};

inline constexpr int kActivationBlock = 32;
inline constexpr float kActivationMin = 1e-30f;

// --- LoRA

// The linear modules of one layer, then the two outside the layers. A layer of gated
// linear attention (formats/linear_config.h) has five where others have four; those that
// do what q, k, v and o do in others have their places, and one is its own:
//
//   kQ      in_proj_qkv                kV      in_proj_b, how much of a value is written
//   kK      in_proj_z, the gate        kDecay  in_proj_a, how much of the state is kept
//   kO      out_proj
enum class Module : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown, kDecay, kLmHead, kEmbed };
inline constexpr int kLayerModules = 8;
inline constexpr int kModules = 10;

// One module's low-rank pair. y += scaling * B (A x), plus scaling * b_bias where
// lora_bias is used, plus bias_delta where the adapter replaces the module's own bias
// (PEFT bias="all"): that part is a replacement, so no scale of a request touches it,
// as in PEFT. B is stored transposed so that the expansion runs over contiguous outputs.
struct LoraPair {
  const std::byte* a = nullptr;    // [rank, in] in dtype; for kEmbed: [vocab, rank] (one row a token)
  const std::byte* b_t = nullptr;  // [rank, out] in dtype
  DType dtype = DType::kF32;       // f32, f16 or bf16; int8 factors have scales instead (ops/lora_factors.h)
  const float* a_scale = nullptr;  // null: plain factors; else the scales of int8 factors
  const float* b_scale = nullptr;
  int32_t rank = 0;  // 0: no product (only bias_delta may be set)
  int32_t in = 0;
  int32_t out = 0;
  // Of which the factors' rows have a part (parallel/shard.h), these wide; 0: in, out.
  int32_t a_width = 0, b_width = 0;
  float scaling = 0;              // alpha / r or alpha / sqrt(r), of this module
  const float* b_bias = nullptr;  // [out] or null
  // [out] or null: adapter's bias minus base bias; added as it is, whatever the scales.
  const float* bias_delta = nullptr;
};

// What an adapter slot of the step has for one module (mechanisms §1).
struct LoraSource {
  const LoraPair* pair = nullptr;  // null: nothing
};

// Rows [row_begin, row_begin + row_count) use adapter slot `slot` of this step with
// weight `scale` (the request's own factor). Segments may overlap (weighted sums); they
// are applied in order.
struct LoraSegment {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t slot = 0;
  float scale = 1.0f;
};

// One projection that reads the layer input x.
struct LoraTarget {
  float* y = nullptr;  // [rows, out], accumulated into
  int64_t y_stride = 0;
  const LoraSource* sources = nullptr;  // [slots]
  int32_t out = 0;                      // outputs of this projection; a pair's `out` is at most this
};

// One call per layer input, for all segments and all projections that share it (q,k,v; o;
// gate,up; down; lm_head).
struct LoraArgs {
  const float* x = nullptr;  // [rows, in]
  int64_t x_stride = 0;
  int32_t in = 0;
  std::span<const LoraSegment> segments;
  std::span<const LoraTarget> targets;
};

// The low-rank part of the embedding: y[row] += scale * scaling * B a[tokens[row]] for
// the rows of each segment, where the source's pair holds a [vocab, rank] and b_t [rank,
// hidden] (Module::kEmbed). Every id is below the pair's `in`.
struct LoraEmbedArgs {
  const TokenId* tokens = nullptr;  // [rows]
  std::span<const LoraSegment> segments;
  LoraTarget target;  // y [rows, hidden] and the sources per slot
};

// What remains of a low-rank product whose sums were computed elsewhere, by `lora` with
// y = -0.0 in every place, scale and scaling 1 and no bias_delta (that is sum + b_bias):
//
//   y[row] = fma(scale * scaling, sums[row], y[row]), then + bias_delta
//
// in the arithmetic of the table's `lora`, so that both together are that in one place,
// bit for bit. With rank 0 the sums are not read.
struct LoraSumArgs {
  const float* sums = nullptr;  // [rows, pair.out]
  int64_t sums_stride = 0;
  int32_t rows = 0;
  const LoraPair* pair = nullptr;  // its scaling, rank, out and bias_delta
  float scale = 1.0f;              // of the rows' segment
  float* y = nullptr;              // [rows, pair.out], added to
  int64_t y_stride = 0;
};

// --- full tensors an adapter replaces (PEFT modules_to_save, trainable_token_indices)

// What an adapter changes besides low-rank pairs. Null / empty where it changes nothing.
struct SavedTensors {
  WeightView embed;                   // [vocab', hidden]
  WeightView lm_head;                 // [vocab', hidden]
  const float* final_norm = nullptr;  // [hidden]
  // [LayerNorm][layers] entries may be null; a list is empty where there are none.
  std::array<std::vector<const float*>, kLayerNorms> norms;
  // trainable_token_indices: these embedding (and, when tied or named, head)
  // rows are replaced.
  std::vector<TokenId> embed_tokens, head_tokens;  // sorted
  const float* embed_rows = nullptr;               // [embed_tokens, hidden]
  const float* head_rows = nullptr;                // [head_tokens, hidden]

  const float* norm(LayerNorm which, int32_t layer) const {
    const auto& list = norms[static_cast<size_t>(which)];
    return list.empty() ? nullptr : list[static_cast<size_t>(layer)];
  }
  bool any() const {
    return !embed.empty() || !lm_head.empty() || final_norm || !embed_tokens.empty() || !head_tokens.empty() ||
           std::any_of(norms.begin(), norms.end(), [](const auto& list) { return !list.empty(); });
  }
};

// --- KV cache

// Bytes of one head of a slice.
constexpr int64_t kv_head_bytes(DType dtype, int32_t head_dim) {
  const int64_t scale_bytes = has_vector_scale(dtype) ? static_cast<int64_t>(sizeof(float)) : 0;
  return kKvBlockTokens * (row_bytes(dtype, head_dim) + scale_bytes);
}

// The only address of cached K and V: slice(block, layer, k|v) is kv_heads heads of
// kv_head_bytes each. A head of V is [kKvBlockTokens, head_dim] numbers in dtype, a head
// of K (after RoPE) [head_dim, kKvBlockTokens]: attention then finds the positions of
// a block side by side and sums no scores across lanes. With kI8 and kF8 the numbers are
// followed by [kKvBlockTokens] f32, the scale of each position's vector: number = int8
// (or fp8) * scale.
struct KvView {
  std::byte* base = nullptr;
  int64_t block_stride_bytes = 0;
  int64_t layer_stride_bytes = 0;
  int64_t kv_stride_bytes = 0;    // from K to V of one (block, layer)
  int64_t head_stride_bytes = 0;  // from head to head inside a slice
  DType dtype = DType::kF16;      // f32, f16, bf16, int8 or fp8
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

  std::byte* slice(int32_t block, int32_t layer, int32_t v) const {
    return base + block * block_stride_bytes + layer * layer_stride_bytes + v * kv_stride_bytes;
  }
  std::byte* head(int32_t block, int32_t layer, int32_t v, int32_t kv_head) const {
    return slice(block, layer, v) + kv_head * head_stride_bytes;
  }
  // Of a head of a slice whose format has_vector_scale.
  float* scales(std::byte* head) const { return reinterpret_cast<float*>(head + int64_t{kKvBlockTokens} * head_dim); }
  const float* scales(const std::byte* head) const {
    return reinterpret_cast<const float*>(head + int64_t{kKvBlockTokens} * head_dim);
  }
};

// One sequence's rows in this step. Row i sits at absolute position `position + i` and
// attends to positions <= its own.
struct RowGroup {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  int32_t position = 0;             // of the first row
  const int32_t* blocks = nullptr;  // block table: position p lives in blocks[p / kKvBlockTokens]
};

// Writes K and V of all rows of the groups into the cache.
struct KvStoreArgs {
  const float* k = nullptr;  // [rows, kv_heads * head_dim], after RoPE
  const float* v = nullptr;
  int64_t stride = 0;
  KvView kv;
  int32_t layer = 0;
  std::span<const RowGroup> groups;
};

// out[row] = softmax(scale * q K^T) V over the positions p of the row's sequence with
// p <= position(row) and, with a window w > 0, p > position(row) - w. Reads K and V from
// the cache only, in tiles at absolute positions. A head's sink is one score more that
// has no value: it takes a part of the weight, behind all positions.
struct AttentionArgs {
  const float* q = nullptr;  // [rows, heads * head_dim], after RoPE
  int64_t q_stride = 0;
  float* out = nullptr;  // [rows, heads * head_dim]
  int64_t out_stride = 0;
  KvView kv;
  int32_t layer = 0;
  int32_t heads = 0;
  float scale = 0;
  int32_t window = 0;
  float cap = 0;  // scores are cap * tanh(scale * q K^T / cap); 0: as they are
  std::span<const RowGroup> groups;
  const float* sinks = nullptr;  // [heads] or null
};

// --- element-wise

// y = x / rms(x) * weight, over `vectors` consecutive vectors of `dim` inside each row
// (vectors > 1: per-head q/k norm). In place allowed.
struct RmsNormArgs {
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  const float* weight = nullptr;  // [dim]
  // [dim]: y = (x - mean) / sqrt(variance + eps) * weight + bias; null: RMS norm.
  const float* bias = nullptr;
  int32_t rows = 0;
  int32_t vectors = 1;
  int32_t dim = 0;
  float eps = 1e-5f;
};

// What rows are turned by, the same for all layers and heads of a step: for every row
// the head_dim / 2 cosines of position * inv_freq[i], then as many sines, both times
// `attention_scale` (yarn). The angle is taken in double: position * frequency needs
// more than 24 bits.
struct RopeAnglesArgs {
  const int32_t* positions = nullptr;  // [rows]
  const float* inv_freq = nullptr;     // [head_dim / 2]
  float attention_scale = 1.0f;
  int32_t rows = 0;
  int32_t head_dim = 0;     // rotary_dim, where heads are turned in part
  float* angles = nullptr;  // [rows, head_dim]
};

// Rotates the first and second half of each head against each other ("half split" order),
// in place:
//
//   x1' = x1 cos - x2 sin
//   x2' = x2 cos + x1 sin
struct RopeArgs {
  float* x = nullptr;  // [rows, heads * head_dim]
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;         // the first numbers of each head are turned, as if they were it; 0: all
  const float* angles = nullptr;  // [rows, rotary_dim], see RopeAnglesArgs
};

// gate = activation(gate) * up, element by element, in place; with kClamped as GateClamp
// says.
struct SwigluArgs {
  float* gate = nullptr;      // [rows, dim]
  const float* up = nullptr;  // null: ungated, activation(gate) alone, which kClamped has not
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
  Activation activation = Activation::kSilu;
  GateClamp clamp;
};

// y[row] = W[tokens[row]] decoded to f32. Every id is below w.rows (checked
// by the caller).
struct EmbedArgs {
  const TokenId* tokens = nullptr;  // [rows]
  int32_t rows = 0;
  WeightView w;  // [vocab, hidden]
  float* y = nullptr;
  int64_t y_stride = 0;
};

// y += scale * x, element by element, rounded after each.
struct AddArgs {
  const float* x = nullptr;  // [rows, dim]
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
  float scale = 1.0f;
};

// y = cap * tanh(y / cap), element by element: no number is larger than the cap.
struct CapArgs {
  float* y = nullptr;  // [rows, dim]
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
  float cap = 1.0f;
};

// y *= factor, element by element.
struct ScaleArgs {
  float* y = nullptr;  // [rows, dim]
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
  float factor = 1.0f;
};

}  // namespace loralei
