// SPDX-License-Identifier: Apache-2.0
// Real tokenizers from the shared data folder against published ids and against the
// SentencePiece library. Skipped where the folder is missing: LORALEI_SHARED_DATA, else
// ../shared/data beside the checkout.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "base/prng.h"
#include "formats/gguf_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A vocabulary file is all head, so its bytes are parsed without a file system.
Result<GgufVocab> read_vocab(const fs::path& path) {
  const std::string bytes = read_file(path);
  TRY_ASSIGN(const auto file,
             parse_gguf(std::as_bytes(std::span(bytes)), static_cast<int64_t>(bytes.size()), path.string()));
  if (!file) return corrupt("the head of " + path.string() + " is cut");
  std::vector<std::string> notes;
  return gguf_vocab(*file, notes);
}

class SharedTokenizers : public testing::Test {
 protected:
  void SetUp() override {
    const char* variable = std::getenv("LORALEI_SHARED_DATA");
    for (const fs::path& candidate :
         {fs::path(variable != nullptr ? variable : ""), fs::path(LORALEI_SOURCE_DIR) / "../shared/data",
          fs::path(LORALEI_SOURCE_DIR) / "../../shared/data"}) {
      if (!candidate.empty() && fs::exists(candidate / "tokenizers")) root_ = candidate;
    }
    if (root_.empty())
      GTEST_SKIP() << "no shared data: neither LORALEI_SHARED_DATA nor ../shared/data has a folder tokenizers";
  }

  Tokenizer::Ptr require(Result<Tokenizer::Ptr> result) {
    if (!result.ok()) ADD_FAILURE() << result.error().message;
    return result.ok() ? *result : nullptr;
  }
  Tokenizer::Ptr gpt2() {
    const fs::path folder = root_ / "tokenizers" / "gpt2";
    json merges = json::array();
    std::istringstream lines(read_file(folder / "merges.txt"));
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
    }
    const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
    const json file = {
        {"model", {{"type", "BPE"}, {"vocab", json::parse(read_file(folder / "vocab.json"))}, {"merges", merges}}},
        {"pre_tokenizer", byte_level},
        {"decoder", byte_level}};
    return require(Tokenizer::from_json(file.dump(), read_file(folder / "tokenizer_config.json")));
  }
  Tokenizer::Ptr llama2() { return require(Tokenizer::from_directory(root_ / "tokenizers" / "llama2")); }
  Tokenizer::Ptr gguf(const std::string& name) {
    const fs::path path = root_ / "tokenizers" / "gguf" / ("ggml-vocab-" + name + ".gguf");
    auto vocab = read_vocab(path);
    if (!vocab.ok()) return require(std::move(vocab).error());
    return require(Tokenizer::from_gguf(*vocab));
  }
  json published() {
    return json::parse(read_file(root_ / "tokenizers" / "vectors" / "hf_tokenizer_tests_gpt2_llama2.json"));
  }

  fs::path root_;
};

// Texts of many scripts, of white space and of what tokenizers trip over; a
// function of the seed.
std::string random_text(Prng& prng) {
  static const std::vector<std::string> parts = {"the",
                                                 " the",
                                                 "hello",
                                                 " World",
                                                 "don't",
                                                 " I'LL",
                                                 "12345",
                                                 " 2024",
                                                 "\n",
                                                 "\n\n  ",
                                                 "   ",
                                                 "\t",
                                                 "\r\n",
                                                 "foo_bar",
                                                 "http://x.y/?q=1",
                                                 "caf\xC3\xA9",
                                                 "e\xCC\x81",
                                                 "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E",
                                                 "\xED\x95\x9C\xEA\xB5\xAD",
                                                 "\xF0\x9F\x98\x80",
                                                 "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",
                                                 "\xE2\x96\x81",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xE1\xA0\x8E",
                                                 "C++",
                                                 " ==",
                                                 "</s",
                                                 ">",
                                                 "\xE0\xA4\xB9\xE0\xA4\xBF",
                                                 "\xD7\xA2\xD7\x91",
                                                 "\xEF\xBB\xBF",
                                                 "\xC2\x85",
                                                 "\x01",
                                                 "\xEF\xAC\x81",
                                                 "\xC2\xBD",
                                                 "<0x0A>",
                                                 "..."};
  std::string text;
  for (uint64_t count = prng.below(12); count > 0; --count) text += parts[prng.below(parts.size())];
  return text;
}

std::vector<TokenId> ids_of(const Tokenizer& tokenizer, std::string_view text, bool add_special = false) {
  auto ids = tokenizer.encode(text, {.add_special = add_special, .parse_special = false});
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids.ok() ? *ids : std::vector<TokenId>{};
}

// The published texts of GPT-2 went through clean_up_tokenization_spaces, which a
// tokenizer does not do: there the input comes back.
void check_published(const Tokenizer& tokenizer, const json& cases, bool add_special, bool input_comes_back) {
  for (const json& entry : cases) {
    const std::string text = entry["input"];
    SCOPED_TRACE(text);
    const auto wanted = entry["encoded"]["input_ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(*tokenizer.encode(text, {.add_special = add_special}), wanted);
    EXPECT_EQ(tokenizer.decode(wanted, {.skip_special = true}),
              input_comes_back ? text : entry["decoded_without_special"].get<std::string>());
  }
}

TEST_F(SharedTokenizers, Gpt2EqualsPublishedIds) { check_published(*gpt2(), published()["distilgpt2"], false, true); }

TEST_F(SharedTokenizers, Llama2EqualsPublishedIds) {
  const auto tokenizer = llama2();
  check_published(*tokenizer, published()["coreml-projects/Llama-2-7b-chat-coreml"], true, false);
  EXPECT_EQ(tokenizer->vocab_size(), 32000);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->token_bytes(13), "\n");
}

TEST_F(SharedTokenizers, Llama2EqualsTheSentencePieceLibrary) {
  const auto tokenizer = llama2();
  sentencepiece::SentencePieceProcessor reference;
  ASSERT_TRUE(reference.LoadFromSerializedProto(read_file(root_ / "tokenizers" / "llama2" / "tokenizer.model")).ok());
  const uint64_t seed = 20261120;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int round = 0; round < 1000; ++round) {
    const std::string text = random_text(prng);
    EXPECT_EQ(ids_of(*tokenizer, text), reference.EncodeAsIds(text)) << text;
    std::vector<int> ids;
    for (int i = 0; i < 8; ++i) ids.push_back(3 + static_cast<int>(prng.below(prng.below(2) == 0 ? 256 : 31997)));
    EXPECT_EQ(tokenizer->decode(ids), reference.DecodeIds(ids));
  }
}

TEST_F(SharedTokenizers, TinyLlamaJsonEqualsTheModelFile) {
  const auto model = llama2();
  const auto json_form = require(Tokenizer::from_directory(root_ / "tokenizers" / "tinyllama"));
  Prng prng(7);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(prng);
    EXPECT_EQ(ids_of(*json_form, text, true), ids_of(*model, text, true)) << text;
  }
  ASSERT_TRUE(json_form->chat_template().has_value());
  EXPECT_EQ(json_form->special_tokens().at("eos_token"), "</s>");
}

TEST_F(SharedTokenizers, GgufFormsEqualTheOthers) {
  const auto byte_level = gpt2(), byte_level_gguf = gguf("gpt-2"), spm = llama2(), spm_gguf = gguf("llama-spm");
  Prng prng(8);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(prng);
    EXPECT_EQ(ids_of(*byte_level_gguf, text), ids_of(*byte_level, text)) << text;
    EXPECT_EQ(ids_of(*spm_gguf, text, true), ids_of(*spm, text, true)) << text;
  }
}

TEST_F(SharedTokenizers, ChatPromptsAreCutAlikeInGguf) {
  const auto json_form = require(Tokenizer::from_directory(root_ / "tokenizers" / "tinyllama")),
             spm = gguf("llama-spm");
  for (const std::string text :
       {"<s>[INST] Hi [/INST]", "<s>[INST] a [/INST] b </s><s>[INST] c [/INST]", "<|user|>\nHi</s>\n<|assistant|>\n"}) {
    const auto wanted = json_form->encode(text, {.add_special = false});
    ASSERT_TRUE(wanted.ok()) << wanted.error().message;
    EXPECT_EQ(*spm->encode(text, {.add_special = false}), *wanted) << text;
  }
  EXPECT_EQ((*spm->encode("<s>[INST]", {.add_special = false}))[1], 518);
}

TEST_F(SharedTokenizers, EveryGgufVocabularyComesBack) {
  for (const char* name : {"deepseek-coder", "gpt-2", "mpt", "starcoder"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = gguf(name);
    Prng prng(9);
    for (int round = 0; round < 200; ++round) {
      const std::string text = random_text(prng);
      EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, text), {.skip_special = false}), text);
    }
  }
}

TEST_F(SharedTokenizers, EveryConfigurationIsRead) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(root_ / "tokenizer_configs")) {
    TokenizerConfig config;
    const Status status = read_config_json(read_file(entry.path()), config);
    EXPECT_TRUE(status.ok()) << entry.path() << ": " << status.error().message;
    EXPECT_TRUE(config.settings.special_tokens.count("eos_token")) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 3);
}

}  // namespace
}  // namespace loralei
