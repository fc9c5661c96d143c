// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "base/log.h"
#include "base/utf8.h"

namespace loralei {
namespace {

TEST(Printable, WhatIsReadableStays) {
  for (const char* text : {"", "sql-v2", "a b \"c\" \\n",
                           "Gr\xC3\xBC\xC3\x9F"
                           "e",
                           "\xE6\x97\xA5\xE6\x9C\xAC", "\xF0\x9F\x98\x80", "\xE0\xA4\x95\xE2\x80\x8D"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_TRUE(is_printable(text));
  }
}

TEST(Printable, WhatATerminalWouldActOnIsWrittenOut) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable(std::string_view("\0\x1b[2J\x7f", 6)), "\\x00\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\u009b2J");  // a terminal's other ESC [
  EXPECT_EQ(printable("a\xE2\x80\xA8"
                      "b\xE2\x80\xA9"),
            "a\\u2028b\\u2029");
  EXPECT_EQ(printable("\xE2\x80\xAEtxt.exe\xE2\x81\xA6"), "\\u202etxt.exe\\u2066");
  EXPECT_EQ(printable("\xEF\xBB\xBFkey"), "\\ufeffkey");
  EXPECT_EQ(printable("\xF3\xA0\x81\x81"), "\\U000e0041");
}

TEST(Printable, BytesThatAreNoUtf8) {
  EXPECT_EQ(printable("a\xFF"
                      "b"),
            "a\\xffb");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xF0\x9F\x98"), "\\xf0\\x9f\\x98");  // cut off
}

TEST(Printable, IsBoundedAndCutBetweenCharacters) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789a", 10), "012345 ...");
  EXPECT_EQ(printable("01234\xC3\xBC"
                      "6789a",
                      10),
            "01234 ...");
  EXPECT_EQ(printable("\n\n\n\n\n\n", 10), "\\n\\n\\n ...");
  EXPECT_EQ(printable(std::string(1 << 20, 'x')).size(), kPrintableBytes);
  EXPECT_EQ(printable("abc", 2).size(), 2u);
}

TEST(Printable, OfAnyBytesIsPrintable) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) text += static_cast<char>(random() % (round % 2 == 0 ? 256 : 40));
    const size_t most = random() % 60;
    const std::string once = printable(text, most);
    EXPECT_LE(once.size(), most);
    EXPECT_TRUE(is_valid_utf8(once));
    EXPECT_TRUE(is_printable(once, most)) << once;
    for (const char c : once) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
}

TEST(LogEvent, ReadsAsALine) {
  EXPECT_EQ(event_text("draining", {}), "draining");
  EXPECT_EQ(event_text("draining", {}, "3 are running"), "draining: 3 are running");
  EXPECT_EQ(event_text("request refused", {{"id", "7"}, {"status", 404}, {"ms", 1.25}}, "No."),
            "request refused id=7 status=404 ms=1.2: No.");
}

TEST(LogEvent, NoValueCanPretendToBeAnother) {
  EXPECT_EQ(event_text("e", {{"a", ""}, {"b", "-"}, {"c", "x status=200"}, {"d", "say \"hi\""}}),
            "e a=- b=\"-\" c=\"x status=200\" d=\"say \\\"hi\\\"\"");
}

}  // namespace
}  // namespace loralei
