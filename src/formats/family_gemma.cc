// SPDX-License-Identifier: Apache-2.0
#include "formats/family_gemma.h"

#include <cmath>
#include <cstddef>

#include "formats/family.h"
#include "formats/gguf_windows.h"
#include "formats/hf_keys.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

float rounded_to(DType dtype, float value) {
  std::byte bytes[sizeof(float)];
  encode_row(dtype, &value, bytes, 1);
  decode_row(dtype, bytes, &value, 1);
  return value;
}

// transformers multiplies in the format of the weights: 33.94 is 34 in bf16.
void use_gemma(ModelConfig& config, DType dtype) {
  config.norm_plus_one = true;
  config.embed_scale = static_cast<double>(rounded_to(dtype, std::sqrt(static_cast<float>(config.hidden))));
}

// A null switches a cap off.
Status read_cap(const Json& root, const char* key, double fallback, double& cap, const std::string& path) {
  if (!root.contains(key)) {
    cap = fallback;
    return {};
  }
  if (!json_find(root, key)) return {};
  TRY_ASSIGN(cap, json_positive(root, key, fallback, path));
  return {};
}

Status read_gemma2(const Json& root, double attention_cap, double logits_cap, ModelConfig& config,
                   const std::string& path) {
  use_gemma(config, config.dtype);
  TRY_ASSIGN(const double scalar, json_positive(root, "query_pre_attn_scalar", 256, path));
  config.attention_scale = 1 / std::sqrt(scalar);
  TRY(read_cap(root, "attn_logit_softcapping", attention_cap, config.attention_cap, path));
  return read_cap(root, "final_logit_softcapping", logits_cap, config.logits_cap, path);
}

Status read_gguf_cap(const GgufFile& file, const ModelConfig& config, const char* name, double fallback, double& cap) {
  TRY_ASSIGN(const auto value, file.real(gguf_key(config, name)));
  cap = value.value_or(fallback);
  if (cap >= 0) return {};
  return corrupt(file.path + ": " + gguf_key(config, name) + " must not be below 0");
}

// GGUF files do not state the scale of scores: of the model with this many layers it is
// that of hidden / heads, of the others that of a head.
void use_gguf_scale(ModelConfig& config, int layers_of_27b) {
  const int width = config.layers == layers_of_27b ? config.hidden / config.heads : config.head_dim;
  config.attention_scale = 1 / std::sqrt(static_cast<double>(width));
}

}  // namespace

// Its class has one activation, whatever the older key says.
Status gemma_config(const Json& root, ModelConfig& config, const std::string& path) {
  TRY_ASSIGN(const auto activation, json_string(root, "hidden_activation", path));
  if (activation && *activation != "gelu_pytorch_tanh")
    return refused_value(path, "hidden_activation", Json(*activation), "only gelu_pytorch_tanh is");
  use_gemma(config, config.dtype);
  return {};
}

Status gemma2_config(const Json& root, ModelConfig& config, const std::string& path) {
  use_gemma2_norms(config);
  return read_gemma2(root, 50, 30, config, path);
}

Status gemma3_config(const Json& root, ModelConfig& config, const std::string& path) {
  use_gemma2_norms(config);
  use_qk_norms(config);
  return read_gemma2(root, 0, 0, config, path);
}

// llama.cpp rounds the embedding's scale to f32 alone.
Status gemma_gguf(const GgufFile&, ModelConfig& config) {
  use_gemma(config, DType::kF32);
  config.activation = Activation::kGeluTanh;
  return {};
}

Status gemma2_gguf(const GgufFile& file, ModelConfig& config) {
  TRY(gemma_gguf(file, config));
  use_gemma2_norms(config);
  use_gguf_scale(config, 46);
  TRY(read_gguf_cap(file, config, "attn_logit_softcapping", 50, config.attention_cap));
  TRY(read_gguf_cap(file, config, "final_logit_softcapping", 30, config.logits_cap));
  return read_gguf_windows(file, {.window = 4096, .period = 2}, config);
}

Status gemma3_gguf(const GgufFile& file, ModelConfig& config) {
  TRY(gemma_gguf(file, config));
  use_gemma2_norms(config);
  use_qk_norms(config);
  use_gguf_scale(config, 62);
  TRY(read_gguf_cap(file, config, "attn_logit_softcapping", 0, config.attention_cap));
  TRY(read_gguf_cap(file, config, "final_logit_softcapping", 0, config.logits_cap));
  TRY(read_gguf_windows(file, {.window = 0, .period = 6}, config));
  TRY_ASSIGN(const auto theta, file.real(gguf_key(config, "rope.freq_base_swa")));
  return use_sliding_rope(config, {.theta = theta.value_or(10000.0)}, file.path);
}

}  // namespace loralei
