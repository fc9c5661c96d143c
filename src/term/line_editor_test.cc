// SPDX-License-Identifier: Apache-2.0
#include "term/line_editor.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "term/terminal_text.h"

namespace loralei {
namespace {

using Event = LineEditor::Event;

// A terminal of so many columns: what is on it, and where its cursor stands. It obeys
// what the editor sends, and fails the test at anything else.
class Screen {
 public:
  explicit Screen(int columns) : columns_(columns), rows_(1) {}
  void write(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      if (text[at] == '\x1b') {
        at = control(text, at);
        continue;
      }
      const auto length = static_cast<size_t>(utf8_step(text, at).length);
      put(text.substr(at, length));
      at += length;
    }
  }
  std::string row(size_t number) const {
    std::string text;
    for (const std::string& cell : rows_.at(number)) text += cell;
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }
  size_t rows() const {
    size_t count = rows_.size();
    while (count > 1 && row(count - 1).empty()) --count;
    return count;
  }
  int row_of_cursor() const { return row_; }
  int column() const { return column_; }

 private:
  void put(const std::string& one) {
    if (one == "\r") {
      column_ = 0;
    } else if (one == "\n") {
      ++row_;
      reach();
    } else if (one != "\a") {
      const int width = terminal_columns(one);
      if (width == 0) {
        ASSERT_GT(column_, 0);
        rows_[static_cast<size_t>(row_)][static_cast<size_t>(column_ - 1)] += one;
        return;
      }
      ASSERT_LE(column_ + width, columns_) << "nothing is left to the terminal's own wrapping";
      auto& cells = rows_[static_cast<size_t>(row_)];
      cells.resize(static_cast<size_t>(columns_), " ");
      cells[static_cast<size_t>(column_)] = one;
      for (int i = 1; i < width; ++i) cells[static_cast<size_t>(column_ + i)] = "";
      column_ += width;
    }
  }
  size_t control(const std::string& text, size_t at) {
    EXPECT_EQ(text[at + 1], '[');
    size_t end = at + 2;
    int number = 0;
    while (text[end] >= '0' && text[end] <= '9') number = number * 10 + (text[end++] - '0');
    switch (text[end]) {
      case 'A':
        row_ -= number;
        break;
      case 'C':
        column_ += number;
        break;
      case 'J':
        rows_.resize(static_cast<size_t>(row_) + 1);
        rows_.back().resize(static_cast<size_t>(column_), " ");
        break;
      default:
        ADD_FAILURE() << "an escape that is none: " << text.substr(at, end - at + 1);
    }
    EXPECT_GE(row_, 0);
    return end + 1;
  }
  void reach() {
    if (rows_.size() <= static_cast<size_t>(row_)) rows_.resize(static_cast<size_t>(row_) + 1);
  }
  int columns_;
  int row_ = 0, column_ = 0;
  std::vector<std::vector<std::string>> rows_;
};

class Typing : public testing::Test {
 protected:
  explicit Typing(int columns = 20) : columns_(columns), screen_(columns) { screen_.write(editor_.begin(columns_)); }
  LineEditor::Step type(const std::string& keys) {
    LineEditor::Step step = editor_.keys(keys, columns_);
    screen_.write(step.output);
    return step;
  }
  // What Enter gives.
  std::string line(const std::string& keys) {
    const LineEditor::Step step = type(keys + "\r");
    EXPECT_EQ(step.event, Event::kLine);
    EXPECT_EQ(step.used, keys.size() + 1);
    screen_ = Screen(columns_);
    screen_.write(editor_.begin(columns_));
    return step.line;
  }
  const int columns_;
  LineEditor editor_{"> ", 2};
  Screen screen_;
};

TEST_F(Typing, WhatIsTypedIsShownAndGiven) {
  type("Hello");
  EXPECT_EQ(screen_.row(0), "> Hello");
  EXPECT_EQ(screen_.column(), 7);
  EXPECT_EQ(line(", you"), "Hello, you");
}

TEST_F(Typing, KeysMoveAndErase) {
  EXPECT_EQ(line("abc\x7F\x1b[D"
                 "X"),
            "aXb");
  EXPECT_EQ(line("abc\x01X\x05Y"), "XabcY");
  EXPECT_EQ(line("one two\x17three"), "one three");
  EXPECT_EQ(line("one two\x1b"
                 "b\x0B"
                 "2"),
            "one 2");
  EXPECT_EQ(line("one\x15two"), "two");
  EXPECT_EQ(line("abc\x1b[H\x1b[3~"), "bc");
  EXPECT_EQ(line("abc\x1b[1~\x04X\x1b[F!"), "Xbc!");
  EXPECT_EQ(line("one two\x1b[1;5D\x1b[1;5DX"), "Xone two");
  EXPECT_EQ(line("a\x1b[99;99zb\x1bOHc"), "cab") << "what is no key changes nothing";
}

TEST_F(Typing, CharactersAreWhole) {
  EXPECT_EQ(line("\xC3\xA9\xE6\xBC\xA2\x7F"), "\xC3\xA9");
  EXPECT_EQ(line("e\xCC\x81\x7F"), "") << "with what joins it";
  EXPECT_EQ(line("\xC3\xA9\x1b[Dx"), "x\xC3\xA9");
  EXPECT_EQ(line("a\xFF\xC3(b"), "a(b") << "bytes that are no text";
  // Byte by byte, as a slow line brings them.
  for (const char* part : {"\xE6", "\xBC", "\xA2"}) type(part);
  EXPECT_EQ(line(""), "\xE6\xBC\xA2");
}

TEST_F(Typing, LongTextTakesRowsAndWideCharactersDoNotStraddle) {
  type("0123456789012345678901234567");
  EXPECT_EQ(screen_.row(0), "> 012345678901234567");
  EXPECT_EQ(screen_.row(1), "8901234567");
  type("\x01");
  EXPECT_EQ(screen_.row_of_cursor(), 0);
  EXPECT_EQ(screen_.column(), 2);
  type("\x05\x15");
  EXPECT_EQ(screen_.rows(), 1u);
  type(
      "01234567890123456\xE6\xBC\xA2"
      "x");
  EXPECT_EQ(screen_.row(0), "> 01234567890123456");
  EXPECT_EQ(screen_.row(1), "\xE6\xBC\xA2x");
}

TEST_F(Typing, HistoryIsBrowsedAndTheTypedLineIsKept) {
  for (const char* one : {"first", "second", "second", ""}) editor_.remember(one);
  screen_.write(editor_.begin(columns_));
  EXPECT_EQ(line("\x1b[A"), "second");
  EXPECT_EQ(line("\x1b[A\x1b[A\x1b[A"), "first");
  EXPECT_EQ(line("typed\x1b[A\x1b[A\x1b[B\x1b[B!"), "typed!");
  EXPECT_EQ(line("\x10\x0E\x0E"
                 "x"),
            "x");
}

TEST_F(Typing, APasteIsTextAlsoItsLineEnds) {
  EXPECT_EQ(line("\x1b[200~one\rtwo\r\nthree\n\x03\x04\x1b[A\tx\x1b[201~!"), "one\ntwo\nthree\n\tx!");
  type("\x1b[200~one\rtwo");
  EXPECT_EQ(screen_.row(0), "> one\xE2\x86\xB5two");
}

TEST_F(Typing, AnEndAndAnInterrupt) {
  EXPECT_EQ(type("ab\x04").event, Event::kNone);
  const LineEditor::Step interrupted = type("\x03later");
  EXPECT_EQ(interrupted.event, Event::kInterrupt);
  EXPECT_EQ(interrupted.used, 1u) << "the rest is the next line's";
  editor_.begin(columns_);
  EXPECT_EQ(type("\x04").event, Event::kEnd);
}

TEST_F(Typing, ALineHasALimit) {
  const std::string most(LineEditor::kBytesMax, 'a');
  editor_.keys("\x1b[200~" + most, columns_);
  EXPECT_NE(editor_.keys("b", columns_).output.find('\a'), std::string::npos);
  EXPECT_EQ(editor_.keys("\x1b[201~\r", columns_).line, most);
}

// Any keys at all, on terminals of any width: the screen is what drawing it anew would
// show, and every line is text.
TEST(TypingAtRandom, TheScreenIsTheText) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> keys = {"a",
                                         "b",
                                         " ",
                                         "\xC3\xA9",
                                         "\xE6\xBC\xA2",
                                         "e\xCC\x81",
                                         "\x7F",
                                         "\x01",
                                         "\x05",
                                         "\x17",
                                         "\x15",
                                         "\x0B",
                                         "\x1b[D",
                                         "\x1b[C",
                                         "\x1b[A",
                                         "\x1b[B",
                                         "\x1b[3~",
                                         "\x1b"
                                         "b",
                                         "\x1b"
                                         "f",
                                         "\xFF",
                                         "\xE6",
                                         "\x1b[200~x\ry\x1b[201~",
                                         "\x1b[5",
                                         "word "};
  for (int run = 0; run < 200; ++run) {
    const int columns = 4 + static_cast<int>(random() % 30);
    LineEditor editor("> ", 2);
    for (const char* one : {"first of all", "\xE6\xBC\xA2\xE6\xBC\xA2\xE6\xBC\xA2\xE6\xBC\xA2"}) editor.remember(one);
    Screen screen(columns);
    screen.write(editor.begin(columns));
    for (int i = 0; i < 60; ++i) {
      const LineEditor::Step step = editor.keys(keys[random() % keys.size()], columns);
      ASSERT_EQ(step.event, Event::kNone);
      screen.write(step.output);
    }
    const int row = screen.row_of_cursor(), column = screen.column();
    // Drawn anew on an empty screen.
    editor.keys("\x1b[201~", columns);
    const std::string all = editor.keys("\x1b[O", columns).output;
    Screen fresh(columns);
    const size_t from = all.find('\r');
    ASSERT_NE(from, std::string::npos);
    fresh.write(all.substr(from));
    ASSERT_EQ(screen.rows(), fresh.rows());
    for (size_t i = 0; i < fresh.rows(); ++i) ASSERT_EQ(screen.row(i), fresh.row(i)) << "row " << i;
    ASSERT_EQ(row, fresh.row_of_cursor());
    ASSERT_EQ(column, fresh.column());
    const LineEditor::Step end = editor.keys("\r", columns);
    if (end.event == Event::kLine) {
      ASSERT_TRUE(is_valid_utf8(end.line));
    }
  }
}

TEST(TerminalText, WhatATerminalWouldObeyIsShownInstead) {
  EXPECT_EQ(terminal_text("plain \xC3\xA9\n\tnext"), "plain \xC3\xA9\n\tnext");
  EXPECT_EQ(terminal_text("\x1b[2J\x1b]0;title\a"), "\xEF\xBF\xBD[2J\xEF\xBF\xBD]0;title\xEF\xBF\xBD");
  EXPECT_EQ(terminal_text("\xC2\x9B"
                          "31m"),
            "\xEF\xBF\xBD"
            "31m")
      << "the same in one byte of C1";
  EXPECT_EQ(terminal_text("a\xE2\x80\xAE"
                          "b"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(terminal_text("a\xFF\r"), "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(TerminalText, Columns) {
  EXPECT_EQ(terminal_columns("abc"), 3);
  EXPECT_EQ(terminal_columns("\xE6\xBC\xA2"), 2);
  EXPECT_EQ(terminal_columns("e\xCC\x81"), 1);
  EXPECT_EQ(terminal_columns("\xF0\x9F\x98\x80"), 2);  // an emoji
  EXPECT_EQ(terminal_columns(""), 0);
}

}  // namespace
}  // namespace loralei
