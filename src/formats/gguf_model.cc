// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/limits.h"
#include "formats/family.h"
#include "formats/hf_config.h"
#include "formats/linear_families.h"
#include "formats/words.h"

namespace loralei {

namespace {

struct Name {
  const char* gguf;
  const char* ours;
};
constexpr Name kLayerNames[] = {
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_sinks", "self_attn.sinks"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    // Of layers with experts (expert_tensors.h).
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};
// [LayerNorm]
constexpr std::array<std::string_view, kLayerNorms> kNormNames = {
    "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm"};
constexpr Name kOuterNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, std::vector<std::string>& notes) : file_(file), notes_(notes) {}

  Result<ModelConfig> read() {
    TRY_ASSIGN(const auto architecture, file_.text("general.architecture"));
    if (!architecture) return corrupt(file_.path + ": lacks general.architecture");
    family_ = family_of_gguf(*architecture);
    if (family_ == nullptr) {
      return unsupported(file_.path + ": the architecture \"" + architecture->substr(0, 60) +
                         "\" is not supported; supported are " + supported_gguf_architectures() +
                         " (Mistral is llama there)");
    }
    config_.architecture = family_->name;
    if (is_wrapper(*family_)) notes_.push_back(text_alone_note(*family_));
    TRY(refuse_unsupported());
    TRY(read_sizes());
    TRY(read_rope());
    TRY(read_window());
    TRY(read_presence());
    if (family_->read_gguf != nullptr) TRY(family_->read_gguf(file_, config_));
    TRY(check_model_config(config_, file_.path));
    return std::move(config_);
  }

 private:
  std::string key(const char* name) const { return gguf_key(config_, name); }

  Result<int> need(const char* name, int64_t high) {
    TRY_ASSIGN(const auto value, file_.integer(key(name), 1, high));
    if (!value) return corrupt(file_.path + ": lacks " + key(name));
    return static_cast<int>(*value);
  }

  Status refuse_unsupported() {
    // Values that change what the model computes; 0 (or 1 for scales) is neutral.
    constexpr std::pair<const char*, double> kNeutral[] = {{"expert_count", 0},
                                                           {"expert_used_count", 0},
                                                           {"logit_scale", 1},
                                                           {"embedding_scale", 1},
                                                           {"residual_scale", 1},
                                                           {"attention.scale", 0},
                                                           {"attn_logit_softcapping", 0},
                                                           {"final_logit_softcapping", 0},
                                                           {"attention.clamp_kqv", 0},
                                                           {"attention.max_alibi_bias", 0},
                                                           {"use_parallel_residual", 0},
                                                           {"attention.temperature_scale", 0}};
    const auto& own = family_->gguf_keys;
    for (const auto& [name, neutral] : kNeutral) {
      if (std::find(own.begin(), own.end(), name) != own.end()) continue;
      if (const GgufValue* value = file_.find(key(name))) {
        const double number = value->type == GgufType::kFloat ? value->real : static_cast<double>(value->number);
        if (number != neutral) {
          return unsupported(file_.path + ": " + key(name) + " = " + std::to_string(number) +
                             " is not supported (it changes what the model computes)");
        }
      }
    }
    return {};
  }

  Status read_sizes() {
    TRY_ASSIGN(config_.hidden, need("embedding_length", kMaxDim));
    TRY_ASSIGN(config_.layers, need("block_count", kMaxLayers));
    TRY_ASSIGN(config_.heads, need("attention.head_count", kMaxDim));
    if (!family_->experts_alone) {
      TRY_ASSIGN(config_.ffn, need("feed_forward_length", kMaxDim));
    }
    TRY_ASSIGN(const auto kv_heads, file_.integer(key("attention.head_count_kv"), 1, kMaxDim));
    config_.kv_heads = static_cast<int>(kv_heads.value_or(config_.heads));
    TRY_ASSIGN(const auto k_length, file_.integer(key("attention.key_length"), 1, kMaxDim));
    TRY_ASSIGN(const auto v_length, file_.integer(key("attention.value_length"), 1, kMaxDim));
    if (!k_length && config_.hidden % config_.heads != 0) {
      return corrupt(
          file_.path +
          ": embedding_length is not a multiple of attention.head_count, and attention.key_length is not stated");
    }
    config_.head_dim = static_cast<int>(k_length.value_or(config_.hidden / config_.heads));
    if (v_length && *v_length != config_.head_dim) {
      return unsupported(file_.path + ": keys and values of different length (" + std::to_string(config_.head_dim) +
                         " and " + std::to_string(*v_length) + ") are not supported");
    }
    TRY_ASSIGN(const auto rotated, file_.integer(key("rope.dimension_count"), 1, kMaxDim));
    if (rotated && family_->rotary_factor > 0) {
      config_.rotary_dim = *rotated == config_.head_dim ? 0 : static_cast<int>(*rotated);
    } else if (rotated && *rotated != config_.head_dim) {
      return unsupported(file_.path + ": rope.dimension_count " + std::to_string(*rotated) +
                         " differs from the head's " + std::to_string(config_.head_dim) +
                         " dimensions; partial rotation is not supported");
    }
    const char* const epsilon =
        family_->centred_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    TRY_ASSIGN(const auto eps, file_.real(key(epsilon)));
    if (!eps) return corrupt(file_.path + ": lacks " + key(epsilon));
    // Stored as f32: 1e-5 comes back as 9.99999974738e-06, which is what the reference
    // computes with.
    config_.rms_eps = *eps;
    TRY_ASSIGN(const auto context, file_.integer(key("context_length"), 1, int64_t{1} << 30));
    config_.max_position = context.value_or(2048);
    const TensorInfo* embed = file_.index.find("token_embd.weight");
    if (!embed || embed->shape.size() != 2) return corrupt(file_.path + ": lacks the matrix token_embd.weight");
    if (embed->shape[0] > kMaxVocab)
      return corrupt(file_.path + ": has an impossible vocabulary of " + std::to_string(embed->shape[0]));
    config_.vocab = static_cast<int>(embed->shape[0]);
    config_.dtype = embed->dtype;
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_qkv.weight"}) {
      if (const TensorInfo* q = file_.index.find(name)) config_.dtype = q->dtype;
    }
    return {};
  }

  Status read_rope() {
    RopeScaling& scaling = config_.rope_scaling;
    TRY_ASSIGN(const auto base, file_.real(key("rope.freq_base")));
    config_.rope_theta = base.value_or(10000.0);
    if (!(config_.rope_theta > 0)) return corrupt(file_.path + ": rope.freq_base must be above 0");
    TRY_ASSIGN(const auto kind, file_.text(key("rope.scaling.type")));
    TRY_ASSIGN(auto factor, file_.real(key("rope.scaling.factor")));
    TRY_ASSIGN(const auto old_factor, file_.real(key("rope.scale_linear")));
    if (!factor) factor = old_factor;
    if (kind == "linear" || (!kind && factor && *factor != 1.0))
      scaling.kind = RopeScalingKind::kLinear;
    else if (kind == "yarn")
      scaling.kind = RopeScalingKind::kYarn;
    else if (kind && *kind != "none") {
      return unsupported(file_.path + ": the rope scaling \"" + kind->substr(0, 60) +
                         "\" is not supported; supported are none, linear and yarn");
    }
    if (scaling.kind == RopeScalingKind::kNone) return read_long_rope();
    scaling.factor = factor.value_or(1.0);
    if (!(scaling.factor > 0)) return corrupt(file_.path + ": rope.scaling.factor must be above 0");
    TRY_ASSIGN(const auto original, file_.integer(key("rope.scaling.original_context_length"), 1, int64_t{1} << 30));
    scaling.original_max_position = original.value_or(0);
    if (scaling.kind == RopeScalingKind::kLinear) return {};
    TRY_ASSIGN(const auto fast, file_.real(key("rope.scaling.yarn_beta_fast")));
    TRY_ASSIGN(const auto slow, file_.real(key("rope.scaling.yarn_beta_slow")));
    if (fast) scaling.beta_fast = *fast;
    if (slow) scaling.beta_slow = *slow;
    if (!(scaling.beta_fast > 0) || !(scaling.beta_slow > 0))
      return corrupt(file_.path + ": yarn's beta values must be above 0");
    TRY_ASSIGN(const auto attention, file_.real(key("rope.scaling.attn_factor")));
    TRY_ASSIGN(const auto log_multiplier, file_.real(key("rope.scaling.yarn_log_multiplier")));
    TRY_ASSIGN(const auto ext_factor, file_.real(key("rope.scaling.yarn_ext_factor")));
    if (log_multiplier.value_or(0) != 0 || (ext_factor && *ext_factor != 1.0)) {
      return unsupported(file_.path + ": yarn with yarn_log_multiplier or yarn_ext_factor is not supported");
    }
    // llama.cpp multiplies the factor it derives from the scaling with attn_factor.
    if (attention && *attention != 1.0) scaling.attention_factor = *attention * (1.0 + 0.1 * std::log(scaling.factor));
    return {};
  }

  // What tensors with the factors of longrope (base_model.cc) do not say.
  Status read_long_rope() {
    if (file_.index.find("rope_factors_long.weight") == nullptr) return {};
    RopeScaling& scaling = config_.rope_scaling;
    TRY_ASSIGN(const auto original, file_.integer(key("rope.scaling.original_context_length"), 1, kMaxPosition));
    TRY_ASSIGN(const auto attention, file_.real(key("rope.scaling.attn_factor")));
    if (attention && !(*attention > 0 && *attention < 1e6))
      return corrupt(file_.path + ": " + key("rope.scaling.attn_factor") + " must lie above 0 and below 1e6");
    scaling.original_max_position = original.value_or(0);
    scaling.attention_factor = attention.value_or(1.0);
    return {};
  }

  Status read_window() {
    config_.sliding.assign(static_cast<size_t>(config_.layers), 0);
    const auto& own = family_->gguf_keys;
    if (std::find(own.begin(), own.end(), "attention.sliding_window") != own.end()) return {};
    TRY_ASSIGN(const auto window, file_.integer(key("attention.sliding_window"), 0, int64_t{1} << 30));
    if (window.value_or(0) == 0) return {};
    if (file_.find(key("attention.sliding_window_pattern"))) {
      return unsupported(file_.path + ": " + key("attention.sliding_window_pattern") + " is not supported");
    }
    // llama.cpp ignores the window of these architectures; those that have one were
    // trained with it in every layer.
    if (config_.architecture == "llama" || family_->window_always) {
      std::fill(config_.sliding.begin(), config_.sliding.end(), static_cast<int32_t>(*window));
    } else {
      notes_.push_back("The file states a sliding window of " + std::to_string(*window) +
                       ", which this architecture does not use by default; it is off.");
    }
    return {};
  }

  // What the metadata does not say, the tensors do.
  Status read_presence() {
    const auto has = [&](const char* name) { return file_.index.find(name) != nullptr; };
    config_.tied_head = !has("output.weight");
    config_.qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
    config_.o_bias = has("blk.0.attn_output.bias");
    config_.mlp_bias = has("blk.0.ffn_gate.bias");
    if (family_->qk_norm) use_qk_norms(config_);
    config_.centred_norms = family_->centred_norms;
    return {};
  }

  const GgufFile& file_;
  std::vector<std::string>& notes_;
  const Family* family_ = nullptr;
  ModelConfig config_;
};

// Tokens at which a model stops whatever its file says of them: llama.cpp ends there too,
// and files rely on it (Llama 3.1's state <|eot_id|> alone, Qwen's one of two). As normal
// tokens they would be plain text.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",      "<|im_end|>", "<|end|>", "<end_of_turn>",
                                          "<|endoftext|>",   "<|eom_id|>", "<EOT>",   "_<EOT>",
                                          "<|end_of_text|>", "<|return|>", "<|call|>"};

// Where a model has both, "<|end|>" ends a message of several in an answer.
constexpr std::string_view kAnswerEnds[] = {"<|return|>", "<|call|>"};
constexpr std::string_view kMessageEnd = "<|end|>";

void add_end(int32_t id, GgufVocab& vocab) {
  if (id >= 0 && std::find(vocab.ends.begin(), vocab.ends.end(), id) == vocab.ends.end()) vocab.ends.push_back(id);
}

void add_ends_by_text(GgufVocab& vocab) {
  const bool messages = std::all_of(std::begin(kAnswerEnds), std::end(kAnswerEnds), [&](std::string_view text) {
    return std::find(vocab.tokens.begin(), vocab.tokens.end(), text) != vocab.tokens.end();
  });
  for (size_t id = 0; id < vocab.types.size(); ++id) {
    auto& type = vocab.types[id];
    const bool marked = type == static_cast<int32_t>(GgufTokenType::kControl) ||
                        type == static_cast<int32_t>(GgufTokenType::kUserDefined);
    if (!marked || std::find(std::begin(kEndTexts), std::end(kEndTexts), vocab.tokens[id]) == std::end(kEndTexts))
      continue;
    if (messages && vocab.tokens[id] == kMessageEnd) continue;
    type = static_cast<int32_t>(GgufTokenType::kControl);
    add_end(static_cast<int32_t>(id), vocab);
  }
}

Result<int> flag(const GgufFile& file, const char* key) {
  TRY_ASSIGN(const auto value, file.boolean(key));
  return value ? (*value ? 1 : 0) : -1;
}

}  // namespace

Result<ModelConfig> gguf_model_config(const GgufFile& file, std::vector<std::string>& notes) {
  return ConfigReader(file, notes).read();
}

namespace {

// The tokens and what stands beside each of them: scores, types; and the merges.
Status read_tokens(const GgufFile& file, GgufVocab& vocab) {
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (!tokens || tokens->type != GgufType::kStringArray || tokens->texts.empty())
    return corrupt(file.path + ": lacks the list tokenizer.ggml.tokens");
  const size_t size = tokens->texts.size();
  if (size > static_cast<size_t>(kMaxVocab))
    return corrupt(file.path + ": has an impossible vocabulary of " + std::to_string(size));
  vocab.tokens = tokens->texts;
  if (const GgufValue* scores = file.find("tokenizer.ggml.scores")) {
    if (scores->type != GgufType::kFloatArray || scores->reals.size() != size)
      return corrupt(file.path + ": tokenizer.ggml.scores must have one number for each token");
    for (const float score : scores->reals) {
      if (!std::isfinite(score)) return corrupt(file.path + ": tokenizer.ggml.scores holds a value that is not finite");
    }
    vocab.scores = scores->reals;
  }
  if (const GgufValue* types = file.find("tokenizer.ggml.token_type")) {
    if (types->type != GgufType::kIntArray || types->numbers.size() != size)
      return corrupt(file.path + ": tokenizer.ggml.token_type must have one number for each token");
    for (const int64_t type : types->numbers) {
      if (type < 0 || type > 6)
        return corrupt(file.path + ": tokenizer.ggml.token_type holds the unknown type " + std::to_string(type));
      vocab.types.push_back(type == 0 ? 1 : static_cast<int32_t>(type));  // 0: undefined, treated as a normal token
    }
  }
  if (const GgufValue* merges = file.find("tokenizer.ggml.merges")) {
    if (merges->type != GgufType::kStringArray)
      return corrupt(file.path + ": tokenizer.ggml.merges must be a list of strings");
    vocab.merges = merges->texts;
  }
  return {};
}

}  // namespace

Result<GgufVocab> gguf_vocab(const GgufFile& file, std::vector<std::string>& notes) {
  GgufVocab vocab;
  TRY_ASSIGN(const auto model, file.text("tokenizer.ggml.model"));
  TRY_ASSIGN(const auto pre, file.text("tokenizer.ggml.pre"));
  TRY_ASSIGN(const auto chat, file.text("tokenizer.chat_template"));
  TRY_ASSIGN(const auto tools, file.text("tokenizer.chat_template.tool_use"));
  if (!model) return corrupt(file.path + ": lacks tokenizer.ggml.model, so it cannot turn text into tokens");
  vocab.model = *model;
  vocab.pre = pre.value_or("");
  vocab.chat_template = chat.value_or("");
  vocab.tool_template = tools.value_or("");
  TRY(read_tokens(file, vocab));
  const size_t size = vocab.tokens.size();
  const auto id = [&](const char* name, int32_t& out) -> Status {
    TRY_ASSIGN(const auto value, file.integer(name, 0, UINT32_MAX));
    if (!value || *value == UINT32_MAX) return {};  // all ones: absent
    if (*value >= static_cast<int64_t>(size)) {
      notes.push_back(std::string(name) + " " + std::to_string(*value) +
                      " lies outside the vocabulary and is ignored.");
      return {};
    }
    out = static_cast<int32_t>(*value);
    return {};
  };
  TRY(id("tokenizer.ggml.bos_token_id", vocab.bos));
  TRY(id("tokenizer.ggml.eos_token_id", vocab.eos));
  TRY(id("tokenizer.ggml.unknown_token_id", vocab.unk));
  TRY(id("tokenizer.ggml.seperator_token_id", vocab.sep));  // the key is spelled so
  TRY(id("tokenizer.ggml.padding_token_id", vocab.pad));
  if (vocab.model == "llama") {  // llama.cpp's defaults for this kind
    if (vocab.bos < 0 && size > 1) vocab.bos = 1;
    if (vocab.eos < 0 && size > 2) vocab.eos = 2;
    if (vocab.unk < 0) vocab.unk = 0;
  }
  add_end(vocab.eos, vocab);
  for (const char* name : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    int32_t end = -1;
    TRY(id(name, end));
    add_end(end, vocab);
  }
  add_ends_by_text(vocab);
  TRY_ASSIGN(vocab.add_bos, flag(file, "tokenizer.ggml.add_bos_token"));
  TRY_ASSIGN(vocab.add_eos, flag(file, "tokenizer.ggml.add_eos_token"));
  TRY_ASSIGN(vocab.add_space_prefix, flag(file, "tokenizer.ggml.add_space_prefix"));
  TRY_ASSIGN(const int remove, flag(file, "tokenizer.ggml.remove_extra_whitespaces"));
  vocab.remove_extra_whitespaces = remove == 1;
  return vocab;
}

std::string canonical_name(std::string_view gguf_name, const ModelConfig& config) {
  if (std::string linear = linear_name(gguf_name, config); !linear.empty()) return linear;
  const size_t dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string_view kind = gguf_name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return "";
  std::string_view module = gguf_name.substr(0, dot);
  for (const Name& name : kOuterNames) {
    if (module == name.gguf) return name.ours + std::string(kind);
  }
  if (module.substr(0, 4) != "blk.") return "";
  module.remove_prefix(4);
  int layer = -1;
  const auto [end, error] = std::from_chars(module.data(), module.data() + module.size(), layer);
  if (error != std::errc() || layer < 0 || end == module.data() + module.size() || *end != '.') return "";
  if (module[0] == '0' && end != module.data() + 1) return "";  // "01" would be layer 1 a second time
  module.remove_prefix(static_cast<size_t>(end - module.data()) + 1);
  const Family* const family = family_of_type(config.architecture);
  if (module == "ffn_up" && family != nullptr && family->gguf_fused_up)
    return "model.layers." + std::to_string(layer) + ".mlp.gate_up_proj" + std::string(kind);
  for (const Name& name : kLayerNames) {
    if (module == name.gguf) return "model.layers." + std::to_string(layer) + "." + name.ours + std::string(kind);
  }
  // What stands behind a block in others stands before the next one here.
  if (config.attention_gate && module == "post_attention_norm") module = "ffn_norm";
  for (size_t norm = 0; norm < kLayerNorms; ++norm) {
    if (module != kNormNames[norm] || config.norm_names[norm].empty()) continue;
    return "model.layers." + std::to_string(layer) + "." + std::string(config.norm_names[norm]) + std::string(kind);
  }
  // Some models call what stands in front of the MLP by what stands behind attention.
  if (module == kNormNames[static_cast<size_t>(LayerNorm::kAttentionOut)] && has_norm(config, LayerNorm::kFfnInput)) {
    return "model.layers." + std::to_string(layer) + "." +
           std::string(config.norm_names[static_cast<size_t>(LayerNorm::kFfnInput)]) + std::string(kind);
  }
  return "";
}

}  // namespace loralei
