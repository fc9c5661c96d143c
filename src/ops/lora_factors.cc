// SPDX-License-Identifier: Apache-2.0
#include "ops/lora_factors.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

void decode_group(const std::byte* source, float scale, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(source[i])) * scale;
}

}  // namespace

void decode_lora_a(const LoraPair& pair, int32_t rank, float* out) { decode_lora_a(pair, rank, 0, pair.in, out); }

void decode_lora_a(const LoraPair& pair, int32_t rank, int32_t begin, int32_t count, float* out) {
  const std::byte* row = pair.a + rank * lora_a_stride_bytes(pair);
  if (pair.a_scale == nullptr) return decode_row(pair.dtype, row + begin * row_bytes(pair.dtype, 1), out, count);
  const float* scales = pair.a_scale + rank * lora_quant_groups(lora_a_width(pair)) + begin / kLoraQuantGroup;
  for (int32_t i = 0; i < count; i += kLoraQuantGroup)
    decode_group(row + begin + i, scales[i / kLoraQuantGroup], std::min(kLoraQuantGroup, count - i), out + i);
}

void decode_lora_b(const LoraPair& pair, int32_t rank, int32_t begin, int32_t count, float* out) {
  const std::byte* row = pair.b_t + rank * lora_b_stride_bytes(pair);
  if (pair.b_scale == nullptr) return decode_row(pair.dtype, row + begin * row_bytes(pair.dtype, 1), out, count);
  for (int32_t i = 0; i < count; i += kLoraQuantGroup) {
    const float scale = pair.b_scale[int64_t{begin + i} / kLoraQuantGroup * pair.rank + rank];
    decode_group(row + begin + i, scale, std::min(kLoraQuantGroup, count - i), out + i);
  }
}

LoraPair outputs_of(const LoraPair& pair, int32_t begin, int32_t count) {
  CHECK(begin >= 0 && count >= 0 && begin + count <= pair.out);
  LoraPair part = pair;
  part.out = count;
  part.b_width = lora_b_width(pair);
  if (pair.b_bias != nullptr) part.b_bias += begin;
  if (pair.bias_delta != nullptr) part.bias_delta += begin;
  if (pair.rank == 0) return part;
  CHECK(pair.b_scale == nullptr || begin % kLoraQuantGroup == 0);
  part.b_t += pair.b_scale != nullptr ? int64_t{begin} : begin * row_bytes(pair.dtype, 1);
  if (pair.b_scale != nullptr) part.b_scale += int64_t{begin / kLoraQuantGroup} * pair.rank;
  return part;
}

LoraPair inputs_of(const LoraPair& pair, int32_t begin, int32_t count) {
  CHECK(begin >= 0 && count >= 0 && begin + count <= pair.in);
  LoraPair part = pair;
  part.in = count;
  part.a_width = lora_a_width(pair);
  if (begin > 0) part.b_bias = part.bias_delta = nullptr;
  if (pair.rank == 0) return part;
  CHECK(pair.a_scale == nullptr || begin % kLoraQuantGroup == 0);
  part.a += pair.a_scale != nullptr ? int64_t{begin} : begin * row_bytes(pair.dtype, 1);
  if (pair.a_scale != nullptr) part.a_scale += begin / kLoraQuantGroup;
  return part;
}

void quantise_lora(const float* values, int32_t rank, int64_t count, std::byte* out, float* scales, int64_t rank_stride,
                   int64_t group_stride) {
  for (int32_t r = 0; r < rank; ++r, values += count, out += lora_quant_row_bytes(count)) {
    for (int64_t group = 0; group < lora_quant_groups(count); ++group) {
      const int64_t begin = group * kLoraQuantGroup;
      const int64_t end = std::min<int64_t>(begin + kLoraQuantGroup, count);
      float largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
      // A group whose scale would be subnormal is zero: its inverse might
      // not be a number.
      const float scale = largest / 127.0f >= 0x1p-126f ? largest / 127.0f : 0.0f;
      const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
      scales[r * rank_stride + group * group_stride] = scale;
      for (int64_t i = begin; i < end; ++i) {
        const float q = std::clamp(std::nearbyintf(values[i] * inverse), -127.0f, 127.0f);
        out[i] = static_cast<std::byte>(static_cast<int8_t>(q));
      }
      std::fill(out + end, out + begin + kLoraQuantGroup, std::byte{0});
    }
  }
}

}  // namespace loralei
