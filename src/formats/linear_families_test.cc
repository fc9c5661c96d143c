// SPDX-License-Identifier: Apache-2.0
// What configs say of gated linear attention, hostile ones too, and which tensors follow.
#include "formats/linear_families.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/hf_config.h"
#include "formats/model_tensors.h"

namespace loralei {
namespace {

Json hybrid(const Json& changes = Json::object()) {
  Json json = {{"architectures", {"Qwen3_5ForCausalLM"}},
               {"hidden_size", 32},
               {"num_hidden_layers", 5},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"intermediate_size", 48},
               {"vocab_size", 96}};
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json;
}

ModelConfig read(const Json& json) {
  auto parsed = parse_hf_config(json.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << json << ": " << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? parsed->config : ModelConfig{};
}
std::string refusal(const Json& changes) {
  auto parsed = parse_hf_config(hybrid(changes).dump(), "config.json");
  EXPECT_FALSE(parsed.ok()) << changes;
  return parsed.ok() ? "" : parsed.error().message;
}
void expect_refused(const Json& changes, const std::string& words) {
  EXPECT_NE(refusal(changes).find(words), std::string::npos) << changes << ": " << refusal(changes);
}

const Json kTypes = {"linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"};

TEST(LinearFamilies, DefaultsAreThoseOfTheClass) {
  const ModelConfig config = read(hybrid());
  const LinearConfig& linear = config.linear;
  EXPECT_EQ(linear.layers, (std::vector<uint8_t>{1, 1, 1, 0, 1}));
  EXPECT_EQ(linear.k_heads, 16);
  EXPECT_EQ(linear.v_heads, 32);
  EXPECT_EQ(linear.key_dim, 128);
  EXPECT_EQ(linear.value_dim, 128);
  EXPECT_EQ(linear.kernel, 4);
  EXPECT_EQ(linear.channels(), 2 * 16 * 128 + 32 * 128);
  EXPECT_FALSE(linear.tiled || linear.negative_decay);
  EXPECT_TRUE(config.attention_gate && config.norm_plus_one);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(kv_layers(config), 1);
  EXPECT_TRUE(has_norm(config, LayerNorm::kQ, 3) && has_norm(config, LayerNorm::kInput, 0));
  EXPECT_FALSE(has_norm(config, LayerNorm::kQ, 0) || has_norm(config, LayerNorm::kK, 4));
  EXPECT_EQ(config.sliding, std::vector<int32_t>(5, 0));
}

TEST(LinearFamilies, LayersAreThoseNamedOrCounted) {
  EXPECT_EQ(read(hybrid({{"layer_types", kTypes}})).linear.layers, (std::vector<uint8_t>{1, 0, 1, 1, 0}));
  EXPECT_EQ(read(hybrid({{"full_attention_interval", 2}})).linear.layers, (std::vector<uint8_t>{1, 0, 1, 0, 1}));
  EXPECT_EQ(read(hybrid({{"full_attention_interval", 2}, {"layer_types", kTypes}})).linear.layers,
            (std::vector<uint8_t>{1, 0, 1, 1, 0}))
      << "the list counts";
  const ModelConfig full = read(hybrid({{"full_attention_interval", 1}}));
  EXPECT_FALSE(has_linear(full));
  EXPECT_EQ(full.linear.v_heads, 0);
  EXPECT_EQ(kv_layers(full), 5);
  EXPECT_TRUE(full.attention_gate);
}

TEST(LinearFamilies, MatricesAreNamedByTheirPlaces) {
  const ModelConfig config = read(hybrid({{"layer_types", kTypes}}));
  EXPECT_STREQ(layer_matrix(config, 0, 0), "linear_attn.in_proj_qkv");
  EXPECT_STREQ(layer_matrix(config, 0, 2), "linear_attn.in_proj_b");
  EXPECT_STREQ(layer_matrix(config, 0, 3), "linear_attn.out_proj");
  EXPECT_STREQ(layer_matrix(config, 0, 4), "mlp.gate_proj");
  EXPECT_STREQ(layer_matrix(config, 0, 7), "linear_attn.in_proj_a");
  EXPECT_STREQ(layer_matrix(config, 1, 0), "self_attn.q_proj");
  EXPECT_EQ(layer_matrix(config, 1, 7), nullptr);
}

TEST(LinearFamilies, TensorsFollowFromTheConfig) {
  const ModelConfig config = read(hybrid({{"layer_types", kTypes},
                                          {"head_dim", 16},
                                          {"linear_num_key_heads", 2},
                                          {"linear_num_value_heads", 4},
                                          {"linear_key_head_dim", 8},
                                          {"linear_value_head_dim", 12}}));
  const std::vector<ExpectedTensor> tensors = expected_tensors(config);
  const auto shape_of = [&](const std::string& name) {
    const auto found = std::ranges::find(tensors, name, &ExpectedTensor::name);
    return found == tensors.end() ? std::vector<int64_t>{} : found->shape;
  };
  const std::string first = "model.layers.0.linear_attn.", second = "model.layers.1.self_attn.";
  EXPECT_EQ(shape_of(first + "in_proj_qkv.weight"), (std::vector<int64_t>{80, 32}));
  EXPECT_EQ(shape_of(first + "in_proj_z.weight"), (std::vector<int64_t>{48, 32}));
  EXPECT_EQ(shape_of(first + "in_proj_a.weight"), (std::vector<int64_t>{4, 32}));
  EXPECT_EQ(shape_of(first + "out_proj.weight"), (std::vector<int64_t>{32, 48}));
  EXPECT_EQ(shape_of(first + "conv1d.weight"), (std::vector<int64_t>{80, 1, 4}));
  EXPECT_EQ(shape_of(first + "A_log"), (std::vector<int64_t>{4}));
  EXPECT_EQ(shape_of(first + "norm.weight"), (std::vector<int64_t>{12}));
  EXPECT_EQ(shape_of(second + "q_proj.weight"), (std::vector<int64_t>{2 * 64, 32})) << "queries and gates";
  EXPECT_EQ(shape_of(second + "o_proj.weight"), (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(shape_of(second + "q_norm.weight"), (std::vector<int64_t>{16}));
  EXPECT_TRUE(shape_of("model.layers.0.self_attn.q_proj.weight").empty());
  EXPECT_TRUE(shape_of("model.layers.0.self_attn.q_norm.weight").empty());
  EXPECT_TRUE(shape_of("model.layers.1.linear_attn.A_log").empty());
}

TEST(LinearFamilies, WhatFilesSayOfOtherPartsIsTaken) {
  const Json rope = {{"rope_type", "default"},
                     {"rope_theta", 1e7},
                     {"mrope_section", {11, 11, 10}},
                     {"mrope_interleaved", true},
                     {"partial_rotary_factor", 0.5}};
  const auto parsed = parse_hf_config(hybrid({{"rope_parameters", rope},
                                              {"attn_output_gate", true},
                                              {"mamba_ssm_dtype", "float32"},
                                              {"mlp_only_layers", Json::array()},
                                              {"mtp_num_hidden_layers", 1},
                                              {"mtp_use_dedicated_embeddings", false}})
                                          .dump(),
                                      "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_TRUE(parsed->notes.empty()) << parsed->notes.front();
  EXPECT_EQ(parsed->config.rotary_dim, 128);
  EXPECT_EQ(parsed->config.rope_theta, 1e7);

  Json text = hybrid();
  text.erase("architectures");
  text["model_type"] = "qwen3_5_text";
  text["rope_parameters"] = rope;
  const ModelConfig inside = read({{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                                   {"text_config", text},
                                   {"vision_config", {{"depth", 2}}},
                                   {"image_token_id", 95}});
  EXPECT_EQ(inside.architecture, "qwen3_5");
  EXPECT_EQ(inside.linear.layers, (std::vector<uint8_t>{1, 1, 1, 0, 1}));
  EXPECT_TRUE(inside.attention_gate && inside.norm_plus_one);
}

TEST(LinearFamilies, ExpertsStandBesideIt) {
  Json json = hybrid({{"architectures", {"Qwen3_5MoeForCausalLM"}}, {"mlp_only_layers", Json::array()}});
  json.erase("intermediate_size");
  const ModelConfig config = read(json);
  EXPECT_EQ(config.experts.count, 256);
  EXPECT_EQ(config.experts.used, 8);
  EXPECT_EQ(config.experts.width, 512);
  EXPECT_EQ(config.experts.shared_width, 512);
  EXPECT_EQ(config.ffn, 512);
  EXPECT_TRUE(config.experts.normed && has_experts(config, 0) && has_experts(config, 4));
  EXPECT_EQ(config.linear.layers, (std::vector<uint8_t>{1, 1, 1, 0, 1}));
  json["mlp_only_layers"] = {2};
  const auto parsed = parse_hf_config(json.dump(), "config.json");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("mlp_only_layers"), std::string::npos);
}

TEST(LinearFamilies, HostileNumbersAreRefused) {
  expect_refused({{"linear_num_key_heads", 0}}, "linear_num_key_heads");
  expect_refused({{"linear_num_key_heads", -2}}, "linear_num_key_heads");
  expect_refused({{"linear_num_value_heads", "many"}}, "linear_num_value_heads");
  expect_refused({{"linear_num_value_heads", 1 << 30}}, "outside what is possible");
  expect_refused({{"linear_key_head_dim", 1025}}, "outside what is possible");
  expect_refused({{"linear_value_head_dim", INT32_MAX}}, "outside what is possible");
  expect_refused({{"linear_num_key_heads", 3}}, "not a multiple of the 3 key heads");
  expect_refused({{"linear_num_value_heads", 8}}, "not a multiple");
  expect_refused({{"linear_num_value_heads", 1024},
                  {"linear_num_key_heads", 1024},
                  {"linear_key_head_dim", 1024},
                  {"linear_value_head_dim", 1024}},
                 "larger than what is possible");
  expect_refused({{"linear_conv_kernel_dim", 1}}, "convolution over 1 tokens");
  expect_refused({{"linear_conv_kernel_dim", 9}}, "convolution over 9 tokens");
  expect_refused({{"full_attention_interval", 0}}, "full_attention_interval");
  expect_refused({{"full_attention_interval", 6}}, "without any layer of full attention");
  expect_refused({{"layer_types", {"linear_attention"}}}, "one entry for each of the 5 layers");
  expect_refused({{"layer_types", "linear_attention"}}, "one entry for each");
  expect_refused({{"layer_types", Json(std::vector<std::string>(5, "sliding_attention"))}}, "known are");
  expect_refused({{"layer_types", Json(std::vector<std::string>(5, "linear_attention"))}}, "without any layer");
  expect_refused({{"attn_output_gate", false}}, "attn_output_gate");
  expect_refused({{"hidden_act", "gelu_pytorch_tanh"}}, "another activation");
  expect_refused({{"partial_rotary_factor", 0.001}}, "partial_rotary_factor");
  expect_refused({{"linear_decay_bias", 3}, {"num_experts", 4}}, "num_experts");
}

TEST(LinearFamilies, LayersThatGuessAheadAreLeftOut) {
  TensorIndex index;
  for (const char* name : {"mtp.fc.weight", "model.norm.weight", "mtp.layers.0.mlp.up_proj.weight", "lm_head.weight"}) {
    index.by_name.emplace(name, index.tensors.size());
    index.tensors.push_back({.name = name});
  }
  std::vector<ForeignTensor> foreign = {{.name = "mtp.norm.weight"}, {.name = "model.other"}};
  std::vector<std::string> notes;
  drop_draft_tensors(index, foreign, notes);
  ASSERT_EQ(index.tensors.size(), 2u);
  EXPECT_EQ(index.find("lm_head.weight"), &index.tensors[1]);
  EXPECT_EQ(index.find("mtp.fc.weight"), nullptr);
  EXPECT_EQ(foreign.size(), 1u);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("3 tensors"), std::string::npos);
  drop_draft_tensors(index, foreign, notes);
  EXPECT_EQ(notes.size(), 1u);
}

}  // namespace
}  // namespace loralei
