// SPDX-License-Identifier: Apache-2.0
#include "serve/tool_call_stream.h"

namespace loralei {

ToolCallStream::Piece ToolCallStream::push(std::string_view text, bool last) {
  Piece piece;
  for (ToolCallEvent& event : parser_.push(text)) add(std::move(event), piece);
  if (!last) return piece;
  for (ToolCallEvent& event : parser_.finish()) add(std::move(event), piece);
  return piece;
}

void ToolCallStream::add(ToolCallEvent event, Piece& piece) {
  switch (event.kind) {
    case ToolCallEvent::Kind::kContent:
      piece.content += event.text;
      break;
    case ToolCallEvent::Kind::kCallBegin: {
      const std::string id = tool_call_id(form_, unique_ + "_" + std::to_string(event.index));
      calls_.push_back({id, event.text, ""});
      ToolCallDelta& delta = delta_of(event.index, piece);
      delta.id = id;
      delta.name = std::move(event.text);
      break;
    }
    case ToolCallEvent::Kind::kArguments:
      calls_.back().arguments += event.text;
      delta_of(event.index, piece).arguments += event.text;
      break;
    case ToolCallEvent::Kind::kCallEnd:
      break;
  }
}

// Events of one call follow each other.
ToolCallDelta& ToolCallStream::delta_of(int index, Piece& piece) {
  if (piece.deltas.empty() || piece.deltas.back().index != index) piece.deltas.push_back({index, "", "", ""});
  return piece.deltas.back();
}

}  // namespace loralei
