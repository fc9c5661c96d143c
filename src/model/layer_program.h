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

// Of a layer of gated linear attention, beside in_proj_qkv, in_proj_z and out_proj among
// its matrices; null in others.
struct LinearWeights {
  const float* beta = nullptr;   // in_proj_b [v_heads, hidden]
  const float* decay = nullptr;  // in_proj_a [v_heads, hidden]
  const float* conv = nullptr;   // [channels, kernel]
  std::vector<float> a_log;      // [v_heads]
  const float* dt_bias = nullptr;
  const float* norm = nullptr;  // [value_dim]
};

struct LayerWeights {
  std::array<TensorSlot, kLayerModules> matrix;  // by Module; kNoTensor: it has none, or holds it as f32
  std::array<const float*, kLayerModules> bias;  // [out] or null
  std::array<const float*, kLayerNorms> norm{};  // by LayerNorm, [norm_width] or null
  std::array<const float*, kLayerNorms> norm_bias{};
  const float* sinks = nullptr;  // [heads] or null
  // Of a layer with experts, of which gate, up and down above are the shared one.
  const float* router = nullptr;       // [experts, hidden]
  const float* router_bias = nullptr;  // [experts] or null
  const float* shared_gate = nullptr;  // [hidden]
  std::vector<ExpertSlots> experts;
  LinearWeights linear;
  std::array<const float*, kExpertMatrixCount> expert_bias{};  // [experts, out] or null
};

struct LayerProgram {
  std::vector<LayerWeights> layers;
  TensorSlot embed = kNoTensor;
  TensorSlot head = kNoTensor;  // equals embed when tied
  const float* final_norm = nullptr;
  const float* final_norm_bias = nullptr;
};

// Widths of a layer's module: [out, in] of its matrix. For kLmHead and kEmbed any layer
// will do.
int module_out(const ModelConfig& config, int layer, Module module);
int module_in(const ModelConfig& config, int layer, Module module);

// Bias of a layer's module as f32 [out], or null: what AdapterBase needs for bias="all".
const float* base_bias(const WeightStore& weights, int layer, Module module);

// `config` and `weights`: of the rank. Biases of outputs that are summed over the ranks
// are rank 0's alone.
Result<LayerProgram> make_layer_program(const ModelConfig& config, const WeightStore& weights, const Shard& shard = {});

}  // namespace loralei
