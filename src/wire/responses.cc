// SPDX-License-Identifier: Apache-2.0
#include "wire/responses.h"

#include <cmath>
#include <cstring>

#include "wire/json_out.h"

namespace loralei {
namespace {

// What JSON cannot say: a probability of zero. The value is the one that vLLM sends.
constexpr double kMinusInfinity = -9999.0;

void put_logprob(JsonOut& out, float logprob) {
  if (std::isfinite(logprob))
    out.real(logprob);
  else
    out.real(kMinusInfinity);
}

void put_usage(JsonOut& out, const Usage& usage) {
  out.begin_object();
  out.key("prompt_tokens").number(usage.prompt_tokens);
  out.key("completion_tokens").number(usage.completion_tokens);
  out.key("total_tokens").number(usage.prompt_tokens + usage.completion_tokens);
  out.key("prompt_tokens_details").begin_object().key("cached_tokens").number(usage.cached_tokens).end_object();
  out.end_object();
}

void put_chunk_usage(JsonOut& out, const ChunkUsage& usage) {
  if (!usage.present) return;
  out.key("usage");
  if (usage.usage)
    put_usage(out, *usage.usage);
  else
    out.null();
}

void put_head(JsonOut& out, const ResponseHead& head, const char* object) {
  out.begin_object();
  out.key("id").string(head.id).key("object").string(object).key("created").number(head.created);
  out.key("model").string(head.model);
  out.key("system_fingerprint").string_or_null(head.system_fingerprint);
}

// The key beside the finish reason is vLLM's.
void put_finish(JsonOut& out, FinishReason reason, const StopReason& stop) {
  const char* name = finish_reason_name(reason);
  out.key("finish_reason");
  if (!name) {
    out.null();
    return;
  }
  out.string(name).key("stop_reason");
  if (const auto* text = std::get_if<std::string>(&stop)) {
    out.string(*text);
  } else if (const auto* id = std::get_if<TokenId>(&stop)) {
    out.number(*id);
  } else {
    out.null();
  }
}

void put_bytes(JsonOut& out, std::string_view bytes) {
  out.begin_array();
  for (const char c : bytes) out.number(static_cast<int>(static_cast<unsigned char>(c)));
  out.end_array();
}

void put_alternative(JsonOut& out, const WireAlternative& token) {
  out.key("token").string(token.bytes).key("logprob");
  put_logprob(out, token.logprob);
  out.key("bytes");
  put_bytes(out, token.bytes);
}

void put_chat_logprobs(JsonOut& out, const std::optional<std::vector<WireLogprob>>& logprobs) {
  out.key("logprobs");
  if (!logprobs) {
    out.null();
    return;
  }
  out.begin_object().key("content").begin_array();
  for (const WireLogprob& token : *logprobs) {
    out.begin_object();
    put_alternative(out, token.chosen);
    out.key("top_logprobs").begin_array();
    for (const WireAlternative& other : token.top) {
      out.begin_object();
      put_alternative(out, other);
      out.end_object();
    }
    out.end_array().end_object();
  }
  out.end_array().key("refusal").null().end_object();
}

// A token as completions' logprobs name it: as text, or "bytes:\xe2\x82" when its bytes are not UTF-8, as OpenAI does,
// so that different tokens stay different keys.
std::string token_key(std::string_view bytes) {
  if (is_valid_utf8(bytes)) return std::string(bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[b >> 4];
    out += kHex[b & 15];
  }
  return out;
}

void put_completion_logprobs(JsonOut& out, const CompletionChoice& choice) {
  out.key("logprobs");
  if (!choice.logprobs) {
    out.null();
    return;
  }
  out.begin_object().key("text_offset").begin_array();
  for (const WireLogprob& token : *choice.logprobs) out.number(token.text_offset);
  out.end_array().key("token_logprobs").begin_array();
  for (const WireLogprob& token : *choice.logprobs) {
    if (token.has_logprob)
      put_logprob(out, token.chosen.logprob);
    else
      out.null();
  }
  out.end_array().key("tokens").begin_array();
  for (const WireLogprob& token : *choice.logprobs) out.string(token_key(token.chosen.bytes));
  out.end_array().key("top_logprobs").begin_array();
  for (const WireLogprob& token : *choice.logprobs) {
    if (!token.has_logprob) {
      out.null();
      continue;
    }
    out.begin_object();
    bool has_chosen = false;
    for (const WireAlternative& other : token.top) {
      out.key(token_key(other.bytes));
      put_logprob(out, other.logprob);
      has_chosen |= other.bytes == token.chosen.bytes;
    }
    if (!has_chosen) {  // beside the most likely ones it stands always
      out.key(token_key(token.chosen.bytes));
      put_logprob(out, token.chosen.logprob);
    }
    out.end_object();
  }
  out.end_array().end_object();
}

void put_completion_choice(JsonOut& out, const CompletionChoice& choice) {
  out.begin_object().key("index").number(choice.index).key("text").string(choice.text);
  put_completion_logprobs(out, choice);
  put_finish(out, choice.finish, choice.stop_reason);
  out.end_object();
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

std::string chat_response(const ResponseHead& head, const std::vector<ChatChoice>& choices, const Usage& usage) {
  JsonOut out;
  put_head(out, head, "chat.completion");
  out.key("choices").begin_array();
  for (const ChatChoice& choice : choices) {
    out.begin_object().key("index").number(choice.index).key("message").begin_object();
    out.key("role").string("assistant").key("content");
    if (choice.content.empty() && !choice.tool_calls.empty())
      out.null();
    else
      out.string(choice.content);
    out.key("refusal").null();
    if (!choice.reasoning_content.empty()) out.key("reasoning_content").string(choice.reasoning_content);
    if (!choice.tool_calls.empty()) {
      out.key("tool_calls").begin_array();
      for (const ToolCall& call : choice.tool_calls) {
        out.begin_object().key("id").string(call.id).key("type").string("function").key("function").begin_object();
        out.key("name").string(call.name).key("arguments").string(call.arguments).end_object().end_object();
      }
      out.end_array();
    }
    out.end_object();
    put_chat_logprobs(out, choice.logprobs);
    put_finish(out, choice.finish, choice.stop_reason);
    out.end_object();
  }
  out.end_array().key("usage");
  put_usage(out, usage);
  out.end_object();
  return out.take();
}

std::string chat_chunk(const ResponseHead& head, const ChatDelta& delta, const ChunkUsage& usage) {
  JsonOut out;
  put_head(out, head, "chat.completion.chunk");
  out.key("choices").begin_array().begin_object().key("index").number(delta.index).key("delta").begin_object();
  if (delta.role) out.key("role").string("assistant");
  if (delta.role || !delta.content.empty()) out.key("content").string(delta.content);
  if (!delta.tool_calls.empty()) {
    out.key("tool_calls").begin_array();
    for (const ToolCallDelta& call : delta.tool_calls) {
      out.begin_object().key("index").number(call.index);
      if (!call.id.empty()) out.key("id").string(call.id).key("type").string("function");
      out.key("function").begin_object();
      if (!call.name.empty()) out.key("name").string(call.name);
      out.key("arguments").string(call.arguments).end_object().end_object();
    }
    out.end_array();
  }
  out.end_object();
  put_chat_logprobs(out, delta.logprobs);
  put_finish(out, delta.finish, delta.stop_reason);
  out.end_object().end_array();
  put_chunk_usage(out, usage);
  out.end_object();
  return out.take();
}

std::string chat_usage_chunk(const ResponseHead& head, const Usage& usage) {
  return usage_chunk(head, "chat.completion.chunk", usage);
}

std::string completion_response(const ResponseHead& head, const std::vector<CompletionChoice>& choices,
                                const Usage& usage) {
  JsonOut out;
  put_head(out, head, "text_completion");
  out.key("choices").begin_array();
  for (const CompletionChoice& choice : choices) put_completion_choice(out, choice);
  out.end_array().key("usage");
  put_usage(out, usage);
  out.end_object();
  return out.take();
}

std::string completion_chunk(const ResponseHead& head, const CompletionChoice& choice, const ChunkUsage& usage) {
  JsonOut out;
  put_head(out, head, "text_completion");
  out.key("choices").begin_array();
  put_completion_choice(out, choice);
  out.end_array();
  put_chunk_usage(out, usage);
  out.end_object();
  return out.take();
}

std::string completion_usage_chunk(const ResponseHead& head, const Usage& usage) {
  return usage_chunk(head, "text_completion", usage);
}

std::string embedding_response(const ResponseHead& head, const std::vector<std::vector<float>>& embeddings, bool base64,
                               int64_t prompt_tokens) {
  JsonOut out;
  out.begin_object().key("object").string("list").key("id").string(head.id).key("created").number(head.created);
  out.key("data").begin_array();
  for (size_t i = 0; i < embeddings.size(); ++i) {
    out.begin_object().key("object").string("embedding").key("index").number(static_cast<int64_t>(i)).key("embedding");
    const std::vector<float>& values = embeddings[i];
    if (base64) {
      // Little-endian f32, the byte order of every machine this builds for.
      std::string bytes(values.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), values.data(), bytes.size());
      out.string(base64_encode(bytes));
    } else {
      out.begin_array();
      for (const float value : values) out.real(value);
      out.end_array();
    }
    out.end_object();
  }
  out.end_array().key("model").string(head.model).key("usage").begin_object();
  out.key("prompt_tokens").number(prompt_tokens).key("total_tokens").number(prompt_tokens).end_object().end_object();
  return out.take();
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
