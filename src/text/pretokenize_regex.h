// SPDX-License-Identifier: Apache-2.0
// Regex: a pattern of a tokenizer file, compiled once with PCRE2 (JIT, UTF, Unicode
// properties) and shared by all threads.
//
// Thread: immutable; find_all() takes its own match data, so any number of threads
// may call it at once.
// Ownership: copies share the compiled code.
// Invariants: subjects are valid UTF-8; matches are ordered, do not overlap, and an empty
// match never touches the end of the one before (as Oniguruma's find_iter).
// Failure: compile() refuses what PCRE2 cannot say or would read otherwise than
// Oniguruma, the engine these patterns were written for; find_all() fails when the match,
// depth or heap limit is hit, never hangs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/work.h"

namespace loralei {

struct TextRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

class Regex {
 public:
  static Result<Regex> compile(std::string_view pattern);
  // Appends the matches of the whole subject to `matches`.
  Status find_all(std::string_view subject, std::vector<TextRange>& matches, Work& work) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// A pattern in Oniguruma's (Ruby's) dialect rewritten for PCRE2: \s \w \h and script
// names mean what they mean there; nested classes, && and the m flag are refused.
Result<std::string> pcre_from_oniguruma(std::string_view pattern);

}  // namespace loralei
