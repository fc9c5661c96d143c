// SPDX-License-Identifier: Apache-2.0
#include "formats/model_config.h"

#include <cmath>

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace loralei {

bool has_experts(const ModelConfig& config, int layer) {
  const std::vector<uint8_t>& dense = config.experts.dense;
  return config.experts.count > 0 && (dense.empty() || dense[static_cast<size_t>(layer)] == 0);
}

std::string expert_module(int layer, int expert, int part) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert) + "." +
         kExpertMatrices[part];
}

bool has_linear(const ModelConfig& config) { return !config.linear.layers.empty(); }

bool is_linear(const ModelConfig& config, int layer) {
  return has_linear(config) && config.linear.layers[static_cast<size_t>(layer)] != 0;
}

int kv_layers(const ModelConfig& config) {
  const auto linear = std::count(config.linear.layers.begin(), config.linear.layers.end(), 1);
  return config.layers - static_cast<int>(linear);
}

const char* layer_matrix(const ModelConfig& config, int layer, size_t module) {
  constexpr size_t kFirst = kLayerMatrices.size() - kSharedExpertMatrices.size();
  const bool linear = is_linear(config, layer);
  if (module >= kLayerMatrices.size()) return linear ? kDecayMatrix : nullptr;
  if (linear && module < kLinearMatrices.size()) return kLinearMatrices[module];
  if (!config.gated && module == kFirst) return nullptr;
  if (module < kFirst || !has_experts(config, layer)) return kLayerMatrices[module];
  return config.experts.shared_width > 0 ? kSharedExpertMatrices[module - kFirst] : nullptr;
}

int64_t positions_reached(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
    case RopeScalingKind::kLlama3:  // max_position counts its factor already
    case RopeScalingKind::kLongRope:
      return config.max_position;
    case RopeScalingKind::kDynamic:
      return std::max(config.max_position, kMaxModelLen);
    case RopeScalingKind::kLinear:
    case RopeScalingKind::kYarn: {
      const double stretched = static_cast<double>(original_position_of(config)) * scaling.factor;
      return std::max(config.max_position, static_cast<int64_t>(std::min(stretched, double{kMaxModelLen})));
    }
  }
  return config.max_position;
}

bool has_norm(const ModelConfig& config, LayerNorm norm) {
  return !config.norm_names[static_cast<size_t>(norm)].empty();
}

bool has_norm(const ModelConfig& config, LayerNorm norm, int layer) {
  return has_norm(config, norm) && !(is_linear(config, layer) && (norm == LayerNorm::kQ || norm == LayerNorm::kK));
}

void use_qk_norms(ModelConfig& config) {
  config.norm_names[static_cast<size_t>(LayerNorm::kQ)] = "self_attn.q_norm";
  config.norm_names[static_cast<size_t>(LayerNorm::kK)] = "self_attn.k_norm";
}

void use_olmo2_norms(ModelConfig& config) {
  config.norm_names = {"", "post_attention_layernorm", "", "post_feedforward_layernorm", "", ""};
  use_qk_norms(config);
  config.whole_qk_norm = true;
}

void use_gemma2_norms(ModelConfig& config) {
  config.norm_names = {
      "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "", ""};
}

bool has_sliding_rope(const ModelConfig& config, int layer) {
  return config.sliding_rope && config.sliding[static_cast<size_t>(layer)] > 0;
}

ModelConfig with_sliding_rope(ModelConfig config) {
  LayerRope rope = *std::exchange(config.sliding_rope, std::nullopt);
  config.rope_theta = rope.theta;
  config.rope_scaling = std::move(rope.scaling);
  return config;
}

int norm_width(const ModelConfig& config, LayerNorm norm) {
  if (!has_norm(config, norm)) return 0;
  switch (norm) {
    case LayerNorm::kQ:
      return config.whole_qk_norm ? config.heads * config.head_dim : config.head_dim;
    case LayerNorm::kK:
      return config.whole_qk_norm ? config.kv_heads * config.head_dim : config.head_dim;
    default:
      return config.hidden;
  }
}

int rotary_dim_of(const ModelConfig& config) { return config.rotary_dim > 0 ? config.rotary_dim : config.head_dim; }

int64_t original_position_of(const ModelConfig& config) {
  const int64_t stated = config.rope_scaling.original_max_position;
  return stated > 0 ? stated : config.max_position;
}

double attention_scale_of(const ModelConfig& config) {
  return config.attention_scale > 0 ? config.attention_scale : 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

}  // namespace loralei
