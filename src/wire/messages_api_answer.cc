// SPDX-License-Identifier: Apache-2.0
#include <ctime>
#include <utility>

#include "wire/json_in.h"
#include "wire/messages_api.h"
#include "wire/response_parts.h"

namespace loralei {
namespace {

// The parser takes a NUL for the end of what it reads.
bool is_json_object(const std::string& text) {
  return !text.empty() && text.front() == '{' && text.find('\0') == std::string::npos && OrderedJson::accept(text);
}

enum class Block : unsigned char { kNone, kThinking, kText, kCall };

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

void put_error(JsonOut& out, const ApiError& error) {
  out.begin_object().key("type").string("error").key("error").begin_object();
  out.key("type").string(error_type(error.status)).key("message").string(error.message).end_object();
}

void put_stop(JsonOut& out, FinishReason finish, const StopReason& stop) {
  const auto* const sequence = std::get_if<std::string>(&stop);
  out.key("stop_reason");
  switch (finish) {
    case FinishReason::kNone:
      out.null();
      break;
    case FinishReason::kLength:
      out.string("max_tokens");
      break;
    case FinishReason::kToolCalls:
      out.string("tool_use");
      break;
    default:
      out.string(sequence != nullptr ? "stop_sequence" : "end_turn");
  }
  out.key("stop_sequence");
  if (sequence != nullptr)
    out.string(*sequence);
  else
    out.null();
}

void put_anthropic_usage(JsonOut& out, const Usage& usage) {
  out.key("usage").begin_object().key("input_tokens").number(usage.prompt_tokens - usage.cached_tokens);
  out.key("cache_creation_input_tokens").number(0).key("cache_read_input_tokens").number(usage.cached_tokens);
  out.key("output_tokens").number(usage.completion_tokens).end_object();
}

void put_message_head(JsonOut& out, const ResponseHead& head) {
  out.begin_object().key("id").string(head.id).key("type").string("message").key("role").string("assistant");
  out.key("model").string(head.model).key("content").begin_array();
}

class WholeMessage final : public StepwisePieces {
 public:
  WholeMessage(ResponseHead head, AnswerChoice choice, Usage usage)
      : head_(std::move(head)), choice_(std::move(choice)), usage_(usage) {}

 private:
  bool step(JsonOut& out) override {
    put_message_head(out, head_);
    if (!choice_.reasoning_content.empty()) {
      out.begin_object().key("type").string("thinking").key("thinking").string(choice_.reasoning_content);
      out.key("signature").string("").end_object();
    }
    if (!choice_.content.empty())
      out.begin_object().key("type").string("text").key("text").string(choice_.content).end_object();
    for (const ToolCall& call : choice_.tool_calls) {
      const bool whole = is_json_object(call.arguments);
      out.begin_object().key("type").string("tool_use").key("id").string(call.id).key("name").string(call.name);
      out.key("input").raw(whole ? call.arguments : "{}").end_object();
    }
    out.end_array();
    put_stop(out, choice_.finish, choice_.stop_reason);
    put_anthropic_usage(out, usage_);
    out.end_object();
    return false;
  }

  const ResponseHead head_;
  const AnswerChoice choice_;
  const Usage usage_;
};

class MessagesAnswer final : public AnswerForm {
 public:
  explicit MessagesAnswer(ResponseHead head) : head_(std::move(head)) { head_.id = "msg_" + head_.id; }

  const char* kind() const override { return "message"; }
  std::string_view ping() const override { return "event: ping\ndata: {\"type\": \"ping\"}\n\n"; }

  // Behind the prompt's way through the prefix cache, so that its usage is known.
  void begin_choice(std::string& out, int /*choice*/, const Usage& so_far) override {
    JsonOut event = begin_event("message_start");
    event.key("message");
    put_message_head(event, head_);
    event.end_array();
    put_stop(event, FinishReason::kNone, {});
    Usage usage = so_far;
    usage.completion_tokens = 0;
    put_anthropic_usage(event, usage);
    event.end_object();
    end_event(out, "message_start", event);
  }

  void piece(std::string& out, int /*choice*/, AnswerPiece piece, const Usage& /*so_far*/) override {
    if (!piece.reasoning.empty()) add(out, Block::kThinking, "thinking_delta", "thinking", piece.reasoning);
    if (!piece.content.empty()) add(out, Block::kText, "text_delta", "text", piece.content);
    for (const ToolCallDelta& call : piece.tools) {
      if (!call.id.empty()) open(out, Block::kCall, &call);
      if (!call.arguments.empty()) delta(out, "input_json_delta", "partial_json", call.arguments);
    }
    if (piece.finish == FinishReason::kNone) return;
    close(out);
    finish_ = piece.finish;
    stop_ = std::move(piece.stop_reason);
  }

  void end(std::string& out, const Usage& total) override {
    JsonOut event = begin_event("message_delta");
    event.key("delta").begin_object();
    put_stop(event, finish_, stop_);
    event.end_object();
    put_anthropic_usage(event, total);
    end_event(out, "message_delta", event);
    JsonOut last = begin_event("message_stop");
    end_event(out, "message_stop", last);
  }

  void error(std::string& out, const ApiError& error) override {
    JsonOut event;
    put_error(event, error);
    end_event(out, "error", event);
  }

  std::unique_ptr<ResponsePieces> whole(std::vector<AnswerChoice> choices, const Usage& total) override {
    return std::make_unique<WholeMessage>(std::move(head_), std::move(choices.front()), total);
  }

 private:
  static JsonOut begin_event(const char* type) {
    JsonOut event;
    event.begin_object().key("type").string(type);
    return event;
  }
  static void end_event(std::string& out, const char* type, JsonOut& event) {
    event.end_object();
    out += "event: " + std::string(type) + "\n" + sse_event(event.text());
  }

  void open(std::string& out, Block block, const ToolCallDelta* call) {
    close(out);
    open_ = block;
    JsonOut event = begin_event("content_block_start");
    event.key("index").number(index_).key("content_block").begin_object().key("type");
    switch (block) {
      case Block::kThinking:
        event.string("thinking").key("thinking").string("").key("signature").string("");
        break;
      case Block::kCall:
        event.string("tool_use").key("id").string(call->id).key("name").string(call->name);
        event.key("input").begin_object().end_object();
        break;
      default:
        event.string("text").key("text").string("");
    }
    event.end_object();
    end_event(out, "content_block_start", event);
  }
  void delta(std::string& out, const char* type, const char* key, const std::string& text) const {
    JsonOut event = begin_event("content_block_delta");
    event.key("index").number(index_).key("delta").begin_object().key("type").string(type).key(key).string(text);
    event.end_object();
    end_event(out, "content_block_delta", event);
  }
  void add(std::string& out, Block block, const char* type, const char* key, const std::string& text) {
    if (open_ != block) open(out, block, nullptr);
    delta(out, type, key, text);
  }
  void close(std::string& out) {
    if (open_ == Block::kNone) return;
    if (open_ == Block::kThinking) delta(out, "signature_delta", "signature", "");
    JsonOut event = begin_event("content_block_stop");
    event.key("index").number(index_++);
    end_event(out, "content_block_stop", event);
    open_ = Block::kNone;
  }

  ResponseHead head_;
  Block open_ = Block::kNone;
  int64_t index_ = 0;
  FinishReason finish_ = FinishReason::kStop;
  StopReason stop_;
};

void put_model(JsonOut& out, const AnthropicModel& model) {
  const std::time_t created = model.created;
  std::tm utc{};
  gmtime_r(&created, &utc);
  char text[32];
  (void)std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  out.begin_object().key("type").string("model").key("id").string(model.id).key("display_name").string(model.id);
  out.key("created_at").string(text).end_object();
}

}  // namespace

std::unique_ptr<AnswerForm> make_messages_answer(ResponseHead head) {
  return std::make_unique<MessagesAnswer>(std::move(head));
}

std::string count_tokens_response(int64_t input_tokens) {
  JsonOut out;
  out.begin_object().key("input_tokens").number(input_tokens).end_object();
  return out.take();
}

std::string anthropic_error_body(const ApiError& error, std::string_view request_id) {
  JsonOut out;
  put_error(out, error);
  out.key("request_id").string(request_id).end_object();
  return out.take();
}

std::string anthropic_model(const AnthropicModel& model) {
  JsonOut out;
  put_model(out, model);
  return out.take();
}

std::string anthropic_model_list(const std::vector<AnthropicModel>& models) {
  JsonOut out;
  out.begin_object().key("data").begin_array();
  for (const AnthropicModel& model : models) put_model(out, model);
  out.end_array().key("has_more").boolean(false);
  out.key("first_id").string_or_null(models.empty() ? "" : models.front().id);
  out.key("last_id").string_or_null(models.empty() ? "" : models.back().id).end_object();
  return out.take();
}

}  // namespace loralei
