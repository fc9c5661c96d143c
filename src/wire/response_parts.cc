// SPDX-License-Identifier: Apache-2.0
#include "wire/response_parts.h"

#include <cmath>

namespace loralei {
namespace {

// What JSON cannot say: a probability of zero. The value is the one that vLLM sends.
constexpr double kMinusInfinity = -9999.0;
constexpr const char* kCompletionArrays[] = {"text_offset", "token_logprobs", "tokens", "top_logprobs"};

void put_logprob(JsonOut& out, float logprob) {
  if (std::isfinite(logprob))
    out.real(logprob);
  else
    out.real(kMinusInfinity);
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

// A token as completions' logprobs name it: as text, or "bytes:\xe2\x82" when its bytes
// are not UTF-8, as OpenAI does, so that different tokens stay different keys.
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

// Alternatives as an object, where the chosen token stands always.
void put_top_logprobs(JsonOut& out, const WireLogprob& token) {
  if (!token.has_logprob) {
    out.null();
    return;
  }
  out.begin_object();
  bool has_chosen = false;
  for (const WireAlternative& other : token.top) {
    out.key(token_key(other.bytes));
    put_logprob(out, other.logprob);
    has_chosen |= other.bytes == token.chosen.bytes;
  }
  if (!has_chosen) {
    out.key(token_key(token.chosen.bytes));
    put_logprob(out, token.chosen.logprob);
  }
  out.end_object();
}

void put_chat_entry(JsonOut& out, const WireLogprob& token) {
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

}  // namespace

void put_usage(JsonOut& out, const Usage& usage) {
  out.begin_object();
  out.key("prompt_tokens").number(usage.prompt_tokens);
  out.key("completion_tokens").number(usage.completion_tokens);
  out.key("total_tokens").number(usage.prompt_tokens + usage.completion_tokens);
  out.key("prompt_tokens_details").begin_object().key("cached_tokens").number(usage.cached_tokens);
  if (usage.borrowed_tokens > 0) out.key("borrowed_tokens").number(usage.borrowed_tokens);
  out.end_object();
  if (usage.reasoning_tokens > 0) {
    out.key("completion_tokens_details").begin_object();
    out.key("reasoning_tokens").number(usage.reasoning_tokens).end_object();
  }
  out.end_object();
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

int logprob_arrays(LogprobsForm form) {
  return form == LogprobsForm::kChat ? 1 : static_cast<int>(std::size(kCompletionArrays));
}

void begin_logprob_array(JsonOut& out, LogprobsForm form, int array) {
  if (array == 0) out.key("logprobs").begin_object();
  out.key(form == LogprobsForm::kChat ? "content" : kCompletionArrays[array]).begin_array();
}

void put_logprob_entry(JsonOut& out, LogprobsForm form, int array, const WireLogprob& token) {
  if (form == LogprobsForm::kChat) return put_chat_entry(out, token);
  switch (array) {
    case 0:
      out.number(token.text_offset);
      return;
    case 1:
      if (token.has_logprob)
        put_logprob(out, token.chosen.logprob);
      else
        out.null();
      return;
    case 2:
      out.string(token_key(token.chosen.bytes));
      return;
    default:
      put_top_logprobs(out, token);
  }
}

void end_logprob_array(JsonOut& out, LogprobsForm form, int array) {
  out.end_array();
  if (array + 1 < logprob_arrays(form)) return;
  if (form == LogprobsForm::kChat) out.key("refusal").null();
  out.end_object();
}

void put_logprobs(JsonOut& out, LogprobsForm form, const std::optional<std::vector<WireLogprob>>& logprobs) {
  if (!logprobs) {
    out.key("logprobs").null();
    return;
  }
  for (int array = 0; array < logprob_arrays(form); ++array) {
    begin_logprob_array(out, form, array);
    for (const WireLogprob& token : *logprobs) put_logprob_entry(out, form, array, token);
    end_logprob_array(out, form, array);
  }
}

}  // namespace loralei
