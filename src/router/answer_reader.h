// SPDX-License-Identifier: Apache-2.0
// AnswerReader: the body of an answer as it passes: cut behind whole events, so that what
// breaks off does so between two of them, and read for what it says of itself.
//
// Thread: one. Ownership: holds what is not a whole event yet, at most kEventBytesMost (a
// longer one passes as it comes), and the last bytes of the body.
// Invariants: what take() and rest() hand out is the body, byte for byte and in order.
// Failure: none; a body without counts has none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "router/fleet.h"

namespace loralei {

inline constexpr size_t kEventBytesMost = 1024 * 1024;

class AnswerReader {
 public:
  // events: the body is server-sent events, else anything.
  explicit AnswerReader(bool events) : events_(events) {}

  // What can be passed on, of what was kept and `piece`, until the next call.
  std::string_view take(std::string_view piece);
  std::string_view rest();  // at the end of the body; once
  // Something passed that is more than comments, which say only that somebody is there.
  bool has_content() const { return has_content_; }
  // Of usage where the body has it, else the events that have passed.
  AnswerCounts counts() const;

 private:
  void note(std::string_view passed);

  const bool events_;
  std::string kept_, passed_;
  std::string tail_;
  int64_t data_lines_ = 0;
  bool has_content_ = false;
  bool line_begins_ = true;
};

}  // namespace loralei
