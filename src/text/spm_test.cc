// SPDX-License-Identifier: Apache-2.0
#include "text/spm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>

#include "text/tokenizer.h"

namespace loralei {
namespace {

// A writer of the few protocol buffer forms that a model file has.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string number(uint32_t field, uint64_t value) { return varint(field << 3) + varint(value); }
std::string bytes(uint32_t field, const std::string& value) {
  return varint((field << 3) | 2) + varint(value.size()) + value;
}
std::string piece(const std::string& text, float score, int type) {
  const auto bits = std::bit_cast<uint32_t>(score);
  std::string message = bytes(1, text) + varint((2 << 3) | 5);
  for (int i = 0; i < 4; ++i) message += static_cast<char>(bits >> (8 * i));
  return bytes(1, message + number(3, static_cast<uint64_t>(type)));
}

std::string small_model(int kind) {
  std::string model = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  for (const char* text : {"\xE2\x96\x81", "a", "b"}) model += piece(text, -3, 1);
  model += piece("ab", -1, 1) +
           piece(
               "\xE2\x96\x81"
               "ab",
               -2, 1) +
           piece("<go>", 0, 4) + piece("ba", -0.5f, 5) + piece("bab", -0.1f, 1);
  return model + bytes(2, number(3, static_cast<uint64_t>(kind))) + bytes(3, number(4, 0));
}

std::vector<TokenId> encode(const Tokenizer::Ptr& tokenizer, const std::string& text) {
  auto ids = tokenizer->encode(text, {.add_special = false, .parse_special = false});
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids.ok() ? *ids : std::vector<TokenId>{};
}

TEST(Spm, ReadsAModelAndKeepsItsRules) {
  const auto tokenizer = Tokenizer::from_sentencepiece(small_model(2));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(encode(*tokenizer, "ab"), (std::vector<TokenId>{7}));
  EXPECT_EQ(encode(*tokenizer, "a<go>b"), (std::vector<TokenId>{3, 4, 8, 5}));
  EXPECT_EQ(encode(*tokenizer, "bab"), (std::vector<TokenId>{3, 10}));       // over the unused piece "ba"
  EXPECT_EQ(encode(*tokenizer, "aba"), (std::vector<TokenId>{3, 4, 5, 4}));  // which itself falls apart again
  EXPECT_EQ(encode(*tokenizer, "azzb"), (std::vector<TokenId>{3, 4, 0, 5}));
  EXPECT_EQ((*tokenizer)->decode(std::vector<TokenId>{1, 7, 0, 2}), "ab \xE2\x81\x87 ");
  EXPECT_EQ(*(*tokenizer)->encode("ab"), (std::vector<TokenId>{1, 7}));
}

TEST(Spm, TheConfigurationDecidesAboutPrefixes) {
  const auto ids = [](const char* config) {
    const auto tokenizer = Tokenizer::from_sentencepiece(small_model(2), config);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return *(*tokenizer)->encode("ab</s>ab", {.add_special = false});
  };
  EXPECT_EQ(ids(R"({"legacy": false})"), (std::vector<TokenId>{7, 2, 6}));
  EXPECT_EQ(ids(R"({"legacy": true})"), (std::vector<TokenId>{7, 2, 7}));
  EXPECT_EQ(ids(R"({"legacy": null})"), (std::vector<TokenId>{7, 2, 7}));
  EXPECT_EQ(ids("{}"), (std::vector<TokenId>{7, 2, 7}));
  EXPECT_EQ(ids(""), (std::vector<TokenId>{7, 2, 6}));  // no configuration
  EXPECT_EQ(ids(R"({"add_prefix_space": false})"), (std::vector<TokenId>{6, 2, 6}));
}

// What fine-tuning added beside the model file is found wherever it stands, with and
// without a configuration.
TEST(Spm, TokensOfTheFileOfAddedTokens) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("loralei-spm-added-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
  };
  for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
    write(file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
    const std::string message = Tokenizer::from_directory(folder).error().message;
    EXPECT_NE(message.find(std::string(file) + ": is a Git LFS pointer"), std::string::npos) << message;
    std::filesystem::remove(folder / file);
  }
  write("tokenizer.model", small_model(2));
  write("added_tokens.json", R"({"<|im_start|>": 11, "<|im_end|>": 12, "<tool>": 13})");
  write("special_tokens_map.json", R"({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})");
  const std::string text = "<|im_start|>ab<tool>ab<|im_end|>";
  for (const char* config : {"", R"({"legacy": false})", R"({"legacy": true})"}) {
    SCOPED_TRACE(config);
    if (*config != 0) write("tokenizer_config.json", config);
    const auto tokenizer = Tokenizer::from_directory(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const TokenId ab = std::string_view(config).find("true") == std::string_view::npos ? 6 : 7;
    EXPECT_EQ(*(*tokenizer)->encode(text, {.add_special = false}), (std::vector<TokenId>{11, ab, 13, ab, 12}));
    EXPECT_TRUE((*tokenizer)->is_special(11));
    EXPECT_TRUE((*tokenizer)->is_special(12));
    EXPECT_FALSE((*tokenizer)->is_special(13));
    EXPECT_EQ((*tokenizer)->eos(), 12);
    EXPECT_EQ((*tokenizer)->decode(std::vector<TokenId>{6, 13, 12}), "ab<tool>");
  }
  std::filesystem::remove_all(folder);
}

TEST(Spm, RefusesDamagedFiles) {
  const std::string whole = small_model(1);
  ASSERT_TRUE(parse_spm_model(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto cut = parse_spm_model(whole.substr(0, length));
    EXPECT_TRUE(cut.ok() || !cut.error().message.empty());
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      if (const auto tokenizer = Tokenizer::from_sentencepiece(flipped); tokenizer.ok()) {
        (void)(*tokenizer)->encode("ab<go> ba");
      }
    }
  }
  EXPECT_NE(parse_spm_model(small_model(3)).error().message.find("WORD"), std::string::npos);
  EXPECT_NE(parse_spm_model("").error().message.find("no pieces"), std::string::npos);
  EXPECT_NE(parse_spm_model("IQ== 0\nIg== 1\n").error().message.find("tiktoken"), std::string::npos);
  EXPECT_NE(parse_spm_model(piece("a", 0, 1)).error().message.find("unknown"), std::string::npos);
  EXPECT_FALSE(parse_spm_model(whole + bytes(2, number(41, 1'000'000'000))).ok());
  EXPECT_FALSE(parse_spm_model(whole + varint(1 << 3 | 2) + varint(uint64_t{1} << 60)).ok());
  EXPECT_FALSE(parse_spm_model(whole + piece("\xFF", 0, 1)).ok());
  EXPECT_FALSE(parse_spm_model(whole + piece("x", std::numeric_limits<float>::quiet_NaN(), 1)).ok());
}

}  // namespace
}  // namespace loralei
