// SPDX-License-Identifier: Apache-2.0
// Number formats in kernels: one number or 16 bytes of them as f32, and quantised blocks
// in both layouts, decoded to the same bits as tensor/codec.h.
#pragma once

#include "ops/cuda/dialect.cuh"
#include "tensor/dtype.h"

namespace loralei::cuda {

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct F8 {
  uint8_t bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(BF16 x) { return bf16_to_float(x.bits); }
DEVICE float to_float(F16 x) { return f16_to_float(x.bits); }
DEVICE float to_float(F8 x) { return fp8_to_float(x.bits); }
DEVICE float to_float(int8_t x) { return static_cast<float>(x); }
DEVICE void put(float* at, float x) { *at = x; }
DEVICE void put(BF16* at, float x) { at->bits = float_to_bf16(x); }
DEVICE void put(F16* at, float x) { at->bits = float_to_f16(x); }

// Exactly rounded steps that the compiler does not fuse.
#ifdef LORALEI_CUDA_EMULATION
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
#else
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
#endif

// kCount numbers from an address aligned to their size (at most 16 bytes at a time).
template <int kCount, typename T>
DEVICE void load_numbers(const T* from, float (&out)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if constexpr (kBytes % 16 == 0 || kBytes == 8) {
    constexpr int kPieces = kBytes < 16 ? 1 : kBytes / 16;
    alignas(16) T raw[kCount];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if constexpr (kBytes == 8) {
        *reinterpret_cast<uint2*>(raw) = *reinterpret_cast<const uint2*>(from);
      } else {
        reinterpret_cast<uint4*>(raw)[i] = reinterpret_cast<const uint4*>(from)[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = to_float(raw[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = to_float(from[i]);
  }
}

// Sums and maxima over a warp; every lane has the result, the order of the sum
// is the same in all.
DEVICE float warp_sum(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(kFullWarp, x, bits);
  return x;
}
DEVICE float warp_max(float x) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, bits));
  return x;
}

// Over a block of kThreads threads; `room` holds kThreads / 32 floats of shared memory.
// Ends with all threads past it.
template <int kThreads>
DEVICE float block_sum(float x, float* room) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += room[i];
  __syncthreads();
  return sum;
}

// --- quantised blocks
// Words of one row's block, wherever they lie. Offsets as tensor/tile_layout.h,
// BlockParts.

template <DType kType>
struct BlockShape {
  static constexpr bool kK = kType == DType::kQ4_K || kType == DType::kQ5_K, kSix = kType == DType::kQ6_K;
  static constexpr bool kFive = kType == DType::kQ5_0 || kType == DType::kQ5_1;
  static constexpr int kElems = kK || kSix ? 256 : 32;
  static constexpr int kHalves = kK || kType == DType::kQ4_1 || kType == DType::kQ5_1 ? 2 : 1;
  static constexpr int kScaleWords = kK ? 3 : kSix ? 4 : 0;
  static constexpr int kHighWords = kType == DType::kQ5_K ? 8 : kSix ? 16 : kFive ? 1 : 0;
  static constexpr int kQuantWords = kElems / (kType == DType::kQ8_0 ? 4 : 8);
  static constexpr int kHalfAt = kSix ? 208 : 0;
  static constexpr int kScaleAt = kSix ? 192 : 2 * kHalves;
  static constexpr int kHighAt = kSix ? 128 : 2 * kHalves + 4 * kScaleWords;
  static constexpr int kQuantAt = kSix ? 0 : kHighAt + 4 * kHighWords;
  static constexpr int kBytes = 2 * kHalves + 4 * (kScaleWords + kHighWords + kQuantWords);
};

// A block as files hold it; every part lies at an even address.
template <DType kType>
struct PlainBlock {
  using Shape = BlockShape<kType>;
  const uint8_t* at;
  DEVICE uint32_t word(int byte) const {
    const auto* halves = reinterpret_cast<const uint16_t*>(at + byte);
    return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
  }
  DEVICE float half(int i) const {
    return f16_to_float(*reinterpret_cast<const uint16_t*>(at + Shape::kHalfAt + 2 * i));
  }
  DEVICE uint32_t scales(int w) const { return word(Shape::kScaleAt + 4 * w); }
  DEVICE uint32_t high(int w) const { return word(Shape::kHighAt + 4 * w); }
  DEVICE uint32_t quants(int w) const { return word(Shape::kQuantAt + 4 * w); }
};

// The same of one of sixteen interleaved rows; `at` is where the sixteen's block begins.
template <DType kType>
struct TileBlock {
  using Shape = BlockShape<kType>;
  static constexpr int kScaleAt = 32 * Shape::kHalves, kHighAt = kScaleAt + 64 * Shape::kScaleWords;
  static constexpr int kQuantAt = kHighAt + 64 * Shape::kHighWords;
  const uint8_t* at;
  int row;
  DEVICE const uint16_t* half_at(int i) const { return reinterpret_cast<const uint16_t*>(at + (i * 16 + row) * 2); }
  DEVICE const uint32_t* word_at(int byte, int w) const {
    return reinterpret_cast<const uint32_t*>(at + byte + (w * 16 + row) * 4);
  }
  DEVICE float half(int i) const { return f16_to_float(*half_at(i)); }
  DEVICE uint32_t scales(int w) const { return *word_at(kScaleAt, w); }
  DEVICE uint32_t high(int w) const { return *word_at(kHighAt, w); }
  DEVICE uint32_t quants(int w) const { return *word_at(kQuantAt, w); }
};

// The 6-bit scale and minimum of sub-block j, from the twelve bytes in three words.
DEVICE void k_scale_min(uint32_t w0, uint32_t w1, uint32_t w2, int j, int* scale, int* minimum) {
  const int shift = 8 * (j & 3);
  const uint32_t b0 = w0 >> shift & 255, b1 = w1 >> shift & 255, b2 = w2 >> shift & 255;
  if (j < 4) {
    *scale = static_cast<int>(b0 & 63);
    *minimum = static_cast<int>(b1 & 63);
  } else {
    *scale = static_cast<int>((b2 & 15) | (b0 >> 6) << 4);
    *minimum = static_cast<int>((b2 >> 4) | (b1 >> 6) << 4);
  }
}

// Numbers [e, e + 4) of a block; e is a multiple of four.
template <DType kType, typename Block>
DEVICE void decode_four(const Block& block, int e, float (&out)[4]) {
  using Shape = BlockShape<kType>;
  const float d = block.half(0);
  if constexpr (kType == DType::kQ8_0) {
    const uint32_t word = block.quants(e / 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = mul_rn(static_cast<float>(static_cast<int8_t>(word >> 8 * i)), d);
  } else if constexpr (Shape::kK) {
    const int sub = e / 32, word = e % 32 / 4;
    int scale, minimum;
    k_scale_min(block.scales(0), block.scales(1), block.scales(2), sub, &scale, &minimum);
    const float ds = mul_rn(d, static_cast<float>(scale)), m = mul_rn(block.half(1), static_cast<float>(minimum));
    const uint32_t low = block.quants(sub / 2 * 8 + word) >> 4 * (sub & 1);
    uint32_t high = 0;
    if constexpr (kType == DType::kQ5_K) high = block.high(word) >> sub;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t q = (low >> 8 * i & 15) | (high >> 8 * i & 1) << 4;
      out[i] = add_rn(mul_rn(ds, static_cast<float>(q)), -m);
    }
  } else if constexpr (Shape::kSix) {
    const int half = e / 128, part = e % 128 / 32, word = e % 32 / 4;
    const int s = 8 * half + e % 32 / 16 + 2 * part;
    const float ds = mul_rn(d, static_cast<float>(static_cast<int8_t>(block.scales(s / 4) >> 8 * (s % 4))));
    const uint32_t low = block.quants(16 * half + 8 * (part & 1) + word) >> 4 * (part / 2);
    const uint32_t high = block.high(8 * half + word) >> 2 * part;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = static_cast<int>((low >> 8 * i & 15) | (high >> 8 * i & 3) << 4) - 32;
      out[i] = mul_rn(ds, static_cast<float>(q));
    }
  } else {  // 32 numbers of four bits, perhaps a fifth, perhaps a minimum
    constexpr int kZero = Shape::kHalves == 2 ? 0 : Shape::kFive ? 16 : 8;
    const uint32_t low = block.quants(e % 16 / 4) >> (e >= 16 ? 4 : 0);
    uint32_t high = 0;
    if constexpr (Shape::kFive) high = block.high(0) >> e;
    const float m = Shape::kHalves == 2 ? block.half(Shape::kHalves - 1) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = static_cast<int>((low >> 8 * i & 15) | (high >> i & 1) << 4) - kZero;
      out[i] = mul_rn(static_cast<float>(q), d);
      if constexpr (Shape::kHalves == 2) out[i] = add_rn(out[i], m);
    }
  }
}

// Where row `row` of a matrix of `blocks` blocks a row has its block `index`.
template <DType kType, bool kTiled>
DEVICE auto block_at(const uint8_t* data, int64_t row, int64_t blocks, int64_t index) {
  using Shape = BlockShape<kType>;
  if constexpr (kTiled) {
    return TileBlock<kType>{data + (row / 16 * blocks + index) * (16 * Shape::kBytes), static_cast<int>(row % 16)};
  } else {
    return PlainBlock<kType>{data + (row * blocks + index) * Shape::kBytes};
  }
}

}  // namespace loralei::cuda
