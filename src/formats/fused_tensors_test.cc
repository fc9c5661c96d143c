// SPDX-License-Identifier: Apache-2.0
#include "formats/fused_tensors.h"

#include <gtest/gtest.h>

#include "formats/base_model.h"
#include "formats/wrapped_model.h"

namespace loralei {
namespace {

TensorInfo tensor(const std::string& name, std::vector<int64_t> shape, int64_t offset) {
  TensorInfo info{.name = name, .dtype = DType::kF32, .shape = std::move(shape), .offset = offset, .bytes = 4};
  for (const int64_t dim : info.shape) info.bytes *= dim;
  return info;
}

TensorIndex index_of(std::vector<TensorInfo> tensors) {
  TensorIndex index;
  index.files = {"model"};
  for (TensorInfo& info : tensors) {
    index.by_name.emplace(info.name, index.tensors.size());
    index.tensors.push_back(std::move(info));
  }
  return index;
}

ModelConfig config() {
  return {.hidden = 8, .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 2, .ffn = 5, .vocab = 4};
}

const std::string kLayer = "model.layers.0.";

TEST(FusedTensors, PartsLieBehindOneAnother) {
  TensorIndex index = index_of({tensor(kLayer + "self_attn.qkv_proj.weight", {16, 8}, 1000),
                                tensor(kLayer + "self_attn.qkv_proj.bias", {16}, 5000),
                                tensor(kLayer + "mlp.gate_up_proj.weight", {10, 8}, 7000),
                                tensor(kLayer + "mlp.down_proj.weight", {8, 5}, 9000)});
  ASSERT_TRUE(split_fused_tensors(config(), index, "m").ok());
  EXPECT_EQ(index.files.size(), 1u);
  EXPECT_EQ(index.tensors.size(), 9u);
  const auto expect = [&](const char* name, std::vector<int64_t> shape, int64_t offset) {
    const TensorInfo* const part = index.find(kLayer + name);
    ASSERT_NE(part, nullptr) << name;
    EXPECT_EQ(part->name, kLayer + name);
    EXPECT_EQ(part->shape, shape) << name;
    EXPECT_EQ(part->offset, offset) << name;
    EXPECT_EQ(part->bytes, 4 * shape[0] * (shape.size() > 1 ? shape[1] : 1)) << name;
  };
  expect("self_attn.q_proj.weight", {8, 8}, 1000);
  expect("self_attn.k_proj.weight", {4, 8}, 1000 + 8 * 32);
  expect("self_attn.v_proj.weight", {4, 8}, 1000 + 12 * 32);
  expect("self_attn.q_proj.bias", {8}, 5000);
  expect("self_attn.k_proj.bias", {4}, 5000 + 8 * 4);
  expect("self_attn.v_proj.bias", {4}, 5000 + 12 * 4);
  expect("mlp.gate_proj.weight", {5, 8}, 7000);
  expect("mlp.up_proj.weight", {5, 8}, 7000 + 5 * 32);
  expect("mlp.down_proj.weight", {8, 5}, 9000);
}

// Parts of one stored matrix are rows of it; where these are no whole tiles it is
// refused.
TEST(FusedTensors, OfAStoredMatrixEachPartHasItsRows) {
  ModelConfig wide = config();
  wide.hidden = 64, wide.head_dim = 8, wide.ffn = 48;  // q 32, k 16, v 16
  TensorInfo qkv = tensor(kLayer + "self_attn.qkv_proj.weight", {64, 64}, 1000);
  qkv.stored = std::make_shared<const StoredForm>(StoredForm{.kind = StoredKind::kGptq, .bits = 4, .rows = 64});
  TensorIndex index = index_of({qkv});
  ASSERT_TRUE(split_fused_tensors(wide, index, "m").ok());
  int64_t row = 0;
  for (const auto& [name, rows] : {std::pair("q", 32), {"k", 16}, {"v", 16}}) {
    const TensorInfo* const part = index.find(kLayer + "self_attn." + name + "_proj.weight");
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->shape, (std::vector<int64_t>{rows, 64}));
    EXPECT_EQ(part->offset, 1000);
    EXPECT_EQ(part->bytes, rows * 256);
    EXPECT_EQ(part->stored->row_begin, row);
    EXPECT_EQ(part->stored->rows, 64);
    row += rows;
  }
  wide.kv_heads = 1, wide.heads = 5, wide.head_dim = 8;  // q 40
  qkv.shape[0] = 56;
  TensorIndex odd = index_of({qkv});
  const Status status = split_fused_tensors(wide, odd, "m");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("40 rows of self_attn.q_proj"), std::string::npos) << status.error().message;
  const std::vector<ExpectedTensor> fused = fused_matrices(config());
  ASSERT_EQ(fused.size(), 2u);
  EXPECT_EQ(fused[0].name, kLayer + "self_attn.qkv_proj.weight");
  EXPECT_EQ(fused[0].shape, (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(fused[1].shape, (std::vector<int64_t>{10, 8}));
}

TEST(FusedTensors, OtherNumbersOfRowsAndNamesThatAreThereTwiceAreRefused) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{15, 8}, {17, 8}, {0, 8}, {}}) {
    TensorIndex index = index_of({tensor(kLayer + "self_attn.qkv_proj.weight", shape, 0)});
    const Status status = split_fused_tensors(config(), index, "m");
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("16 rows"), std::string::npos) << status.error().message;
  }
  TensorIndex twice = index_of(
      {tensor(kLayer + "mlp.up_proj.weight", {5, 8}, 0), tensor(kLayer + "mlp.gate_up_proj.weight", {10, 8}, 0)});
  const Status status = split_fused_tensors(config(), twice, "m");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("twice"), std::string::npos);
  // Names that only end alike are left alone.
  TensorIndex other = index_of({tensor("qkv_proj.weight", {3}, 0), tensor("xself_attn.qkv_proj.weight", {3}, 0),
                                tensor("mlp.gate_up_proj", {3}, 0)});
  ASSERT_TRUE(split_fused_tensors(config(), other, "m").ok());
  EXPECT_EQ(other.tensors.size(), 3u);
}

TEST(FusedTensors, OtherNamesOfAnMlpBecomeTheCanonicalOnes) {
  TensorIndex index = index_of({tensor(kLayer + "mlp.c_fc.weight", {5, 8}, 0), tensor(kLayer + "mlp.c_fc.bias", {5}, 0),
                                tensor(kLayer + "mlp.c_proj.weight", {8, 5}, 0)});
  ASSERT_TRUE(take_canonical_names(index, "m").ok());
  for (const char* name : {"mlp.up_proj.weight", "mlp.up_proj.bias", "mlp.down_proj.weight"})
    EXPECT_NE(index.find(kLayer + name), nullptr) << name;
  EXPECT_EQ(index.find(kLayer + "mlp.c_fc.weight"), nullptr);
  TensorIndex twice =
      index_of({tensor(kLayer + "mlp.up_proj.weight", {5, 8}, 0), tensor(kLayer + "mlp.c_fc.weight", {5, 8}, 0)});
  EXPECT_FALSE(take_canonical_names(twice, "m").ok());
}

TEST(WrappedModel, TensorsOfTheTextModelStandAlone) {
  std::vector<std::string> notes;
  TensorIndex index =
      index_of({tensor("language_model.model.layers.0.mlp.up_proj.weight", {1}, 0),
                tensor("model.language_model.embed_tokens.weight", {1}, 4),
                tensor("language_model.lm_head.weight", {1}, 8), tensor("model.norm.weight", {1}, 12),
                tensor("model.visual.blocks.0.attn.proj.weight", {1}, 16), tensor("visual.merger.ln_q.weight", {1}, 20),
                tensor("vision_tower.x", {1}, 24), tensor("multi_modal_projector.linear_1.weight", {1}, 28)});
  std::vector<ForeignTensor> foreign(2);
  foreign[0].name = "model.vision_tower.position_ids";
  foreign[1].name = "model.language_model.layers.0.mlp.down_proj.weight";
  ASSERT_TRUE(unwrap_tensors(index, foreign, notes, "m").ok());
  EXPECT_EQ(index.tensors.size(), 4u);
  for (const char* name :
       {"model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"}) {
    const TensorInfo* const found = index.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->name, name);
  }
  EXPECT_EQ(foreign.size(), 1u) << "what cannot be computed with is only left out of other parts";
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("5 tensors"), std::string::npos) << notes[0];
  TensorIndex twice = index_of(
      {tensor("language_model.model.norm.weight", {1}, 0), tensor("model.language_model.norm.weight", {1}, 0)});
  EXPECT_FALSE(unwrap_tensors(twice, foreign, notes, "m").ok());
}

// Of a model as it lies on disk: what adapters and weights read of it.
TEST(WrappedModel, OpensAsItsTextModel) {
  const std::string models = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";
  for (const char* name : {"mistral3", "qwen2-vl", "qwen3-vl", "qwen2_5-vl", "gemma3-vision"}) {
    const auto model = open_base_model(models + name);
    ASSERT_TRUE(model.ok()) << model.error().message;
    ASSERT_EQ(model->notes.size(), 2u) << name;
    EXPECT_NE(model->notes[0].find("images"), std::string::npos);
    EXPECT_NE(model->notes[1].find("Ignored"), std::string::npos);
    const bool tied = std::string_view(name) == "qwen3-vl" || std::string_view(name) == "gemma3-vision";
    EXPECT_EQ(model->config.tied_head, tied) << name;
  }
  const auto gguf = open_base_model(models + "gguf-qwen3vl-f16.gguf");
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  ASSERT_EQ(gguf->notes.size(), 1u);
  EXPECT_NE(gguf->notes[0].find("images"), std::string::npos);
}

}  // namespace
}  // namespace loralei
