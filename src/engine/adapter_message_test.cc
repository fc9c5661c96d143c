// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "formats/base_model.h"
#include "ops/lora_factors.h"

namespace loralei {
namespace {

const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";

bool same_bytes(const void* a, const void* b, int64_t bytes) {
  if (a == nullptr || b == nullptr) return a == b;
  return std::memcmp(a, b, static_cast<size_t>(bytes)) == 0;
}

void expect_same_pair(const LoraPair& got, const LoraPair& want) {
  EXPECT_EQ(got.rank, want.rank);
  EXPECT_EQ(got.in, want.in);
  EXPECT_EQ(got.out, want.out);
  EXPECT_EQ(got.scaling, want.scaling);
  EXPECT_EQ(got.dtype, want.dtype);
  EXPECT_TRUE(same_bytes(got.a, want.a, want.rank * lora_a_stride_bytes(want)));
  EXPECT_TRUE(same_bytes(got.b_t, want.b_t, want.rank * lora_b_stride_bytes(want)));
  EXPECT_TRUE(same_bytes(got.a_scale, want.a_scale, want.rank * lora_quant_groups(want.in) * 4));
  EXPECT_TRUE(same_bytes(got.b_scale, want.b_scale, want.rank * lora_quant_groups(want.out) * 4));
  EXPECT_TRUE(same_bytes(got.b_bias, want.b_bias, int64_t{want.out} * 4));
  EXPECT_TRUE(same_bytes(got.bias_delta, want.bias_delta, int64_t{want.out} * 4));
}

void expect_same_view(const WeightView& got, const WeightView& want) {
  ASSERT_EQ(got.rows, want.rows);
  if (want.empty()) return;
  EXPECT_EQ(got.cols, want.cols);
  EXPECT_EQ(got.dtype, want.dtype);
  EXPECT_TRUE(same_bytes(got.panels[0].data, want.panels[0].data, want.rows * row_bytes(want.dtype, want.cols)));
}

void expect_same_norms(const std::vector<const float*>& got, const std::vector<const float*>& want, int64_t count) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bytes(got[i], want[i], count * 4));
}

Result<std::shared_ptr<const Adapter>> load(const std::string& path, const ModelConfig& config, bool int8) {
  AdapterBase base;
  base.config = config;
  AdapterLoadOptions options;
  options.int8 = int8;
  TRY_ASSIGN(AdapterLoad loaded, load_adapter(path, base, options, AdapterVersionId{7}));
  return std::move(loaded.adapter);
}

TEST(AdapterMessage, HasAllThatStepsRead) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> subjects = {
      {"llama-gqa",
       {"gqa-qv-r8", "gqa-all-r16", "gqa-lora-bias", "gqa-embed-tied", "gqa-head-tied", "gqa-save-embed-tied",
        "gqa-save-norms", "gqa-tokens-tied", "gqa-resized-tied", "gqa-alora"}},
      {"llama2", {"llama2-save-all", "llama2-embed-head"}},
      {"qwen3", {"qwen3-save-qk-norm"}}};
  int checked = 0;
  for (const auto& [model, adapters] : subjects) {
    const auto file = open_base_model(kGolden + "models/" + model);
    ASSERT_TRUE(file.ok());
    const CopyShape shape = copy_shape_of(file->config);
    for (const std::string& name : adapters) {
      for (const bool int8 : {false, true}) {
        SCOPED_TRACE(name + (int8 ? " as int8" : ""));
        const auto adapter = load(kGolden + "adapters/" + name, file->config, int8);
        ASSERT_TRUE(adapter.ok()) << adapter.error().message;
        const Adapter& want = **adapter;
        std::vector<uint64_t> words((adapter_message_bytes(want, shape) + 7) / 8, UINT64_MAX);
        const std::span<std::byte> bytes =
            std::as_writable_bytes(std::span(words)).first(adapter_message_bytes(want, shape));
        write_adapter_message(want, shape, bytes);
        const auto got = read_adapter_message(bytes, shape);
        ASSERT_TRUE(got.ok()) << got.error().message;
        std::fill(words.begin(), words.end(), 0);  // it has a copy of its own
        EXPECT_EQ(got->version, want.version);
        EXPECT_EQ(got->digest, want.digest);
        EXPECT_EQ(got->vocab, want.vocab);
        ASSERT_EQ(got->pairs.size(), want.pairs.size());
        for (size_t i = 0; i < want.pairs.size(); ++i) {
          expect_same_pair(got->pairs[i], want.pairs[i]);
        }
        const SavedTensors &a = got->saved, &b = want.saved;
        expect_same_view(a.embed, b.embed);
        expect_same_view(a.lm_head, b.lm_head);
        for (size_t norm = 0; norm < kLayerNorms; ++norm)
          expect_same_norms(a.norms[norm], b.norms[norm], shape.norms[norm]);
        EXPECT_TRUE(same_bytes(a.final_norm, b.final_norm, shape.hidden * 4));
        EXPECT_EQ(a.embed_tokens, b.embed_tokens);
        EXPECT_EQ(a.head_tokens, b.head_tokens);
        EXPECT_TRUE(same_bytes(a.embed_rows, b.embed_rows, std::ssize(b.embed_tokens) * shape.hidden * 4));
        EXPECT_TRUE(same_bytes(a.head_rows, b.head_rows, std::ssize(b.head_tokens) * shape.hidden * 4));
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, 26);
}

TEST(AdapterMessage, WhatIsNoAdapterIsAnError) {
  const auto file = open_base_model(kGolden + "models/llama-gqa");
  ASSERT_TRUE(file.ok());
  const CopyShape shape = copy_shape_of(file->config);
  const auto adapter = load(kGolden + "adapters/gqa-save-embed-tied", file->config, false);
  ASSERT_TRUE(adapter.ok());
  std::vector<uint64_t> words((adapter_message_bytes(**adapter, shape) + 7) / 8);
  const auto bytes = std::as_writable_bytes(std::span(words)).first(adapter_message_bytes(**adapter, shape));
  write_adapter_message(**adapter, shape, bytes);
  EXPECT_TRUE(read_adapter_message(bytes, shape).ok());
  for (size_t size = 0; size < bytes.size(); size += 64)
    EXPECT_FALSE(read_adapter_message(bytes.first(size), shape).ok());
  CopyShape more = shape;
  more.layers += 100;
  EXPECT_FALSE(read_adapter_message(bytes, more).ok());
  words[0] ^= 1;
  EXPECT_FALSE(read_adapter_message(bytes, shape).ok());
}

}  // namespace
}  // namespace loralei
