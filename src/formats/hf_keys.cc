// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_keys.h"

#include <algorithm>

#include "formats/words.h"

namespace loralei {
namespace {

// Keys that are applied below or say nothing about inference.
constexpr const char* kKnownKeys[] = {
    "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "hidden_act", "bos_token_id", "eos_token_id",
    "torch_dtype", "dtype", "quantization_config", "compression_config",
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
    "original_max_position_embeddings", "cache_implementation",
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
                                       {"use_qkv_bias", 0},
                                       {"use_bidirectional_attention", 0}};

bool is_neutral(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return (value.get<bool>() ? 1.0 : 0.0) == neutral;
  if (value.is_number()) return value.get<double>() == neutral;
  return value.is_structured() && value.empty();
}

}  // namespace

Error refused_value(const std::string& path, const std::string& key, const Json& value, const std::string& why) {
  return unsupported(path + ": \"" + key + "\": " + json_brief(value) + " is not supported" +
                     (why.empty() ? "" : " (" + why + ")"));
}

// Keys outside what this reader applies: refuse those that matter, note the unknown ones.
Status check_other_keys(const Json& root, const Family& family, const std::string& path,
                        std::vector<std::string>& notes) {
  std::vector<std::string> unknown;
  for (const auto& item : root.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    const auto& own = family.config_keys;
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    const auto neutral = std::find_if(std::begin(kNeutralKeys), std::end(kNeutralKeys),
                                      [&](const NeutralKey& rule) { return key == rule.key; });
    if (neutral != std::end(kNeutralKeys)) {
      if (is_neutral(value, neutral->neutral)) continue;
      return refused_value(path, key, value, "it changes what the model computes");
    }
    const bool known =
        std::any_of(std::begin(kKnownKeys), std::end(kKnownKeys), [&](const char* name) { return key == name; });
    if (!known && !value.is_null() && unknown.size() < 20) unknown.push_back(key.substr(0, 60));
  }
  if (!unknown.empty())
    notes.push_back("config.json has keys that are not known here and were not applied: " + join(unknown) + ".");
  return {};
}

}  // namespace loralei
