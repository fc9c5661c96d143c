// SPDX-License-Identifier: Apache-2.0
// CharsMap: SentencePiece's precompiled_charsmap: a double-array trie (Darts-clone units)
// from byte strings to replacements.
//
// Thread: immutable after parse().
// Ownership: owns a copy of the blob's contents.
// Invariants: every look-up stays inside the array whatever the units say; replacements
// are valid UTF-8 without NUL.
// Failure: parse() refuses a blob whose sizes do not add up or whose replacements are
// not UTF-8. Layout: uint32 little-endian size of the trie, the trie's uint32 units,
// then NUL-terminated replacements; a trie value is the offset of a replacement.
// Source: sentencepiece/src/normalizer.cc, darts_clone (BSD).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

class CharsMap {
 public:
  static Result<CharsMap> parse(std::string_view blob);
  bool empty() const { return units_.empty(); }

  struct Match {
    size_t length = 0;  // bytes of the text that are replaced
    std::string_view replacement;
  };
  std::optional<Match> longest(std::string_view text) const;
  std::optional<Match> shortest(std::string_view text) const;

 private:
  template <typename Visit>
  void walk(std::string_view text, Visit&& visit) const;
  std::optional<Match> match_at(size_t length, uint32_t value) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace loralei
