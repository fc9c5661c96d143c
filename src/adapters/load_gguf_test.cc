// SPDX-License-Identifier: Apache-2.0
// GGUF adapters whose head is larger than any real one's: refused before it is held. And
// those of all experts of a layer.
#include "adapters/load_test_util.h"

namespace loralei {
namespace {

template <typename T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

// A GGUF adapter of version 3; tensors are f32 [8, 2] and [2, 8] of the first layer's
// q_proj, and others that mean nothing.
struct GgufAdapter {
  std::string metadata;
  uint64_t pairs = 0, others = 0;

  GgufAdapter() {
    string("general.architecture", "llama");
    string("general.type", "adapter");
    string("adapter.type", "lora");
  }
  void string(const std::string& key, const std::string& value) { pair(key, 8, text(value)); }
  void pair(const std::string& key, uint32_t type, const std::string& value) {
    metadata += text(key) + raw(type) + value;
    ++pairs;
  }
  std::string file() const {
    std::string table;
    uint64_t offset = 0;
    const auto tensor = [&](const std::string& name, uint64_t cols, uint64_t rows) {
      table += text(name) + raw<uint32_t>(2) + raw(cols) + raw(rows) + raw<uint32_t>(0) + raw(offset);
      offset += (cols * rows * 4 + 31) / 32 * 32;
    };
    tensor("blk.0.attn_q.weight.lora_a", 8, 2);
    tensor("blk.0.attn_q.weight.lora_b", 2, 8);
    for (uint64_t i = 0; i < others; ++i) tensor("other." + std::to_string(i), 1, 1);
    std::string head = "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(2 + others) + raw(pairs) + metadata + table;
    head.resize((head.size() + 31) / 32 * 32);
    return head + std::string(offset, '\0');
  }
};

class LoadGgufTest : public LoadTest {
 protected:
  Status status(const GgufAdapter& adapter) {
    files.put("/a.gguf", adapter.file());
    const auto loaded = load_adapter(files, "/a.gguf", base, {.strict = false}, AdapterVersionId{1});
    return loaded.ok() ? Status() : Status(loaded.error());
  }
  void expect_too_large(const GgufAdapter& adapter, const std::string& word) {
    const Status refused = status(adapter);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge) << refused.error().message;
    EXPECT_NE(refused.error().message.find(word), std::string::npos) << refused.error().message;
  }
};

TEST_F(LoadGgufTest, AnOrdinaryHeadIsRead) {
  GgufAdapter adapter;
  adapter.string("tokenizer.chat_template", std::string(200'000, 'x'));
  adapter.pair("adapter.alora.invocation_tokens", 9, raw<uint32_t>(4) + raw<uint64_t>(1) + raw<uint32_t>(3));
  adapter.others = 100;
  const Status read = status(adapter);
  EXPECT_TRUE(read.ok()) << read.error().message;
}

TEST_F(LoadGgufTest, WhatAHeadMakesTheReaderHoldIsBounded) {
  GgufAdapter list;  // eight bytes in memory for each in the file
  list.pair("list", 9, raw<uint32_t>(0) + raw<uint64_t>(3'000'000) + std::string(3'000'000, 'x'));
  expect_too_large(list, "metadata");
  GgufAdapter strings;  // a string for eight bytes
  strings.pair("list", 9, raw<uint32_t>(8) + raw<uint64_t>(300'000) + std::string(8 * 300'000, '\0'));
  expect_too_large(strings, "metadata");
  GgufAdapter pairs;
  for (int i = 0; i < 3000; ++i) pairs.pair("key." + std::to_string(i), 7, std::string(1, '\1'));
  expect_too_large(pairs, "metadata values");
  GgufAdapter tensors;
  tensors.others = 20'000;
  expect_too_large(tensors, "tensors");
  GgufAdapter head;  // names alone, no value of size
  head.string(std::string(60'000, 'k'), "");
  for (int i = 0; i < 100; ++i) head.string(std::string(60'000, 'k') + std::to_string(i), "");
  expect_too_large(head, "metadata");
}

// llama.cpp has a factor of all experts of a layer in one tensor.
struct GgufExperts {
  static constexpr int kExperts = 3, kRank = 2, kWidth = 5;
  std::string table, data;
  uint64_t tensors = 0;

  // [dims] fastest first, numbers count up from `start`.
  void add(const std::string& name, const std::vector<uint64_t>& dims, float start) {
    table += text(name) + raw(static_cast<uint32_t>(dims.size()));
    uint64_t count = 1;
    for (const uint64_t dim : dims) table += raw(dim), count *= dim;
    table += raw<uint32_t>(0) + raw<uint64_t>(data.size());
    for (uint64_t i = 0; i < count; ++i) data += raw(start + static_cast<float>(i));
    data.resize((data.size() + 31) / 32 * 32);
    ++tensors;
  }
  std::string file(float alpha) const {
    GgufAdapter head;
    head.metadata.clear();
    head.pairs = 0;
    head.string("general.architecture", "qwen3moe");
    head.string("general.type", "adapter");
    head.string("adapter.type", "lora");
    head.pair("adapter.lora.alpha", 6, raw(alpha));
    std::string bytes = "GGUF" + raw<uint32_t>(3) + raw(tensors) + raw(head.pairs) + head.metadata + table;
    bytes.resize((bytes.size() + 31) / 32 * 32);
    return bytes + data;
  }
};

TEST_F(LoadGgufTest, FactorsOfAllExpertsArePickedApart) {
  static constexpr int kExperts = GgufExperts::kExperts, kRank = GgufExperts::kRank, kWidth = GgufExperts::kWidth;
  base.config.architecture = "qwen3_moe";
  base.config.experts = {.count = kExperts, .used = 2, .width = kWidth, .dense = {1, 0}};
  GgufExperts adapter;
  adapter.add("blk.1.ffn_down_exps.weight.lora_a", {kWidth, kRank, kExperts}, 100);
  adapter.add("blk.1.ffn_down_exps.weight.lora_b", {kRank, 8, kExperts}, 200);
  adapter.add("blk.1.ffn_gate_up_exps.weight.lora_a", {8, kRank, kExperts}, 300);
  adapter.add("blk.1.ffn_gate_up_exps.weight.lora_b", {kRank, 2 * kWidth, kExperts}, 400);
  adapter.add("blk.1.ffn_gate_inp.weight.lora_a", {8, kRank}, 500);
  adapter.add("blk.1.ffn_gate_inp.weight.lora_b", {kRank, kExperts}, 600);
  files.put("/e.gguf", adapter.file(6));
  const auto loaded = load_adapter(files, "/e.gguf", base, {}, AdapterVersionId{1});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const ExpertPairs& experts = loaded->adapter->experts;
  const auto expect = [](const LoraPair& pair, float a, float b, int out) {
    ASSERT_EQ(pair.rank, kRank);
    EXPECT_EQ(pair.scaling, 3.0f);
    for (int64_t i = 0; i < int64_t{kRank} * pair.in; ++i)
      EXPECT_EQ(number(pair.a, pair.dtype, i), a + static_cast<float>(i));
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t r = 0; r < kRank; ++r)
        EXPECT_EQ(number(pair.b_t, pair.dtype, r * out + o), b + static_cast<float>(o * kRank + r));
    }
  };
  for (int expert = 0; expert < kExperts; ++expert) {
    const auto e = static_cast<float>(expert);
    expect(experts.matrix(1, expert, 2), 100 + e * kRank * kWidth, 200 + e * 8 * kRank, 8);
    expect(experts.matrix(1, expert, 0), 300 + e * kRank * 8, 400 + e * 2 * kWidth * kRank, kWidth);
    expect(experts.matrix(1, expert, 1), 300 + e * kRank * 8, 400 + (e * 2 + 1) * kWidth * kRank, kWidth);
  }
  expect(experts.router[1], 500, 600, kExperts);
}

TEST_F(LoadGgufTest, FactorsOfExpertsThatTheBaseLacksAreRefused) {
  GgufExperts adapter;
  adapter.add("blk.1.ffn_down_exps.weight.lora_a", {5, 2, 3}, 1);
  adapter.add("blk.1.ffn_down_exps.weight.lora_b", {2, 8, 3}, 1);
  files.put("/e.gguf", adapter.file(6));
  base.config.architecture = "qwen3_moe";
  base.config.experts = {.count = 4, .used = 2, .width = 5, .dense = {1, 0}};
  const auto more = load_adapter(files, "/e.gguf", base, {}, AdapterVersionId{1});
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.error().message.find("[4, 2, 5]"), std::string::npos) << more.error().message;
  base.config.experts.dense = {0, 1};
  const auto dense = load_adapter(files, "/e.gguf", base, {}, AdapterVersionId{1});
  ASSERT_FALSE(dense.ok());
  EXPECT_NE(dense.error().message.find("ffn_down_exps"), std::string::npos) << dense.error().message;
}

}  // namespace
}  // namespace loralei
