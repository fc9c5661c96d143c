// SPDX-License-Identifier: Apache-2.0
// AnswerForm: how one API writes the answer to a generation, as the frames of a
// stream or as a whole.
//
// Thread: one at a time.
// Ownership: owns what it needs of its request; log-probabilities borrow their
// tokens' bytes.
// Invariants: of a stream come begin(), for each choice begin_choice() and its pieces,
// the last of which alone has a finish reason, then end() or error(); of a whole answer
// whole() alone. What is appended are complete frames.
// Failure: none.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/errors.h"
#include "wire/responses.h"

namespace loralei {

// What comes next of a choice.
struct AnswerPiece {
  std::string reasoning;  // before all content
  std::string content;
  std::vector<ToolCallDelta> tools;
  std::optional<std::vector<WireLogprob>> logprobs;  // where the request asks for them
  FinishReason finish = FinishReason::kNone;
  StopReason stop_reason{};  // beside the finish reason
};

class AnswerForm {
 public:
  virtual ~AnswerForm() = default;
  virtual const char* kind() const = 0;  // of the request, for the log: "chat"

  // Frames are appended to `out`, maybe none. `so_far`: of all choices.
  virtual void begin(std::string& /*out*/, const Usage& /*so_far*/) {}
  virtual void begin_choice(std::string& /*out*/, int /*choice*/, const Usage& /*so_far*/) {}
  virtual void piece(std::string& out, int choice, AnswerPiece piece, const Usage& so_far) = 0;
  virtual void end(std::string& out, const Usage& total) = 0;
  virtual void error(std::string& out, const ApiError& error) = 0;
  virtual std::string_view ping() const { return kSsePing; }
  // A stream holds what it has said, and says it again at its end, up to four times.
  virtual bool keeps_text() const { return false; }

  virtual std::unique_ptr<ResponsePieces> whole(std::vector<AnswerChoice> choices, const Usage& total) = 0;
};

// OpenAI's /v1/chat/completions and /v1/completions. The head's id comes
// without a prefix.
struct StreamUsage {
  bool at_end = false;      // stream_options.include_usage
  bool continuous = false;  // vLLM's continuous_usage_stats
};
std::unique_ptr<AnswerForm> make_chat_answer(ResponseHead head, StreamUsage usage);
std::unique_ptr<AnswerForm> make_completion_answer(ResponseHead head, StreamUsage usage);

}  // namespace loralei
