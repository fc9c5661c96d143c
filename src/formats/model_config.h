// SPDX-License-Identifier: Apache-2.0
// ModelConfig: everything the layer program needs to know of a base model, read from
// config.json or GGUF metadata.
//
// A plain value.
// Invariants after a successful read: every count positive and within limits.h;
// heads % kv_heads == 0; head_dim even; sliding has one entry a layer. Formats differ
// in how they order the rows of q and k for rotary embedding: here and in all code
// below it is the "half split" order of Hugging Face; GGUF readers of llama-type files
// un-permute rows on load.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/activation.h"
#include "base/ids.h"
#include "base/layer_norm.h"
#include "formats/expert_config.h"
#include "formats/linear_config.h"
#include "tensor/dtype.h"

namespace loralei {

enum class RopeScalingKind : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;                // longrope, 0: as many times as max_position is above the original one
  int64_t original_max_position = 0;  // 0: max_position of the model
  double low_freq_factor = 1.0, high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn; the first of longrope, too
  bool truncate = true;                                            // yarn
  // Ready-made divisors (GGUF rope_freqs.weight): inv_freq[i] = theta^(-2i/d) /
  // freq_factors[i]. Empty or [rotary / 2]; kind is kNone then.
  std::vector<float> freq_factors;
  // longrope, [rotary / 2]: divisors where no text is longer than the original length,
  // and where texts may be.
  std::vector<float> short_factors, long_factors;

  bool operator==(const RopeScaling&) const = default;
};

struct LayerRope {
  double theta = 10000.0;
  RopeScaling scaling;

  bool operator==(const LayerRope&) const = default;
};

struct ModelConfig {
  std::string architecture;  // Family::name
  int hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  double rms_eps = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  int64_t max_position = 2048;
  // Of layers with a window, where these are turned otherwise.
  std::optional<LayerRope> sliding_rope;
  int rotary_dim = 0;  // the first numbers of each head, which alone are turned; 0: all
  bool tied_head = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  // [LayerNorm] their names inside of a layer; empty: the model has none of it.
  std::array<std::string_view, kLayerNorms> norm_names = {
      "input_layernorm", "", "post_attention_layernorm", "", "", ""};
  // Norms multiply with 1 + what files of Hugging Face and PEFT hold; GGUF files hold the
  // sums, and so does all code behind the readers.
  bool norm_plus_one = false;
  bool centred_norms = false;    // LayerNorm with biases, not RMS norm
  bool whole_qk_norm = false;    // over all heads of a row, not each of them
  std::vector<int32_t> sliding;  // [layers] attention window in tokens, 0 = full attention
  // [layers] 1: queries and keys are not turned (NoPE); empty: all are.
  std::vector<uint8_t> unturned;
  // Caps: cap * tanh(y / cap) of scores and of logits; 0: none.
  double attention_cap = 0, logits_cap = 0;
  Activation activation = Activation::kSilu;
  GateClamp clamp;     // of Activation::kClamped
  bool gated = true;   // false: the MLP has no gate, and its activation is that of `up`
  bool sinks = false;  // each head has one ("self_attn.sinks", AttentionArgs)
  // What numbers are multiplied with: rows of the embedding; what a block adds to the
  // stream; scores of attention (0: head_dim^-1/2). And what logits are divided by.
  double embed_scale = 1, residual_scale = 1, attention_scale = 0, logits_divisor = 1;
  ExpertConfig experts;  // none: count is 0
  LinearConfig linear;   // none: layers is empty
  // q_proj gives each head a gate beside its query, [heads][query, gate]; what attention
  // answers is multiplied with the gate's sigmoid.
  bool attention_gate = false;
  std::vector<TokenId> eos;
  DType dtype = DType::kBF16;  // the dtype most weights have, for display and the KV default
};

// The matrices of a layer by their canonical names, in the order of use (`Module` of
// ops/args.h): "model.layers.3." + kLayerMatrices[0] + ".weight".
inline constexpr std::array<const char*, 7> kLayerMatrices = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

// The same in a layer with experts, where the last three are those of the shared one.
inline constexpr std::array<const char*, 3> kSharedExpertMatrices = {
    "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"};
bool has_experts(const ModelConfig& config, int layer);

// The same in a layer of gated linear attention: what it has in the places of the first
// four, and one more.
inline constexpr std::array<const char*, 4> kLinearMatrices = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z",
                                                               "linear_attn.in_proj_b", "linear_attn.out_proj"};
inline constexpr const char* kDecayMatrix = "linear_attn.in_proj_a";
bool is_linear(const ModelConfig& config, int layer);
bool has_linear(const ModelConfig& config);
// How many layers keep K and V: in a cache a layer's place is that among these.
int kv_layers(const ModelConfig& config);
// Of its place in `Module`: the name of a layer's matrix; null: the layer has none.
const char* layer_matrix(const ModelConfig& config, int layer, size_t module);

// The three matrices of an expert, in the order of their use.
inline constexpr const char* kExpertMatrices[] = {"gate_proj", "up_proj", "down_proj"};
inline constexpr int kExpertMatrixCount = 3;

// "model.layers.3.mlp.experts.7.gate_proj"
std::string expert_module(int layer, int expert, int part);

// The longest text that may be asked for: max_position, which is what is served unless
// more is asked for, or what the scaling stretches the positions trained with to. Dynamic
// scaling goes as far as any length.
int64_t positions_reached(const ModelConfig& config);
double attention_scale_of(const ModelConfig& config);
// A layer with a window whose rope is config.sliding_rope.
bool has_sliding_rope(const ModelConfig& config, int layer);
// All layers turned as those are; config.sliding_rope is there, and not in the result.
ModelConfig with_sliding_rope(ModelConfig config);
bool has_norm(const ModelConfig& config, LayerNorm norm);
void use_qk_norms(ModelConfig& config);      // of each head
void use_olmo2_norms(ModelConfig& config);   // behind blocks, and of all queries and keys of a row
void use_gemma2_norms(ModelConfig& config);  // before and behind each block
// Linear layers have no queries and keys that could be normed by themselves.
bool has_norm(const ModelConfig& config, LayerNorm norm, int layer);
// The numbers of its weight; 0: there is none.
int norm_width(const ModelConfig& config, LayerNorm norm);
// How many numbers of each head are turned.
int rotary_dim_of(const ModelConfig& config);
// The text length that a model with scaled positions was trained with before.
int64_t original_position_of(const ModelConfig& config);

}  // namespace loralei
