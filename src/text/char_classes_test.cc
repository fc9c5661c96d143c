// SPDX-License-Identifier: Apache-2.0
#include "text/char_classes.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

TEST(CharClasses, CharacterClasses) {
  for (const char32_t space : {U' ', U'\t', U'\x0B', U'\u0085', U'\u00A0', U'\u2028', U'\u3000'})
    EXPECT_TRUE(is_unicode_space(space));
  for (const char32_t other : {U'\u180E', U'\u200B', U'\uFEFF', U'a'}) EXPECT_FALSE(is_unicode_space(other));
  EXPECT_TRUE(is_unicode_number(U'\u2163'));
  EXPECT_TRUE(is_unicode_punctuation(U'$'));
  EXPECT_FALSE(is_unicode_punctuation(U'\u20AC'));
  EXPECT_TRUE(is_unicode_mark(U'\u0301'));
  EXPECT_TRUE(is_unicode_word(U'\u200D'));
  EXPECT_TRUE(is_unicode_word(U'\u24B6'));  // Other_Alphabetic, and a symbol
  EXPECT_TRUE(is_unicode_word(U'_'));
  EXPECT_FALSE(is_unicode_word(U'-'));
  EXPECT_FALSE(is_unicode_word(U'\u00B2'));
}

}  // namespace
}  // namespace loralei
