// SPDX-License-Identifier: Apache-2.0
// What configs say of experts, hostile ones too, and the tensors that hold several.
#include "formats/expert_families.h"

#include <gtest/gtest.h>

#include "formats/expert_tensors.h"
#include "formats/hf_config.h"
#include "formats/model_tensors.h"

namespace loralei {
namespace {

Json moe(const char* architecture, const Json& changes = Json::object()) {
  Json json = {{"architectures", {architecture}},
               {"hidden_size", 32},
               {"num_hidden_layers", 4},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"intermediate_size", 48},
               {"vocab_size", 96},
               {"num_experts_per_tok", 2}};
  json[std::string_view(architecture) == "MixtralForCausalLM" ? "num_local_experts" : "num_experts"] = 6;
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json;
}

ModelConfig read(const Json& json) {
  auto parsed = parse_hf_config(json.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << json << ": " << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? parsed->config : ModelConfig{};
}
std::string refusal(const Json& json) {
  auto parsed = parse_hf_config(json.dump(), "config.json");
  EXPECT_FALSE(parsed.ok()) << json;
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(ExpertFamilies, DefaultsAreThoseOfTheClass) {
  const ModelConfig mixtral = read(moe("MixtralForCausalLM", {{"num_local_experts", nullptr}}));
  EXPECT_EQ(mixtral.experts.count, 8);
  EXPECT_EQ(mixtral.experts.width, 48);
  EXPECT_TRUE(mixtral.experts.normed && mixtral.experts.mixtral_names);
  EXPECT_EQ(mixtral.sliding, std::vector<int32_t>(4, 0));
  EXPECT_EQ(read(moe("MixtralForCausalLM", {{"sliding_window", 16}})).sliding, std::vector<int32_t>(4, 16));

  const ModelConfig qwen2 = read(moe("Qwen2MoeForCausalLM"));
  EXPECT_EQ(qwen2.experts.width, 1408);
  EXPECT_EQ(qwen2.experts.shared_width, 5632);
  EXPECT_EQ(qwen2.ffn, 5632);  // no layer has another MLP
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.experts.normed);
  EXPECT_FALSE(read(moe("Qwen2MoeForCausalLM", {{"qkv_bias", false}})).qkv_bias);

  const ModelConfig qwen3 = read(moe("Qwen3MoeForCausalLM", {{"norm_topk_prob", true}}));
  EXPECT_EQ(qwen3.experts.width, 768);
  EXPECT_EQ(qwen3.experts.shared_width, 0);
  EXPECT_TRUE(qwen3.experts.normed && has_norm(qwen3, LayerNorm::kQ));
  EXPECT_TRUE(has_experts(qwen3, 0) && has_experts(qwen3, 3));
}

Json gpt_oss(const Json& changes = Json::object()) {
  Json json = {{"architectures", {"GptOssForCausalLM"}},
               {"hidden_size", 32},
               {"num_hidden_layers", 4},
               {"num_attention_heads", 4},
               {"intermediate_size", 48},
               {"vocab_size", 96},
               {"num_key_value_heads", 2},
               {"num_local_experts", 6}};
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json;
}

TEST(ExpertFamilies, GptOssHasTheNumbersOfItsClass) {
  const ModelConfig config = read(gpt_oss());
  EXPECT_EQ(config.experts.count, 6);
  EXPECT_EQ(config.experts.used, 4);
  EXPECT_EQ(config.experts.width, 48);
  EXPECT_TRUE(config.experts.normed && config.experts.biased && config.experts.in_turn && config.sinks);
  EXPECT_TRUE(config.qkv_bias && config.o_bias && !config.tied_head);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.activation, Activation::kClamped);
  EXPECT_EQ(config.clamp, (GateClamp{1.702f, 7.0f}));
  EXPECT_EQ(config.sliding, (std::vector<int32_t>{128, 0, 128, 0}));
  EXPECT_EQ(config.rms_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 150000.0);
  EXPECT_EQ(config.rope_scaling.kind, RopeScalingKind::kYarn);
  EXPECT_EQ(config.rope_scaling.factor, 32);
  EXPECT_EQ(config.rope_scaling.original_max_position, 4096);
  EXPECT_FALSE(config.rope_scaling.truncate || config.sliding_rope);
  EXPECT_EQ(config.max_position, 131072);
  EXPECT_EQ(read(gpt_oss({{"num_local_experts", nullptr}})).experts.count, 128);
  EXPECT_EQ(read(gpt_oss({{"rope_scaling", nullptr}})).rope_scaling.factor, 32);
  EXPECT_EQ(read(gpt_oss({{"rope_parameters", {{"rope_type", "default"}}}})).rope_scaling.kind, RopeScalingKind::kNone);

  const ModelConfig said =
      read(gpt_oss({{"swiglu_limit", 2.5},
                    {"swiglu_alpha", 1.5},
                    {"attention_bias", false},
                    {"sliding_window", 8},
                    {"layer_types", {"full_attention", "full_attention", "sliding_attention", "full_attention"}}}));
  EXPECT_EQ(said.clamp, (GateClamp{1.5f, 2.5f}));
  EXPECT_FALSE(said.qkv_bias || said.o_bias);
  EXPECT_EQ(said.sliding, (std::vector<int32_t>{0, 0, 8, 0}));
}

TEST(ExpertFamilies, WhatGptOssCannotBeIsRefused) {
  const std::pair<Json, const char*> cases[] = {
      {{{"num_experts_per_tok", 7}}, "7 of 6 experts"},
      {{{"num_local_experts", 0}}, "num_local_experts"},
      {{{"num_local_experts", 2000000000}}, "possible"},
      {{{"swiglu_limit", 0}}, "swiglu_limit"},
      {{{"swiglu_limit", -7}}, "swiglu_limit"},
      {{{"swiglu_limit", 1e9}}, "clamped"},
      {{{"swiglu_limit", "7"}}, "swiglu_limit"},
      {{{"swiglu_alpha", 1e-9}}, "clamped"},
      {{{"sliding_window", nullptr}}, "sliding_window"},
      {{{"layer_types", {"sliding_attention"}}}, "4 layers"},
      {{{"layer_types", {"full_attention", "full_attention", "chunked_attention", "full_attention"}}}, "layer_types"},
      {{{"quantization_config", {{"quant_method", "mxfp5"}}}}, "mxfp4 can"},
  };
  for (const auto& [changes, words] : cases)
    EXPECT_NE(refusal(gpt_oss(changes)).find(words), std::string::npos) << refusal(gpt_oss(changes));
  EXPECT_NE(refusal(moe("Qwen3MoeForCausalLM", {{"quantization_config", {{"quant_method", "mxfp4"}}}})).find("gpt-oss"),
            std::string::npos);
}

TEST(ExpertFamilies, SomeLayersHaveNone) {
  const ModelConfig listed = read(moe("Qwen3MoeForCausalLM", {{"mlp_only_layers", {0, 2}}}));
  EXPECT_EQ(listed.experts.dense, (std::vector<uint8_t>{1, 0, 1, 0}));
  EXPECT_EQ(listed.ffn, 48);
  EXPECT_STREQ(layer_matrix(listed, 0, 4), "mlp.gate_proj");
  EXPECT_EQ(layer_matrix(listed, 1, 4), nullptr);
  EXPECT_EQ(read(moe("Qwen3MoeForCausalLM", {{"decoder_sparse_step", 2}})).experts.dense,
            (std::vector<uint8_t>{1, 0, 1, 0}));
}

TEST(ExpertFamilies, CountsThatCannotBeAreRefused) {
  for (const char* name : {"MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"}) {
    const char* const count = std::string_view(name) == "MixtralForCausalLM" ? "num_local_experts" : "num_experts";
    EXPECT_NE(refusal(moe(name, {{"num_experts_per_tok", 7}})).find("7 of 6 experts"), std::string::npos);
    EXPECT_NE(refusal(moe(name, {{"num_experts_per_tok", 0}})).find("num_experts_per_tok"), std::string::npos);
    EXPECT_NE(refusal(moe(name, {{count, 0}})).find(count), std::string::npos);
    EXPECT_NE(refusal(moe(name, {{count, -3}})).find(count), std::string::npos);
    EXPECT_NE(refusal(moe(name, {{count, 2000000000}})).find("possible"), std::string::npos);
    EXPECT_NE(refusal(moe(name, {{count, 1 << 20}})).find("possible"), std::string::npos);
    EXPECT_NE(refusal(moe(name, {{count, 1024}, {"num_hidden_layers", 1000}})).find("possible"), std::string::npos);
  }
  EXPECT_NE(refusal(moe("Qwen3MoeForCausalLM", {{"moe_intermediate_size", 0}})).find("moe_intermediate_size"),
            std::string::npos);
  EXPECT_NE(refusal(moe("Qwen3MoeForCausalLM", {{"mlp_only_layers", {0, 1, 2, 3}}})).find("no layer"),
            std::string::npos);
  EXPECT_NE(refusal(moe("Qwen2MoeForCausalLM", {{"mlp_only_layers", {0}}})).find("another width"), std::string::npos);
  EXPECT_NE(refusal(moe("Qwen2MoeForCausalLM", {{"use_sliding_window", true}})).find("layer_types"), std::string::npos);
  // A model of another family says nothing of experts.
  Json llama = moe("LlamaForCausalLM");
  EXPECT_NE(refusal(llama).find("experts"), std::string::npos);
}

TensorInfo tensor(const std::string& name, std::vector<int64_t> shape, int64_t offset) {
  TensorInfo info{.name = name, .dtype = DType::kF32, .shape = std::move(shape), .offset = offset, .bytes = 4};
  for (const int64_t size : info.shape) info.bytes *= size;
  return info;
}

TEST(ExpertTensors, OfAllExpertsBecomeOneForEach) {
  ModelConfig config = read(moe("Qwen3MoeForCausalLM", {{"moe_intermediate_size", 8}}));
  TensorIndex index;
  index.tensors = {tensor("model.layers.0.mlp.experts.gate_up_proj", {6, 16, 32}, 100),
                   tensor("model.layers.0.mlp.experts.down_proj.weight", {6, 32, 8}, 50000)};
  ASSERT_TRUE(split_experts(config, index, "here").ok());
  ASSERT_EQ(index.tensors.size(), 18u);
  const TensorInfo* const up = index.find("model.layers.0.mlp.experts.4.up_proj.weight");
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->shape, (std::vector<int64_t>{8, 32}));
  EXPECT_EQ(up->bytes, 8 * 32 * 4);
  EXPECT_EQ(up->offset, 100 + (4 * 16 + 8) * 32 * 4);
  EXPECT_EQ(index.find("model.layers.0.mlp.experts.5.down_proj.weight")->offset, 50000 + 5 * 32 * 8 * 4);
}

TEST(ExpertTensors, OfAnotherShapeOrTwiceAreRefused) {
  ModelConfig config = read(moe("Qwen3MoeForCausalLM", {{"moe_intermediate_size", 8}}));
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{5, 16, 32}, {6, 8, 32}, {6, 16, 31}, {6, 16}, {96, 32}, {}}) {
    TensorIndex index;
    index.tensors = {tensor("model.layers.0.mlp.experts.gate_up_proj", shape, 0)};
    const Status status = split_experts(config, index, "here");
    ASSERT_FALSE(status.ok()) << shape_text(shape);
    EXPECT_NE(status.error().message.find("gate_up_proj"), std::string::npos);
  }
  TensorIndex twice;
  twice.tensors = {tensor("model.layers.0.mlp.experts.gate_up_proj", {6, 16, 32}, 0),
                   tensor("model.layers.0.mlp.experts.2.up_proj.weight", {8, 32}, 0)};
  const Status status = split_experts(config, twice, "here");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("twice"), std::string::npos);
}

// Inputs before outputs, gate and up in turn, and biases of all experts.
TEST(ExpertTensors, GptOssHasThemInTurn) {
  const ModelConfig config = read(gpt_oss({{"intermediate_size", 8}}));
  const std::string mlp = "model.layers.1.mlp.";
  TensorIndex index;
  index.tensors = {tensor(mlp + "router.weight", {6, 32}, 0),
                   tensor(mlp + "router.bias", {6}, 0),
                   tensor("model.layers.1.self_attn.sinks", {4}, 0),
                   tensor(mlp + "experts.gate_up_proj", {6, 32, 16}, 1000),
                   tensor(mlp + "experts.gate_up_proj_bias", {6, 16}, 30000),
                   tensor(mlp + "experts.down_proj", {6, 8, 32}, 40000),
                   tensor(mlp + "experts.down_proj_bias", {6, 32}, 70000)};
  ASSERT_TRUE(split_experts(config, index, "here").ok());
  EXPECT_EQ(index.tensors.size(), 3u + 18 + 3);
  EXPECT_NE(index.find(mlp + "gate.weight"), nullptr);
  EXPECT_NE(index.find(mlp + "gate.bias"), nullptr);
  EXPECT_NE(index.find("model.layers.1.self_attn.sinks.weight"), nullptr);
  const TensorInfo* const up = index.find(mlp + "experts.4.up_proj.weight");
  ASSERT_TRUE(up != nullptr && up->stored != nullptr);
  EXPECT_EQ(up->shape, (std::vector<int64_t>{8, 32}));
  EXPECT_EQ(up->bytes, 8 * 32 * 4);
  EXPECT_EQ(up->stored->kind, StoredKind::kCrossed);
  EXPECT_EQ(up->stored->quants.offset, 1000 + 4 * 32 * 16 * 4);
  EXPECT_EQ(up->stored->row_step, 2);
  EXPECT_EQ(up->stored->row_first, 1);
  const TensorInfo* const down = index.find(mlp + "experts.5.down_proj.weight");
  ASSERT_TRUE(down != nullptr && down->stored != nullptr);
  EXPECT_EQ(down->shape, (std::vector<int64_t>{32, 8}));
  EXPECT_EQ(down->stored->quants.offset, 40000 + 5 * 8 * 32 * 4);
  EXPECT_EQ(down->stored->row_step, 1);
  const TensorInfo* const bias = index.find(mlp + "experts.gate_proj.bias");
  ASSERT_TRUE(bias != nullptr && bias->stored != nullptr);
  EXPECT_EQ(bias->shape, (std::vector<int64_t>{48}));
  EXPECT_EQ(bias->stored->quants.offset, 30000);
  EXPECT_EQ(index.find(mlp + "experts.down_proj.bias")->stored, nullptr);
  EXPECT_EQ(index.find(mlp + "experts.down_proj.bias")->shape, (std::vector<int64_t>{192}));

  TensorIndex turned;  // outputs before inputs, as other models have them
  turned.tensors = {tensor(mlp + "experts.gate_up_proj", {6, 16, 32}, 0)};
  const Status status = split_experts(config, turned, "here");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("[6, 32, 16]"), std::string::npos) << status.error().message;
}

TEST(ExpertTensors, MixtralsNamesAreThoseOfTheOthers) {
  ModelConfig config = read(moe("MixtralForCausalLM"));
  TensorIndex index;
  index.tensors = {tensor("model.layers.1.block_sparse_moe.gate.weight", {6, 32}, 0),
                   tensor("model.layers.1.block_sparse_moe.experts.3.w1.weight", {48, 32}, 0),
                   tensor("model.layers.1.block_sparse_moe.experts.3.w2.weight", {32, 48}, 0),
                   tensor("model.layers.1.block_sparse_moe.experts.3.w3.weight", {48, 32}, 0)};
  ASSERT_TRUE(split_experts(config, index, "here").ok());
  for (const char* name : {"gate", "experts.3.gate_proj", "experts.3.down_proj", "experts.3.up_proj"})
    EXPECT_NE(index.find("model.layers.1.mlp." + std::string(name) + ".weight"), nullptr) << name;
  EXPECT_EQ(index.find("model.layers.1.mlp.experts.3.down_proj.weight")->shape, (std::vector<int64_t>{32, 48}));
}

}  // namespace
}  // namespace loralei
