// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <algorithm>

#include "base/limits.h"
#include "base/units.h"
#include "formats/family.h"
#include "formats/hf_keys.h"
#include "formats/hf_rope.h"
#include "formats/json_util.h"
#include "formats/linear_families.h"
#include "formats/words.h"
#include "formats/wrapped_model.h"

namespace loralei {

namespace {

constexpr int64_t kMaxConfigBytes = 4 * kMiB;

Result<const Family*> find_family(const Json& root, const std::string& path) {
  TRY_ASSIGN(const auto classes, json_strings(root, "architectures", path));
  TRY_ASSIGN(const auto model_type, json_string(root, "model_type", path));
  if (classes && classes->size() > 1) {
    return unsupported(path + ": \"architectures\" names several classes (" + join(*classes) + "); one of " +
                       supported_architectures() + " is expected");
  }
  const std::string wanted = classes && !classes->empty() ? classes->front() : model_type.value_or("");
  const bool by_class = classes && !classes->empty();
  if (const Family* const family = by_class ? family_of_class(wanted) : family_of_type(wanted)) return family;
  if (wanted.empty()) {
    return unsupported(path + ": says neither \"architectures\" nor \"model_type\"; supported are " +
                       supported_architectures());
  }
  return unsupported(path + ": the architecture \"" + wanted.substr(0, 100) + "\" is not supported; supported are " +
                     supported_architectures());
}

Result<int> need_int(const Json& root, const char* key, int64_t high, const std::string& path) {
  TRY_ASSIGN(const auto value, json_int(root, key, 1, high, path));
  if (!value) return corrupt(path + ": lacks \"" + key + "\"");
  return static_cast<int>(*value);
}

// Of so many layers the last is full; the key counts where the family has it.
Result<int64_t> window_period(const Json& root, const Family& family, const std::string& path) {
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    const auto& own = family.config_keys;
    if (std::find(own.begin(), own.end(), key) == own.end()) continue;
    TRY_ASSIGN(const auto period, json_int(root, key, 1, kMaxLayers, path));
    if (period) return *period;
  }
  return family.window_period;
}

Status read_windows(const Json& root, const Family& family, ModelConfig& config, const std::string& path) {
  config.sliding.assign(static_cast<size_t>(config.layers), 0);
  if (family.linear) return {};
  TRY_ASSIGN(const auto stated, json_int(root, "sliding_window", 1, kMaxPosition, path));
  TRY_ASSIGN(const auto use, json_bool(root, "use_sliding_window", path));
  TRY_ASSIGN(const auto from_layer, json_int(root, "max_window_layers", 0, kMaxLayers, path));
  const bool llama = std::string_view(family.name) == "llama";
  if (llama && stated) return refused_value(path, "sliding_window", root["sliding_window"], "Llama has none");
  // 0: no window. The classes that have one default to 4096; a null switches it off.
  int64_t window = llama ? 0 : root.contains("sliding_window") ? stated.value_or(0) : family.window;
  const bool by_period = family.window_period > 0;
  if (!family.window_always && !by_period && !use.value_or(false)) window = 0;
  TRY_ASSIGN(const int64_t period, window_period(root, family, path));
  const Json* types = json_find(root, "layer_types");
  if (types) {
    if (!types->is_array() || types->size() != static_cast<size_t>(config.layers)) {
      return corrupt(path + ": \"layer_types\" must be a list with one entry for each of the " +
                     std::to_string(config.layers) + " layers");
    }
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    bool sliding = by_period ? (layer + 1) % period != 0
                             : window > 0 && (family.window_always || layer >= from_layer.value_or(28));
    if (types) {
      const Json& type = (*types)[static_cast<size_t>(layer)];
      const bool full = type == "full_attention";
      if (!full && type != "sliding_attention")
        return refused_value(path, "layer_types", type, "known are full_attention and sliding_attention");
      // Mistral's own class ignores layer_types; a file in which they contradict the
      // window is ambiguous.
      if (family.window_always && full == sliding) {
        return unsupported(path + ": \"layer_types\" contradicts \"sliding_window\" in layer " + std::to_string(layer));
      }
      sliding = !full;
    }
    if (sliding && window == 0)
      return corrupt(path + ": layer " + std::to_string(layer) +
                     " has sliding attention (\"layer_types\"), but no \"sliding_window\" is in effect");
    if (sliding) config.sliding[static_cast<size_t>(layer)] = static_cast<int32_t>(window);
  }
  return {};
}

// Ids beyond the vocabulary are written by some fine-tunes that never resized; they can
// never be generated and are left out.
Result<std::vector<TokenId>> read_ends(const Json& root, int vocab, const std::string& path) {
  std::vector<TokenId> ends;
  TRY_ASSIGN(const auto eos, json_ints(root, "eos_token_id", -1, INT32_MAX, path));
  for (const int64_t id : eos.value_or(std::vector<int64_t>())) {
    if (id >= 0 && id < vocab && ends.size() < 1024) ends.push_back(static_cast<TokenId>(id));
  }
  return ends;
}

Status read_shape(const Json& root, const Family& family, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.hidden, need_int(root, "hidden_size", kMaxDim, path));
  TRY_ASSIGN(config.layers, need_int(root, "num_hidden_layers", kMaxLayers, path));
  TRY_ASSIGN(config.heads, need_int(root, "num_attention_heads", kMaxDim, path));
  if (!family.experts_alone) {
    TRY_ASSIGN(config.ffn, need_int(root, "intermediate_size", kMaxDim, path));
  }
  TRY_ASSIGN(config.vocab, need_int(root, "vocab_size", kMaxVocab, path));
  TRY_ASSIGN(const auto kv_heads, json_int(root, "num_key_value_heads", 1, kMaxDim, path));
  // A null means "as many as heads" in every class; an absent key the class's default.
  const bool kv_default = !root.contains("num_key_value_heads") && family.kv_heads > 0;
  config.kv_heads = static_cast<int>(kv_heads.value_or(kv_default ? family.kv_heads : config.heads));
  TRY_ASSIGN(const auto head_dim, json_int(root, "head_dim", 1, kMaxDim, path));
  const bool dim_default = !root.contains("head_dim") && family.head_dim > 0;
  config.head_dim = static_cast<int>(head_dim.value_or(dim_default ? family.head_dim : config.hidden / config.heads));
  if (!head_dim && !dim_default && config.hidden % config.heads != 0) {
    return corrupt(path + ": \"hidden_size\" " + std::to_string(config.hidden) +
                   " is not a multiple of \"num_attention_heads\" " + std::to_string(config.heads));
  }
  TRY_ASSIGN(config.rms_eps, json_positive(root, "rms_norm_eps", 1e-6, path));
  TRY_ASSIGN(const auto max_position, json_int(root, "max_position_embeddings", 1, kMaxPosition, path));
  config.max_position = max_position.value_or(family.max_position);
  return {};
}

Status read_activation(const Json& root, const Family& family, ModelConfig& config, const std::string& path) {
  config.activation = family.activation;
  const std::string key(family.activation_key);
  TRY_ASSIGN(const auto name, json_string(root, key.c_str(), path));
  if (!name) return {};
  if (*name == "silu" || *name == "swish")
    config.activation = Activation::kSilu;
  else if (*name == "gelu_pytorch_tanh" || (*name == "gelu" && family.gelu_by_tanh))
    config.activation = Activation::kGeluTanh;
  else
    return refused_value(path, key, Json(*name), "only silu and gelu_pytorch_tanh are");
  return {};
}

Status read_flags(const Json& root, const Family& family, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(const auto tied, json_bool(root, "tie_word_embeddings", path));
  config.tied_head = tied.value_or(family.tied_head);
  TRY_ASSIGN(const auto attention_bias, json_bool(root, "attention_bias", path));
  TRY_ASSIGN(const auto mlp_bias, json_bool(root, "mlp_bias", path));
  const bool biased = family.attention_bias && attention_bias.value_or(family.attention_bias_default);
  config.qkv_bias = family.qkv_bias || biased;
  config.o_bias = family.o_bias && biased;
  config.mlp_bias = family.mlp_bias && mlp_bias.value_or(false);
  if (family.qk_norm) use_qk_norms(config);
  config.centred_norms = family.centred_norms;
  TRY(read_activation(root, family, config, path));
  for (const char* key : {"torch_dtype", "dtype"}) {
    TRY_ASSIGN(const auto dtype, json_string(root, key, path));
    if (!dtype) continue;
    if (*dtype == "float32") config.dtype = DType::kF32;
    if (*dtype == "float16") config.dtype = DType::kF16;
    if (*dtype == "bfloat16") config.dtype = DType::kBF16;
  }
  return {};
}

// A number within what sampling can do; nothing of the file is left for requests
// to be blamed for.
Status read_sampling(const Json& root, const char* key, double low, double high, std::optional<double>& value,
                     const std::string& path) {
  TRY_ASSIGN(value, json_number(root, key, path));
  if (!value || (*value >= low && *value <= high)) return {};
  return corrupt(path + ": \"" + key + "\" must lie between " + json_brief(low) + " and " + json_brief(high) +
                 ", but it is " + json_brief(*value) + "; correct the file");
}

// What reading alone does not say.
Status check_rope(const ModelConfig& config, const std::string& path) {
  if (config.rotary_dim != 0 &&
      (config.rotary_dim < 2 || config.rotary_dim % 2 != 0 || config.rotary_dim >= config.head_dim)) {
    return corrupt(path + ": of each head's " + std::to_string(config.head_dim) + " numbers " +
                   std::to_string(config.rotary_dim) + " are turned; an even number above 0 can be");
  }
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind != RopeScalingKind::kLongRope) return {};
  const auto pairs = static_cast<size_t>(rotary_dim_of(config)) / 2;
  if (scaling.short_factors.size() != pairs || scaling.long_factors.size() != pairs) {
    return corrupt(path + ": its rope scaling must have " + std::to_string(pairs) +
                   " short factors and as many long ones, one for each pair that is turned, but it has " +
                   std::to_string(scaling.short_factors.size()) + " and " +
                   std::to_string(scaling.long_factors.size()));
  }
  if (original_position_of(config) < 2)
    return corrupt(path + ": the length that its rope scaling begins at must be above 1");
  return {};
}

}  // namespace

Status check_model_config(const ModelConfig& config, const std::string& path) {
  const auto in_range = [](int64_t value, int64_t high) { return value >= 1 && value <= high; };
  if (!in_range(config.hidden, kMaxDim) || !in_range(config.layers, kMaxLayers) || !in_range(config.heads, kMaxDim) ||
      !in_range(config.kv_heads, kMaxDim) || !in_range(config.head_dim, 4096) || !in_range(config.ffn, kMaxDim) ||
      !in_range(config.vocab, kMaxVocab)) {
    return corrupt(path + ": a size of the model is outside what is possible (hidden " + std::to_string(config.hidden) +
                   ", layers " + std::to_string(config.layers) + ", heads " + std::to_string(config.heads) +
                   ", kv heads " + std::to_string(config.kv_heads) + ", head_dim " + std::to_string(config.head_dim) +
                   ", ffn " + std::to_string(config.ffn) + ", vocab " + std::to_string(config.vocab) + ")");
  }
  if (config.heads % config.kv_heads != 0) {
    return corrupt(path + ": the " + std::to_string(config.heads) + " attention heads are not a multiple of the " +
                   std::to_string(config.kv_heads) + " key/value heads");
  }
  if (config.head_dim % 2 != 0) {
    return unsupported(path + ": head_dim " + std::to_string(config.head_dim) +
                       " is odd, so rotary embedding is not defined");
  }
  TRY(check_rope(config, path));
  if (config.sliding_rope) TRY(check_rope(with_sliding_rope(config), path));
  const bool dynamic = config.rope_scaling.kind == RopeScalingKind::kDynamic ||
                       (config.sliding_rope && config.sliding_rope->scaling.kind == RopeScalingKind::kDynamic);
  if (config.head_dim == 2 && dynamic) {
    return unsupported(
        path + ": the rope type \"dynamic\" is not defined for head_dim 2; its exponent is head_dim / (head_dim - 2)");
  }
  if (static_cast<int64_t>(config.heads) * config.head_dim > kMaxDim) {
    return corrupt(path + ": heads times head_dim is outside what is possible");
  }
  if (!(config.rms_eps > 0 && config.rms_eps < 1))
    return corrupt(path + ": the epsilon of RMS norm must lie between 0 and 1");
  for (const double scale : {config.embed_scale, config.residual_scale, config.logits_divisor,
                             config.attention_scale == 0 ? 1 : config.attention_scale}) {
    if (!(scale >= 1e-6 && scale <= 1e6))
      return corrupt(path + ": a multiplier of the model must lie between 1e-6 and 1e6, but one is " +
                     std::to_string(scale));
  }
  for (const double cap : {config.attention_cap, config.logits_cap}) {
    if (cap != 0 && !(cap >= 1e-3 && cap <= 1e6))
      return corrupt(path + ": a cap of scores or logits must lie between 1e-3 and 1e6, but one is " +
                     std::to_string(cap));
  }
  TRY(check_linear(config, path));
  for (const float number : {config.clamp.alpha, config.clamp.limit}) {
    if (!(number >= 1e-3f && number <= 1e6f))
      return corrupt(path + ": the numbers of a clamped activation must lie between 1e-3 and 1e6, but one is " +
                     std::to_string(number));
  }
  CHECK(config.sliding.size() == static_cast<size_t>(config.layers));
  CHECK(config.unturned.empty() || config.unturned.size() == static_cast<size_t>(config.layers));
  return {};
}

Result<HfConfig> parse_hf_config(std::string_view json, const std::string& path) {
  TRY_ASSIGN(Json root, parse_json_object(json, path, kMaxConfigBytes));
  if (root.contains("peft_type")) {
    return invalid_argument(path +
                            ": belongs to an adapter, not to a model; serve its base model with --adapter NAME=PATH");
  }
  TRY_ASSIGN(const Family* family, find_family(root, path));
  HfConfig result;
  result.config.architecture = family->name;
  if (is_wrapper(*family)) {
    result.notes.push_back(text_alone_note(*family));
    TRY_ASSIGN(InnerModel text, inner_model_of(root, *family, path));
    root = std::move(text.config);
    family = text.family;
  }
  TRY(check_other_keys(root, *family, path, result.notes));
  TRY_ASSIGN(result.quant, parse_quant_config(root, path, result.notes));
  ModelConfig& config = result.config;
  TRY(read_shape(root, *family, config, path));
  TRY(read_flags(root, *family, config, path));
  TRY(read_rope(root, *family, config, path));
  TRY(read_windows(root, *family, config, path));
  if (family->read_config != nullptr) TRY(family->read_config(root, config, path));
  if (result.quant.method == QuantMethod::kMxfp4 && !config.experts.in_turn) {
    return unsupported(path +
                       ": weights stored in mxfp4 are known of gpt-oss alone; use the original weights or a "
                       "GGUF file");
  }
  TRY_ASSIGN(config.eos, read_ends(root, config.vocab, path));
  TRY(check_model_config(config, path));
  return result;
}

Result<GenerationConfig> parse_generation_config(std::string_view json, const std::string& path, int vocab) {
  TRY_ASSIGN(const Json root, parse_json_object(json, path, kMaxConfigBytes));
  GenerationConfig result;
  TRY(read_sampling(root, "temperature", 0, kMaxTemperature, result.defaults.temperature, path));
  TRY(read_sampling(root, "top_p", 0, 1, result.defaults.top_p, path));
  TRY(read_sampling(root, "min_p", 0, 1, result.defaults.min_p, path));
  TRY(read_sampling(root, "repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty,
                    result.defaults.repetition_penalty, path));
  TRY_ASSIGN(const auto top_k, json_int(root, "top_k", -1, INT32_MAX, path));  // -1 and 0: all tokens
  if (top_k) result.defaults.top_k = std::max(0, static_cast<int>(*top_k));
  TRY_ASSIGN(result.defaults.do_sample, json_bool(root, "do_sample", path));
  TRY_ASSIGN(result.eos, read_ends(root, vocab, path));
  return result;
}

}  // namespace loralei
