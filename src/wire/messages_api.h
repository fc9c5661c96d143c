// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: its requests as chats, its answers and its errors.
//
// Thread: the parsers are pure functions; an answer is one request's.
// Ownership: values.
// Invariants: nothing that would change the answer is left out silently; input_tokens
// leave out what the prefix cache had, as there; a call's input is a JSON object, {}
// where the answer was cut off inside it.
// Failure: an ApiError with a sentence; what the chat API refuses is told with that
// API's names of fields.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "wire/answer_form.h"
#include "wire/requests.h"

namespace loralei {

Parsed<ChatRequest> parse_messages_request(std::string_view body);
Parsed<ChatRequest> parse_count_tokens_request(std::string_view body);  // the same without max_tokens

std::unique_ptr<AnswerForm> make_messages_answer(ResponseHead head);
std::string count_tokens_response(int64_t input_tokens);
std::string anthropic_error_body(const ApiError& error, std::string_view request_id);

struct AnthropicModel {
  std::string id;
  int64_t created = 0;  // unix seconds
};
std::string anthropic_model(const AnthropicModel& model);
std::string anthropic_model_list(const std::vector<AnthropicModel>& models);  // all of them

}  // namespace loralei
