// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/units.h"
#include "sys/file.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
const std::string kModels = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";

std::vector<float> decoded(const WeightView& view) {
  std::vector<float> values(static_cast<size_t>(view.rows) * static_cast<size_t>(view.cols));
  int32_t next_row = 0;
  for (const WeightPanel& panel : view.panels) {
    EXPECT_EQ(panel.row_begin, next_row);
    next_row += panel.row_count;
    for (int32_t row = 0; row < panel.row_count; ++row) {
      float* const out = values.data() + static_cast<int64_t>(panel.row_begin + row) * view.cols;
      const int64_t bytes = row_bytes(view.dtype, view.cols);
      if (view.layout == LayoutId::kTile16) {
        decode_tile_row(view.dtype, panel.data + row / kRowTile * kRowTile * bytes, row % kRowTile, view.cols, out);
      } else {
        decode_row(view.dtype, panel.data + row * bytes, out, view.cols);
      }
    }
  }
  EXPECT_EQ(next_row, view.rows);
  return values;
}

class WeightStoreTest : public testing::Test {
 protected:
  Result<std::unique_ptr<WeightStore>> load(const std::string& path, const WeightOptions& options = {}) {
    auto file = open_base_model(path);
    if (!file.ok()) return std::move(file).error();
    return WeightStore::load(*file, ledger_, options);
  }
  Ledger ledger_{kGiB};
};

TEST_F(WeightStoreTest, HoldsEveryTensorAndGivesItsMemoryBack) {
  {
    auto store = load(kModels + "llama2");
    ASSERT_TRUE(store.ok()) << store.error().message;
    EXPECT_EQ(ledger_.used_bytes(MemoryUse::kWeights), (*store)->resident_bytes());
    EXPECT_NE((*store)->find("lm_head.weight"), kNoTensor);
    EXPECT_EQ((*store)->find("no.such.tensor"), kNoTensor);
    EXPECT_NE((*store)->vector("model.norm.weight"), nullptr);
    EXPECT_EQ((*store)->vector("lm_head.weight"), nullptr);
    const TensorSlot head = (*store)->find("lm_head.weight");
    WeightUse use(**store, {&head, 1});
    ASSERT_TRUE(use.next().value());
    for (const float value : decoded(use.view(0))) ASSERT_TRUE(std::isfinite(value));
    EXPECT_FALSE(use.next().value());
  }
  EXPECT_EQ(ledger_.used_bytes(), 0);
}

TEST_F(WeightStoreTest, ReleasedMatricesLeaveVectorsAndShapes) {
  const auto store = load(kModels + "qwen2");
  ASSERT_TRUE(store.ok()) << store.error().message;
  const std::string bias = "model.layers.1.self_attn.q_proj.bias";
  const float* const vector = (*store)->vector(bias);
  ASSERT_NE(vector, nullptr);
  const std::vector<float> before(vector, vector + 32);
  const std::string fingerprint = (*store)->fingerprint();
  const int64_t whole = (*store)->whole_bytes();
  (*store)->release_matrices();
  EXPECT_LT((*store)->resident_bytes(), whole / 10);
  EXPECT_EQ(ledger_.used_bytes(MemoryUse::kWeights), (*store)->resident_bytes());
  ASSERT_EQ((*store)->vector(bias), vector);
  EXPECT_EQ(std::vector<float>(vector, vector + 32), before);
  EXPECT_EQ((*store)->fingerprint(), fingerprint);
  EXPECT_EQ((*store)->whole_bytes(), whole);
  EXPECT_FALSE((*store)->streams());
  const WeightView& embed = (*store)->view((*store)->find("model.embed_tokens.weight"));
  EXPECT_EQ(embed.rows, 96);
  EXPECT_TRUE(embed.panels.empty());
}

TEST_F(WeightStoreTest, ThreadsDoNotChangeWhatIsLoaded) {
  WeightOptions many;
  many.threads = 4;
  auto one = load(kModels + "sharded");
  auto four = load(kModels + "sharded", many);
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_EQ((*one)->fingerprint(), (*four)->fingerprint());
  EXPECT_NE((*one)->fingerprint(), (*load(kModels + "llama2"))->fingerprint());
}

TEST_F(WeightStoreTest, WhatIsQuantisedAlreadyIsNotQuantisedAgain) {
  WeightOptions options;
  options.quantise = DType::kQ4_0;
  const auto refused = load(kModels + "gguf-llama-q4_0.gguf", options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("is quantised already"), std::string::npos) << refused.error().message;
}

TEST_F(WeightStoreTest, QuantisesOnLoadWithinTheFormatsRounding) {
  auto plain = load(kModels + "dtype-f32");
  WeightOptions options;
  options.quantise = DType::kQ4_0;
  auto quantised = load(kModels + "dtype-f32", options);
  ASSERT_TRUE(plain.ok() && quantised.ok());
  const std::string inner = "model.layers.0.mlp.up_proj.weight";
  const WeightView& view = (*quantised)->view((*quantised)->find(inner));
  ASSERT_EQ(view.dtype, DType::kQ4_0);
  const auto want = decoded((*plain)->view((*plain)->find(inner)));
  const auto got = decoded(view);
  for (size_t block = 0; block < want.size(); block += 32) {
    float most = 0;
    for (size_t i = block; i < block + 32; ++i) most = std::max(most, std::fabs(want[i]));
    for (size_t i = block; i < block + 32; ++i) ASSERT_LE(std::fabs(got[i] - want[i]), most / 7.0f) << i;
  }
  // The embedding keeps more bits: its rounding goes straight into the logits.
  EXPECT_EQ((*quantised)->view((*quantised)->find("model.embed_tokens.weight")).dtype, DType::kQ8_0);
}

TEST_F(WeightStoreTest, RefusesWhatDoesNotFitWithTheNumbers) {
  Ledger small(1000);
  auto file = open_base_model(kModels + "llama2");
  ASSERT_TRUE(file.ok());
  const auto store = WeightStore::load(*file, small, {});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(store.error().message.find("1000 B"), std::string::npos) << store.error().message;
  EXPECT_EQ(small.used_bytes(), 0);
}

TEST_F(WeightStoreTest, AFileCutAfterItWasOpenedIsAnError) {
  const fs::path folder = fs::path(testing::TempDir()) / "loralei-cut-model";
  fs::remove_all(folder);
  fs::copy(kModels + "llama2", folder, fs::copy_options::recursive);
  auto file = open_base_model(folder.string());
  ASSERT_TRUE(file.ok());
  const fs::path weights = folder / "model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const auto store = WeightStore::load(*file, ledger_, {});
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.error().message.find("model.safetensors"), std::string::npos) << store.error().message;
  EXPECT_EQ(ledger_.used_bytes(), 0);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace loralei
