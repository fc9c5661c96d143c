// SPDX-License-Identifier: Apache-2.0
// PyRegex: the part of Python's `re` that adapter configs use, with a bound on the work,
// because patterns come from untrusted files.
//
// Immutable after compile; any thread. Supported: literals, ".", classes, \d \w \s \D
// \W \S \b \B \A \Z and escaped punctuation, ^ $, groups ( (?: (?P<name>, look-ahead
// (?= (?!, "|", and * + ? {m,n} with their lazy forms. Anything else (back references,
// look-behind, flags, possessive quantifiers) is refused when compiling. Text and pattern
// are bytes: classes and "." match one byte. A match that exceeds the budget answers
// kTooHard, never a wrong yes or no.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loralei {

// Steps that all matches of one config may take together.
struct RegexBudget {
  int64_t steps = 200'000'000;
};

class PyRegex {
 public:
  enum class Answer : unsigned char { kNo, kYes, kTooHard };

  // Failure: invalid_argument with the place in the pattern, or unsupported
  // with the construct.
  static Result<PyRegex> compile(std::string_view pattern);

  Answer full_match(std::string_view text, RegexBudget& budget) const;  // re.fullmatch
  Answer match(std::string_view text, RegexBudget& budget) const;       // re.match: at the start
  // re.match, and what the group named `name` held (empty when it took no part).
  Answer match_group(std::string_view text, std::string_view name, std::string& group, RegexBudget& budget) const;

 private:
  friend class RegexParser;
  friend class RegexRun;
  enum class Kind : unsigned char {
    kEmpty,
    kSet,
    kBegin,
    kEnd,
    kEndAbsolute,
    kWordBoundary,
    kNotWordBoundary,
    kSequence,
    kChoice,
    kRepeat,
    kGroup,
    kLookAhead
  };
  struct Node {
    Kind kind = Kind::kEmpty;
    std::bitset<256> set;
    std::vector<int> children;
    int min = 0, max = 0;  // kRepeat; max < 0: no upper bound
    bool lazy = false;     // kRepeat
    bool negated = false;  // kLookAhead
    int capture = -1;      // kGroup
  };
  std::vector<Node> nodes_;
  std::vector<std::string> captures_;  // names; empty for unnamed groups
  int root_ = 0;
};

}  // namespace loralei
