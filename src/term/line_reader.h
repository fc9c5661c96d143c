// SPDX-License-Identifier: Apache-2.0
// LineReader: lines that somebody types, edited where they come from a terminal, as they
// are where they do not.
//
// Thread: one.
// Ownership: borrows both descriptors.
// Invariants: the terminal is in raw mode only while read() runs, and afterwards as it
// was before, also when a signal ends the process (SIGTERM and SIGHUP restore it first).
// Of a line that is no UTF-8 what is none becomes U+FFFD.
// Failure: the end of the input, and whatever cannot be read, is kEnd.
#pragma once

#include <memory>
#include <string>

#include "term/line_editor.h"

namespace loralei {

class LineReader {
 public:
  using Event = LineEditor::Event;
  struct Read {
    Event event = Event::kEnd;
    std::string line;  // of kLine
  };

  LineReader(int input, int output);
  ~LineReader();

  bool is_terminal() const { return terminal_; }
  // `prompt` may hold colours; `columns`: what is seen of it. Without a terminal nobody
  // is prompted.
  Read read(const std::string& prompt, int columns);

 private:
  Read read_typed(const std::string& prompt, int columns);
  Read read_plain();

  const int input_, output_;
  const bool terminal_;
  std::vector<std::string> history_;
  std::string pending_;  // read, and not used yet
};

int terminal_width(int descriptor);  // columns; 80 where it does not say

}  // namespace loralei
