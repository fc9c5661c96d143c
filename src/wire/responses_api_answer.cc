// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "wire/response_parts.h"
#include "wire/responses_api.h"

namespace loralei {
namespace {

// What an answer is made of: reasoning, a message, calls.
struct Item {
  enum class Kind : unsigned char { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text;           // of a call its arguments
  std::string call_id, name;  // kCall
  std::optional<std::vector<WireLogprob>> logprobs;
};
constexpr const char* kItemPrefixes[] = {"rs_", "msg_", "fc_"};
constexpr const char* kPartTypes[] = {"reasoning_text", "output_text"};

// How a response stands.
struct Standing {
  const char* status = "in_progress";
  const ApiError* error = nullptr;
  const Usage* usage = nullptr;
};

const char* status_of(FinishReason finish) { return finish == FinishReason::kLength ? "incomplete" : "completed"; }

void put_before_output(JsonOut& out, const ResponseHead& head, const ResponsesEcho& echo, const Standing& standing) {
  out.begin_object().key("id").string(head.id).key("object").string("response").key("created_at").number(head.created);
  out.key("status").string(standing.status).key("background").boolean(false).key("error");
  if (standing.error == nullptr) {
    out.null();
  } else {
    out.begin_object().key("code").string("server_error").key("message").string(standing.error->message).end_object();
  }
  out.key("incomplete_details");
  if (std::string_view(standing.status) == "incomplete")
    out.begin_object().key("reason").string("max_output_tokens").end_object();
  else
    out.null();
  out.key("instructions").raw(echo.instructions).key("max_output_tokens").raw(echo.max_output_tokens);
  out.key("max_tool_calls").null().key("model").string(head.model).key("output").begin_array();
}

void put_behind_output(JsonOut& out, const ResponseHead& head, const ResponsesEcho& echo, const Standing& standing) {
  out.end_array().key("parallel_tool_calls").boolean(echo.parallel_tool_calls).key("previous_response_id").null();
  out.key("reasoning").raw(echo.reasoning).key("service_tier").string("default").key("store").boolean(false);
  out.key("temperature").raw(echo.temperature).key("text").raw(echo.text).key("tool_choice").raw(echo.tool_choice);
  out.key("tools").raw(echo.tools).key("top_logprobs").number(echo.top_logprobs).key("top_p").raw(echo.top_p);
  out.key("truncation").raw(echo.truncation).key("usage");
  if (standing.usage == nullptr) {
    out.null();
  } else {
    const Usage& usage = *standing.usage;
    out.begin_object().key("input_tokens").number(usage.prompt_tokens).key("input_tokens_details");
    out.begin_object().key("cached_tokens").number(usage.cached_tokens);
    if (usage.borrowed_tokens > 0) out.key("borrowed_tokens").number(usage.borrowed_tokens);
    out.end_object();
    out.key("output_tokens").number(usage.completion_tokens).key("output_tokens_details");
    out.begin_object().key("reasoning_tokens").number(usage.reasoning_tokens).end_object();
    out.key("total_tokens").number(usage.prompt_tokens + usage.completion_tokens).end_object();
  }
  out.key("user").null().key("metadata").raw(echo.metadata);
  out.key("system_fingerprint").string_or_null(head.system_fingerprint).end_object();
}

void begin_part(JsonOut& out, Item::Kind kind, std::string_view text) {
  out.begin_object().key("type").string(kPartTypes[static_cast<int>(kind)]).key("text").string(text);
  if (kind == Item::Kind::kMessage) out.key("annotations").begin_array().end_array().key("logprobs").begin_array();
}
void end_part(JsonOut& out, Item::Kind kind) {
  if (kind == Item::Kind::kMessage) out.end_array();
  out.end_object();
}

// Up to the log-probabilities of a message's text. `has_part`: false in the event
// that an item begins.
void begin_item(JsonOut& out, const Item& item, const char* status, bool has_part) {
  out.begin_object().key("id").string(item.id).key("type");
  switch (item.kind) {
    case Item::Kind::kReasoning:
      out.string("reasoning").key("summary").begin_array().end_array();
      break;
    case Item::Kind::kMessage:
      out.string("message").key("role").string("assistant");
      break;
    case Item::Kind::kCall:
      out.string("function_call").key("call_id").string(item.call_id).key("name").string(item.name);
      out.key("arguments").string(item.text).key("status").string(status);
      return;
  }
  out.key("status").string(status).key("content").begin_array();
  if (has_part) begin_part(out, item.kind, item.text);
}
void end_item(JsonOut& out, const Item& item, bool has_part) {
  if (item.kind != Item::Kind::kCall) {
    if (has_part) end_part(out, item.kind);
    out.end_array();
  }
  out.end_object();
}
void put_item(JsonOut& out, const Item& item, const char* status, bool has_part = true) {
  begin_item(out, item, status, has_part);
  end_item(out, item, has_part);
}

class WholeResponse final : public StepwisePieces {
 public:
  WholeResponse(ResponseHead head, ResponsesEcho echo, std::vector<Item> items, FinishReason finish, Usage usage)
      : head_(std::move(head)), echo_(std::move(echo)), items_(std::move(items)), finish_(finish), usage_(usage) {}

 private:
  bool step(JsonOut& out) override {
    const Standing standing{status_of(finish_), nullptr, &usage_};
    if (!begun_) {
      begun_ = true;
      put_before_output(out, head_, echo_, standing);
    } else if (item_ < items_.size()) {
      item_step(out, items_[item_], item_ + 1 == items_.size() ? status_of(finish_) : "completed");
    } else {
      put_behind_output(out, head_, echo_, standing);
      return false;
    }
    return true;
  }

  void item_step(JsonOut& out, Item& item, const char* status) {
    if (!item_begun_) {
      item_begun_ = true;
      begin_item(out, item, status, true);
    } else if (item.logprobs && token_ < item.logprobs->size()) {
      put_logprob_entry(out, LogprobsForm::kChat, 0, (*item.logprobs)[token_++]);
    } else {
      end_item(out, item, true);
      item = {};
      item_begun_ = false;
      ++item_;
    }
  }

  const ResponseHead head_;
  const ResponsesEcho echo_;
  std::vector<Item> items_;
  const FinishReason finish_;
  const Usage usage_;
  bool begun_ = false, item_begun_ = false;
  size_t item_ = 0, token_ = 0;
};

class ResponsesAnswer final : public AnswerForm {
 public:
  ResponsesAnswer(ResponseHead head, ResponsesEcho echo)
      : base_id_(head.id), head_(std::move(head)), echo_(std::move(echo)) {
    head_.id = "resp_" + base_id_;
  }

  const char* kind() const override { return "response"; }
  bool keeps_text() const override { return true; }

  void begin(std::string& out, const Usage& /*so_far*/) override {
    response_event(out, "response.created", {});
    response_event(out, "response.in_progress", {});
  }

  void piece(std::string& out, int /*choice*/, AnswerPiece piece, const Usage& /*so_far*/) override {
    if (!piece.reasoning.empty()) add_text(out, Item::Kind::kReasoning, piece.reasoning, {});
    const bool has_logprobs = piece.logprobs && !piece.logprobs->empty();
    // Log-probabilities come with the text: those of tokens without any wait for it.
    if (has_logprobs) std::move(piece.logprobs->begin(), piece.logprobs->end(), std::back_inserter(waiting_));
    if (!piece.content.empty()) add_text(out, Item::Kind::kMessage, piece.content, std::exchange(waiting_, {}));
    for (const ToolCallDelta& call : piece.tools) add_call(out, call);
    if (piece.finish == FinishReason::kNone) return;
    finish_ = piece.finish;
    if (items_.empty() || !waiting_.empty()) add_text(out, Item::Kind::kMessage, "", std::exchange(waiting_, {}));
    close_item(out, status_of(finish_));
  }

  void end(std::string& out, const Usage& total) override {
    const bool whole = finish_ != FinishReason::kLength;
    response_event(out, whole ? "response.completed" : "response.incomplete", {status_of(finish_), nullptr, &total});
  }

  void error(std::string& out, const ApiError& error) override {
    JsonOut event = begin_event("error");
    event.key("code").string(error.code.empty() ? error.type : error.code).key("message").string(error.message);
    event.key("param").string_or_null(error.param);
    end_event(out, "error", event);
    response_event(out, "response.failed", {"failed", &error, nullptr});
  }

  std::unique_ptr<ResponsePieces> whole(std::vector<AnswerChoice> choices, const Usage& total) override {
    AnswerChoice& choice = choices.front();
    if (!choice.reasoning_content.empty()) new_item(Item::Kind::kReasoning).text = std::move(choice.reasoning_content);
    if (!choice.content.empty() || choice.tool_calls.empty()) {
      Item& message = new_item(Item::Kind::kMessage);
      message.text = std::move(choice.content);
      message.logprobs = std::move(choice.logprobs);
    }
    for (ToolCall& call : choice.tool_calls) {
      Item& item = new_item(Item::Kind::kCall);
      item.call_id = std::move(call.id);
      item.name = std::move(call.name);
      item.text = std::move(call.arguments);
    }
    return std::make_unique<WholeResponse>(std::move(head_), std::move(echo_), std::move(items_), choice.finish, total);
  }

 private:
  Item& new_item(Item::Kind kind) {
    Item& item = items_.emplace_back();
    item.kind = kind;
    item.id = kItemPrefixes[static_cast<int>(kind)] + base_id_ + "_" + std::to_string(items_.size() - 1);
    return item;
  }

  JsonOut begin_event(const char* type) {
    JsonOut event;
    event.begin_object().key("type").string(type).key("sequence_number").number(sequence_++);
    return event;
  }
  static void end_event(std::string& out, const char* type, JsonOut& event) {
    event.end_object();
    out += "event: " + std::string(type) + "\n" + sse_event(event.text());
  }
  void response_event(std::string& out, const char* type, const Standing& standing) {
    JsonOut event = begin_event(type);
    event.key("response");
    put_before_output(event, head_, echo_, standing);
    for (size_t i = 0; i < items_.size(); ++i)
      put_item(event, items_[i], i + 1 == items_.size() ? standing.status : "completed");
    put_behind_output(event, head_, echo_, standing);
    end_event(out, type, event);
  }
  JsonOut begin_item_event(const char* type) {
    JsonOut event = begin_event(type);
    event.key("output_index").number(static_cast<int64_t>(items_.size()) - 1);
    return event;
  }
  // Of the open item's one part.
  JsonOut begin_part_event(const char* type) {
    JsonOut event = begin_item_event(type);
    event.key("item_id").string(items_.back().id).key("content_index").number(0);
    return event;
  }

  void open_item(std::string& out) {
    const Item& item = items_.back();
    open_ = true;
    JsonOut event = begin_item_event("response.output_item.added");
    event.key("item");
    put_item(event, item, "in_progress", false);
    end_event(out, "response.output_item.added", event);
    if (item.kind != Item::Kind::kCall) part_event(out, "response.content_part.added", "");
  }
  void part_event(std::string& out, const char* type, std::string_view text) {
    const Item::Kind kind = items_.back().kind;
    JsonOut event = begin_part_event(type);
    event.key("part");
    begin_part(event, kind, text);
    end_part(event, kind);
    end_event(out, type, event);
  }

  void add_text(std::string& out, Item::Kind kind, const std::string& text, const std::vector<WireLogprob>& logprobs) {
    if (!open_ || items_.back().kind != kind) {
      close_item(out, "completed");
      new_item(kind);
      open_item(out);
    }
    items_.back().text += text;
    if (text.empty() && logprobs.empty()) return;
    const bool reasons = kind == Item::Kind::kReasoning;
    const char* const type = reasons ? "response.reasoning_text.delta" : "response.output_text.delta";
    JsonOut event = begin_part_event(type);
    event.key("delta").string(text);
    if (!reasons) {
      event.key("logprobs").begin_array();
      for (const WireLogprob& one : logprobs) put_logprob_entry(event, LogprobsForm::kChat, 0, one);
      event.end_array();
    }
    end_event(out, type, event);
  }

  void add_call(std::string& out, const ToolCallDelta& call) {
    if (!call.id.empty()) {
      close_item(out, "completed");
      Item& item = new_item(Item::Kind::kCall);
      item.call_id = call.id;
      item.name = call.name;
      open_item(out);
    }
    Item& item = items_.back();
    item.text += call.arguments;
    if (call.arguments.empty()) return;
    JsonOut event = begin_item_event("response.function_call_arguments.delta");
    event.key("item_id").string(item.id).key("delta").string(call.arguments);
    end_event(out, "response.function_call_arguments.delta", event);
  }

  void close_item(std::string& out, const char* status) {
    if (!std::exchange(open_, false)) return;
    const Item& item = items_.back();
    if (item.kind == Item::Kind::kCall) {
      JsonOut event = begin_item_event("response.function_call_arguments.done");
      event.key("item_id").string(item.id).key("name").string(item.name).key("arguments").string(item.text);
      end_event(out, "response.function_call_arguments.done", event);
    } else {
      const bool reasons = item.kind == Item::Kind::kReasoning;
      const char* const type = reasons ? "response.reasoning_text.done" : "response.output_text.done";
      JsonOut event = begin_part_event(type);
      event.key("text").string(item.text);
      if (!reasons) event.key("logprobs").begin_array().end_array();
      end_event(out, type, event);
      part_event(out, "response.content_part.done", item.text);
    }
    JsonOut event = begin_item_event("response.output_item.done");
    event.key("item");
    put_item(event, item, status);
    end_event(out, "response.output_item.done", event);
  }

  const std::string base_id_;
  ResponseHead head_;
  ResponsesEcho echo_;
  std::vector<Item> items_;
  std::vector<WireLogprob> waiting_;
  bool open_ = false;  // the last item
  int64_t sequence_ = 0;
  FinishReason finish_ = FinishReason::kStop;
};

}  // namespace

std::unique_ptr<AnswerForm> make_responses_answer(ResponseHead head, ResponsesEcho echo) {
  return std::make_unique<ResponsesAnswer>(std::move(head), std::move(echo));
}

}  // namespace loralei
