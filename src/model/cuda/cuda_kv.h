// SPDX-License-Identifier: Apache-2.0
// CudaKv: the paged KV cache of a model in one piece of GPU memory, in the GPU's layout
// (cuda::DeviceKv: K lies [16, head_dim] there, so blocks that move between host and
// device are transposed).
//
// Thread: the one of the model that uses it.
// Ownership: owns the memory; block ids are the caller's to hand out.
// Invariant: 0 <= block < blocks(). The numbers of a block that was never written are
// undefined and never read.
// Failure: create() answers a sentence with needed and free bytes.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "formats/model_config.h"
#include "ops/cuda/cuda_ops.h"

namespace loralei {

class CudaKv {
 public:
  CudaKv() = default;
  // dtype f32, f16, bf16, int8 or fp8. On the calling thread's device.
  static Result<CudaKv> create(const ModelConfig& config, DType dtype, int32_t blocks);
  static int64_t block_bytes(const ModelConfig& config, DType dtype);  // over all layers

  const cuda::DeviceKv& view() const { return view_; }
  int32_t blocks() const { return blocks_; }
  int64_t bytes() const { return bytes_.size_bytes(); }

 private:
  DeviceBuffer bytes_;
  cuda::DeviceKv view_;
  int32_t blocks_ = 0;
};

// Device memory for `what`, or a sentence with the bytes needed and free and what to do.
Result<DeviceBuffer> allocate_on_device(int64_t bytes, const char* what, const char* remedy);

}  // namespace loralei
