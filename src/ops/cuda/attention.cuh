// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: addresses in the cache (cuda_ops.h, DeviceKv).
#pragma once

#include "base/limits.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"

namespace loralei::cuda {

DEVICE std::byte* kv_head_at(const DeviceKv& kv, int block, int layer, int which, int head) {
  return kv.base + block * kv.block_stride_bytes + layer * kv.layer_stride_bytes + which * kv.kv_stride_bytes +
         head * kv.head_stride_bytes;
}

// Of a head in int8 or fp8.
DEVICE float* kv_scales(const DeviceKv& kv, std::byte* head) {
  return reinterpret_cast<float*>(head + static_cast<int64_t>(kKvBlockTokens) * kv.head_dim);
}
DEVICE const float* kv_scales(const DeviceKv& kv, const std::byte* head) {
  return reinterpret_cast<const float*>(head + static_cast<int64_t>(kKvBlockTokens) * kv.head_dim);
}

// Positions [begin, end) that a block of threads looks at, and the cache blocks of kCount
// times 16 positions from `base` on, a multiple of 16: asked for together, since nothing
// of K and V can be asked for before they are there.
struct Seen {
  int begin, end;
  DEVICE bool has(int position) const { return position >= begin && position < end; }
};
template <int kCount>
struct Pages {
  int block[kCount];
  DEVICE void load(const int* blocks, int base, const Seen& seen) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int first = base + i * kKvBlockTokens;
      block[i] = first < seen.end && first + kKvBlockTokens > seen.begin ? blocks[first / kKvBlockTokens] : 0;
    }
  }
};

// kCount numbers as they lie in the cache.
template <typename T, int kCount>
struct Raw {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(T)) / 4;
  uint32_t words[kWords] = {};
  DEVICE void take(const uint4& four) { words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w; }
  DEVICE void load(const T* from) {
    if constexpr (kWords == 4) {
      take(*reinterpret_cast<const uint4*>(from));
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      words[0] = two.x, words[1] = two.y;
    }
  }
  DEVICE float number(int i) const {
    constexpr int kEach = 4 / static_cast<int>(sizeof(T)), kBits = 32 / kEach;
    const uint32_t bits = words[i / kEach] >> i % kEach * kBits;
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(bits);
    } else if constexpr (sizeof(T) == 2) {
      return to_float(T{static_cast<uint16_t>(bits)});
    } else {
      return to_float(T{static_cast<decltype(T{})>(static_cast<uint8_t>(bits))});
    }
  }
};

inline bool is_aligned(const DeviceKv& kv) {
  return is_aligned(kv.base) &&
         (kv.block_stride_bytes | kv.layer_stride_bytes | kv.kv_stride_bytes | kv.head_stride_bytes) % 16 == 0;
}

template <typename Run>
Status for_cache(DType dtype, Run run) {
  if (dtype == DType::kI8) return run(int8_t{});
  if (dtype == DType::kF8) return run(F8{});
  return for_plain("a KV cache", dtype, run);
}

}  // namespace loralei::cuda
