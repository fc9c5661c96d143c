// SPDX-License-Identifier: Apache-2.0
#include "model/layer_program.h"

#include <cmath>

namespace loralei {
namespace {

static_assert(kLayerMatrices.size() + 1 == kLayerModules);

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
const float* bias_of_rank(const ModelConfig& config, int layer, Module module, const float* bias, const Shard& shard) {
  if (bias == nullptr) return nullptr;
  if (module == Module::kO || module == Module::kDown) return shard.rank == 0 ? bias : nullptr;
  return bias + int64_t{module_out(config, layer, module)} * shard.rank;
}

// The experts of a layer that has some.
Status add_experts(const ModelConfig& config, const WeightStore& weights, int index, LayerWeights& layer) {
  if (!has_experts(config, index)) return {};
  const std::string prefix = "model.layers." + std::to_string(index) + ".mlp.";
  TRY_ASSIGN(layer.router, need_vector(weights, prefix + "gate.weight"));
  if (config.experts.biased) {
    TRY_ASSIGN(layer.router_bias, need_vector(weights, prefix + "gate.bias"));
    for (int part = 0; part < kExpertMatrixCount; ++part) {
      TRY_ASSIGN(layer.expert_bias[static_cast<size_t>(part)],
                 need_vector(weights, prefix + "experts." + kExpertMatrices[part] + ".bias"));
    }
  }
  if (config.experts.shared_width > 0) {
    TRY_ASSIGN(layer.shared_gate, need_vector(weights, prefix + "shared_expert_gate.weight"));
  }
  for (int expert = 0; expert < config.experts.count; ++expert) {
    ExpertSlots& slots = layer.experts.emplace_back();
    for (int part = 0; part < kExpertMatrixCount; ++part) {
      TRY_ASSIGN(slots[static_cast<size_t>(part)],
                 need_matrix(weights, expert_module(index, expert, part) + ".weight"));
    }
  }
  return {};
}

// What a layer of gated linear attention has beside its matrices.
Status add_linear(const ModelConfig& config, const WeightStore& weights, int index, LayerWeights& layer) {
  if (!is_linear(config, index)) return {};
  const std::string prefix = "model.layers." + std::to_string(index) + ".linear_attn.";
  LinearWeights& linear = layer.linear;
  TRY_ASSIGN(linear.beta, need_vector(weights, prefix + "in_proj_b.weight"));
  TRY_ASSIGN(linear.decay, need_vector(weights, prefix + "in_proj_a.weight"));
  TRY_ASSIGN(linear.conv, need_vector(weights, prefix + "conv1d.weight"));
  TRY_ASSIGN(linear.dt_bias, need_vector(weights, prefix + "dt_bias"));
  TRY_ASSIGN(linear.norm, need_vector(weights, prefix + "norm.weight"));
  TRY_ASSIGN(const float* const stored, need_vector(weights, prefix + "A_log"));
  for (int head = 0; head < config.linear.v_heads; ++head) {
    const float value = stored[head];
    if (config.linear.negative_decay && !(value < 0))
      return corrupt("The rates at which layer " + std::to_string(index) + " forgets must all be below 0, but one is " +
                     std::to_string(value) + "; the file is damaged.");
    linear.a_log.push_back(config.linear.negative_decay ? std::log(-value) : value);
  }
  return {};
}

}  // namespace

int module_out(const ModelConfig& config, int layer, Module module) {
  const bool linear = layer >= 0 && is_linear(config, layer);
  switch (module) {
    case Module::kQ:
      if (linear) return config.linear.channels();
      return config.heads * config.head_dim * (config.attention_gate ? 2 : 1);
    case Module::kK:
      return linear ? config.linear.value_width() : config.kv_heads * config.head_dim;
    case Module::kV:
      return linear ? config.linear.v_heads : config.kv_heads * config.head_dim;
    case Module::kDecay:
      return linear ? config.linear.v_heads : 0;
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

int module_in(const ModelConfig& config, int layer, Module module) {
  switch (module) {
    case Module::kO:
      return is_linear(config, layer) ? config.linear.value_width() : config.heads * config.head_dim;
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
  // A shared expert and linear attention have no biases, so this name does.
  if (index >= kLayerMatrices.size()) return nullptr;
  return weights.vector("model.layers." + std::to_string(layer) + "." + kLayerMatrices[index] + ".bias");
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
      const char* const name = layer_matrix(config, index, module);
      const auto which = static_cast<Module>(module);
      const bool as_f32 = is_linear(config, index) && (which == Module::kV || which == Module::kDecay);
      if (name == nullptr || as_f32) continue;
      const std::string path = prefix + name;
      TRY_ASSIGN(layer.matrix[module], need_matrix(weights, path + ".weight"));
      layer.bias[module] = bias_of_rank(config, index, which, weights.vector(path + ".bias"), shard);
    }
    TRY(add_linear(config, weights, index, layer));
    TRY(add_experts(config, weights, index, layer));
    if (config.sinks) {
      TRY_ASSIGN(layer.sinks, need_vector(weights, prefix + "self_attn.sinks.weight"));
    }
    for (size_t norm = 0; norm < kLayerNorms; ++norm) {
      if (!has_norm(config, static_cast<LayerNorm>(norm), index)) continue;
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
