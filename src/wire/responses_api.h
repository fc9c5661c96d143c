// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API, without what a server that stores nothing cannot do: its
// requests as chats, and its answers.
//
// Thread: the parser is a pure function; an answer is one request's.
// Ownership: values.
// Invariants: nothing that would change the answer is left out silently; a stream's
// events are numbered, and the last holds the whole response, so that a stream keeps all
// of its text (AnswerForm::keeps_text()); log-probabilities of a stream come with its
// deltas alone. What a response repeats of its request (instructions, tools, ...) is at
// most kMaxRepeatedBytes: beyond that instructions are null and tools none.
// Failure: an ApiError with a sentence; what the chat API refuses is told with
// that API's names of fields.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "wire/answer_form.h"
#include "wire/requests.h"

namespace loralei {

inline constexpr size_t kMaxRepeatedBytes = 64 * 1024;

// What a response repeats of its request, as JSON texts.
struct ResponsesEcho {
  std::string instructions = "null", tools = "[]", tool_choice = "\"auto\"", text = R"({"format":{"type":"text"}})",
              metadata = "{}", reasoning = R"({"effort":null,"summary":null})", temperature = "null", top_p = "null",
              max_output_tokens = "null", truncation = "\"disabled\"";
  bool parallel_tool_calls = true;
  int top_logprobs = 0;
};

struct ResponsesRequest {
  ChatRequest chat;
  ResponsesEcho echo;
};
Parsed<ResponsesRequest> parse_responses_request(std::string_view body);

std::unique_ptr<AnswerForm> make_responses_answer(ResponseHead head, ResponsesEcho echo);

}  // namespace loralei
