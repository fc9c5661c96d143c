// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/generate.h"

namespace loralei {
namespace {

// Of generated models: room for the long contexts that are measured; costs nothing
// where it is not used.
constexpr int kMaxPosition = 131072;

struct Shape {
  const char* name;
  ModelConfig (*make)();
};

struct Sizes {
  int hidden, layers, heads, kv_heads, ffn;
  int vocab = 32000;
};

ModelConfig model(const char* architecture, const Sizes& sizes) {
  ModelConfig config;
  config.architecture = architecture;
  config.max_position = kMaxPosition;
  config.hidden = sizes.hidden, config.layers = sizes.layers, config.heads = sizes.heads;
  config.kv_heads = sizes.kv_heads, config.ffn = sizes.ffn, config.vocab = sizes.vocab;
  config.head_dim = sizes.hidden / sizes.heads;
  return config;
}

ModelConfig mixture(const Sizes& sizes, const ExpertConfig& experts) {
  ModelConfig config = model("qwen3_moe", sizes);
  use_qk_norms(config);
  config.experts = experts;
  return config;
}

// 3.3 of 30.5 billion weights meet a token.
ModelConfig qwen3_30b_a3b() {
  const Sizes sizes{.hidden = 2048, .layers = 48, .heads = 32, .kv_heads = 4, .ffn = 6144, .vocab = 151936};
  ModelConfig config = mixture(sizes, {.count = 128, .used = 8, .width = 768, .normed = true});
  config.head_dim = 128, config.rope_theta = 1e6;
  return config;
}

ModelConfig moe_tiny() {
  const Sizes sizes{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 2, .ffn = 512};
  return mixture(sizes, {.count = 16, .used = 4, .width = 256, .normed = true});
}

// Five of six layers attend to 512 tokens; a vocabulary that is a third of the weights.
ModelConfig gemma3(const Sizes& sizes, int32_t window) {
  ModelConfig config = model("gemma3_text", sizes);
  use_gemma2_norms(config);
  use_qk_norms(config);
  config.tied_head = true, config.norm_plus_one = true, config.activation = Activation::kGeluTanh;
  config.embed_scale = std::sqrt(static_cast<float>(config.hidden));
  config.rope_theta = 1e6, config.rms_eps = 1e-6;
  config.sliding_rope = LayerRope{.theta = 10000};
  for (int layer = 0; layer < config.layers; ++layer) config.sliding.push_back((layer + 1) % 6 == 0 ? 0 : window);
  return config;
}

ModelConfig gemma3_1b() {
  ModelConfig config =
      gemma3({.hidden = 1152, .layers = 26, .heads = 4, .kv_heads = 1, .ffn = 6912, .vocab = 262144}, 512);
  config.head_dim = 256, config.attention_scale = 1.0 / 16;
  return config;
}

ModelConfig gemma3_tiny() {
  ModelConfig config = gemma3({.hidden = 288, .layers = 6, .heads = 4, .kv_heads = 1, .ffn = 512}, 64);
  config.head_dim = 64, config.attention_scale = 1.0 / 8;
  return config;
}

// q, k and v are one matrix of the file, gate and up another. Its window is that of the
// model whose texts are 4,096 tokens long.
ModelConfig phi3(const Sizes& sizes) {
  ModelConfig config = model("phi3", sizes);
  config.max_position = 4096;
  config.sliding.assign(static_cast<size_t>(config.layers), 2047);
  return config;
}

constexpr Shape kShapes[] = {
    {"llama-1b",
     [] { return model("llama", {.hidden = 2048, .layers = 22, .heads = 32, .kv_heads = 4, .ffn = 5632}); }},
    // Of Llama 3.2: a vocabulary four times as large (its head is not tied here).
    {"llama3-1b",
     [] {
       return model("llama", {.hidden = 2048, .layers = 16, .heads = 32, .kv_heads = 8, .ffn = 8192, .vocab = 128256});
     }},
    {"llama-7b",
     [] { return model("llama", {.hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .ffn = 11008}); }},
    {"gemma3-1b", gemma3_1b},
    {"phi3-mini",
     [] { return phi3({.hidden = 3072, .layers = 32, .heads = 32, .kv_heads = 32, .ffn = 8192, .vocab = 32064}); }},
    {"qwen3-30b-a3b", qwen3_30b_a3b},
    {"llama-tiny", [] { return model("llama", {.hidden = 256, .layers = 8, .heads = 4, .kv_heads = 2, .ffn = 512}); }},
    {"llama-nano",
     [] { return model("llama", {.hidden = 64, .layers = 2, .heads = 2, .kv_heads = 2, .ffn = 128, .vocab = 512}); }},
    {"gemma3-tiny", gemma3_tiny},
    {"phi3-tiny", [] { return phi3({.hidden = 256, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 512}); }},
    {"moe-tiny", moe_tiny},
};

}  // namespace

Result<ModelConfig> bench_shape(const std::string& name) {
  const std::string plain = is_skewed_shape(name) ? name.substr(0, name.size() - kSkewedShape.size()) : name;
  const auto* const found =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& shape) { return plain == shape.name; });
  if (found != std::end(kShapes)) {
    ModelConfig config = found->make();
    if (plain == name || config.experts.count > 0) return config;
  }
  std::string names;
  for (const Shape& shape : kShapes) {
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
    if (shape.make().experts.count > 0) names += ", " + std::string(shape.name) + std::string(kSkewedShape);
  }
  return invalid_argument("Unknown --shape '" + name + "'; choose one of " + names + ".");
}

bool is_skewed_shape(std::string_view name) { return name.ends_with(kSkewedShape); }

}  // namespace loralei
