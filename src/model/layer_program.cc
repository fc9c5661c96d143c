// SPDX-License-Identifier: Apache-2.0
#include "model/layer_program.h"

namespace loralei {
namespace {

static_assert(kLayerMatrices.size() == kLayerModules);

Result<TensorSlot> need_matrix(const WeightStore& weights, const std::string& name) {
  const TensorSlot slot = weights.find(name);
  if (slot == kNoTensor) return corrupt("The model has no tensor '" + name + "'; the file is incomplete.");
  return slot;
}

Result<const float*> need_vector(const WeightStore& weights, const std::string& name) {
  const float* data = weights.vector(name);
  if (data == nullptr) return corrupt("The model has no tensor '" + name + "'; the file is incomplete.");
  return data;
}

// Stores hold whole biases.
const float* bias_of_rank(const ModelConfig& config, Module module, const float* bias, const Shard& shard) {
  if (bias == nullptr) return nullptr;
  if (module == Module::kO || module == Module::kDown) return shard.rank == 0 ? bias : nullptr;
  return bias + int64_t{module_out(config, module)} * shard.rank;
}

std::string module_path(int layer, size_t module) {
  return "model.layers." + std::to_string(layer) + "." + kLayerMatrices[module];
}

}  // namespace

int module_out(const ModelConfig& config, Module module) {
  switch (module) {
    case Module::kQ:
      return config.heads * config.head_dim;
    case Module::kK:
    case Module::kV:
      return config.kv_heads * config.head_dim;
    case Module::kO:
    case Module::kDown:
    case Module::kEmbed:
      return config.hidden;
    case Module::kGate:
    case Module::kUp:
      return config.ffn;
    case Module::kLmHead:
      return config.vocab;
  }
  return 0;
}

int module_in(const ModelConfig& config, Module module) {
  switch (module) {
    case Module::kO:
      return config.heads * config.head_dim;
    case Module::kDown:
      return config.ffn;
    case Module::kEmbed:
      return config.vocab;
    default:
      return config.hidden;
  }
}

const float* base_bias(const WeightStore& weights, int layer, Module module) {
  const auto index = static_cast<size_t>(module);
  return index < kLayerModules ? weights.vector(module_path(layer, index) + ".bias") : nullptr;
}

Result<LayerProgram> make_layer_program(const ModelConfig& config, const WeightStore& weights, const Shard& shard) {
  LayerProgram program;
  program.layers.resize(static_cast<size_t>(config.layers));
  for (int index = 0; index < config.layers; ++index) {
    LayerWeights& layer = program.layers[static_cast<size_t>(index)];
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    for (size_t module = 0; module < kLayerModules; ++module) {
      layer.matrix[module] = kNoTensor;
      layer.bias[module] = nullptr;
      if (static_cast<Module>(module) == Module::kGate && !config.gated) continue;
      const std::string path = module_path(index, module);
      TRY_ASSIGN(layer.matrix[module], need_matrix(weights, path + ".weight"));
      layer.bias[module] = bias_of_rank(config, static_cast<Module>(module), weights.vector(path + ".bias"), shard);
    }
    for (size_t norm = 0; norm < kLayerNorms; ++norm) {
      if (!has_norm(config, static_cast<LayerNorm>(norm))) continue;
      const std::string name = prefix + std::string(config.norm_names[norm]);
      TRY_ASSIGN(layer.norm[norm], need_vector(weights, name + ".weight"));
      if (!config.centred_norms) continue;
      TRY_ASSIGN(layer.norm_bias[norm], need_vector(weights, name + ".bias"));
    }
  }
  TRY_ASSIGN(program.embed, need_matrix(weights, "model.embed_tokens.weight"));
  program.head = program.embed;
  if (!config.tied_head) {
    TRY_ASSIGN(program.head, need_matrix(weights, "lm_head.weight"));
  }
  TRY_ASSIGN(program.final_norm, need_vector(weights, "model.norm.weight"));
  if (config.centred_norms) {
    TRY_ASSIGN(program.final_norm_bias, need_vector(weights, "model.norm.bias"));
  }
  return program;
}

}  // namespace loralei
