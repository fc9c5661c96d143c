// SPDX-License-Identifier: Apache-2.0
#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "base/utf8.h"

namespace loralei {
namespace {

using nlohmann::json;

// A vocabulary of bytes, broken pieces, spaces and specials, decoded as `decoder` says.
Tokenizer::Ptr make(const json& decoder, bool byte_level) {
  json vocab = json::object();
  int id = 0;
  const auto add = [&](const std::string& piece) { vocab[piece] = id++; };
  for (const char* piece : {"a", "b", "\xE2\x96\x81", "\xE2\x96\x81hello", "\xE2\x96\x81\xE2\x96\x81", "\xC3\xA9",
                            "\xF0\x9F\x98\x80", "hello", " "})
    add(piece);
  if (byte_level) {
    for (const char* piece : {"\xC3\xB0", "\xC5\x81", "\xC4\xBA", "\xC4\xA2", "\xC3\x83", "\xC2\xA9", "\xC4\xA0hi"})
      add(piece);
  } else {
    for (const char* piece : {"<0x61>", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xFF>", "<0x20>"})
      add(piece);
  }
  const json file = {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}},
                     {"decoder", decoder},
                     {"added_tokens",
                      {{{"id", id}, {"content", "<s>"}, {"special", true}},
                       {{"id", id + 3}, {"content", " tool "}, {"special", false}, {"normalized", false}}}}};
  auto tokenizer = Tokenizer::from_json(file.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *tokenizer;
}

json replace_space() { return {{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}}; }
json sequence(std::vector<json> steps) { return {{"type", "Sequence"}, {"decoders", std::move(steps)}}; }

struct Case {
  const char* name;
  json decoder;
  bool byte_level;
};

std::vector<Case> cases() {
  const json fallback = {{"type", "ByteFallback"}}, fuse = {{"type", "Fuse"}};
  const auto strip = [](int start, int stop) {
    return json{{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
  };
  const json metaspace = {
      {"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "always"}, {"split", true}};
  return {{"byte level", {{"type", "ByteLevel"}}, true},
          {"llama", sequence({replace_space(), fallback, fuse, strip(1, 0)}), false},
          {"gemma", sequence({replace_space(), fallback, fuse}), false},
          {"strips", sequence({replace_space(), fallback, fuse, strip(2, 1), strip(0, 2)}), false},
          {"metaspace", metaspace, false},
          {"late metaspace", sequence({fallback, metaspace}), false},
          {"none", nullptr, false}};
}

TEST(StreamDecoder, EqualsDecodingTheWhole) {
  const uint64_t seed = 21;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    const auto tokenizer = make(test.decoder, test.byte_level);
    int compared = 0;
    for (int round = 0; round < 3000; ++round) {
      const TokenId special = *tokenizer->find_token("<s>");
      DecodeOptions options{.skip_special = prng.below(2) == 0};
      if (prng.below(2) == 0) options.but_not = std::span(&special, 1);
      StreamDecoder stream(tokenizer, StreamDecoder::Mode::kTextStart, options);
      std::vector<TokenId> ids;
      std::string text;
      for (uint64_t i = prng.below(9); i > 0; --i) {
        ids.push_back(static_cast<TokenId>(prng.below(static_cast<uint64_t>(tokenizer->vocab_size()) + 2)) - 1);
        const std::string part = stream.push(ids.back());
        ASSERT_TRUE(is_valid_utf8(part));
        text += part;
      }
      text += stream.flush();
      const std::string whole = tokenizer->decode(ids, options);
      ASSERT_TRUE(is_valid_utf8(whole));
      if (!test.byte_level && whole.find(kReplacementUtf8) != std::string::npos) continue;
      ASSERT_EQ(text, whole) << json(ids).dump();
      ++compared;
    }
    EXPECT_GT(compared, 300);
  }
}

TEST(StreamDecoder, NeverCutsACodePointAndEndsWithOneReplacement) {
  const auto tokenizer = make({{"type", "ByteLevel"}}, true);
  const TokenId f0 = *tokenizer->find_token("\xC3\xB0"), b9f = *tokenizer->find_token("\xC5\x81"),
                b98 = *tokenizer->find_token("\xC4\xBA");
  EXPECT_EQ(tokenizer->token_bytes(f0), "\xF0");
  EXPECT_EQ(tokenizer->token_text(f0), kReplacementUtf8);
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(*tokenizer->find_token("a")), "a");
  EXPECT_EQ(stream.push(f0), "");
  EXPECT_EQ(stream.push(b9f), "");
  EXPECT_EQ(stream.push(b98), "");
  EXPECT_EQ(stream.flush(), kReplacementUtf8);
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, MidStreamKeepsTheLeadingSpace) {
  for (const Case& test : cases()) {
    if (std::string_view(test.name) != "llama" && std::string_view(test.name) != "metaspace") continue;
    const auto tokenizer = make(test.decoder, false);
    const TokenId hello = *tokenizer->find_token("\xE2\x96\x81hello");
    StreamDecoder continued(tokenizer, StreamDecoder::Mode::kMidStream),
        fresh(tokenizer, StreamDecoder::Mode::kTextStart);
    EXPECT_EQ(continued.push(hello), " hello");
    EXPECT_EQ(fresh.push(hello), "hello");
  }
}

}  // namespace
}  // namespace loralei
