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
