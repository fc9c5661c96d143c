// SPDX-License-Identifier: Apache-2.0
#include "formats/family.h"

#include <algorithm>
#include <vector>

#include "base/limits.h"
#include "formats/expert_families.h"
#include "formats/family_gemma.h"
#include "formats/gguf_windows.h"
#include "formats/linear_families.h"
#include "formats/words.h"

namespace loralei {
namespace {

// Without them all are 1, the attention's too.
Status granite_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.embed_scale, json_positive(root, "embedding_multiplier", 1, path));
  TRY_ASSIGN(config.residual_scale, json_positive(root, "residual_multiplier", 1, path));
  TRY_ASSIGN(config.attention_scale, json_positive(root, "attention_multiplier", 1, path));
  TRY_ASSIGN(config.logits_divisor, json_positive(root, "logits_scaling", 1, path));
  return {};
}

// A list of 1 (turned) and 0, one for each layer; without it every fourth layer is not
// turned, or as the interval says.
Status smollm3_config(const Json& root, ModelConfig& config, const std::string& path) {
  const auto layers = static_cast<size_t>(config.layers);
  TRY_ASSIGN(const auto interval, json_int(root, "no_rope_layer_interval", 1, kMaxLayers, path));
  TRY_ASSIGN(const auto turned, json_ints(root, "no_rope_layers", 0, 1, path));
  if (turned && turned->size() != layers) {
    return corrupt(path + ": \"no_rope_layers\" must be a list with one entry for each of the " +
                   std::to_string(config.layers) + " layers");
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    const bool is = turned ? (*turned)[layer] != 0 : (static_cast<int64_t>(layer) + 1) % interval.value_or(4) != 0;
    config.unturned.push_back(is ? 0 : 1);
  }
  return {};
}

// A number of 0 is what llama.cpp takes for none.
Status read_scale(const GgufFile& file, const ModelConfig& config, const char* name, double& scale) {
  TRY_ASSIGN(const auto value, file.real(gguf_key(config, name)));
  if (value.value_or(0) == 0) return {};
  if (!(*value > 0)) return corrupt(file.path + ": " + gguf_key(config, name) + " must be above 0");
  scale = *value;
  return {};
}

Status granite_gguf(const GgufFile& file, ModelConfig& config) {
  TRY(read_scale(file, config, "embedding_scale", config.embed_scale));
  TRY(read_scale(file, config, "residual_scale", config.residual_scale));
  TRY(read_scale(file, config, "attention.scale", config.attention_scale));
  return read_scale(file, config, "logit_scale", config.logits_divisor);
}

// As llama.cpp has it; files do not say.
Status smollm3_gguf(const GgufFile&, ModelConfig& config) {
  for (int layer = 0; layer < config.layers; ++layer) config.unturned.push_back((layer + 1) % 4 == 0 ? 1 : 0);
  return {};
}

Status olmo2_config(const Json& root, ModelConfig& config, const std::string& path) {
  use_olmo2_norms(config);
  TRY_ASSIGN(config.rms_eps, json_positive(root, "rms_norm_eps", 1e-5, path));
  return {};
}

// Files of OLMo 3 are of the same architecture, and have windows. Their yarn is of the
// layers without one; its attention factor is the whole one, as in config.json.
Status olmo2_gguf(const GgufFile& file, ModelConfig& config) {
  use_olmo2_norms(config);
  TRY(read_gguf_windows(file, {.window = 0, .period = 4}, config));
  TRY_ASSIGN(const auto factor, file.real(gguf_key(config, "rope.scaling.attn_factor")));
  if (factor && config.rope_scaling.kind == RopeScalingKind::kYarn) config.rope_scaling.attention_factor = *factor;
  TRY_ASSIGN(const auto theta, file.real(gguf_key(config, "rope.freq_base_swa")));
  return use_sliding_rope(config, {.theta = theta.value_or(config.rope_theta)}, file.path);
}

// The length trained with is a number of the class itself; its older names of longrope
// are those of other kinds.
Status phi3_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.rms_eps, json_positive(root, "rms_norm_eps", 1e-5, path));
  TRY_ASSIGN(const auto original, json_int(root, "original_max_position_embeddings", 1, kMaxPosition, path));
  if (config.rope_scaling.kind == RopeScalingKind::kLongRope)
    config.rope_scaling.original_max_position = original.value_or(4096);
  return {};
}

Status glm_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.rms_eps, json_positive(root, "rms_norm_eps", 1.5625e-7, path));
  return {};
}

// Norms before and behind each block; llama.cpp calls what stands behind as OLMo 2's is.
void use_glm4_norms(ModelConfig& config) {
  config.norm_names = {
      "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm", "", ""};
}

Status glm4_config(const Json& root, ModelConfig& config, const std::string& path) {
  use_glm4_norms(config);
  return glm_config(root, config, path);
}

Status glm4_gguf(const GgufFile&, ModelConfig& config) {
  use_glm4_norms(config);
  return {};
}

Status starcoder2_config(const Json& root, ModelConfig& config, const std::string& path) {
  config.gated = false;
  TRY_ASSIGN(config.rms_eps, json_positive(root, "norm_epsilon", 1e-5, path));
  TRY_ASSIGN(const auto bias, json_bool(root, "use_bias", path));
  config.qkv_bias = config.o_bias = config.mlp_bias = bias.value_or(true);
  return {};
}

Status starcoder2_gguf(const GgufFile& file, ModelConfig& config) {
  config.gated = false;
  config.activation = Activation::kGeluTanh;
  config.mlp_bias = file.index.find("blk.0.ffn_up.bias") != nullptr;
  return {};
}

// What a file that has all keys in one object says of its other parts.
constexpr std::array<std::string_view, kFamilyKeysMax> kImageKeys = {"vision_config",       "image_token_id",
                                                                     "video_token_id",      "vision_start_token_id",
                                                                     "vision_end_token_id", "vision_token_id"};

// Of layers of gated linear attention, of those that guess tokens ahead and are left out,
// and of the states' numbers, which are f32 here whatever is said.
constexpr std::array<std::string_view, kFamilyKeysMax> kLinearKeys = {
    "linear_num_key_heads",  "linear_num_value_heads",       "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim",       "full_attention_interval",
    "attn_output_gate",      "partial_rotary_factor",        "mamba_ssm_dtype",
    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers"};

constexpr std::array<std::string_view, kFamilyKeysMax> with(std::array<std::string_view, kFamilyKeysMax> keys,
                                                            std::initializer_list<std::string_view> more) {
  size_t used = 0;
  while (!keys[used].empty()) ++used;
  for (const std::string_view key : more) keys[used++] = key;
  return keys;
}

// Of two with the same GGUF architecture the first is that of such files.
constexpr Family kFamilies[] = {
    {.class_name = "LlamaForCausalLM",
     .name = "llama",
     .attention_bias = true,
     .mlp_bias = true,
     .gguf_name = "llama",
     .gguf_permutes_qk = true,
     .read_gguf = mixtral_gguf,
     .gguf_keys = {"expert_count", "expert_used_count"}},
    {.class_name = "MistralForCausalLM",
     .name = "mistral",
     .max_position = 131072,
     .kv_heads = 8,
     .window_always = true,
     .gguf_name = "llama",
     .gguf_permutes_qk = true},
    {.class_name = "Qwen2ForCausalLM",
     .name = "qwen2",
     .max_position = 32768,
     .kv_heads = 32,
     .qkv_bias = true,
     .gguf_name = "qwen2"},
    {.class_name = "Qwen3ForCausalLM",
     .name = "qwen3",
     .max_position = 32768,
     .kv_heads = 32,
     .head_dim = 128,
     .attention_bias = true,
     .qk_norm = true,
     .gguf_name = "qwen3"},
    {.class_name = "GraniteForCausalLM",
     .name = "granite",
     .attention_bias = true,
     .mlp_bias = true,
     .read_config = granite_config,
     .config_keys = {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"},
     .gguf_name = "granite",
     .gguf_permutes_qk = true,
     .read_gguf = granite_gguf,
     .gguf_keys = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"}},
    {.class_name = "SmolLM3ForCausalLM",
     .name = "smollm3",
     .max_position = 32768,
     .kv_heads = 4,
     .attention_bias = true,
     .mlp_bias = true,
     .read_config = smollm3_config,
     .config_keys = {"no_rope_layers", "no_rope_layer_interval"},
     .gguf_name = "smollm3",
     .gguf_permutes_qk = true,
     .read_gguf = smollm3_gguf},
    {.class_name = "Olmo2ForCausalLM",
     .name = "olmo2",
     .attention_bias = true,
     .read_config = olmo2_config,
     .gguf_name = "olmo2",
     .read_gguf = olmo2_gguf,
     .gguf_keys = {"attention.sliding_window"}},
    {.class_name = "Olmo3ForCausalLM",
     .name = "olmo3",
     .attention_bias = true,
     .rope_theta = 500000.0,
     .sliding_theta = 500000.0,
     .window_period = 4,
     .read_config = olmo2_config,
     .gguf_name = "olmo2"},
    {.class_name = "GemmaForCausalLM",
     .name = "gemma",
     .max_position = 8192,
     .kv_heads = 16,
     .head_dim = 256,
     .attention_bias = true,
     .tied_head = true,
     .activation = Activation::kGeluTanh,
     .gelu_by_tanh = true,
     .read_config = gemma_config,
     .config_keys = {"hidden_activation"},
     .gguf_name = "gemma",
     .read_gguf = gemma_gguf},
    {.class_name = "Gemma2ForCausalLM",
     .name = "gemma2",
     .max_position = 8192,
     .kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .tied_head = true,
     .activation = Activation::kGeluTanh,
     .activation_key = "hidden_activation",
     .window_period = 2,
     .read_config = gemma2_config,
     .config_keys = {"hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"},
     .gguf_name = "gemma2",
     .read_gguf = gemma2_gguf,
     .gguf_keys = {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}},
    {.class_name = "Gemma3ForCausalLM",
     .name = "gemma3_text",
     .max_position = 131072,
     .kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .qk_norm = true,
     .tied_head = true,
     .activation = Activation::kGeluTanh,
     .activation_key = "hidden_activation",
     .rope_theta = 1000000.0,
     .sliding_theta = 10000.0,
     .sliding_theta_key = "rope_local_base_freq",
     .window_period = 6,
     .read_config = gemma3_config,
     .config_keys = {"hidden_activation", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                     "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
     .gguf_name = "gemma3",
     .read_gguf = gemma3_gguf,
     .gguf_keys = {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}},
    {.class_name = "MixtralForCausalLM",
     .name = "mixtral",
     .max_position = 131072,
     .kv_heads = 8,
     .window_always = true,
     .read_config = mixtral_config,
     .config_keys = {"num_local_experts", "num_experts_per_tok", "router_jitter_noise", "output_router_logits",
                     "router_aux_loss_coef"},
     .gguf_name = "llama",
     .gguf_permutes_qk = true},
    {.class_name = "Qwen2MoeForCausalLM",
     .name = "qwen2_moe",
     .max_position = 32768,
     .kv_heads = 16,
     .qkv_bias = true,
     .read_config = qwen2_moe_config,
     .config_keys = {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
                     "shared_expert_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
                     "qkv_bias", "output_router_logits", "router_aux_loss_coef"},
     .gguf_name = "qwen2moe",
     .read_gguf = qwen2_moe_gguf,
     .gguf_keys = {"expert_count", "expert_used_count"}},
    {.class_name = "Qwen3MoeForCausalLM",
     .name = "qwen3_moe",
     .max_position = 32768,
     .kv_heads = 4,
     .attention_bias = true,
     .qk_norm = true,
     .read_config = qwen3_moe_config,
     .config_keys = {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
                     "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "output_router_logits",
                     "router_aux_loss_coef"},
     .gguf_name = "qwen3moe",
     .read_gguf = qwen3_moe_gguf,
     .gguf_keys = {"expert_count", "expert_used_count"}},
    {.class_name = "Qwen3_5ForCausalLM",
     .name = "qwen3_5_text",
     .max_position = 32768,
     .kv_heads = 4,
     .head_dim = 256,
     .attention_bias = true,
     .qk_norm = true,
     .rotary_factor = 0.25,
     .linear = true,
     .read_config = qwen3_5_config,
     .config_keys = kLinearKeys,
     .gguf_name = "qwen35",
     .read_gguf = qwen3_5_gguf},
    {.class_name = "Qwen3_5MoeForCausalLM",
     .name = "qwen3_5_moe_text",
     .max_position = 32768,
     .kv_heads = 2,
     .head_dim = 256,
     .attention_bias = true,
     .qk_norm = true,
     .rotary_factor = 0.25,
     .linear = true,
     .experts_alone = true,
     .read_config = qwen3_5_moe_config,
     .config_keys = with(kLinearKeys, {"num_experts", "num_local_experts", "num_experts_per_tok",
                                       "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
                                       "decoder_sparse_step", "output_router_logits", "router_aux_loss_coef"}),
     .gguf_name = "qwen35moe",
     .read_gguf = qwen3_5_moe_gguf,
     .gguf_keys = {"expert_count", "expert_used_count"}},
    {.class_name = "GptOssForCausalLM",
     .name = "gpt_oss",
     .max_position = 131072,
     .kv_heads = 8,
     .head_dim = 64,
     .attention_bias = true,
     .attention_bias_default = true,
     .rope_theta = 150000.0,
     .window = 128,
     .window_period = 2,
     .read_config = gpt_oss_config,
     .config_keys = {"num_local_experts", "num_experts", "num_experts_per_tok", "experts_per_token",
                     "output_router_logits", "router_aux_loss_coef", "swiglu_limit", "swiglu_alpha",
                     "initial_context_length"},
     .gguf_name = "gpt-oss",
     .read_gguf = gpt_oss_gguf,
     .gguf_keys = {"expert_count", "expert_used_count", "attention.sliding_window"}},
    {.class_name = "Phi3ForCausalLM",
     .name = "phi3",
     .max_position = 4096,
     .window_always = true,
     .window = 0,
     .rotary_factor = 1,
     .fused = true,
     .read_config = phi3_config,
     .config_keys = {"partial_rotary_factor"},
     .gguf_name = "phi3",
     .gguf_fused_up = true},
    {.class_name = "Glm4ForCausalLM",
     .name = "glm4",
     .max_position = 131072,
     .kv_heads = 2,
     .head_dim = 128,
     .attention_bias = true,
     .attention_bias_default = true,
     .o_bias = false,
     .rotary_factor = 0.5,
     .interleaved_qk = true,
     .fused = true,
     .read_config = glm4_config,
     .config_keys = {"partial_rotary_factor"},
     .gguf_name = "glm4",
     .gguf_fused_up = true,
     .read_gguf = glm4_gguf},
    {.class_name = "GlmForCausalLM",
     .name = "glm",
     .max_position = 131072,
     .kv_heads = 2,
     .head_dim = 128,
     .attention_bias = true,
     .attention_bias_default = true,
     .o_bias = false,
     .rotary_factor = 0.5,
     .interleaved_qk = true,
     .fused = true,
     .read_config = glm_config,
     .config_keys = {"partial_rotary_factor"},
     .gguf_name = "chatglm",
     .gguf_fused_up = true},
    {.class_name = "Starcoder2ForCausalLM",
     .name = "starcoder2",
     .max_position = 4096,
     .kv_heads = 2,
     .centred_norms = true,
     .tied_head = true,
     .activation = Activation::kGeluTanh,
     .window_always = true,
     .window = 0,
     .read_config = starcoder2_config,
     .config_keys = {"use_bias", "norm_epsilon", "embedding_dropout", "residual_dropout", "norm_type", "mlp_type"},
     .gguf_name = "starcoder2",
     .read_gguf = starcoder2_gguf},
    // Text models inside of others.
    {.class_name = "Mistral3ForConditionalGeneration",
     .name = "mistral3",
     .text_type = "mistral",
     .text_family = "mistral",
     .config_keys = kImageKeys,
     .gguf_name = "mistral3",
     .gguf_permutes_qk = true},
    {.class_name = "Gemma3ForConditionalGeneration",
     .name = "gemma3",
     .text_type = "gemma3_text",
     .text_family = "gemma3_text",
     .config_keys = kImageKeys,
     .gguf_name = "gemma3"},
    {.class_name = "Qwen2VLForConditionalGeneration",
     .name = "qwen2_vl",
     .max_position = 32768,
     .kv_heads = 8,
     .qkv_bias = true,
     .text_type = "qwen2_vl_text",
     .config_keys = kImageKeys,
     .gguf_name = "qwen2vl"},
    {.class_name = "Qwen2_5_VLForConditionalGeneration",
     .name = "qwen2_5_vl",
     .max_position = 32768,
     .kv_heads = 8,
     .qkv_bias = true,
     .text_type = "qwen2_5_vl_text",
     .config_keys = kImageKeys,
     .gguf_name = "qwen2vl"},
    {.class_name = "Qwen3VLForConditionalGeneration",
     .name = "qwen3_vl",
     .max_position = 128000,
     .kv_heads = 32,
     .head_dim = 128,
     .attention_bias = true,
     .qk_norm = true,
     .rope_theta = 500000.0,
     .text_type = "qwen3_vl_text",
     .config_keys = kImageKeys,
     .gguf_name = "qwen3vl"},
    {.class_name = "Qwen3_5MoeForConditionalGeneration",
     .name = "qwen3_5_moe",
     .text_type = "qwen3_5_moe_text",
     .text_family = "qwen3_5_moe_text",
     .config_keys = kImageKeys,
     .gguf_name = "qwen35moe"},
    {.class_name = "Qwen3_5ForConditionalGeneration",
     .name = "qwen3_5",
     .text_type = "qwen3_5_text",
     .text_family = "qwen3_5_text",
     .config_keys = kImageKeys,
     .gguf_name = "qwen35"},
};

template <typename Test>
const Family* first_family(Test&& test) {
  const auto* const found = std::find_if(std::begin(kFamilies), std::end(kFamilies), test);
  return found == std::end(kFamilies) ? nullptr : found;
}

}  // namespace

const Family* family_of_class(std::string_view class_name) {
  return first_family([&](const Family& family) { return class_name == family.class_name; });
}

const Family* family_of_type(std::string_view model_type) {
  return first_family([&](const Family& family) { return model_type == family.name; });
}

const Family* family_of_gguf(std::string_view architecture) {
  if (architecture.empty()) return nullptr;
  return first_family([&](const Family& family) { return architecture == family.gguf_name; });
}

std::string supported_architectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.push_back(family.class_name);
  return join(names);
}

std::string supported_gguf_architectures() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    const std::string name(family.gguf_name);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return join(names);
}

bool is_wrapper(const Family& family) { return !family.text_type.empty(); }

std::string text_alone_note(const Family& wrapper) {
  return std::string("The text model of ") + wrapper.class_name +
         " is served alone: images, video and sound in requests are refused.";
}

std::string gguf_key(const ModelConfig& config, std::string_view name) {
  const Family* const family = family_of_type(config.architecture);
  return std::string(family == nullptr ? config.architecture : family->gguf_name) + "." + std::string(name);
}

}  // namespace loralei
