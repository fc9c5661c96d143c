// SPDX-License-Identifier: Apache-2.0
// Family: what one kind of model differs in from Llama, as data: where a config.json or a
// GGUF file says it and what it is when the file says nothing. All that is known of a
// family while a file is read stands in one entry of families.cc; what it means for the
// computation stands in ModelConfig, which the layer program reads.
//
// Immutable, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/json_util.h"
#include "formats/model_config.h"

namespace loralei {

inline constexpr int64_t kMaxDim = int64_t{1} << 24;
inline constexpr int64_t kMaxPosition = int64_t{1} << 30;
inline constexpr size_t kFamilyKeysMax = 24;

struct Family {
  const char* class_name = "";  // in config.json; defaults of absent keys are those of this class of transformers
  const char* name = "";        // model_type there, and ModelConfig::architecture

  int64_t max_position = 2048;
  int64_t kv_heads = 0;                       // when the key is absent; 0: as many as heads
  int64_t head_dim = 0;                       // when the key is absent; 0: hidden / heads
  bool attention_bias = false;                // obeys "attention_bias" (q, k, v and o)
  bool attention_bias_default = false;        // when the key is absent
  bool o_bias = true;                         // o obeys "attention_bias" as q, k and v do
  bool mlp_bias = false;                      // obeys "mlp_bias"
  bool qkv_bias = false;                      // always has biases on q, k and v
  bool qk_norm = false;                       // of each head
  bool centred_norms = false;                 // LayerNorm
  bool tied_head = false;                     // when "tie_word_embeddings" is absent
  Activation activation = Activation::kSilu;  // when its key is absent
  std::string_view activation_key = "hidden_act";
  bool gelu_by_tanh = false;    // "gelu" means gelu_pytorch_tanh
  double rope_theta = 10000.0;  // when the key is absent
  // Above 0: layers with a window are turned by themselves, without a scaling unless
  // "rope_parameters" says one, and with this theta when the key is absent.
  double sliding_theta = 0;
  std::string_view sliding_theta_key = "rope_theta";
  // "sliding_window" counts by itself (default 4096); otherwise only with
  // "use_sliding_window".
  bool window_always = false;
  int64_t window = 4096;  // when the key is absent; 0: none
  // Above 0: of so many layers the last has no window and the others have one, unless
  // "layer_types" says otherwise.
  int window_period = 0;
  // Of "partial_rotary_factor" when the key is absent; 0: the class turns whole heads.
  double rotary_factor = 0;
  // A text model inside of one that reads images (wrapped_model.h): what "model_type" of
  // its "text_config" is, and the family of that; empty: the entry itself.
  std::string_view text_type = "";
  std::string_view text_family = "";
  // Layers of gated linear attention stand between others, as "layer_types" says
  // (linear_families.h). Files say how positions of images turn heads, which of text
  // alone is the usual way.
  bool linear = false;
  bool experts_alone = false;  // files need not say how wide MLPs are: all are those of experts
  // Pairs of numbers that are turned together lie side by side in q and k of every file.
  bool interleaved_qk = false;
  // "qkv_proj" and "gate_up_proj" hold the rows of several matrices, one after another.
  bool fused = false;
  // What the class computes beside, and the keys that say how; null: nothing.
  Status (*read_config)(const Json& root, ModelConfig& config, const std::string& path) = nullptr;
  std::array<std::string_view, kFamilyKeysMax> config_keys = {};

  // general.architecture of GGUF files; empty: llama.cpp has none of its own.
  std::string_view gguf_name = "";
  // Rows of q and k lie in interleaved order there (model_tensors.h, qk_row).
  bool gguf_permutes_qk = false;
  bool gguf_fused_up = false;  // "ffn_up" holds gate and up
  // As read_config and config_keys; keys without the architecture in front.
  Status (*read_gguf)(const GgufFile& file, ModelConfig& config) = nullptr;
  std::array<std::string_view, kFamilyKeysMax> gguf_keys = {};
};

// Null: there is none of that name.
const Family* family_of_class(std::string_view class_name);
const Family* family_of_type(std::string_view model_type);
const Family* family_of_gguf(std::string_view architecture);

// "LlamaForCausalLM, MistralForCausalLM, ..." and "llama, qwen2, ..." for messages.
std::string supported_architectures();
std::string supported_gguf_architectures();

bool is_wrapper(const Family& family);
std::string text_alone_note(const Family& wrapper);

// "granite.attention.scale" of "attention.scale".
std::string gguf_key(const ModelConfig& config, std::string_view name);

}  // namespace loralei
