// SPDX-License-Identifier: Apache-2.0
// LayerProgram: where each weight of the model lies, resolved once by name.
// One program for every architecture; what a config lacks is kNoTensor or null and
// its step is skipped.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/model_config.h"
#include "ops/args.h"
#include "parallel/shard.h"
#include "weights/expert_use.h"
#include "weights/weight_store.h"

namespace loralei {

struct LayerWeights {
  std::array<TensorSlot, kLayerModules> matrix;  // by Module: q k v o gate up down; kNoTensor: it has none
  std::array<const float*, kLayerModules> bias;  // [out] or null
  std::array<const float*, kLayerNorms> norm{};  // by LayerNorm, [norm_width] or null
  std::array<const float*, kLayerNorms> norm_bias{};
  const float* sinks = nullptr;  // [heads] or null
  // Of a layer with experts, of which gate, up and down above are the shared one.
  const float* router = nullptr;       // [experts, hidden]
  const float* router_bias = nullptr;  // [experts] or null
  const float* shared_gate = nullptr;  // [hidden]
  std::vector<ExpertSlots> experts;
  std::array<const float*, kExpertMatrixCount> expert_bias{};  // [experts, out] or null
};

struct LayerProgram {
  std::vector<LayerWeights> layers;
  TensorSlot embed = kNoTensor;
  TensorSlot head = kNoTensor;  // equals embed when tied
  const float* final_norm = nullptr;
  const float* final_norm_bias = nullptr;
};

// Output width of a layer module: [out] of its matrix.
int module_out(const ModelConfig& config, Module module);
int module_in(const ModelConfig& config, Module module);

// Bias of a layer's module as f32 [out], or null: what AdapterBase needs for bias="all".
const float* base_bias(const WeightStore& weights, int layer, Module module);

// `config` and `weights`: of the rank. Biases of outputs that are summed over the ranks
// are rank 0's alone.
Result<LayerProgram> make_layer_program(const ModelConfig& config, const WeightStore& weights, const Shard& shard = {});

}  // namespace loralei
