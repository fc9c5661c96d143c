// SPDX-License-Identifier: Apache-2.0
// GGUF adapters whose head is larger than any real one's: refused before it is held.
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

}  // namespace
}  // namespace loralei
