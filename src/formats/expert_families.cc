// SPDX-License-Identifier: Apache-2.0
#include "formats/expert_families.h"

#include <algorithm>

#include "base/limits.h"
#include "formats/family.h"
#include "formats/gguf_windows.h"
#include "formats/linear_families.h"

namespace loralei {
namespace {

// What is said, or the class's default; a null is the default, too.
Result<int> number(const Json& root, const char* key, int64_t high, int64_t fallback, const std::string& path) {
  TRY_ASSIGN(const auto value, json_int(root, key, 1, high, path));
  return static_cast<int>(value.value_or(fallback));
}

// What counts must be, and the width of the MLPs that are none of the chosen experts'.
Status settle_experts(ModelConfig& config, const std::string& path) {
  ExpertConfig& experts = config.experts;
  if (experts.count < 1 || experts.count > kMaxExperts || experts.used < 1 || experts.used > experts.count) {
    return corrupt(path + ": a row cannot use " + std::to_string(experts.used) + " of " +
                   std::to_string(experts.count) + " experts; at least 1 and at most all of up to " +
                   std::to_string(kMaxExperts) + " are possible");
  }
  if (int64_t{experts.count} * config.layers > kMaxExpertsOfModel) {
    return corrupt(path + ": " + std::to_string(config.layers) + " layers of " + std::to_string(experts.count) +
                   " experts are more than the " + std::to_string(kMaxExpertsOfModel) + " that are possible");
  }
  const auto dense = std::count(experts.dense.begin(), experts.dense.end(), 1);
  if (dense == config.layers) return corrupt(path + ": has experts, but no layer with them");
  if (dense == 0) {
    experts.dense.clear();
    config.ffn = experts.shared_width > 0 ? experts.shared_width : experts.width;
  } else if (experts.shared_width > 0 && experts.shared_width != config.ffn) {
    return unsupported(path + ": layers without experts that are " + std::to_string(config.ffn) +
                       " wide beside shared experts of another width (" + std::to_string(experts.shared_width) +
                       ") are not supported");
  }
  return {};
}

// Of Qwen: every so many layers has experts, but for those in a list.
Status read_dense_layers(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(const int step, number(root, "decoder_sparse_step", INT32_MAX, 1, path));
  TRY_ASSIGN(const auto listed, json_ints(root, "mlp_only_layers", 0, kMaxLayers, path));
  for (int layer = 0; layer < config.layers; ++layer) {
    const bool named = listed && std::find(listed->begin(), listed->end(), layer) != listed->end();
    config.experts.dense.push_back(named || (layer + 1) % step != 0 ? 1 : 0);
  }
  return {};
}

Status read_qwen_moe(const Json& root, int64_t count, int64_t used, int64_t width, ModelConfig& config,
                     const std::string& path) {
  ExpertConfig& experts = config.experts;
  // The newer name first, which the class also takes.
  const char* const counted = root.contains("num_experts") ? "num_experts" : "num_local_experts";
  TRY_ASSIGN(experts.count, number(root, counted, INT32_MAX, count, path));
  TRY_ASSIGN(experts.used, number(root, "num_experts_per_tok", INT32_MAX, used, path));
  TRY_ASSIGN(experts.width, number(root, "moe_intermediate_size", kMaxDim, width, path));
  TRY_ASSIGN(const auto normed, json_bool(root, "norm_topk_prob", path));
  experts.normed = normed.value_or(false);
  return read_dense_layers(root, config, path);
}

// What all GGUF files with experts say. Which layers have some the tensors tell.
Status read_expert_keys(const GgufFile& file, ModelConfig& config) {
  ExpertConfig& experts = config.experts;
  TRY_ASSIGN(const auto count, file.integer(gguf_key(config, "expert_count"), 0, INT32_MAX));
  TRY_ASSIGN(const auto used, file.integer(gguf_key(config, "expert_used_count"), 0, INT32_MAX));
  TRY_ASSIGN(const auto width, file.integer(gguf_key(config, "expert_feed_forward_length"), 1, kMaxDim));
  TRY_ASSIGN(const auto scale, file.real(gguf_key(config, "expert_weights_scale")));
  TRY_ASSIGN(const auto gating, file.integer(gguf_key(config, "expert_gating_func"), 0, INT32_MAX));
  if (scale.value_or(0) != 0 && *scale != 1) {
    return unsupported(file.path + ": " + gguf_key(config, "expert_weights_scale") +
                       " is not supported (it changes what the model computes)");
  }
  if (gating.value_or(0) > 1)
    return unsupported(file.path + ": experts that are not chosen by a softmax are not supported");
  experts.count = static_cast<int>(count.value_or(0));
  experts.used = static_cast<int>(used.value_or(0));
  experts.width = static_cast<int>(width.value_or(config.ffn));
  for (int layer = 0; layer < config.layers; ++layer) {
    const bool has = file.index.find("blk." + std::to_string(layer) + ".ffn_gate_inp.weight") != nullptr;
    experts.dense.push_back(has ? 0 : 1);
  }
  return {};
}

// What gpt-oss has in every form; its numbers are the class's where a file says none.
void use_gpt_oss(ModelConfig& config) {
  config.sinks = true;
  config.activation = Activation::kClamped;
  config.experts.normed = true;
  config.experts.biased = true;
  config.experts.in_turn = true;
}

}  // namespace

Status mixtral_config(const Json& root, ModelConfig& config, const std::string& path) {
  ExpertConfig& experts = config.experts;
  TRY_ASSIGN(experts.count, number(root, "num_local_experts", INT32_MAX, 8, path));
  TRY_ASSIGN(experts.used, number(root, "num_experts_per_tok", INT32_MAX, 2, path));
  experts.width = config.ffn;
  experts.normed = true;
  experts.mixtral_names = true;
  // The class has a window where one is named, and none by itself.
  if (!root.contains("sliding_window")) std::fill(config.sliding.begin(), config.sliding.end(), 0);
  return settle_experts(config, path);
}

Status qwen2_moe_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY(read_qwen_moe(root, 60, 4, 1408, config, path));
  TRY_ASSIGN(config.experts.shared_width, number(root, "shared_expert_intermediate_size", kMaxDim, 5632, path));
  TRY_ASSIGN(const auto biased, json_bool(root, "qkv_bias", path));
  config.qkv_bias = biased.value_or(true);
  TRY_ASSIGN(const auto windows, json_bool(root, "use_sliding_window", path));
  if (windows.value_or(false) && !root.contains("layer_types")) {
    return unsupported(path +
                       ": \"use_sliding_window\" without \"layer_types\" means other layers in each version of "
                       "transformers; say in \"layer_types\" which ones are meant");
  }
  return settle_experts(config, path);
}

Status qwen3_moe_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY(read_qwen_moe(root, 128, 8, 768, config, path));
  return settle_experts(config, path);
}

Status qwen3_5_moe_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY(qwen3_5_config(root, config, path));
  TRY(read_qwen_moe(root, 256, 8, 512, config, path));
  ExpertConfig& experts = config.experts;
  if (std::find(experts.dense.begin(), experts.dense.end(), 1) != experts.dense.end())
    return unsupported(path +
                       ": layers without experts (\"mlp_only_layers\", \"decoder_sparse_step\") are not known in " +
                       "this class");
  TRY_ASSIGN(experts.shared_width, number(root, "shared_expert_intermediate_size", kMaxDim, 512, path));
  experts.normed = true;
  return settle_experts(config, path);
}

// The class's yarn is that of a file that says nothing of rope.
Status gpt_oss_config(const Json& root, ModelConfig& config, const std::string& path) {
  use_gpt_oss(config);
  ExpertConfig& experts = config.experts;
  const char* const counted = root.contains("num_experts") ? "num_experts" : "num_local_experts";
  TRY_ASSIGN(experts.count, number(root, counted, INT32_MAX, 128, path));
  TRY_ASSIGN(experts.used, number(root, "num_experts_per_tok", INT32_MAX, 4, path));
  experts.width = config.ffn;
  TRY_ASSIGN(config.rms_eps, json_positive(root, "rms_norm_eps", 1e-5, path));
  TRY_ASSIGN(const double alpha, json_positive(root, "swiglu_alpha", 1.702, path));
  TRY_ASSIGN(const double limit, json_positive(root, "swiglu_limit", 7.0, path));
  config.clamp = {.alpha = static_cast<float>(alpha), .limit = static_cast<float>(limit)};
  const auto says = [&](const char* key) { return json_find(root, key) != nullptr && !json_find(root, key)->empty(); };
  if (!says("rope_scaling") && !says("rope_parameters")) {
    config.rope_scaling = {.kind = RopeScalingKind::kYarn, .factor = 32, .original_max_position = 4096};
    config.rope_scaling.truncate = false;
  }
  return settle_experts(config, path);
}

Status mixtral_gguf(const GgufFile& file, ModelConfig& config) {
  TRY_ASSIGN(const auto count, file.integer(gguf_key(config, "expert_count"), 0, INT32_MAX));
  if (count.value_or(0) == 0) return {};
  config.architecture = "mixtral";
  TRY(read_expert_keys(file, config));
  config.experts.normed = true;
  return settle_experts(config, file.path);
}

Status qwen2_moe_gguf(const GgufFile& file, ModelConfig& config) {
  TRY(read_expert_keys(file, config));
  TRY_ASSIGN(const auto shared, file.integer(gguf_key(config, "expert_shared_feed_forward_length"), 1, kMaxDim));
  config.experts.shared_width = static_cast<int>(shared.value_or(config.ffn));
  return settle_experts(config, file.path);
}

Status qwen3_moe_gguf(const GgufFile& file, ModelConfig& config) {
  TRY(read_expert_keys(file, config));
  config.experts.normed = true;  // as llama.cpp has it
  return settle_experts(config, file.path);
}

Status qwen3_5_moe_gguf(const GgufFile& file, ModelConfig& config) {
  TRY(qwen3_5_gguf(file, config));
  config.experts.normed = true;
  return qwen2_moe_gguf(file, config);
}

// Files state neither the clamp nor that yarn's borders are not rounded to whole pairs;
// the model was trained so.
Status gpt_oss_gguf(const GgufFile& file, ModelConfig& config) {
  use_gpt_oss(config);
  config.rope_scaling.truncate = false;
  TRY(read_expert_keys(file, config));
  if (file.find(gguf_key(config, "attention.sliding_window")) == nullptr)
    return corrupt(file.path + ": lacks " + gguf_key(config, "attention.sliding_window"));
  TRY(read_gguf_windows(file, {.window = 0, .period = 2}, config));
  TRY_ASSIGN(const auto theta, file.real(gguf_key(config, "rope.freq_base_swa")));
  TRY(use_sliding_rope(config, {theta.value_or(config.rope_theta), config.rope_scaling}, file.path));
  return settle_experts(config, file.path);
}

}  // namespace loralei
