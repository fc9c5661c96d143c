// SPDX-License-Identifier: Apache-2.0
// Whole answers, piece by piece.
#include <cstring>
#include <utility>

#include "base/base64.h"
#include "wire/response_parts.h"

namespace loralei {
namespace {

void put_before_logprobs(JsonOut& out, const AnswerChoice& choice) {
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
}

void put_before_logprobs(JsonOut& out, const CompletionChoice& choice) {
  out.begin_object().key("index").number(choice.index).key("text").string(choice.text);
}

template <typename Choice>
class ChoicePieces final : public StepwisePieces {
 public:
  ChoicePieces(const char* object, LogprobsForm form, ResponseHead head, std::vector<Choice> choices, Usage usage)
      : object_(object), form_(form), head_(std::move(head)), choices_(std::move(choices)), usage_(usage) {}

 private:
  bool step(JsonOut& out) override {
    if (!begun_) {
      begun_ = true;
      put_head(out, head_, object_);
      out.key("choices").begin_array();
    } else if (choice_ < choices_.size()) {
      choice_step(out, choices_[choice_]);
    } else {
      out.end_array().key("usage");
      put_usage(out, usage_);
      out.end_object();
      return false;
    }
    return true;
  }

  // The text, every entry of every array of log-probabilities, the end.
  void choice_step(JsonOut& out, Choice& choice) {
    const int arrays = choice.logprobs ? logprob_arrays(form_) : 0;
    if (array_ < 0) {
      put_before_logprobs(out, choice);
      if (arrays == 0) put_logprobs(out, form_, choice.logprobs);
      begin_array(out, arrays);
    } else if (array_ < arrays && token_ < choice.logprobs->size()) {
      put_logprob_entry(out, form_, array_, (*choice.logprobs)[token_++]);
    } else if (array_ < arrays) {
      end_logprob_array(out, form_, array_);
      begin_array(out, arrays);
    } else {
      put_finish(out, choice.finish, choice.stop_reason);
      out.end_object();
      choice = {};
      ++choice_;
      array_ = -1;
    }
  }
  void begin_array(JsonOut& out, int arrays) {
    token_ = 0;
    if (++array_ < arrays) begin_logprob_array(out, form_, array_);
  }

  const char* const object_;
  const LogprobsForm form_;
  const ResponseHead head_;
  std::vector<Choice> choices_;
  const Usage usage_;
  bool begun_ = false;
  size_t choice_ = 0, token_ = 0;
  int array_ = -1;  // of the choice's log-probabilities; -1: before its text
};

class EmbeddingPieces final : public StepwisePieces {
 public:
  EmbeddingPieces(ResponseHead head, std::vector<std::vector<float>> embeddings, bool base64, int64_t prompt_tokens)
      : head_(std::move(head)), embeddings_(std::move(embeddings)), base64_(base64), prompt_tokens_(prompt_tokens) {}

 private:
  bool step(JsonOut& out) override {
    if (!begun_) {
      begun_ = true;
      out.begin_object().key("object").string("list").key("id").string(head_.id).key("created").number(head_.created);
      out.key("data").begin_array();
    } else if (next_ < embeddings_.size()) {
      put_embedding(out, std::exchange(embeddings_[next_], {}));
      ++next_;
    } else {
      out.end_array().key("model").string(head_.model).key("usage").begin_object();
      out.key("prompt_tokens").number(prompt_tokens_).key("total_tokens").number(prompt_tokens_).end_object();
      out.end_object();
      return false;
    }
    return true;
  }

  void put_embedding(JsonOut& out, const std::vector<float>& values) const {
    out.begin_object().key("object").string("embedding").key("index").number(static_cast<int64_t>(next_));
    out.key("embedding");
    if (base64_) {
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

  const ResponseHead head_;
  std::vector<std::vector<float>> embeddings_;
  const bool base64_;
  const int64_t prompt_tokens_;
  bool begun_ = false;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<ResponsePieces> chat_response_pieces(ResponseHead head, std::vector<AnswerChoice> choices,
                                                     Usage usage) {
  return std::make_unique<ChoicePieces<AnswerChoice>>("chat.completion", LogprobsForm::kChat, std::move(head),
                                                      std::move(choices), usage);
}
std::unique_ptr<ResponsePieces> completion_response_pieces(ResponseHead head, std::vector<CompletionChoice> choices,
                                                           Usage usage) {
  return std::make_unique<ChoicePieces<CompletionChoice>>("text_completion", LogprobsForm::kCompletion, std::move(head),
                                                          std::move(choices), usage);
}
std::unique_ptr<ResponsePieces> embedding_response_pieces(ResponseHead head, std::vector<std::vector<float>> embeddings,
                                                          bool base64, int64_t prompt_tokens) {
  return std::make_unique<EmbeddingPieces>(std::move(head), std::move(embeddings), base64, prompt_tokens);
}

std::string whole_response(ResponsePieces& pieces) {
  std::string out;
  while (pieces.next(out)) {
  }
  return out;
}

std::string chat_response(ResponseHead head, std::vector<AnswerChoice> choices, const Usage& usage) {
  return whole_response(*chat_response_pieces(std::move(head), std::move(choices), usage));
}
std::string completion_response(ResponseHead head, std::vector<CompletionChoice> choices, const Usage& usage) {
  return whole_response(*completion_response_pieces(std::move(head), std::move(choices), usage));
}
std::string embedding_response(ResponseHead head, std::vector<std::vector<float>> embeddings, bool base64,
                               int64_t prompt_tokens) {
  return whole_response(*embedding_response_pieces(std::move(head), std::move(embeddings), base64, prompt_tokens));
}

}  // namespace loralei
