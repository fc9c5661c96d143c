// SPDX-License-Identifier: Apache-2.0
// Grapheme clusters: what a reader takes for one character.
//
// Thread: a reader belongs to one thread. Ownership: borrows the text. Invariants: the
// clusters one after the other are the text, none of them empty. Failure: none; a broken
// byte sequence counts as one U+FFFD (utf8_step). Source: Unicode Standard Annex #29,
// revision 41, extended grapheme clusters, as Rust's unicode-segmentation cuts them for
// Hugging Face tokenizers. Written here and not left to ICU's BreakIterator: that one is
// an object per thread, and its rules are those of the installed data, for which a
// cluster may be a whole syllable.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/utf8.h"

namespace loralei {

class GraphemeReader {
 public:
  explicit GraphemeReader(std::string_view text) : text_(text) { look(); }
  bool done() const { return pos_ == text_.size(); }
  // Not when done.
  std::string_view next();

 private:
  void look();  // at the character at pos_

  std::string_view text_;
  size_t pos_ = 0;
  Utf8Step step_;
  int class_ = 0;  // Grapheme_Cluster_Break of step_'s character, as ICU numbers it
};

}  // namespace loralei
