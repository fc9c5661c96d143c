// SPDX-License-Identifier: Apache-2.0
// CudaWeights: the base model's weights in one piece of GPU memory, bytes as
// on the host (tiles as tiles, panels joined), norms and biases as f32, and the
// rotation's frequencies. Of one of several ranks: its part (model.h), of which the head
// has its rows of the vocabulary alone.
//
// Thread: any, immutable after upload.
// Ownership: owns the memory.
// Invariant: every tensor begins at a multiple of 256 bytes.
// Failure: a store that streams, or too little memory, is answered with a sentence.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "model/layer_program.h"
#include "model/model.h"
#include "ops/cuda/cuda_ops.h"
#include "parallel/shard.h"
#include "weights/weight_store.h"

namespace loralei {

struct CudaLayer {
  std::array<cuda::DeviceWeight, kLayerModules> matrix;  // by Module
  std::array<const float*, kLayerModules> bias{};        // [out] or null
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
};

struct CudaWeights {
  DeviceBuffer bytes;
  std::vector<CudaLayer> layers;
  cuda::DeviceWeight embed;
  cuda::DeviceWeight head;  // where tied, bytes of embed
  const float* final_norm = nullptr;
  const float* inv_freq = nullptr;  // [head_dim / 2]
  float rope_attention_scale = 1.0f;
};

// `config` and `weights`: of the rank. Returns when the bytes are on the device.
Result<CudaWeights> upload_weights(const ModelConfig& config, const WeightStore& weights, const Shard& shard,
                                   int64_t max_model_len, CudaStream& stream);
// What that takes; no device is needed.
Result<int64_t> cuda_weight_bytes(const ModelConfig& config, const WeightStore& weights, const Shard& shard);
// What a rank multiplies with, of a head of which it has its own rows or all of them.
cuda::DeviceWeight head_of_rank(const cuda::DeviceWeight& head, const Shard& shard, int32_t vocab);

}  // namespace loralei
