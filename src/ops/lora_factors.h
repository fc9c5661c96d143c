// SPDX-License-Identifier: Apache-2.0
// How the two factors of a LoraPair lie in memory, plain and as int8.
//
// Plain: a [rank, in], b_t [rank, out] in the pair's dtype. Int8 (a_scale and b_scale
// set): rows of signed bytes padded with zeros to a multiple of kLoraQuantGroup,
// symmetric, each group of kLoraQuantGroup numbers of a row with a scale of its own:
// value = q * scale, q in [-127, 127]. a_scale is [rank, groups of in]; b_scale is
// [groups of out, rank], because an expansion takes all ranks of one group of outputs
// together. Int8 factors are never those of an embedding.
//
// Pure functions, any thread, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/args.h"

namespace loralei {

inline constexpr int32_t kLoraQuantGroup = 64;

constexpr int64_t lora_quant_groups(int64_t count) { return (count + kLoraQuantGroup - 1) / kLoraQuantGroup; }
constexpr int64_t lora_quant_row_bytes(int64_t count) { return lora_quant_groups(count) * kLoraQuantGroup; }

// From one rank's row to the next.
inline int64_t lora_a_stride_bytes(const LoraPair& pair) {
  return pair.a_scale != nullptr ? lora_quant_row_bytes(pair.in) : row_bytes(pair.dtype, pair.in);
}
inline int64_t lora_b_stride_bytes(const LoraPair& pair) {
  return pair.b_scale != nullptr ? lora_quant_row_bytes(pair.out) : row_bytes(pair.dtype, pair.out);
}

// One row of A, or a part of one row of A or of B transposed, as f32. `begin` is a
// multiple of kLoraQuantGroup.
void decode_lora_a(const LoraPair& pair, int32_t rank, float* out);
void decode_lora_a(const LoraPair& pair, int32_t rank, int32_t begin, int32_t count, float* out);
void decode_lora_b(const LoraPair& pair, int32_t rank, int32_t begin, int32_t count, float* out);

// values [rank, count] -> out [rank, lora_quant_row_bytes(count)] and scales: the scale
// of (rank r, group g) goes to scales[r * rank_stride + g * group_stride].
void quantise_lora(const float* values, int32_t rank, int64_t count, std::byte* out, float* scales, int64_t rank_stride,
                   int64_t group_stride);

}  // namespace loralei
