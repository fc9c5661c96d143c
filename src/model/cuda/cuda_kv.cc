// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_kv.h"

#include <string>

#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "ops/args.h"

namespace loralei {

Result<DeviceBuffer> allocate_on_device(int64_t bytes, const char* what, const char* remedy) {
  TRY_ASSIGN(const CudaMemoryInfo memory, cuda_memory_info());
  const auto refused = [&](const std::string& words) {
    return Error{ErrorCode::kOverloaded, std::string(what) + " need " + format_bytes(bytes) + " of GPU memory, and " +
                                             format_bytes(memory.free_bytes) + " of " +
                                             format_bytes(memory.total_bytes) + " are free" + words + ": " + remedy};
  };
  if (bytes > memory.free_bytes) return refused("");
  Result<DeviceBuffer> buffer = DeviceBuffer::allocate(bytes);
  if (!buffer.ok()) return refused(" (" + buffer.error().message + ")");
  return buffer;
}

int64_t CudaKv::block_bytes(const ModelConfig& config, DType dtype) {
  return kv_head_bytes(dtype, config.head_dim) * config.kv_heads * 2 * config.layers;
}

Result<CudaKv> CudaKv::create(const ModelConfig& config, DType dtype, int32_t blocks) {
  CHECK(blocks > 0);
  CudaKv kv;
  TRY_ASSIGN(kv.bytes_,
             allocate_on_device(blocks * block_bytes(config, dtype), "The KV cache's blocks",
                                "give fewer tokens of context or fewer sequences, or keep K and V as int8 or fp8."));
  kv.blocks_ = blocks;
  kv.view_.base = kv.bytes_.data();
  kv.view_.dtype = dtype;
  kv.view_.kv_heads = config.kv_heads;
  kv.view_.head_dim = config.head_dim;
  kv.view_.head_stride_bytes = kv_head_bytes(dtype, config.head_dim);
  kv.view_.kv_stride_bytes = kv.view_.head_stride_bytes * config.kv_heads;
  kv.view_.layer_stride_bytes = kv.view_.kv_stride_bytes * 2;
  kv.view_.block_stride_bytes = kv.view_.layer_stride_bytes * config.layers;
  return kv;
}

}  // namespace loralei
