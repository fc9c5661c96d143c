// SPDX-License-Identifier: Apache-2.0
// Every request parser on the same bytes; what they accept keeps its promises, and every
// error body is valid JSON.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "wire/adapter_upload.h"
#include "wire/json_in.h"
#include "wire/json_out.h"
#include "wire/messages_api.h"
#include "wire/replica_report.h"
#include "wire/requests.h"
#include "wire/responses.h"
#include "wire/responses_api.h"
#include "wire/route_facts.h"

namespace {

using namespace loralei;

void check_error(const ApiError& error) {
  CHECK(error.status == 400 && !error.message.empty());
  CHECK(OrderedJson::accept(error_body(error)));
}

void check_fields(const GenerationFields& fields) {
  CHECK(fields.n >= 1 && fields.n <= kMaxChoices);
  CHECK(fields.stop.size() <= static_cast<size_t>(kMaxStopStrings));
  CHECK(fields.model.adapters.size() <= static_cast<size_t>(kMaxAdaptersPerRequest));
  CHECK(!fields.temperature || *fields.temperature >= 0);
  CHECK(is_valid_utf8(fields.model.model) && is_valid_utf8(fields.cache_salt));
  CHECK(fields.output.schema.empty() || OrderedJson::accept(fields.output.schema));
  for (const auto& [id, bias] : fields.logit_bias) CHECK(id >= 0 && id < kMaxVocab && bias >= -100 && bias <= 100);
}

// What an API makes of any text: its stream's events and its whole answer are valid JSON.
void check_answer(AnswerForm& form, AnswerForm& whole, std::string_view text) {
  std::string frames;
  form.begin(frames, {});
  form.begin_choice(frames, 0, {});
  AnswerPiece piece{.reasoning = std::string(text.substr(0, text.size() / 2)), .content = std::string(text)};
  piece.tools.push_back({0, "c", std::string(text), std::string(text)});
  piece.finish = FinishReason::kToolCalls;
  form.piece(frames, 0, piece, {});
  form.end(frames, {});
  for (size_t at = frames.find("data: "); at != std::string::npos; at = frames.find("data: ", at + 1)) {
    const size_t end = frames.find('\n', at);
    CHECK(OrderedJson::accept(frames.substr(at + 6, end - at - 6)));
    at = end;
  }
  AnswerChoice choice;
  choice.reasoning_content = piece.reasoning;
  choice.content = piece.content;
  choice.tool_calls = {{"c", std::string(text), std::string(text)}};
  std::vector<AnswerChoice> choices;
  choices.push_back(std::move(choice));
  CHECK(OrderedJson::accept(whole_response(*whole.whole(std::move(choices), {}))));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 64 * 1024) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (auto r = parse_chat_request(body); r.ok()) {
    check_fields(r->common);
    const RouteFacts facts = read_route_facts(body);
    CHECK(facts.model.model == r->common.model.model && facts.stream == r->common.stream);
    std::vector<AnswerChoice> choices(1);
    for (const WireMessage& message : r->prompt.messages) {
      CHECK(is_valid_utf8(message.content));
      CHECK(message.more.empty() || OrderedJson::accept(message.more));
      choices[0].content += message.content;
      choices[0].tool_calls.insert(choices[0].tool_calls.end(), message.tool_calls.begin(), message.tool_calls.end());
    }
    CHECK(OrderedJson::accept(chat_response({"id", 1, r->common.model.model, ""}, choices, {})));
  } else {
    check_error(r.error());
  }
  if (auto r = parse_completion_request(body); r.ok()) {
    check_fields(r->common);
    CHECK(!r->prompts.empty() && r->prompts.size() <= static_cast<size_t>(kMaxPrompts));
  } else {
    check_error(r.error());
  }
  if (auto r = parse_responses_request(body); !r.ok())
    check_error(r.error());
  else
    check_answer(*make_responses_answer({"1", 0, "m", ""}, r->echo), *make_responses_answer({"1", 0, "m", ""}, r->echo),
                 body);
  if (auto r = parse_messages_request(body); !r.ok()) check_error(r.error());
  check_answer(*make_messages_answer({"1", 0, "m", ""}), *make_messages_answer({"1", 0, "m", ""}), body);
  if (auto r = parse_count_tokens_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_embedding_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_tokenize_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_detokenize_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_load_lora_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_unload_lora_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_lora_scales_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_set_memory_request(body); !r.ok()) check_error(r.error());
  if (auto r = parse_app_state_request(body); !r.ok()) check_error(r.error());

  read_route_facts(body);
  if (const auto report = parse_replica_report(body); report.ok()) {
    const auto again = parse_replica_report(replica_report_body(*report));
    CHECK(again.ok() && *again == *report);
  }
  if (const auto upload = parse_upload_answer(body); upload.ok() && upload->has_value()) {
    auto load = parse_load_lora_request(load_lora_body(**upload));
    CHECK(!load.ok() || (load->name == (*upload)->name && load->path == (*upload)->path));
  }
  if (const auto names = parse_model_list(body); !names.ok()) CHECK(!names.error().message.empty());

  // The writer on raw bytes: always valid JSON, and text that is valid comes
  // back as it was.
  JsonOut out;
  out.string(body);
  const OrderedJson back = OrderedJson::parse(out.text(), nullptr, false);
  CHECK(back.is_string());
  if (is_valid_utf8(body)) CHECK(back.get_ref<const std::string&>() == body);
  return 0;
}
