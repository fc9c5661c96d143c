// SPDX-License-Identifier: Apache-2.0
// KmpPattern: a string that is looked for in text, a byte at a time, in linear time
// (Knuth-Morris-Pratt).
//
// Thread: immutable after construction; how much is matched is the caller's.
// Ownership: owns a copy of the string.
// Invariants: the string is not empty and shorter than 4 GiB.
// Failure: none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace loralei {

class KmpPattern {
 public:
  explicit KmpPattern(std::string text) : text_(std::move(text)), failure_(text_.size(), 0) {
    for (size_t at = 1; at < text_.size(); ++at) failure_[at] = next(failure_[at - 1], text_[at]);
  }
  const std::string& text() const { return text_; }
  // How much of the pattern, from its beginning, the input ends with once `c` follows;
  // `matched` is the same before `c` and 0 at first. The whole size is an occurrence,
  // the next one may overlap it.
  uint32_t next(uint32_t matched, char c) const {
    if (matched == text_.size()) matched = failure_.back();
    while (matched > 0 && text_[matched] != c) matched = failure_[matched - 1];
    return text_[matched] == c ? matched + 1 : matched;
  }

 private:
  std::string text_;
  std::vector<uint32_t> failure_;  // the longest proper prefix that text_[0..i] ends with
};

}  // namespace loralei
