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

template <typename Run>
Status for_cache(DType dtype, Run run) {
  if (dtype == DType::kI8) return run(int8_t{});
  if (dtype == DType::kF8) return run(F8{});
  return for_plain("a KV cache", dtype, run);
}

}  // namespace loralei::cuda
