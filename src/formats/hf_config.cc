// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_config.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/limits.h"
#include "base/units.h"
#include "formats/json_util.h"
#include "formats/words.h"

namespace loralei {

namespace {

constexpr int64_t kMaxConfigBytes = 4 * kMiB;
constexpr int64_t kMaxDim = int64_t{1} << 24;
constexpr int64_t kMaxPosition = int64_t{1} << 30;

// What the architectures differ in; values from their configuration classes
// in transformers.
struct Architecture {
  const char* class_name;
  const char* name;
  int64_t max_position;
  int64_t kv_heads;     // when the key is absent; 0: as many as heads
  int64_t head_dim;     // when the key is absent; 0: hidden / heads
  bool attention_bias;  // obeys "attention_bias" (q, k, v and o)
  bool mlp_bias;        // obeys "mlp_bias"
  bool qkv_bias;        // always has biases on q, k and v
  bool qk_norm;
  bool window_always;  // "sliding_window" counts by itself (default 4096); otherwise only with "use_sliding_window"
  // What the class computes beside, and the keys that say how; null: nothing.
  Status (*read_more)(const Json& root, ModelConfig& config, const std::string& path) = nullptr;
  std::array<std::string_view, 4> more_keys = {};
};

Status read_granite(const Json& root, ModelConfig& config, const std::string& path);
Status read_smollm3(const Json& root, ModelConfig& config, const std::string& path);
Status read_olmo2(const Json& root, ModelConfig& config, const std::string& path);

constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", "llama", 2048, 0, 0, true, true, false, false, false},
    {"MistralForCausalLM", "mistral", 131072, 8, 0, false, false, false, false, true},
    {"Qwen2ForCausalLM", "qwen2", 32768, 32, 0, false, false, true, false, false},
    {"Qwen3ForCausalLM", "qwen3", 32768, 32, 128, true, false, false, true, false},
    {"GraniteForCausalLM",
     "granite",
     2048,
     0,
     0,
     true,
     true,
     false,
     false,
     false,
     read_granite,
     {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}},
    {"SmolLM3ForCausalLM",
     "smollm3",
     32768,
     4,
     0,
     true,
     true,
     false,
     false,
     false,
     read_smollm3,
     {"no_rope_layers", "no_rope_layer_interval"}},
    {"Olmo2ForCausalLM", "olmo2", 2048, 0, 0, true, false, false, false, false, read_olmo2},
};

// Keys that are applied below or say nothing about inference.
constexpr const char* kKnownKeys[] = {
    "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "hidden_act", "bos_token_id", "eos_token_id",
    "torch_dtype", "dtype",
    // no effect on a forward pass
    "model_type", "transformers_version", "use_cache", "initializer_range", "attention_dropout", "hidden_dropout",
    "pretraining_tp", "pad_token_id", "_name_or_path", "name_or_path", "_attn_implementation_autoset", "_commit_hash",
    "attn_implementation", "_attn_implementation", "unk_token_id", "sep_token_id", "cls_token_id", "return_dict",
    "output_hidden_states", "output_attentions", "use_return_dict", "torchscript", "gradient_checkpointing", "id2label",
    "label2id", "num_labels", "problem_type", "task_specific_params", "tokenizer_class", "finetuning_task", "prefix",
    "is_decoder", "is_encoder_decoder", "chunk_size_feed_forward", "add_cross_attention", "cross_attention_hidden_size",
    "tie_encoder_decoder", "pruned_heads", "tf_legacy_loss", "use_bfloat16", "return_dict_in_generate",
    "max_sequence_length", "max_seq_len", "model_max_length", "attention_probs_dropout_prob", "hidden_dropout_prob",
    "embd_pdrop", "resid_pdrop", "attn_pdrop", "tokenizer_model_type", "base_model", "license", "unsloth_version",
    "unsloth_fixed", "_flash_attn_2_enabled", "use_flash_attn", "onnx", "summary_type", "auto_map",
    "original_max_position_embeddings",
    // sampling defaults that old configs held
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "do_sample", "max_length",
    "min_length", "num_beams", "num_beam_groups", "num_return_sequences", "diversity_penalty", "early_stopping",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "output_scores", "sampling"};

// Keys that change what the model computes. Accepted only with the neutral
// value (or null).
struct NeutralKey {
  const char* key;
  double neutral;  // false counts as 0, true as 1; an empty list or object is neutral too
};
constexpr NeutralKey kNeutralKeys[] = {{"partial_rotary_factor", 1},
                                       {"rotary_pct", 1},
                                       {"attention_multiplier", 1},
                                       {"residual_multiplier", 1},
                                       {"embedding_multiplier", 1},
                                       {"logits_scaling", 1},
                                       {"logit_scale", 1},
                                       {"scale_emb", 1},
                                       {"scale_depth", 1},
                                       {"scale_embeddings", 0},
                                       {"mup_base_shape", 0},
                                       {"lm_head_multiplier", 1},
                                       {"key_multiplier", 1},
                                       {"final_logit_softcapping", 0},
                                       {"attn_logit_softcapping", 0},
                                       {"query_pre_attn_scalar", 0},
                                       {"clip_qkv", 0},
                                       {"num_experts", 0},
                                       {"num_local_experts", 0},
                                       {"n_routed_experts", 0},
                                       {"num_experts_per_tok", 0},
                                       {"moe_intermediate_size", 0},
                                       {"quantization_config", 0},
                                       {"compression_config", 0},
                                       {"quantization", 0},
                                       {"use_parallel_residual", 0},
                                       {"parallel_residual", 0},
                                       {"alibi", 0},
                                       {"use_alibi", 0},
                                       {"qk_layernorm", 0},
                                       {"use_qk_norm", 0},
                                       {"layer_norm_eps_scaled", 0},
                                       {"no_rope_layers", 0},
                                       {"no_rope_layer_interval", 0},
                                       {"attention_chunk_size", 0},
                                       {"attn_temperature_tuning", 0},
                                       {"use_mrope", 0},
                                       {"attention_out_bias", 0},
                                       {"attention_sinks", 0},
                                       {"lm_head_bias", 0},
                                       {"norm_type_layernorm", 0},
                                       {"cross_attention_layers", 0},
                                       {"vision_config", 0},
                                       {"audio_config", 0},
                                       {"rope_interleaved", 0},
                                       {"rope_traditional", 0},
                                       {"medusa_num_heads", 0},
                                       {"per_layer_config", 0},
                                       {"num_nextn_predict_layers", 0},
                                       {"add_qkv_bias", 0},
                                       {"qkv_bias", 0},
                                       {"use_qkv_bias", 0}};

bool is_neutral(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return (value.get<bool>() ? 1.0 : 0.0) == neutral;
  if (value.is_number()) return value.get<double>() == neutral;
  return value.is_structured() && value.empty();
}

Error refused_value(const std::string& path, const std::string& key, const Json& value, const std::string& why) {
  return unsupported(path + ": \"" + key + "\": " + json_brief(value) + " is not supported" +
                     (why.empty() ? "" : " (" + why + ")"));
}

Result<const Architecture*> find_architecture(const Json& root, const std::string& path) {
  TRY_ASSIGN(const auto classes, json_strings(root, "architectures", path));
  TRY_ASSIGN(const auto model_type, json_string(root, "model_type", path));
  if (classes && classes->size() > 1) {
    return unsupported(path + ": \"architectures\" names several classes (" + join(*classes) + "); one of " +
                       supported_architectures() + " is expected");
  }
  const std::string wanted = classes && !classes->empty() ? classes->front() : model_type.value_or("");
  for (const Architecture& architecture : kArchitectures) {
    const bool by_class = classes && !classes->empty();
    if (wanted == (by_class ? architecture.class_name : architecture.name)) return &architecture;
  }
  if (wanted.empty()) {
    return unsupported(path + ": says neither \"architectures\" nor \"model_type\"; supported are " +
                       supported_architectures());
  }
  return unsupported(path + ": the architecture \"" + wanted.substr(0, 100) + "\" is not supported; supported are " +
                     supported_architectures());
}

// Keys outside what this reader applies: refuse those that matter, note the unknown ones.
Status check_other_keys(const Json& root, const Architecture& architecture, const std::string& path,
                        std::vector<std::string>& notes) {
  std::vector<std::string> unknown;
  for (const auto& item : root.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    const auto& own = architecture.more_keys;
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    const auto neutral = std::find_if(std::begin(kNeutralKeys), std::end(kNeutralKeys),
                                      [&](const NeutralKey& rule) { return key == rule.key; });
    if (neutral != std::end(kNeutralKeys)) {
      if (is_neutral(value, neutral->neutral)) continue;
      const std::string why = key == "quantization_config"
                                  ? "quantised checkpoints of this kind cannot be read; use the original "
                                    "weights or a GGUF file"
                                  : "it changes what the model computes";
      return refused_value(path, key, value, why);
    }
    const bool known =
        std::any_of(std::begin(kKnownKeys), std::end(kKnownKeys), [&](const char* name) { return key == name; });
    if (!known && !value.is_null() && unknown.size() < 20) unknown.push_back(key.substr(0, 60));
  }
  if (!unknown.empty())
    notes.push_back("config.json has keys that are not known here and were not applied: " + join(unknown) + ".");
  return {};
}

Result<int> need_int(const Json& root, const char* key, int64_t high, const std::string& path) {
  TRY_ASSIGN(const auto value, json_int(root, key, 1, high, path));
  if (!value) return corrupt(path + ": lacks \"" + key + "\"");
  return static_cast<int>(*value);
}

Result<double> positive(const Json& object, const char* key, double fallback, const std::string& path) {
  TRY_ASSIGN(const auto value, json_number(object, key, path));
  if (value && !(*value > 0))
    return corrupt(path + ": \"" + key + "\" must be above 0, but it is " + std::to_string(*value));
  return value.value_or(fallback);
}

// Without them all are 1, the attention's too.
Status read_granite(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.embed_scale, positive(root, "embedding_multiplier", 1, path));
  TRY_ASSIGN(config.residual_scale, positive(root, "residual_multiplier", 1, path));
  TRY_ASSIGN(config.attention_scale, positive(root, "attention_multiplier", 1, path));
  TRY_ASSIGN(config.logits_divisor, positive(root, "logits_scaling", 1, path));
  return {};
}

// A list of 1 (turned) and 0, one for each layer; without it every fourth layer is not
// turned, or as the interval says.
Status read_smollm3(const Json& root, ModelConfig& config, const std::string& path) {
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

Status read_olmo2(const Json& root, ModelConfig& config, const std::string& path) {
  use_olmo2_norms(config);
  TRY_ASSIGN(config.rms_eps, positive(root, "rms_norm_eps", 1e-5, path));
  return {};
}

Result<double> need_factor(const Json& rope, const std::string& path) {
  if (!json_find(rope, "factor")) return corrupt(path + ": its rope scaling lacks \"factor\"");
  return positive(rope, "factor", 1, path);
}

// Keys of the rope object that the given kind knows; any other one with a
// value is refused.
Status check_rope_keys(const Json& rope, RopeScalingKind kind, const std::string& path) {
  const auto knows = [&](const std::string& key) {
    if (key == "type" || key == "rope_type" || key == "rope_theta") return true;
    if (key == "original_max_position_embeddings") return true;
    if (key == "partial_rotary_factor") return true;  // checked by the caller
    if (key == "factor") return kind != RopeScalingKind::kNone;
    if (kind == RopeScalingKind::kLlama3) return key == "low_freq_factor" || key == "high_freq_factor";
    if (kind != RopeScalingKind::kYarn) return false;
    for (const char* name :
         {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "finetuned"}) {
      if (key == name) return true;
    }
    return false;
  };
  for (const auto& [key, value] : rope.items()) {
    if (value.is_null() || knows(key)) continue;
    return refused_value(
        path, key, value,
        kind == RopeScalingKind::kNone
            ? "in rope settings without a scaling; name one by \"rope_type\" (linear, llama3, yarn, dynamic)"
            : "in the rope settings");
  }
  return {};
}

Status read_yarn(const Json& rope, RopeScaling& scaling, const std::string& path) {
  TRY_ASSIGN(scaling.beta_fast, positive(rope, "beta_fast", 32.0, path));
  TRY_ASSIGN(scaling.beta_slow, positive(rope, "beta_slow", 1.0, path));
  TRY_ASSIGN(scaling.attention_factor, json_number(rope, "attention_factor", path));
  TRY_ASSIGN(scaling.mscale, json_number(rope, "mscale", path));
  TRY_ASSIGN(scaling.mscale_all_dim, json_number(rope, "mscale_all_dim", path));
  TRY_ASSIGN(const auto truncate, json_bool(rope, "truncate", path));
  scaling.truncate = truncate.value_or(true);
  return {};
}

// `rope` is the object of "rope_scaling" (old form) or "rope_parameters" (new form,
// rope_theta inside).
Status read_rope_object(const Json& rope, ModelConfig& config, const std::string& path) {
  for (const char* nested : {"full_attention", "sliding_attention"}) {
    if (rope.contains(nested))
      return unsupported(path + ": rope settings that differ by layer type (\"" + nested + "\") are not supported");
  }
  TRY_ASSIGN(auto type, json_string(rope, "rope_type", path));
  if (!type) {
    TRY_ASSIGN(type, json_string(rope, "type", path));
  }
  TRY_ASSIGN(config.rope_theta, positive(rope, "rope_theta", config.rope_theta, path));
  TRY_ASSIGN(const auto partial, json_number(rope, "partial_rotary_factor", path));
  if (partial && *partial != 1.0)
    return refused_value(path, "partial_rotary_factor", Json(*partial), "it changes what the model computes");
  RopeScaling& scaling = config.rope_scaling;
  const std::string kind = type.value_or("default");
  if (kind == "default") {
    scaling.kind = RopeScalingKind::kNone;
    return check_rope_keys(rope, scaling.kind, path);
  }
  if (kind == "linear")
    scaling.kind = RopeScalingKind::kLinear;
  else if (kind == "llama3")
    scaling.kind = RopeScalingKind::kLlama3;
  else if (kind == "yarn")
    scaling.kind = RopeScalingKind::kYarn;
  else if (kind == "dynamic")
    scaling.kind = RopeScalingKind::kDynamic;
  else
    return unsupported(path + ": the rope type \"" + kind.substr(0, 60) +
                       "\" is not supported; supported are default, linear, llama3, yarn, dynamic");
  TRY(check_rope_keys(rope, scaling.kind, path));
  TRY_ASSIGN(scaling.factor, need_factor(rope, path));
  TRY_ASSIGN(const auto original, json_int(rope, "original_max_position_embeddings", 1, kMaxPosition, path));
  scaling.original_max_position = original.value_or(0);
  if (scaling.kind == RopeScalingKind::kLlama3) {
    TRY_ASSIGN(scaling.low_freq_factor, positive(rope, "low_freq_factor", 1.0, path));
    TRY_ASSIGN(scaling.high_freq_factor, positive(rope, "high_freq_factor", 4.0, path));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      return corrupt(path + ": \"high_freq_factor\" must be above \"low_freq_factor\"");
    }
  }
  if (scaling.kind == RopeScalingKind::kYarn) TRY(read_yarn(rope, scaling, path));
  return {};
}

Status read_rope(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.rope_theta, positive(root, "rope_theta", 10000.0, path));
  // As in transformers: a non-empty rope_scaling wins over rope_parameters.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = json_find(root, key);
    if (!rope) continue;
    if (!rope->is_object())
      return corrupt(path + ": \"" + key + "\" must be an object, but it is " + json_brief(*rope));
    if (rope->empty()) continue;
    TRY(read_rope_object(*rope, config, path));
    break;
  }
  // A top-level value replaces that of llama3 and yarn (transformers:
  // standardize_rope_params).
  const RopeScalingKind kind = config.rope_scaling.kind;
  TRY_ASSIGN(const auto original, json_int(root, "original_max_position_embeddings", 1, kMaxPosition, path));
  if (original && (kind == RopeScalingKind::kLlama3 || kind == RopeScalingKind::kYarn)) {
    config.rope_scaling.original_max_position = *original;
  }
  return {};
}

Status read_windows(const Json& root, const Architecture& architecture, ModelConfig& config, const std::string& path) {
  config.sliding.assign(static_cast<size_t>(config.layers), 0);
  TRY_ASSIGN(const auto stated, json_int(root, "sliding_window", 1, kMaxPosition, path));
  TRY_ASSIGN(const auto use, json_bool(root, "use_sliding_window", path));
  TRY_ASSIGN(const auto from_layer, json_int(root, "max_window_layers", 0, kMaxLayers, path));
  const bool llama = std::string_view(architecture.name) == "llama";
  if (llama && stated) return refused_value(path, "sliding_window", root["sliding_window"], "Llama has none");
  // 0: no window. The classes that have one default to 4096; a null switches it off.
  int64_t window = llama ? 0 : root.contains("sliding_window") ? stated.value_or(0) : 4096;
  if (!architecture.window_always && !use.value_or(false)) window = 0;
  const Json* types = json_find(root, "layer_types");
  if (types) {
    if (!types->is_array() || types->size() != static_cast<size_t>(config.layers)) {
      return corrupt(path + ": \"layer_types\" must be a list with one entry for each of the " +
                     std::to_string(config.layers) + " layers");
    }
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    bool sliding = window > 0 && (architecture.window_always || layer >= from_layer.value_or(28));
    if (types) {
      const Json& type = (*types)[static_cast<size_t>(layer)];
      const bool full = type == "full_attention";
      if (!full && type != "sliding_attention")
        return refused_value(path, "layer_types", type, "known are full_attention and sliding_attention");
      // Mistral's own class ignores layer_types; a file in which they contradict the
      // window is ambiguous.
      if (architecture.window_always && full == sliding) {
        return unsupported(path + ": \"layer_types\" contradicts \"sliding_window\" in layer " + std::to_string(layer));
      }
      if (!full && window == 0)
        return corrupt(path + ": \"layer_types\" asks for sliding attention, but there is no window size in effect");
      sliding = !full;
    }
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

Status read_shape(const Json& root, const Architecture& architecture, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(config.hidden, need_int(root, "hidden_size", kMaxDim, path));
  TRY_ASSIGN(config.layers, need_int(root, "num_hidden_layers", kMaxLayers, path));
  TRY_ASSIGN(config.heads, need_int(root, "num_attention_heads", kMaxDim, path));
  TRY_ASSIGN(config.ffn, need_int(root, "intermediate_size", kMaxDim, path));
  TRY_ASSIGN(config.vocab, need_int(root, "vocab_size", kMaxVocab, path));
  TRY_ASSIGN(const auto kv_heads, json_int(root, "num_key_value_heads", 1, kMaxDim, path));
  // A null means "as many as heads" in every class; an absent key the class's default.
  const bool kv_default = !root.contains("num_key_value_heads") && architecture.kv_heads > 0;
  config.kv_heads = static_cast<int>(kv_heads.value_or(kv_default ? architecture.kv_heads : config.heads));
  TRY_ASSIGN(const auto head_dim, json_int(root, "head_dim", 1, kMaxDim, path));
  const bool dim_default = !root.contains("head_dim") && architecture.head_dim > 0;
  config.head_dim =
      static_cast<int>(head_dim.value_or(dim_default ? architecture.head_dim : config.hidden / config.heads));
  if (!head_dim && !dim_default && config.hidden % config.heads != 0) {
    return corrupt(path + ": \"hidden_size\" " + std::to_string(config.hidden) +
                   " is not a multiple of \"num_attention_heads\" " + std::to_string(config.heads));
  }
  TRY_ASSIGN(config.rms_eps, positive(root, "rms_norm_eps", 1e-6, path));
  TRY_ASSIGN(const auto max_position, json_int(root, "max_position_embeddings", 1, kMaxPosition, path));
  config.max_position = max_position.value_or(architecture.max_position);
  return {};
}

Status read_flags(const Json& root, const Architecture& architecture, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(const auto tied, json_bool(root, "tie_word_embeddings", path));
  config.tied_head = tied.value_or(false);
  TRY_ASSIGN(const auto attention_bias, json_bool(root, "attention_bias", path));
  TRY_ASSIGN(const auto mlp_bias, json_bool(root, "mlp_bias", path));
  config.qkv_bias = architecture.qkv_bias || (architecture.attention_bias && attention_bias.value_or(false));
  config.o_bias = architecture.attention_bias && attention_bias.value_or(false);
  config.mlp_bias = architecture.mlp_bias && mlp_bias.value_or(false);
  if (architecture.qk_norm) use_qk_norms(config);
  TRY_ASSIGN(const auto activation, json_string(root, "hidden_act", path));
  if (activation.value_or("silu") != "silu" && activation != "swish") {
    return refused_value(path, "hidden_act", Json(*activation), "only silu is");
  }
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

}  // namespace

std::string supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) names.push_back(architecture.class_name);
  return join(names);
}

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
  if (config.head_dim == 2 && config.rope_scaling.kind == RopeScalingKind::kDynamic) {
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
  CHECK(config.sliding.size() == static_cast<size_t>(config.layers));
  CHECK(config.unturned.empty() || config.unturned.size() == static_cast<size_t>(config.layers));
  return {};
}

Result<HfConfig> parse_hf_config(std::string_view json, const std::string& path) {
  TRY_ASSIGN(const Json root, parse_json_object(json, path, kMaxConfigBytes));
  if (root.contains("peft_type")) {
    return invalid_argument(path +
                            ": belongs to an adapter, not to a model; serve its base model with --adapter NAME=PATH");
  }
  TRY_ASSIGN(const Architecture* architecture, find_architecture(root, path));
  HfConfig result;
  TRY(check_other_keys(root, *architecture, path, result.notes));
  ModelConfig& config = result.config;
  config.architecture = architecture->name;
  TRY(read_shape(root, *architecture, config, path));
  TRY(read_flags(root, *architecture, config, path));
  TRY(read_rope(root, config, path));
  TRY(read_windows(root, *architecture, config, path));
  if (architecture->read_more != nullptr) TRY(architecture->read_more(root, config, path));
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
