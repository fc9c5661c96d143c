// SPDX-License-Identifier: Apache-2.0
#include "text/grapheme.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace loralei {
namespace {

using Clusters = std::vector<std::string>;

Clusters clusters(std::string_view text) {
  Clusters out;
  for (GraphemeReader reader(text); !reader.done();) out.emplace_back(reader.next());
  return out;
}

TEST(Grapheme, MarksStayWithTheirLetter) {
  EXPECT_EQ(clusters(""), Clusters());
  EXPECT_EQ(clusters("ab"), (Clusters{"a", "b"}));
  EXPECT_EQ(clusters("e\u0301\u0323a"), (Clusters{"e\u0301\u0323", "a"}));
  EXPECT_EQ(clusters("\u0915\u0903b"), (Clusters{"\u0915\u0903", "b"}));  // a spacing mark
  EXPECT_EQ(clusters("\u0600a"), (Clusters{"\u0600a"}));                  // Prepend
}

TEST(Grapheme, NothingJoinsAControl) {
  EXPECT_EQ(clusters("\r\n\n\r"), (Clusters{"\r\n", "\n", "\r"}));
  EXPECT_EQ(clusters("\n\u0301"), (Clusters{"\n", "\u0301"}));
  EXPECT_EQ(clusters("\u0600\n"), (Clusters{"\u0600", "\n"}));
  EXPECT_EQ(clusters("\uFFF0\u0301"), (Clusters{"\uFFF0", "\u0301"}));  // not assigned, but of the controls
}

TEST(Grapheme, HangulSyllables) {
  EXPECT_EQ(clusters("\u1100\u1161\u11A8\u1100"), (Clusters{"\u1100\u1161\u11A8", "\u1100"}));
  EXPECT_EQ(clusters("\uAC00\u11A8\u11A8"), (Clusters{"\uAC00\u11A8\u11A8"}));
  EXPECT_EQ(clusters("\uAC01\u1161"), (Clusters{"\uAC01", "\u1161"}));
}

TEST(Grapheme, FlagsArePairs) {
  const std::string d = "\U0001F1E9", e = "\U0001F1EA";
  EXPECT_EQ(clusters(d + e + d + e + d), (Clusters{d + e, d + e, d}));
  EXPECT_EQ(clusters(d + "\u0301" + e), (Clusters{d + "\u0301", e}));
}

TEST(Grapheme, EmojiAreJoinedByOneJoiner) {
  const std::string woman = "\U0001F469", tone = "\U0001F3FD", joiner = "\u200D";
  EXPECT_EQ(clusters(woman + tone + joiner + woman), (Clusters{woman + tone + joiner + woman}));
  EXPECT_EQ(clusters(woman + joiner + woman + joiner + woman), (Clusters{woman + joiner + woman + joiner + woman}));
  EXPECT_EQ(clusters(woman + joiner + joiner + woman), (Clusters{woman + joiner + joiner, woman}));
  EXPECT_EQ(clusters("a" + joiner + woman), (Clusters{"a" + joiner, woman}));
  EXPECT_EQ(clusters(joiner + woman), (Clusters{joiner, woman}));
  EXPECT_EQ(clusters(woman + joiner + "a"), (Clusters{woman + joiner, "a"}));
}

TEST(Grapheme, BrokenBytesAreClustersOfTheirOwn) {
  EXPECT_EQ(clusters("a\xFF\xCC\x81"), (Clusters{"a", "\xFF\xCC\x81"}));
  EXPECT_EQ(clusters("\xE2\x82z\xE2"), (Clusters{"\xE2\x82", "z", "\xE2"}));
}

}  // namespace
}  // namespace loralei
