// SPDX-License-Identifier: Apache-2.0
// Expected pieces are those of Hugging Face tokenizers for the same component.
#include "text/pretokenize.h"

#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "base/prng.h"
#include "base/utf8.h"
#include "text/normalize.h"
#include "text/tokenizer_components.h"
#include "text/tokenizer_load.h"

namespace loralei {
namespace {

std::vector<std::string> pieces(const PreTokenizer& steps, const std::string& text) {
  PreTokenized work{text, {{0, static_cast<uint32_t>(text.size())}}, true};
  Work spent;
  const Status status = steps.apply(work, spent);
  EXPECT_TRUE(status.ok()) << status.error().message;
  std::vector<std::string> out;
  for (const TextRange piece : work.pieces) out.push_back(work.text.substr(piece.begin, piece.end - piece.begin));
  return out;
}

std::vector<std::string> pieces(const Json& component, const std::string& text) {
  auto steps = parse_pre_tokenizer(component);
  EXPECT_TRUE(steps.ok()) << steps.error().message;
  return pieces(*steps, text);
}

using Pieces = std::vector<std::string>;

Json split(const char* pattern, const char* behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenize, SplitBehaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(pieces(split("-", "Removed"), text), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(pieces(split("-", "Isolated"), text), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces(split("-", "MergedWithPrevious"), text), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces(split("-", "MergedWithNext"), text), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces(split("-", "Contiguous"), text), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(pieces(split("\\w+", "Removed", true), text), (Pieces{"the", "final", "countdown"}));
}

TEST(PreTokenize, Metaspace) {
  const auto metaspace = [](const char* scheme, bool cut) {
    return Json{{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}, {"split", cut}};
  };
  EXPECT_EQ(pieces(metaspace("always", true), "hey you"), (Pieces{"_hey", "_you"}));
  EXPECT_EQ(pieces(metaspace("first", false), "hey you"), (Pieces{"_hey_you"}));
  EXPECT_EQ(pieces(metaspace("never", true), "hey you"), (Pieces{"hey", "_you"}));
  EXPECT_EQ(pieces(metaspace("always", true), " hey"), (Pieces{"_hey"}));
  const Json both = {{"type", "Sequence"},
                     {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace("first", true)}}};
  EXPECT_EQ(pieces(both, "hey you"), (Pieces{"_hey", "you"}));
}

TEST(PreTokenize, ClassesOfCharacters) {
  EXPECT_EQ(pieces({{"type", "Whitespace"}}, "Hey man! 1st\xE2\x80\xA6"),
            (Pieces{"Hey", "man", "!", "1st", "\xE2\x80\xA6"}));
  EXPECT_EQ(pieces({{"type", "WhitespaceSplit"}}, " a  b! "), (Pieces{"a", "b!"}));
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12b"), (Pieces{"a", "1", "2", "b"}));
  EXPECT_EQ(pieces({{"type", "Digits"}}, "a12b"), (Pieces{"a", "12", "b"}));
  EXPECT_EQ(pieces({{"type", "Punctuation"}}, "hi, you$"), (Pieces{"hi", ",", " you", "$"}));
  EXPECT_EQ(pieces({{"type", "BertPreTokenizer"}}, "hi, you"), (Pieces{"hi", ",", "you"}));
  EXPECT_EQ(pieces({{"type", "CharDelimiterSplit"}, {"delimiter", "-"}}, "a-b"), (Pieces{"a", "b"}));
  EXPECT_EQ(pieces({{"type", "ByteLevel"}}, "don't \xC3\xA9"), (Pieces{"\xC4\xA0"
                                                                       "don",
                                                                       "'t", "\xC4\xA0\xC3\x83\xC2\xA9"}));
}

TEST(PreTokenize, EveryNameOfGgufFilesHasPatternsThatCompile) {
  for (const std::string& name : gguf_pre_names()) {
    const auto pre = gguf_pre_tokenizer(name);
    ASSERT_TRUE(pre.ok()) << name << ": " << pre.error().message;
    EXPECT_EQ(pieces(pre->steps, "a b1").front().front(), 'a') << name;
  }
}

// Kelvin, Ohm and a Greek letter are letters as they stand; NFC would make
// others of them.
TEST(PreTokenize, DeepseekLettersAreNotNormalised) {
  const std::string letters = "\u212A\u2126\u1F7D\u1FBE\u1FD3\u1FDB";
  EXPECT_EQ(pieces(gguf_pre_tokenizer("deepseek-llm").value().steps, letters + "\u4E00"), (Pieces{letters, "\u4E00"}));
}

TEST(PreTokenize, RegexesMeanWhatOnigurumaMeans) {
  EXPECT_EQ(pieces(split("\\s", "Isolated"),
                   "a\xE1\xA0\x8E"
                   "b\xC2\x85"
                   "c"),
            (Pieces{"a\xE1\xA0\x8E"
                    "b",
                    "\xC2\x85", "c"}));
  EXPECT_EQ(pieces(split("\\w+", "Isolated"), "e\xCC\x81-\xC2\xBD"), (Pieces{"e\xCC\x81", "-", "\xC2\xBD"}));
  EXPECT_EQ(pieces(split("\\p{Han}+", "Isolated"), "\xE6\x97\xA5x"), (Pieces{"\xE6\x97\xA5", "x"}));
  EXPECT_EQ(pieces(split("^.", "Isolated"), "ab\ncd"), (Pieces{"a", "b\n", "c", "d"}));
  EXPECT_EQ(pieces(split("(?=(\\d{3})+(?!\\d))", "Isolated"), "1234567"), (Pieces{"1", "234", "567"}));
  EXPECT_EQ(pieces(split("(?i:'s)", "Isolated"), "a'S"), (Pieces{"a", "'S"}));
}

TEST(PreTokenize, RefusesPatternsItWouldReadOtherwise) {
  for (const char* pattern : {"(", "[a-z&&[^b]]", "[[a]b]", "(?m:.)", "\\R", "\\X", "a{1,2}+", "\\p{Nonsense}", "[",
                              "\\", "[^\\S]", "(?<=a+)b", "\\C"}) {
    EXPECT_FALSE(Regex::compile(pattern).ok()) << pattern;
  }
  EXPECT_FALSE(Regex::compile(std::string(1 << 20, 'a')).ok());
  EXPECT_FALSE(Regex::compile(std::string(5000, '(') + std::string(5000, ')')).ok());
}

TEST(PreTokenize, RunawayPatternsEndWithASentence) {
  auto regex = Regex::compile("(a|aa)+[bc]$");
  ASSERT_TRUE(regex.ok()) << regex.error().message;
  std::vector<TextRange> matches;
  Work work;
  const Status status = regex->find_all(std::string(200, 'a') + 'd', matches, work);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTooLarge);
}

TEST(PreTokenize, LongRunsMatchWhole) {
  auto regex = gpt2_regex();
  ASSERT_TRUE(regex.ok());
  for (const char* unit : {"a", " ", "\n", "1", "\xE6\x97\xA5", "!"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    text += 'x';
    std::vector<TextRange> matches;
    Work work;
    const Status status = regex->find_all(text, matches, work);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_LE(matches.size(), 3u);
  }
}

TEST(PreTokenize, RefusesUnknownComponentsByName) {
  for (const char* name : {"UnicodeScripts", "FixedLength", "Nonsense"}) {
    const auto parsed = parse_pre_tokenizer({{"type", name}});
    ASSERT_FALSE(parsed.ok());
    EXPECT_NE(parsed.error().message.find(name), std::string::npos);
  }
  for (const char* name : {"BertNormalizer", "Nonsense"}) EXPECT_FALSE(parse_normalizer({{"type", name}}).ok());
  for (const char* name : {"WordPiece", "CTC", "BPEDecoder", "Nonsense"})
    EXPECT_FALSE(parse_decoder({{"type", name}}).ok());
  EXPECT_FALSE(parse_post_processor({{"type", "Nonsense"}}).ok());
  EXPECT_FALSE(parse_pre_tokenizer(Json::array({1})).ok());
  EXPECT_FALSE(
      parse_decoder({{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}}}).ok());
}

std::string normalized(const Json& component, const std::string& text) {
  auto normalizer = parse_normalizer(component);
  EXPECT_TRUE(normalizer.ok()) << normalizer.error().message;
  Work work;
  auto out = normalizer->apply(text, true, work);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return *out;
}

TEST(Normalize, EachComponent) {
  EXPECT_EQ(normalized({{"type", "NFC"}}, "e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(normalized({{"type", "NFD"}}, "\xC3\xA9"), "e\xCC\x81");
  EXPECT_EQ(normalized({{"type", "NFKC"}}, "\xEF\xAC\x81\xEF\xBC\xA1"), "fiA");
  EXPECT_EQ(normalized({{"type", "NFKD"}}, "\xEF\xAC\x81\xC3\xA9"), "fie\xCC\x81");
  // U+11A7 is next to the final consonants of Korean and none of them.
  EXPECT_EQ(normalized({{"type", "NFC"}}, "\uAC00\u11A7"), "\uAC00\u11A7");
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "\xC3\x89\xC4\xB0X"), "\xC3\xA9i\xCC\x87x");
  EXPECT_EQ(normalized({{"type", "StripAccents"}}, "e\xCC\x81"), "e");
  EXPECT_EQ(normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, " \xC2\xA0 a "), "a ");
  EXPECT_EQ(normalized({{"type", "Strip"}}, " a\xE3\x80\x80 "), "a");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, "a"), "_a");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"String", "aa"}}}, {"content", "$1"}}, "aaa"), "$1a");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}, "a   b c"), "a b c");
  EXPECT_EQ(normalized({{"type", "Nmt"}}, "a\x01\tb\xE2\x80\x8B"), "a b ");
  const Json both = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFD"}}, {{"type", "StripAccents"}}}}};
  EXPECT_EQ(normalized(both, "\xC3\xA9"), "e");
}

// Decomposition, ordering and composition as chapter 3.11 of the Unicode standard
// describes them, one character after the other.
std::string form_by_the_standard(const std::string& text, bool compatible, bool compose) {
  UErrorCode code = U_ZERO_ERROR;
  const icu::Normalizer2* data =
      compatible ? icu::Normalizer2::getNFKCInstance(code) : icu::Normalizer2::getNFCInstance(code);
  EXPECT_TRUE(U_SUCCESS(code)) << u_errorName(code);
  std::vector<UChar32> points;
  for (const char32_t c : utf8_decode(text)) {
    icu::UnicodeString parts;
    if (!data->getDecomposition(static_cast<UChar32>(c), parts)) parts.setTo(static_cast<UChar32>(c));
    for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) {
      const UChar32 part = parts.char32At(i);
      auto at = points.end();
      if (u_getCombiningClass(part) != 0) {
        while (at != points.begin() && u_getCombiningClass(at[-1]) > u_getCombiningClass(part)) --at;
      }
      points.insert(at, part);
    }
  }
  std::vector<UChar32> out;
  size_t starter = 0;  // the last one's place in `out`
  bool has_starter = false;
  for (const UChar32 c : points) {
    const int mark_class = u_getCombiningClass(c);
    const bool neighbour = has_starter && starter + 1 == out.size();
    const bool blocked = !neighbour && !out.empty() && u_getCombiningClass(out.back()) >= mark_class;
    const UChar32 composite = compose && has_starter && !blocked ? data->composePair(out[starter], c) : U_SENTINEL;
    if (composite >= 0) {
      out[starter] = composite;
      continue;
    }
    if (mark_class == 0) {
      starter = out.size();
      has_starter = true;
    }
    out.push_back(c);
  }
  std::string bytes;
  for (const UChar32 c : out) utf8_append(bytes, static_cast<char32_t>(c));
  return bytes;
}

TEST(Normalize, UnicodeFormsAreTheStandards) {
  const std::vector<char32_t> odd = {'a',    'e',    0x301,  0x323,  0x327,  0x345,   0x315,  0x5B0,  0x5BF,   0x1100,
                                     0x1161, 0x11A8, 0xAC00, 0xFB01, 0xFDFA, 0x1F5F,  0x1F7D, 0x212A, 0x2126,  0x1E69,
                                     0x344,  0xF73,  0x958,  0x2ADC, 0x3099, 0x304B,  0x200D, 0xFFFD, 0x1D15E, 0x10FFFF,
                                     0x378,  0xAD,   0x1F82, 0x3B1,  0x313,  0x1D165, 0x9BE,  0x9C7,  0xFF9E,  0xFFA3};
  const uint64_t seed = 21;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const auto random_point = [&] {
    return prng.below(4) == 0 ? static_cast<char32_t>(1 + prng.below(0xD7FF)) : odd[prng.below(odd.size())];
  };
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (uint64_t left = prng.below(12); left > 0; --left) {
      const char32_t c = random_point(), d = random_point();
      // Now and then a run that is long, and may be out of order.
      for (uint64_t times = prng.below(40) == 0 ? prng.below(60) : 1; times > 0; --times) {
        utf8_append(text, c);
        if (times > 1) utf8_append(text, d);
      }
    }
    SCOPED_TRACE("text " + text);
    ASSERT_EQ(normalized({{"type", "NFC"}}, text), form_by_the_standard(text, false, true));
    ASSERT_EQ(normalized({{"type", "NFD"}}, text), form_by_the_standard(text, false, false));
    ASSERT_EQ(normalized({{"type", "NFKC"}}, text), form_by_the_standard(text, true, true));
    ASSERT_EQ(normalized({{"type", "NFKD"}}, text), form_by_the_standard(text, true, false));
  }
}

// The text is worked on in pieces; what joins must not be cut apart.
TEST(Normalize, ALongTextIsNormalisedAsAWhole) {
  for (size_t shift = 0; shift < 8; ++shift) {
    std::string text(shift, 'x'), composed = text, decomposed = text;
    while (text.size() < 300'000) {
      text += "e\xCC\xA3\xCC\x82\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8";
      composed += "\xE1\xBB\x87\xEA\xB0\x81";
      decomposed += "e\xCC\xA3\xCC\x82\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8";
    }
    EXPECT_TRUE(normalized({{"type", "NFC"}}, text) == composed) << shift;
    EXPECT_TRUE(normalized({{"type", "NFD"}}, composed) == decomposed) << shift;
  }
}

TEST(Normalize, BrokenBytesBecomeReplacementCharacters) {
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    EXPECT_EQ(normalized({{"type", form}}, "a\xFFz"), "a\xEF\xBF\xBDz") << form;
    EXPECT_EQ(normalized({{"type", form}}, "\xE2\x82"), "\xEF\xBF\xBD") << form;  // one for what was begun
    EXPECT_EQ(normalized({{"type", form}}, "\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD") << form;
    EXPECT_EQ(normalized({{"type", form}}, std::string("\0\x80", 2)), std::string("\0\xEF\xBF\xBD", 4)) << form;
  }
}

// NFKC makes 33 bytes of each three: what is too long is told before all of it is made.
TEST(Normalize, AFormThatGrowsTooFarIsStopped) {
  auto normalizer = parse_normalizer({{"type", "NFKC"}});
  ASSERT_TRUE(normalizer.ok());
  std::string text;
  while (text.size() < kMaxEncodeBytes / 4) text += "\xEF\xB7\xBA";
  Work work;
  const auto out = normalizer->apply(text, true, work);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, ErrorCode::kTooLarge);
}

// Swapping neighbours, this would take minutes.
TEST(Normalize, ALongRunOfMarksIsSorted) {
  const size_t pairs = 500'000;
  std::string text = "q", acutes;
  for (size_t i = 0; i < pairs; ++i) {
    text += "\xCC\x81\xCC\xA3";  // acute (class 230), dot below (class 220)
    acutes += "\xCC\x81";
  }
  std::string sorted = "q";
  for (size_t i = 0; i < pairs; ++i) sorted += "\xCC\xA3";
  EXPECT_TRUE(normalized({{"type", "NFC"}}, text) == sorted + acutes);
}

TEST(Normalize, AGrowingTextIsStopped) {
  Json steps = Json::array();
  for (int i = 0; i < 8; ++i)
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(64, 'a')}});
  auto normalizer = parse_normalizer({{"type", "Sequence"}, {"normalizers", steps}});
  ASSERT_TRUE(normalizer.ok());
  Work work;
  EXPECT_FALSE(normalizer->apply("aaaa", true, work).ok());
}

TEST(Normalize, HostileCharsmapsStayInside) {
  EXPECT_FALSE(CharsMap::parse("abc").ok());
  EXPECT_FALSE(CharsMap::parse(std::string("\xFF\xFF\xFF\x7F", 4) + "abcd").ok());
  // Units that point everywhere.
  for (uint32_t fill : {0u, 0xFFFFFFFFu, 0x80000161u, 0x00000561u, 0x7FFFFF61u}) {
    std::string blob("\x40\x00\x00\x00", 4);
    for (int i = 0; i < 16; ++i) blob.append(reinterpret_cast<const char*>(&fill), 4);
    blob += std::string("x\0y", 3);
    const auto map = CharsMap::parse(blob);
    ASSERT_TRUE(map.ok());
    for (const char* text : {"a", "aaaaaaaa", "\xC3\xA9", ""}) {
      map->longest(text);
      map->shortest(text);
    }
  }
}

}  // namespace
}  // namespace loralei
