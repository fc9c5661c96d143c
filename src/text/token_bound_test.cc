// SPDX-License-Identifier: Apache-2.0
// The least number of tokens against what encode() gives, for every tokenizer of
// tests/vectors and random texts.
#include "text/token_bound.h"

#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/utf8.h"
#include "text/char_classes.h"
#include "text/tokenizer.h"
#include "text/vector_tokenizers_test_util.h"

namespace loralei {
namespace {

// Runs and mixtures of what tokenizers shorten: spaces, marks, wide and bold letters,
// unknown and invisible ones, their own tokens and special tokens.
std::string random_text(std::mt19937& random, const Tokenizer& tokenizer) {
  const auto below = [&](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
  static const std::vector<std::string> kParts = {" ",          "\n",         "\t",
                                                  "\u00A0",     "\u3000",     "\u2581",
                                                  "_",          "a",          "Aa",
                                                  "the ",       "\u0301",     "\u0308\u0304",
                                                  "\uFF21",     "\U0001D41A", "\U0001D42E\u0308\u0304",
                                                  "\u212A",     "\u1F82",     "\u2126",
                                                  "\uFDFA",     "\u00AD",     "\u200B",
                                                  "\u0007",     "\U0001F600", "\u0E01",
                                                  "\u4E00",     "\uAC00",     "\u1100\u1161\u11A8",
                                                  "\U00010900", "\u0130",     "\u1E9E",
                                                  "\"",         "1234567890"};
  std::string text;
  const size_t runs = below(12);
  for (size_t run = 0; run < runs; ++run) {
    std::string part = kParts[below(kParts.size())];
    if (below(4) == 0)
      part =
          std::string(tokenizer.token_piece(static_cast<TokenId>(below(static_cast<size_t>(tokenizer.vocab_size())))));
    const size_t times = below(3) == 0 ? below(400) : 1 + below(3);
    for (size_t i = 0; i < times; ++i) text += part;
  }
  return is_valid_utf8(text) ? text : utf8_repair(text);
}

TEST(TokenBound, IsNeverMoreThanThereAre) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const auto& [name, tokenizer] : vector_tokenizers()) {
    for (int i = 0; i < 600; ++i) {
      const std::string text = random_text(random, *tokenizer);
      for (const bool parse_special : {true, false}) {
        const auto ids = tokenizer->encode(text, {.add_special = false, .parse_special = parse_special});
        if (!ids.ok()) continue;
        ASSERT_LE(tokenizer->least_tokens(text), static_cast<int64_t>(ids->size())) << name << ": " << text;
      }
    }
  }
}

// Byte-level tokenizers, the usual ones, have a bound that refuses a long text; so have
// those with byte fallback.
TEST(TokenBound, RefusesLongTextsOfUsualTokenizers) {
  const std::string text = [] {
    std::string words;
    while (words.size() < 1'000'000) words += "some words, ";
    return words;
  }();
  std::set<std::string> bounded;
  for (const auto& [name, tokenizer] : vector_tokenizers()) {
    if (tokenizer->least_tokens(text) > 1000) bounded.insert(name);
  }
  for (const char* name : {"bl-gpt2", "bl-gpt2-prefix-nfkc", "bl-llama3", "bl-qwen2", "gguf-gpt2", "gguf-llama3",
                           "gguf-qwen2", "gguf-spm", "hf-llama-legacy", "spm-bpe"})
    EXPECT_TRUE(bounded.contains(name)) << name;
  for (const char* name : {"spm-unigram-unk", "spm-unigram-nmt"}) EXPECT_FALSE(bounded.contains(name)) << name;
}

// What the bound assumes of normal forms: how many bytes of any text may become one byte.
// Each character that comes out is made of the marks and letters it decomposes to, each
// of those comes of one character that has it at most.
TEST(TokenBound, NormalFormsLeaveAByteOfFive) {
  UErrorCode code = U_ZERO_ERROR;
  const icu::Normalizer2* canonical = icu::Normalizer2::getNFDInstance(code);
  const icu::Normalizer2* compatible = icu::Normalizer2::getNFKDInstance(code);
  ASSERT_TRUE(U_SUCCESS(code)) << u_errorName(code);
  std::map<UChar32, int> longest_source;  // of a code point that stands in decompositions
  const auto decompose = [](UChar32 c, const icu::Normalizer2& normalizer) {
    icu::UnicodeString units;
    if (!normalizer.getDecomposition(c, units)) units.setTo(c);
    std::vector<UChar32> parts;
    for (int32_t i = 0; i < units.length(); i = units.moveIndex32(i, 1)) parts.push_back(units.char32At(i));
    return parts;
  };
  const auto size_of = [](UChar32 c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; };
  for (UChar32 c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    bool visible = is_unicode_space(static_cast<char32_t>(c));
    for (const auto part : decompose(c, *compatible)) {
      longest_source[part] = std::max(longest_source[part], size_of(c));
      visible = visible || !is_unicode_space(static_cast<char32_t>(part));
    }
    EXPECT_TRUE(visible) << "a character that is no space may become nothing but spaces: " << c;
  }
  for (UChar32 c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    int bytes = 0;
    for (const auto part : decompose(c, *canonical)) bytes += longest_source[part];
    EXPECT_LE(bytes, 5 * size_of(c)) << std::hex << c;
    EXPECT_GE(3 * size_of(u_tolower(c)), size_of(c)) << std::hex << c;
  }
}

TEST(Tokenizer, EncodingStopsAtTheLimitAndWhenNobodyWantsIt) {
  class Never final : public WorkWatch {
   public:
    bool go_on(const Work&) override { return false; }
  };
  std::string text, one_word;
  while (text.size() < 300'000) text += "some words, ";
  one_word.assign(300'000, 'x');
  for (const auto& [name, tokenizer] : vector_tokenizers()) {
    const auto whole = tokenizer->encode(text);
    ASSERT_TRUE(whole.ok()) << name;
    Work counted;
    const auto some = tokenizer->encode(text, {.max_tokens = 100, .work = &counted});
    ASSERT_TRUE(some.ok()) << name;
    EXPECT_GT(some->size(), 100u) << name;
    EXPECT_GE(counted.spent(), static_cast<int64_t>(text.size())) << name;
    if (name.find("spm") == std::string::npos && name.find("llama-") == std::string::npos &&
        name.find("unigram") == std::string::npos && name.find("gemma") == std::string::npos) {
      EXPECT_LT(some->size(), 120u) << name;  // cut at words: the rest was not encoded
      EXPECT_TRUE(std::equal(some->begin(), some->end(), whole->begin())) << name;
    }
    const auto enough = tokenizer->encode(text, {.max_tokens = static_cast<int64_t>(whole->size())});
    ASSERT_TRUE(enough.ok());
    EXPECT_EQ(*enough, *whole) << name;
    for (const std::string& long_text : {text, one_word}) {
      Never watch;
      Work stopped(&watch);
      const auto none = tokenizer->encode(long_text, {.work = &stopped});
      ASSERT_FALSE(none.ok()) << name;
      EXPECT_EQ(none.error().code, ErrorCode::kCancelled) << name;
      EXPECT_LT(stopped.spent(), 6 * Work::kSlice) << name << ": one slice and an operation";
    }
  }
}

}  // namespace
}  // namespace loralei
