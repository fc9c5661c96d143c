// SPDX-License-Identifier: Apache-2.0
// ToolCallStream: the calls in one choice's text as they are answered, whole
// and in pieces.
//
// Thread: one at a time.
// Ownership: owns what it has read of the calls.
// Invariants: of one push there is at most one delta of a call; a call's first has
// its id, its name and what there is of its arguments; those of all deltas joined are
// the call's arguments.
// Failure: none; what is no call is content.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/tool_calls.h"
#include "wire/responses.h"

namespace loralei {

class ToolCallStream {
 public:
  // `unique`: a text that no other choice of any answer has; the calls' ids
  // are made of it.
  ToolCallStream(ToolCallForm form, std::string unique) : form_(form), unique_(std::move(unique)), parser_(form) {}

  struct Piece {
    std::string content;
    std::vector<ToolCallDelta> deltas;  // by their calls' order
  };
  // `last`: the text ends with this piece.
  Piece push(std::string_view text, bool last);

  // After the last piece: whether a finish_reason "stop" is "tool_calls". Where the
  // text ended inside a call, a stop string's fault, its arguments are no JSON, and the
  // reason is what it is.
  bool ends_with_calls() const { return parser_.ends_with_calls(); }
  std::vector<ToolCall> take_calls() { return std::move(calls_); }

 private:
  void add(ToolCallEvent event, Piece& piece);
  static ToolCallDelta& delta_of(int index, Piece& piece);

  ToolCallForm form_;
  std::string unique_;
  ToolCallParser parser_;
  std::vector<ToolCall> calls_;
};

}  // namespace loralei
