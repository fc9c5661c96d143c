// SPDX-License-Identifier: Apache-2.0
#include "wire/responses.h"

#include "wire/response_parts.h"

namespace loralei {
namespace {

void put_chunk_usage(JsonOut& out, const ChunkUsage& usage) {
  if (!usage.present) return;
  out.key("usage");
  if (usage.usage)
    put_usage(out, *usage.usage);
  else
    out.null();
}

std::string usage_chunk(const ResponseHead& head, const char* object, const Usage& usage) {
  JsonOut out;
  put_head(out, head, object);
  out.key("choices").begin_array().end_array().key("usage");
  put_usage(out, usage);
  out.end_object();
  return out.take();
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kAbort:
      return "abort";
  }
  return nullptr;
}

std::string chat_chunk(const ResponseHead& head, const ChatDelta& delta, const ChunkUsage& usage) {
  JsonOut out;
  put_head(out, head, "chat.completion.chunk");
  out.key("choices").begin_array().begin_object().key("index").number(delta.index).key("delta").begin_object();
  if (delta.role) out.key("role").string("assistant");
  if (!delta.reasoning_content.empty()) out.key("reasoning_content").string(delta.reasoning_content);
  if (delta.role || !delta.content.empty()) out.key("content").string(delta.content);
  if (const auto& call = delta.tool_call) {
    out.key("tool_calls").begin_array().begin_object().key("index").number(call->index);
    if (!call->id.empty()) out.key("id").string(call->id).key("type").string("function");
    out.key("function").begin_object();
    if (!call->name.empty()) out.key("name").string(call->name);
    out.key("arguments").string(call->arguments).end_object().end_object().end_array();
  }
  out.end_object();
  put_logprobs(out, LogprobsForm::kChat, delta.logprobs);
  put_finish(out, delta.finish, delta.stop_reason);
  out.end_object().end_array();
  put_chunk_usage(out, usage);
  out.end_object();
  return out.take();
}

std::string chat_usage_chunk(const ResponseHead& head, const Usage& usage) {
  return usage_chunk(head, "chat.completion.chunk", usage);
}

std::string completion_chunk(const ResponseHead& head, const CompletionChoice& choice, const ChunkUsage& usage) {
  JsonOut out;
  put_head(out, head, "text_completion");
  out.key("choices").begin_array();
  out.begin_object().key("index").number(choice.index).key("text").string(choice.text);
  put_logprobs(out, LogprobsForm::kCompletion, choice.logprobs);
  put_finish(out, choice.finish, choice.stop_reason);
  out.end_object();
  out.end_array();
  put_chunk_usage(out, usage);
  out.end_object();
  return out.take();
}

std::string completion_usage_chunk(const ResponseHead& head, const Usage& usage) {
  return usage_chunk(head, "text_completion", usage);
}

std::string tokenize_response(const std::vector<TokenId>& tokens, int64_t max_model_len,
                              const std::vector<std::string>* token_strs) {
  JsonOut out;
  out.begin_object()
      .key("count")
      .number(static_cast<int64_t>(tokens.size()))
      .key("max_model_len")
      .number(max_model_len);
  out.key("tokens").begin_array();
  for (const TokenId id : tokens) out.number(static_cast<int64_t>(id));
  out.end_array().key("token_strs");
  if (token_strs) {
    out.begin_array();
    for (const std::string& text : *token_strs) out.string(text);
    out.end_array();
  } else {
    out.null();
  }
  out.end_object();
  return out.take();
}

std::string detokenize_response(std::string_view text) {
  JsonOut out;
  out.begin_object().key("prompt").string(text).key("content").string(text).end_object();
  return out.take();
}

std::string sse_event(std::string_view json) {
  std::string out;
  out.reserve(json.size() + 8);
  out += "data: ";
  out += json;
  out += "\n\n";
  return out;
}

}  // namespace loralei
