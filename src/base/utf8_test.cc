// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(Utf8, RefusesWhatRfc3629Refuses) {
  for (const std::string_view good : {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                      "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_valid_utf8(good));
  }
  for (const std::string_view bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "a\xFF"}) {
    EXPECT_FALSE(is_valid_utf8(bad));
  }
  EXPECT_TRUE(is_valid_utf8(std::string_view("\0a", 2)));
}

TEST(Utf8, EveryScalarValueGoesThroughAndBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    utf8_append(text, c);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_TRUE(step.valid);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(static_cast<size_t>(step.length), text.size());
  }
}

TEST(Utf8, RepairsOneMaximalSubpartAtATime) {
  // The example of the Unicode standard, table 3-11.
  EXPECT_EQ(utf8_repair("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41");
  EXPECT_EQ(utf8_repair("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(utf8_repair("a\xF0\x9F\x98"), "a\xEF\xBF\xBD");
}

TEST(Utf8, TheAssemblerEqualsTheRepairOfTheWhole) {
  const uint64_t seed = 1;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string alphabet = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\xFF\xC0";
  for (int round = 0; round < 20000; ++round) {
    std::string whole, out;
    Utf8Assembler assembler;
    for (uint64_t parts = prng.below(6); parts > 0; --parts) {
      std::string part;
      for (uint64_t i = prng.below(5); i > 0; --i) part += alphabet[prng.below(alphabet.size())];
      whole += part;
      assembler.push(part, out);
      ASSERT_TRUE(is_valid_utf8(out));
    }
    assembler.flush(out);
    ASSERT_EQ(out, utf8_repair(whole));
    ASSERT_FALSE(assembler.pending());
  }
}

}  // namespace
}  // namespace loralei
