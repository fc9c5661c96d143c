// SPDX-License-Identifier: Apache-2.0
// StreamDecoder: tokens of one sequence to text as they come; never cuts a code point.
//
// Thread: one sequence, one thread.
// Ownership: keeps the tokenizer alive.
// Invariants: what comes out is valid UTF-8; the concatenation of all output equals
// decode() of all ids (mode kTextStart), or what they add to a text before them
// (kMidStream), wherever decode() gives no U+FFFD. Broken bytes become one U+FFFD per
// maximal subpart at once: a stream cannot take back code points that it has sent, while
// decode() may turn a whole run of byte tokens into U+FFFD.
// Failure: none; an id without a token contributes nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer.h"

namespace loralei {

class StreamDecoder {
 public:
  enum class Mode : unsigned char {
    kMidStream,  // the ids continue a prompt: a leading space is part of the text
    kTextStart,  // the ids are a text of their own: as decode()
  };
  explicit StreamDecoder(Tokenizer::Ptr tokenizer, Mode mode = Mode::kMidStream, DecodeOptions options = {});

  // The text that became complete with this token; often empty.
  std::string push(TokenId id);
  // The rest: incomplete bytes become one U+FFFD.
  std::string flush();

 private:
  std::string strip(std::string text);

  Tokenizer::Ptr tokenizer_;
  DecodeOptions options_;
  bool first_;                      // no token yet, and it matters
  std::vector<size_t> front_left_;  // what each strip of the decoder may still take at the front
  bool at_front_;                   // nothing has come out yet
  std::string held_back_;           // characters that a strip takes if the text ends here
  Utf8Assembler assembler_;
};

}  // namespace loralei
