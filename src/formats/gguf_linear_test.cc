// SPDX-License-Identifier: Apache-2.0
// What GGUF files of models with gated linear attention say, hostile ones too.
#include <gtest/gtest.h>

#include "formats/gguf_model.h"
#include "formats/linear_families.h"

namespace loralei {
namespace {

constexpr int kLayers = 6;

GgufFile metadata() {
  GgufFile file{.path = "f.gguf"};
  file.metadata["general.architecture"] = {.type = GgufType::kString, .text = "qwen35"};
  const auto set = [&](const char* key, int64_t number) {
    file.metadata["qwen35." + std::string(key)] = {.number = number};
  };
  set("embedding_length", 64);
  set("block_count", kLayers);
  set("attention.head_count", 4);
  set("attention.key_length", 16);
  set("rope.dimension_count", 4);
  set("feed_forward_length", 16);
  set("ssm.conv_kernel", 4);
  set("ssm.state_size", 8);
  set("ssm.group_count", 2);
  set("ssm.time_step_rank", 4);
  set("ssm.inner_size", 48);
  file.metadata["qwen35.attention.layer_norm_rms_epsilon"] = {.type = GgufType::kFloat, .real = 1e-6};
  file.index.tensors.push_back({.name = "token_embd.weight", .shape = {10, 64}});
  file.index.by_name["token_embd.weight"] = 0;
  return file;
}
void put(GgufFile& file, const std::string& key, GgufValue value) { file.metadata["qwen35." + key] = std::move(value); }
GgufValue list(std::vector<int64_t> numbers) { return {.type = GgufType::kBoolArray, .numbers = std::move(numbers)}; }

ModelConfig read(const GgufFile& file) {
  std::vector<std::string> notes;
  auto config = gguf_model_config(file, notes);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : ModelConfig{};
}
void expect_refused(const std::string& key, GgufValue value, const std::string& words) {
  GgufFile file = metadata();
  put(file, key, std::move(value));
  std::vector<std::string> notes;
  auto config = gguf_model_config(file, notes);
  ASSERT_FALSE(config.ok()) << key;
  EXPECT_NE(config.error().message.find(words), std::string::npos) << config.error().message;
}

TEST(GgufLinear, NumbersAreThoseOfItsKeys) {
  const ModelConfig config = read(metadata());
  const LinearConfig& linear = config.linear;
  EXPECT_EQ(config.architecture, "qwen3_5_text");
  EXPECT_EQ(linear.layers, (std::vector<uint8_t>{1, 1, 1, 0, 1, 1}));
  EXPECT_EQ(linear.k_heads, 2);
  EXPECT_EQ(linear.v_heads, 4);
  EXPECT_EQ(linear.key_dim, 8);
  EXPECT_EQ(linear.value_dim, 12);
  EXPECT_EQ(linear.kernel, 4);
  EXPECT_TRUE(linear.tiled && linear.negative_decay);
  EXPECT_TRUE(config.attention_gate && config.norm_plus_one);
  EXPECT_EQ(config.rotary_dim, 4);

  GgufFile file = metadata();
  put(file, "full_attention_interval", {.number = 2});
  EXPECT_EQ(read(file).linear.layers, (std::vector<uint8_t>{1, 0, 1, 0, 1, 0}));
  put(file, "attention.recurrent_layers", list({1, 1, 0, 0, 1, 0}));
  EXPECT_EQ(read(file).linear.layers, (std::vector<uint8_t>{1, 1, 0, 0, 1, 0}));
  put(file, "ssm.group_count", {.number = 4});
  EXPECT_FALSE(read(file).linear.tiled) << "the orders are one";
}

TEST(GgufLinear, LayersThatGuessAheadAreNoLayers) {
  GgufFile file = metadata();
  EXPECT_FALSE(is_gguf_draft(file, read(file), "blk.6.attn_q.weight"));
  put(file, "nextn_predict_layers", {.number = 1});
  put(file, "attention.recurrent_layers", list({1, 1, 1, 0, 1, 0}));
  const ModelConfig config = read(file);
  EXPECT_EQ(config.layers, 5);
  EXPECT_EQ(config.sliding.size(), 5u);
  EXPECT_EQ(config.linear.layers, (std::vector<uint8_t>{1, 1, 1, 0, 1}));
  EXPECT_TRUE(is_gguf_draft(file, config, "blk.5.nextn.eh_proj.weight"));
  EXPECT_FALSE(is_gguf_draft(file, config, "blk.4.attn_qkv.weight"));
  EXPECT_FALSE(is_gguf_draft(file, config, "blk.6.attn_q.weight"));
  EXPECT_FALSE(is_gguf_draft(file, config, "output_norm.weight"));
  EXPECT_FALSE(is_gguf_draft(file, config, "blk.05.attn_q.weight"));
}

TEST(GgufLinear, NamesDependOnTheLayer) {
  const ModelConfig config = read(metadata());
  const std::string linear = "model.layers.0.linear_attn.", full = "model.layers.3.";
  EXPECT_EQ(canonical_name("blk.0.attn_qkv.weight", config), linear + "in_proj_qkv.weight");
  EXPECT_EQ(canonical_name("blk.0.attn_gate.weight", config), linear + "in_proj_z.weight");
  EXPECT_EQ(canonical_name("blk.0.ssm_alpha.weight", config), linear + "in_proj_a.weight");
  EXPECT_EQ(canonical_name("blk.0.ssm_beta.weight", config), linear + "in_proj_b.weight");
  EXPECT_EQ(canonical_name("blk.0.ssm_a", config), linear + "A_log");
  EXPECT_EQ(canonical_name("blk.0.ssm_dt.bias", config), linear + "dt_bias");
  EXPECT_EQ(canonical_name("blk.0.ssm_norm.weight", config), linear + "norm.weight");
  EXPECT_EQ(canonical_name("blk.0.post_attention_norm.weight", config),
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(canonical_name("blk.3.attn_q.weight", config), full + "self_attn.q_proj.weight");
  EXPECT_EQ(canonical_name("blk.3.attn_q_norm.weight", config), full + "self_attn.q_norm.weight");
  for (const char* none : {"blk.3.ssm_a", "blk.3.attn_gate.weight", "blk.9.ssm_a", "blk..ssm_a", "blk.00.ssm_a",
                           "blk.0.ssm_a.weight", "blk.0.", "blk.0", "blk.-1.ssm_a", "ssm_a"})
    EXPECT_EQ(canonical_name(none, config), "") << none;
}

TEST(GgufLinear, HostileNumbersAreRefused) {
  expect_refused("ssm.group_count", {.number = 0}, "ssm.group_count");
  expect_refused("ssm.group_count", {.number = 3}, "not a multiple of the 3 key heads");
  expect_refused("ssm.time_step_rank", {.number = int64_t{1} << 40}, "ssm.time_step_rank");
  expect_refused("ssm.time_step_rank", {.number = 5}, "not a multiple of the 5 value heads");
  expect_refused("ssm.state_size", {.number = 1 << 20}, "ssm.state_size");
  expect_refused("ssm.inner_size", {.number = 4 * 4096}, "outside what is possible");
  expect_refused("ssm.conv_kernel", {.number = 9}, "convolution over 9 tokens");
  expect_refused("attention.recurrent_layers", list({1, 0}), "one entry for each of the 6 layers");
  expect_refused("attention.recurrent_layers", list({1, 1, 1, 1, 1, 1}), "without any layer of full attention");
  expect_refused("attention.recurrent_layers", {.number = 1}, "one entry for each");
  expect_refused("full_attention_interval", {.number = 0}, "full_attention_interval");
  expect_refused("nextn_predict_layers", {.number = 6}, "nextn_predict_layers");
  GgufFile lacking = metadata();
  lacking.metadata.erase("qwen35.ssm.inner_size");
  std::vector<std::string> notes;
  const auto config = gguf_model_config(lacking, notes);
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("lacks qwen35.ssm.inner_size"), std::string::npos);
}

}  // namespace
}  // namespace loralei
