// SPDX-License-Identifier: Apache-2.0
#include "tensor/small_blocks.h"

#include <cstring>

#include "tensor/codec.h"

namespace loralei {
namespace {

int byte_at(const std::byte* p, int i) { return static_cast<int>(p[i]); }
uint16_t load_u16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
float load_half(const std::byte* p) { return f16_to_f32(load_u16(p)); }

// Sixteen bytes: low nibbles are elements 0..15, high nibbles 16..31.
void decode_values(const std::byte* quants, const int8_t (&values)[16], float d, float* out) {
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(quants, i);
    out[i] = d * static_cast<float>(values[q & 15]);
    out[i + 16] = d * static_cast<float>(values[q >> 4]);
  }
}

}  // namespace

int q3_k_scale(const std::byte* packed, int j) {
  const int low = j < 8 ? byte_at(packed, j) & 15 : byte_at(packed, j - 8) >> 4;
  const int high = byte_at(packed, 8 + j % 4) >> (2 * (j / 4)) & 3;
  return (low | high << 4) - 32;
}

int iq4_xs_scale(const std::byte* block, int j) {
  const int low = byte_at(block, 4 + j / 2) >> (4 * (j % 2)) & 15;
  const int high = load_u16(block + 2) >> (2 * j) & 3;
  return (low | high << 4) - 32;
}

// scales[16]: a scale in the low nibble, a minimum in the high one; qs[64], d, dmin
void decode_q2_k(const std::byte* block, float* out) {
  const std::byte* quants = block + 16;
  const float d = load_half(block + 80);
  const float dmin = load_half(block + 82);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, part = e % 128 / 32, packed = byte_at(block, e / 16);
    const int q = byte_at(quants, 32 * half + e % 32) >> (2 * part) & 3;
    const float scale = d * static_cast<float>(packed & 15);
    const float min = dmin * static_cast<float>(packed >> 4);
    out[e] = scale * static_cast<float>(q) - min;
  }
}

// hmask[32], qs[64], scales[12], d; a bit of hmask that is not set takes four away
void decode_q3_k(const std::byte* block, float* out) {
  const std::byte* quants = block + 32;
  const float d = load_half(block + 108);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, part = e % 128 / 32;
    const int low = byte_at(quants, 32 * half + e % 32) >> (2 * part) & 3;
    const int high = byte_at(block, e % 32) >> (4 * half + part) & 1;
    out[e] = d * static_cast<float>(q3_k_scale(block + 96, e / 16)) * static_cast<float>((low | high << 2) - 4);
  }
}

// d, qs[16]
void decode_iq4_nl(const std::byte* block, float* out) { decode_values(block + 2, kIq4Values, load_half(block), out); }

// d, the scales' high bits u16, their low bits [4], qs[128]
void decode_iq4_xs(const std::byte* block, float* out) {
  const float d = load_half(block);
  for (int j = 0; j < 8; ++j) {
    decode_values(block + 8 + 16 * j, kIq4Values, d * static_cast<float>(iq4_xs_scale(block, j)), out + 32 * j);
  }
}

// an e8m0 byte, qs[16]
void decode_mxfp4(const std::byte* block, float* out) {
  decode_values(block + 1, kMxfp4Values, mxfp4_scale(static_cast<uint8_t>(block[0])), out);
}

}  // namespace loralei
