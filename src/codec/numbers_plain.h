// SPDX-License-Identifier: Apache-2.0
// One number of a cache to its integer and back, in plain code: what codec/kv_grid.h
// says. Pure; any thread. Failure: read_number says false where there is no integer.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "codec/kv_grid.h"
#include "tensor/codec.h"

namespace loralei {

// |nearbyint(t)| <= 32767 exactly where |t| is below: the tie itself goes to 32768.
inline constexpr float kKvIntegerLimit = 32767.5f;
inline constexpr float kKvHalfMax = 65504.0f;

template <DType kType>
inline constexpr int kNumberBytes = kType == DType::kF32 ? 4 : 2;

template <DType kType>
inline bool read_number(const std::byte* source, float inv_step, int16_t& out) {
  float x;
  if constexpr (kType == DType::kF32) {
    std::memcpy(&x, source, sizeof x);
  } else {
    uint16_t bits;
    std::memcpy(&bits, source, sizeof bits);
    x = kType == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  const float t = x * inv_step;
  if (!(std::fabs(t) < kKvIntegerLimit)) return false;
  constexpr float kMagic = 0x1.8p23f;  // its last bit is 1: the sum is rounded to nearest even
  out = static_cast<int16_t>(std::bit_cast<int32_t>(t + kMagic) - std::bit_cast<int32_t>(kMagic));
  return true;
}

template <DType kType>
inline void write_number(int16_t integer, float step, std::byte* out) {
  float x = static_cast<float>(integer) * step;
  if constexpr (kType == DType::kF32) {
    std::memcpy(out, &x, sizeof x);
  } else {
    if (kType == DType::kF16) x = x > kKvHalfMax ? kKvHalfMax : x < -kKvHalfMax ? -kKvHalfMax : x;
    const uint16_t bits = kType == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
    std::memcpy(out, &bits, sizeof bits);
  }
}

}  // namespace loralei
