// SPDX-License-Identifier: Apache-2.0
// KvGrid: which integers stand for the numbers of a cache's K and V. All codecs of this
// room work on these integers, so that one block can be told from another exactly, and
// from a third again, without an error that grows.
//
// A float cache (f32, f16, bf16) has a step for every (layer, K or V, channel):
//
//   q  = round to nearest even (x * inv_step)     one f32 product, |q| <= 32767
//   x' = q * step                                 exact in f32, then rounded to the cache
//
// inv_step is 1 / step in f32. A step is rounded to 8 significant bits when the grid is
// made: so the product is exact, and what was decoded has the same integers again.
// Of a cache in f16 what lies beyond 65504 becomes 65504.
//
//   |x - x'| <= step / 2 + |x| * 2^-22 + rounding of x' to the cache (kv_error_bound)
//
// int8 and fp8 caches have no steps: their integers are the stored numbers themselves,
// and their scales are kept beside. Nothing is lost. The code m of an fp8 without its
// sign is 0 .. 127 (127: NaN); it becomes m or -m, and the code of -0 becomes -128.
//
// Thread: a value that does not change once made; any thread.
// Ownership: owns its steps.
// Failure: create() refuses shapes and steps with a sentence.
// Source: mechanisms section 5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace loralei {

inline constexpr int32_t kKvCodecMaxHeads = 1024;       // more than any model has
inline constexpr int32_t kKvCodecMaxHeadDim = 1024;     // likewise
inline constexpr int64_t kKvCodecMaxNumbers = 1 << 28;  // of one block: sizes stay in 32 bits

struct KvGridShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kF16;  // f32, f16, bf16, int8 or fp8

  int32_t channels() const { return kv_heads * head_dim; }
  int64_t head_numbers() const { return int64_t{kKvBlockTokens} * head_dim; }
  int64_t layer_numbers() const { return 2 * kv_heads * head_numbers(); }  // K and V
  int64_t numbers() const { return layers * layer_numbers(); }
  // f32 scales of a layer: one for every vector of K and V.
  int64_t layer_scales() const { return has_vector_scale(dtype) ? int64_t{2} * kv_heads * kKvBlockTokens : 0; }
  friend bool operator==(const KvGridShape&, const KvGridShape&) = default;
};

class KvGrid {
 public:
  // `steps` [layers][2][kv_heads * head_dim], each from 2^-100 to 2^100; none for int8
  // and fp8.
  static Result<KvGrid> create(const KvGridShape& shape, std::span<const float> steps);

  const KvGridShape& shape() const { return shape_; }
  // Of one layer's K (v = 0) or V (v = 1): [kv_heads * head_dim]; empty for int8 and fp8.
  std::span<const float> steps(int32_t layer, int32_t v) const { return row(steps_, layer, v); }
  std::span<const float> inv_steps(int32_t layer, int32_t v) const { return row(inv_steps_, layer, v); }
  // Of shape and steps. Grids with the same digest give the same integers.
  uint64_t digest() const { return digest_; }

 private:
  std::span<const float> row(const std::vector<float>& all, int32_t layer, int32_t v) const;

  KvGridShape shape_;
  std::vector<float> steps_, inv_steps_;
  uint64_t digest_ = 0;
};

// The step of a grid that was asked for `step`: 8 significant bits.
float kv_rounded_step(float step);
// The most by which a number x of this format may differ from what comes back.
double kv_error_bound(DType dtype, float rounded_step, float x);

// The integer of an fp8 code, and back; -128 .. 127.
int16_t kv_fp8_to_integer(uint8_t code);
uint8_t kv_integer_to_fp8(int16_t integer);

}  // namespace loralei
