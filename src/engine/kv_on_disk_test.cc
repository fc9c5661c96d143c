// SPDX-License-Identifier: Apache-2.0
// Two models whose K and V differ never share a folder of cached blocks.
#include "engine/kv_on_disk.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace loralei {
namespace {

ModelConfig model() {
  ModelConfig config;
  config.architecture = "gemma3_text";
  config.hidden = 32, config.layers = 2, config.heads = 4, config.kv_heads = 2;
  config.head_dim = 8, config.ffn = 48, config.vocab = 96;
  config.sliding = {16, 0};
  return config;
}

LinearConfig linear_config() {
  return {.layers = {1, 0}, .k_heads = 2, .v_heads = 4, .key_dim = 8, .value_dim = 8, .kernel = 4};
}

Digest format_of(const ModelConfig& config) { return kv_disk_format("weights", {}, config, {}, 128); }

TEST(KvOnDisk, EveryNumberThatChangesKeysOrValuesIsInTheFormat) {
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig& config) { config.attention_cap = 50; },
      [](ModelConfig& config) { config.attention_cap = 30; },
      [](ModelConfig& config) { config.norm_plus_one = true; },
      [](ModelConfig& config) { config.activation = Activation::kGeluTanh; },
      [](ModelConfig& config) { config.activation = Activation::kClamped; },
      [](ModelConfig& config) {
        config.activation = Activation::kClamped;
        config.clamp.limit = 6;
      },
      [](ModelConfig& config) {
        config.activation = Activation::kClamped;
        config.clamp.alpha = 1.5f;
      },
      [](ModelConfig& config) { config.sinks = true; },
      [](ModelConfig& config) { config.experts = {.count = 8, .used = 2, .width = 24, .biased = true}; },
      [](ModelConfig& config) { config.embed_scale = 6; },
      [](ModelConfig& config) { config.attention_scale = 0.25; },
      [](ModelConfig& config) {
        config.sliding = {0, 16};
      },
      [](ModelConfig& config) { use_gemma2_norms(config); },
      [](ModelConfig& config) { config.experts = {.count = 8, .used = 2, .width = 24}; },
      [](ModelConfig& config) { config.experts = {.count = 8, .used = 3, .width = 24}; },
      [](ModelConfig& config) { config.experts = {.count = 8, .used = 2, .width = 24, .normed = true}; },
      [](ModelConfig& config) {
        config.experts = {.count = 8, .used = 2, .width = 24, .dense = {0, 1}};
      },
      [](ModelConfig& config) { config.attention_gate = true; },
      [](ModelConfig& config) { config.linear = linear_config(); },
      [](ModelConfig& config) {
        config.linear = linear_config();
        config.linear.layers = {0, 1};
      },
      [](ModelConfig& config) {
        config.linear = linear_config();
        config.linear.v_heads = 2;
      },
      [](ModelConfig& config) {
        config.linear = linear_config();
        config.linear.kernel = 3;
      },
      [](ModelConfig& config) { config.rope_theta = 1e6; },
      [](ModelConfig& config) { config.sliding_rope = LayerRope{.theta = 500}; },
      [](ModelConfig& config) { config.sliding_rope = LayerRope{.theta = 600}; },
      [](ModelConfig& config) {
        config.sliding_rope = LayerRope{.theta = 500, .scaling = {.kind = RopeScalingKind::kLinear, .factor = 2}};
      }};
  std::vector<Digest> seen = {format_of(model())};
  for (size_t i = 0; i < changes.size(); ++i) {
    ModelConfig config = model();
    changes[i](config);
    const Digest digest = format_of(config);
    for (size_t other = 0; other < seen.size(); ++other) EXPECT_NE(digest, seen[other]) << i << " and " << other;
    seen.push_back(digest);
  }
  ModelConfig head = model();  // of logits alone
  head.logits_cap = 30;
  EXPECT_EQ(format_of(head), seen[0]);
  EXPECT_EQ(format_of(model()), seen[0]);
}

}  // namespace
}  // namespace loralei
