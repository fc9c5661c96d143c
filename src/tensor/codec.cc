// SPDX-License-Identifier: Apache-2.0
// The block formats are those of ggml (ggml-common.h, ggml-quants.c, dequantize_row_* and
// quantize_row_*_ref).
#include "tensor/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/small_blocks.h"

namespace loralei {
namespace {

static_assert(std::endian::native == std::endian::little, "files and memory share one byte order");

uint16_t load_u16(const std::byte* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
uint32_t load_u32(const std::byte* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
void store_u16(std::byte* p, uint16_t value) { std::memcpy(p, &value, sizeof value); }
float load_half(const std::byte* p) { return f16_to_f32(load_u16(p)); }
int byte_at(const std::byte* p, int i) { return static_cast<int>(p[i]); }

// --- decoders of one block

// d, qs[32] signed bytes
void decode_q8_0(const std::byte* block, float* out) {
  const float d = load_half(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// d, qs[16]: low nibbles are elements 0..15, high nibbles 16..31
void decode_q4_0(const std::byte* block, float* out) {
  const float d = load_half(block);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block, 2 + i);
    out[i] = static_cast<float>((q & 15) - 8) * d;
    out[i + 16] = static_cast<float>((q >> 4) - 8) * d;
  }
}

// d, m, qs[16]
void decode_q4_1(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block, 4 + i);
    out[i] = static_cast<float>(q & 15) * d + m;
    out[i + 16] = static_cast<float>(q >> 4) * d + m;
  }
}

// d, z, qs[16]
void decode_int4g(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float z = load_half(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block, 4 + i);
    out[i] = (static_cast<float>(q & 15) - z) * d;
    out[i + 16] = (static_cast<float>(q >> 4) - z) * d;
  }
}

// d in f32, 128 e4m3
void decode_fp8g(const std::byte* block, float* out) {
  float d;
  std::memcpy(&d, block, sizeof d);
  for (int i = 0; i < 128; ++i) out[i] = fp8_to_f32(static_cast<uint8_t>(block[4 + i])) * d;
}

// d, qh (32 fifth bits), qs[16]
void decode_q5_0(const std::byte* block, float* out) {
  const float d = load_half(block);
  const uint32_t high = load_u32(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block, 6 + i);
    const int low_bit = static_cast<int>((high >> i) & 1) << 4;
    const int high_bit = static_cast<int>((high >> (i + 16)) & 1) << 4;
    out[i] = static_cast<float>(((q & 15) | low_bit) - 16) * d;
    out[i + 16] = static_cast<float>(((q >> 4) | high_bit) - 16) * d;
  }
}

// d, m, qh, qs[16]
void decode_q5_1(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  const uint32_t high = load_u32(block + 4);
  for (int i = 0; i < 16; ++i) {
    const int q = byte_at(block, 8 + i);
    const int low_bit = static_cast<int>((high >> i) & 1) << 4;
    const int high_bit = static_cast<int>((high >> (i + 16)) & 1) << 4;
    out[i] = static_cast<float>((q & 15) | low_bit) * d + m;
    out[i + 16] = static_cast<float>((q >> 4) | high_bit) * d + m;
  }
}

// The eight 6-bit scales and eight 6-bit minima of a K block lie packed in 12 bytes.
void unpack_scale_min(int j, const std::byte* packed, int* scale, int* min) {
  if (j < 4) {
    *scale = byte_at(packed, j) & 63;
    *min = byte_at(packed, j + 4) & 63;
  } else {
    *scale = (byte_at(packed, j + 4) & 15) | ((byte_at(packed, j - 4) >> 6) << 4);
    *min = (byte_at(packed, j + 4) >> 4) | ((byte_at(packed, j) >> 6) << 4);
  }
}

// d, dmin, scales[12], qs[128]
void decode_q4_k(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float dmin = load_half(block + 2);
  const std::byte* packed = block + 4;
  const std::byte* qs = block + 16;
  for (int group = 0; group < 4; ++group) {
    int scale[2], min[2];
    unpack_scale_min(2 * group, packed, &scale[0], &min[0]);
    unpack_scale_min(2 * group + 1, packed, &scale[1], &min[1]);
    const float d0 = d * static_cast<float>(scale[0]), m0 = dmin * static_cast<float>(min[0]);
    const float d1 = d * static_cast<float>(scale[1]), m1 = dmin * static_cast<float>(min[1]);
    for (int i = 0; i < 32; ++i) {
      const int q = byte_at(qs, 32 * group + i);
      out[64 * group + i] = d0 * static_cast<float>(q & 15) - m0;
      out[64 * group + 32 + i] = d1 * static_cast<float>(q >> 4) - m1;
    }
  }
}

// d, dmin, scales[12], qh[32], qs[128]
void decode_q5_k(const std::byte* block, float* out) {
  const float d = load_half(block);
  const float dmin = load_half(block + 2);
  const std::byte* packed = block + 4;
  const std::byte* qh = block + 16;
  const std::byte* qs = block + 48;
  for (int group = 0; group < 4; ++group) {
    int scale[2], min[2];
    unpack_scale_min(2 * group, packed, &scale[0], &min[0]);
    unpack_scale_min(2 * group + 1, packed, &scale[1], &min[1]);
    const float d0 = d * static_cast<float>(scale[0]), m0 = dmin * static_cast<float>(min[0]);
    const float d1 = d * static_cast<float>(scale[1]), m1 = dmin * static_cast<float>(min[1]);
    for (int i = 0; i < 32; ++i) {
      const int q = byte_at(qs, 32 * group + i);
      const int bits = byte_at(qh, i) >> (2 * group);
      out[64 * group + i] = d0 * static_cast<float>((q & 15) | ((bits & 1) << 4)) - m0;
      out[64 * group + 32 + i] = d1 * static_cast<float>((q >> 4) | ((bits & 2) << 3)) - m1;
    }
  }
}

// ql[128], qh[64], scales[16] signed, d
void decode_q6_k(const std::byte* block, float* out) {
  const std::byte* ql = block;
  const std::byte* qh = block + 128;
  const std::byte* scales = block + 192;
  const float d = load_half(block + 208);
  const auto scale = [&](int i) { return d * static_cast<float>(static_cast<int8_t>(scales[i])); };
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 32; ++i) {
      const int low0 = byte_at(ql, 64 * half + i), low1 = byte_at(ql, 64 * half + 32 + i);
      const int high = byte_at(qh, 32 * half + i);
      const int s = 8 * half + i / 16;
      float* y = out + 128 * half + i;
      y[0] = scale(s) * static_cast<float>(((low0 & 15) | ((high & 3) << 4)) - 32);
      y[32] = scale(s + 2) * static_cast<float>(((low1 & 15) | (((high >> 2) & 3) << 4)) - 32);
      y[64] = scale(s + 4) * static_cast<float>(((low0 >> 4) | (((high >> 4) & 3) << 4)) - 32);
      y[96] = scale(s + 6) * static_cast<float>(((low1 >> 4) | (((high >> 6) & 3) << 4)) - 32);
    }
  }
}

// --- encoders of one block

void encode_q8_0(const float* x, std::byte* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  store_u16(block, f32_to_f16(d));
  for (int i = 0; i < 32; ++i) {
    // The clamp and the test of NaN only matter for non-finite input, whose conversion to
    // an integer would be undefined.
    const float q = std::round(x[i] * inverse);
    block[2 + i] = static_cast<std::byte>(q == q ? static_cast<int8_t>(std::clamp(q, -128.0f, 127.0f)) : 0);
  }
}

// In double, because the sum in f32 would depend on whether the compiler fuses it; the
// reference tools round this way too.
int nibble_q4_0(float value, float inverse) {
  const double q = static_cast<double>(value) * static_cast<double>(inverse) + 8.5;
  return q == q ? static_cast<int>(std::clamp(q, 0.0, 15.0)) : 0;
}

void encode_q4_0(const float* x, std::byte* block) {
  float largest = 0, signed_largest = 0;  // the element of largest magnitude maps to -8 exactly
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > largest) {
      largest = std::fabs(x[i]);
      signed_largest = x[i];
    }
  }
  const float d = signed_largest / -8.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  store_u16(block, f32_to_f16(d));
  for (int i = 0; i < 16; ++i) {
    const int low = nibble_q4_0(x[i], inverse);
    const int high = nibble_q4_0(x[i + 16], inverse);
    block[2 + i] = static_cast<std::byte>(low | (high << 4));
  }
}

template <typename DecodeBlock>
void decode_blocks(DType dtype, const std::byte* source, float* out, int64_t count, DecodeBlock decode) {
  const DTypeInfo info = dtype_info(dtype);
  for (int64_t i = 0; i < count; i += info.block_elems, source += info.block_bytes) decode(source, out + i);
}

}  // namespace

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));  // quiet NaN
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);     // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 lets the FPU round to a multiple of 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t odd = (magnitude >> 13) & 1;  // ties to even
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xFFFu + odd) >> 13));
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

// The bits of a number without its sign, three of mantissa at the top of f32's, are those
// of f32 but for the exponent.
float fp8_to_f32(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7Fu;
  if (magnitude == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

uint8_t f32_to_fp8(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448 or more
  if (magnitude < 0x3C800000u) {  // below 2^-6: subnormal; adding 2^14 lets the FPU round to a multiple of 2^-9
    const float rounded = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) - std::bit_cast<uint32_t>(0x1p14f)));
  }
  const uint32_t odd = (magnitude >> 20) & 1;  // ties to even
  return static_cast<uint8_t>(sign | ((magnitude - (120u << 23) + 0x7FFFFu + odd) >> 20));
}

void decode_row(DType dtype, const std::byte* source, float* out, int64_t count) {
  CHECK(fits_blocks(dtype, count));
  switch (dtype) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = load_half(source + 2 * i);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {  // written out, so that it becomes vectors
        uint16_t bits;
        std::memcpy(&bits, source + 2 * i, sizeof bits);
        out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      return;
    case DType::kI8:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(source[i]));
      return;
    case DType::kF8:
      for (int64_t i = 0; i < count; ++i) out[i] = fp8_to_f32(static_cast<uint8_t>(source[i]));
      return;
    case DType::kQ8_0:
      return decode_blocks(dtype, source, out, count, decode_q8_0);
    case DType::kQ4_0:
      return decode_blocks(dtype, source, out, count, decode_q4_0);
    case DType::kQ4_1:
      return decode_blocks(dtype, source, out, count, decode_q4_1);
    case DType::kQ5_0:
      return decode_blocks(dtype, source, out, count, decode_q5_0);
    case DType::kQ5_1:
      return decode_blocks(dtype, source, out, count, decode_q5_1);
    case DType::kQ4_K:
      return decode_blocks(dtype, source, out, count, decode_q4_k);
    case DType::kQ5_K:
      return decode_blocks(dtype, source, out, count, decode_q5_k);
    case DType::kQ6_K:
      return decode_blocks(dtype, source, out, count, decode_q6_k);
    case DType::kQ2_K:
      return decode_blocks(dtype, source, out, count, decode_q2_k);
    case DType::kQ3_K:
      return decode_blocks(dtype, source, out, count, decode_q3_k);
    case DType::kIQ4_NL:
      return decode_blocks(dtype, source, out, count, decode_iq4_nl);
    case DType::kIQ4_XS:
      return decode_blocks(dtype, source, out, count, decode_iq4_xs);
    case DType::kMXFP4:
      return decode_blocks(dtype, source, out, count, decode_mxfp4);
    case DType::kInt4G:
      return decode_blocks(dtype, source, out, count, decode_int4g);
    case DType::kF8G:
      return decode_blocks(dtype, source, out, count, decode_fp8g);
  }
  CHECK(false);
}

bool can_encode(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kQ8_0 ||
         dtype == DType::kQ4_0;
}

void encode_row(DType dtype, const float* source, std::byte* out, int64_t count) {
  CHECK(can_encode(dtype) && fits_blocks(dtype, count));
  const DTypeInfo info = dtype_info(dtype);
  if (dtype == DType::kF32) {
    if (count > 0) std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; i += info.block_elems, out += info.block_bytes) {
    switch (dtype) {
      case DType::kF16:
        store_u16(out, f32_to_f16(source[i]));
        break;
      case DType::kBF16:
        store_u16(out, f32_to_bf16(source[i]));
        break;
      case DType::kQ8_0:
        encode_q8_0(source + i, out);
        break;
      default:
        encode_q4_0(source + i, out);
        break;
    }
  }
}

float vector_scale(DType dtype, const float* source, int64_t count) {
  CHECK(has_vector_scale(dtype));
  float largest = 0, poison = 0;  // poison: 0, or NaN once anything is not finite
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(source[i]);
    largest = magnitude > largest ? magnitude : largest;
    poison += source[i] * 0.0f;
  }
  const float scale = largest / (dtype == DType::kI8 ? 127.0f : 448.0f);
  return (scale < std::numeric_limits<float>::min() ? 0.0f : scale) + poison;
}

void quantise_vector(DType dtype, const float* source, float scale, std::byte* out, int64_t count) {
  CHECK(has_vector_scale(dtype));
  if (!(scale > 0)) {
    std::fill_n(out, count, std::byte{0});
    return;
  }
  if (dtype == DType::kF8) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(f32_to_fp8(source[i] / scale));
    return;
  }
  // Adding 1.5 * 2^23 rounds a small number to an integer (nearest, ties to even) in the
  // low bits of the sum.
  constexpr float kRound = 0x1.8p23f;
  for (int64_t i = 0; i < count; ++i)
    out[i] =
        static_cast<std::byte>(std::bit_cast<int32_t>(source[i] / scale + kRound) - std::bit_cast<int32_t>(kRound));
}

}  // namespace loralei
