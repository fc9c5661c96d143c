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

// Of a rank's whole row, of which the pair may have a part. A part of int8 factors begins
// with a group.
inline int32_t lora_a_width(const LoraPair& pair) { return pair.a_width > 0 ? pair.a_width : pair.in; }
inline int32_t lora_b_width(const LoraPair& pair) { return pair.b_width > 0 ? pair.b_width : pair.out; }

// From one rank's row to the next.
inline int64_t lora_a_stride_bytes(const LoraPair& pair) {
  return pair.a_scale != nullptr ? lora_quant_row_bytes(lora_a_width(pair)) : row_bytes(pair.dtype, lora_a_width(pair));
}
inline int64_t lora_b_stride_bytes(const LoraPair& pair) {
  return pair.b_scale != nullptr ? lora_quant_row_bytes(lora_b_width(pair)) : row_bytes(pair.dtype, lora_b_width(pair));
}

// One row of A, or a part of one row of A or of B transposed, as f32. `begin` is a
// multiple of kLoraQuantGroup.
void decode_lora_a(const LoraPair& pair, int32_t rank, float* out);
void decode_lora_a(const LoraPair& pair, int32_t rank, int32_t begin, int32_t count, float* out);
void decode_lora_b(const LoraPair& pair, int32_t rank, int32_t begin, int32_t count, float* out);

// Of the pair's outputs, or of its inputs, those in [begin, begin + count): a view of the
// same bytes. Parts of int8 factors begin at multiples of kLoraQuantGroup. The sum over
// all parts of the inputs is the pair's product: biases are with the first alone.
LoraPair outputs_of(const LoraPair& pair, int32_t begin, int32_t count);
LoraPair inputs_of(const LoraPair& pair, int32_t begin, int32_t count);

// values [rank, count] -> out [rank, lora_quant_row_bytes(count)] and scales: the scale
// of (rank r, group g) goes to scales[r * rank_stride + g * group_stride].
void quantise_lora(const float* values, int32_t rank, int64_t count, std::byte* out, float* scales, int64_t rank_stride,
                   int64_t group_stride);

}  // namespace loralei
