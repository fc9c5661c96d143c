// SPDX-License-Identifier: Apache-2.0
// LineEditor: one line being typed on a terminal, with a history: bytes of keys in, bytes
// for the terminal out.
//
// Thread: one.
// Ownership: plain values; it reads and writes nothing itself.
// Invariants: the text is valid UTF-8 of at most kBytesMax; what is typed beyond is not
// taken, and the bell says so. Behind a step the terminal shows prompt and text, over as
// many rows as they need, and the cursor stands where the next character goes. A paste
// (in brackets, xterm's mode 2004) is text, with its line ends, and never a command.
// Failure: none; keys that mean nothing change nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loralei {

class LineEditor {
 public:
  static constexpr size_t kBytesMax = 1 << 20;
  static constexpr size_t kHistoryMax = 1000;

  enum class Event : uint8_t { kNone, kLine, kInterrupt, kEnd };
  struct Step {
    std::string output;  // for the terminal
    Event event = Event::kNone;
    std::string line;  // of kLine
    size_t used = 0;   // bytes of the keys; those behind an event belong to the next line
  };

  // `prompt`: its bytes, and how many columns they take.
  LineEditor(std::string prompt, int prompt_columns);

  std::string begin(int columns);  // an empty line, shown
  Step keys(std::string_view bytes, int columns);
  void remember(const std::string& line);

 private:
  enum class Escape : uint8_t { kNone, kEscape, kControl, kLetter };

  void take(char byte, Step& step);
  void take_control(char byte, Step& step);
  void finish_escape(char last);
  void insert(std::string_view bytes);
  void erase(size_t from, size_t to);
  size_t before(size_t at) const;  // the character, with what joins it
  size_t behind(size_t at) const;
  size_t word_before() const;
  size_t word_behind() const;
  void browse(int by);
  std::string draw();
  void end_line(Step& step, Event event);

  const std::string prompt_;
  const int prompt_columns_;
  int columns_ = 80;
  std::string text_;
  size_t cursor_ = 0;       // byte in text_
  int row_ = 0;             // of the cursor on the terminal, from the prompt's
  std::string unfinished_;  // bytes of a character of which more will come
  Escape escape_ = Escape::kNone;
  std::string escape_bytes_;
  bool pasting_ = false, changed_ = false, after_return_ = false;
  std::string bell_;
  std::vector<std::string> history_;
  size_t browsed_ = 0;  // == history_.size(): the line that is typed
  std::string typed_;   // that one, while another is shown
};

}  // namespace loralei
