// SPDX-License-Identifier: Apache-2.0
// What several ranks hold of a model is the model.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/units.h"
#include "tensor/codec.h"
#include "tensor/tile_layout.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

const std::string kModels = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";

std::vector<float> decoded(const WeightView& view) {
  std::vector<float> values(static_cast<size_t>(view.rows) * static_cast<size_t>(view.cols));
  const int64_t bytes = row_bytes(view.dtype, view.cols);
  for (const WeightPanel& panel : view.panels) {
    for (int32_t row = 0; row < panel.row_count; ++row) {
      float* const out = values.data() + static_cast<int64_t>(panel.row_begin + row) * view.cols;
      if (view.layout == LayoutId::kTile16) {
        decode_tile_row(view.dtype, panel.data + row / kRowTile * kRowTile * bytes, row % kRowTile, view.cols, out);
      } else {
        decode_row(view.dtype, panel.data + row * bytes, out, view.cols);
      }
    }
  }
  return values;
}

std::vector<float> matrix_of(const WeightStore& store, const std::string& name) {
  return decoded(store.view(store.find(name)));
}

class Shards : public testing::Test {
 protected:
  std::unique_ptr<WeightStore> load(const BaseModelFile& file, const WeightOptions& options) {
    auto store = WeightStore::load(file, ledger_, options);
    if (store.ok()) return std::move(*store);
    ADD_FAILURE() << store.error().message;
    return nullptr;
  }
  void expect_parts(const BaseModelFile& file, WeightOptions options, int size);
  Ledger ledger_{kGiB};
};

// Every matrix put together from the parts, and the fingerprint from theirs.
void Shards::expect_parts(const BaseModelFile& file, WeightOptions options, int size) {
  const std::unique_ptr<WeightStore> whole = load(file, options);
  std::vector<std::unique_ptr<WeightStore>> parts;
  for (int rank = 0; rank < size; ++rank) {
    options.shard = {rank, size};
    parts.push_back(load(file, options));
    ASSERT_NE(parts.back(), nullptr);
    EXPECT_LT(parts.back()->resident_bytes(), whole->resident_bytes());
    EXPECT_EQ(parts.back()->resident_bytes(), WeightStore::bytes_needed(file, options).value());
  }
  for (const TensorInfo& info : file.index.tensors) {
    if (info.shape.size() != 2) continue;
    const std::vector<float> want = matrix_of(*whole, info.name);
    const auto cols = static_cast<size_t>(info.shape[1]);
    std::vector<float> got(want.size(), -1e30f);
    size_t row = 0, col = 0;
    for (const auto& part : parts) {
      const WeightView& view = part->view(part->find(info.name));
      const std::vector<float> values = decoded(view);
      const auto rows = static_cast<size_t>(view.rows), width = static_cast<size_t>(view.cols);
      for (size_t i = 0; i < rows; ++i)
        std::memcpy(&got[(row + i) * cols + col], &values[i * width], width * sizeof(float));
      if (view.cols < info.shape[1]) {
        col += width;
      } else {
        row += view.rows < info.shape[0] ? rows : 0;
      }
    }
    EXPECT_TRUE(got == want) << info.name;
    const bool replicated = info.name == "model.embed_tokens.weight";
    EXPECT_EQ(row == 0 && col == 0, replicated) << info.name;
  }
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    parts[0]->join_fingerprint(parts[rank]->fingerprint());
  }
  EXPECT_EQ(parts[0]->fingerprint(), whole->fingerprint());
}

TEST_F(Shards, PartsPutTogetherAreTheModel) {
  int checked = 0;
  for (const char* model : {"llama2", "llama-gqa", "qwen2", "qwen3", "granite", "smollm3", "gemma2", "gemma3", "phi3",
                            "glm4", "starcoder2", "mistral-window", "dtype-f16", "sharded", "gguf-llama-q8_0.gguf",
                            "gguf-llama-q4_0.gguf", "gguf-llama-f16.gguf"}) {
    const auto file = open_base_model(kModels + model);
    if (!file.ok()) continue;
    for (const int size : {2, 3, 4}) {
      for (const std::optional<DType> quantise : {std::optional<DType>(), std::optional(DType::kQ8_0)}) {
        SCOPED_TRACE(std::string(model) + " for " + std::to_string(size) + (quantise ? " in q8_0" : ""));
        WeightOptions options;
        options.quantise = quantise;
        options.threads = 2;
        if (quantise && !can_quantise(*file)) continue;
        if (!check_shards(*file, options, size).ok()) continue;
        expect_parts(*file, options, size);
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 10);
}

TEST_F(Shards, WhatCannotBeCutIsRefusedWithWhatWouldDo) {
  const auto file = open_base_model(kModels + "llama-gqa");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(check_shards(*file, {}, 2).ok());
  const Status refused = check_shards(*file, {}, 3);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("--tensor-parallel 3"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("do not divide. What would do: 2"), std::string::npos)
      << refused.error().message;
}

TEST_F(Shards, ExpertsAreNotCut) {
  for (const char* model : {"mixtral", "gpt-oss"}) {
    const auto file = open_base_model(kModels + model);
    ASSERT_TRUE(file.ok()) << file.error().message;
    const Status refused = check_shards(*file, {}, 2);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("its experts are not cut"), std::string::npos) << refused.error().message;
  }
}

// 32 columns of each row for a rank, where blocks have 256 numbers.
TEST_F(Shards, NoBorderFallsIntoABlock) {
  const auto file = open_base_model(kModels + "gguf-llama-q4_k_m.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const Status refused = check_shards(*file, {}, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("a border would fall into a block of 256 numbers"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace loralei
