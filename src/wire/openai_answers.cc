// SPDX-License-Identifier: Apache-2.0
// The answers of /v1/chat/completions and /v1/completions.
#include <utility>

#include "wire/answer_form.h"

namespace loralei {
namespace {

class OpenAiAnswer : public AnswerForm {
 public:
  OpenAiAnswer(ResponseHead head, const char* prefix, StreamUsage usage) : head_(std::move(head)), usage_(usage) {
    head_.id = prefix + head_.id;
  }

  void end(std::string& out, const Usage& total) override {
    if (usage_.at_end) out += sse_event(usage_chunk(total));
    out += kSseDone;
  }
  void error(std::string& out, const ApiError& error) override { out += sse_event(error_body(error)); }

 protected:
  virtual std::string usage_chunk(const Usage& total) const = 0;
  ChunkUsage chunk_usage(const Usage& so_far) const {
    if (usage_.continuous) return {true, so_far};
    return {usage_.at_end, std::nullopt};
  }
  ResponseHead head_;

 private:
  const StreamUsage usage_;
};

class ChatAnswer final : public OpenAiAnswer {
 public:
  ChatAnswer(ResponseHead head, StreamUsage usage) : OpenAiAnswer(std::move(head), "chatcmpl-", usage) {}

  const char* kind() const override { return "chat"; }

  void begin_choice(std::string& out, int choice, const Usage& so_far) override {
    ChatDelta delta;
    delta.index = choice;
    delta.role = true;
    put(out, delta, so_far);
  }

  // A chunk for the text and the first call's piece, one for each other call's, and one
  // for the reason, which comes alone with an empty delta.
  void piece(std::string& out, int choice, AnswerPiece piece, const Usage& so_far) override {
    ChatDelta delta;
    delta.index = choice;
    delta.reasoning_content = std::move(piece.reasoning);
    delta.content = std::move(piece.content);
    const bool has_logprobs = piece.logprobs && !piece.logprobs->empty();
    delta.logprobs = std::move(piece.logprobs);
    if (!piece.tools.empty()) delta.tool_call = std::move(piece.tools.front());
    if (!delta.reasoning_content.empty() || !delta.content.empty() || delta.tool_call || has_logprobs)
      put(out, delta, so_far);
    for (size_t i = 1; i < piece.tools.size(); ++i) {
      ChatDelta other;
      other.index = choice;
      other.tool_call = std::move(piece.tools[i]);
      put(out, other, so_far);
    }
    if (piece.finish == FinishReason::kNone) return;
    ChatDelta last;
    last.index = choice;
    last.finish = piece.finish;
    last.stop_reason = std::move(piece.stop_reason);
    put(out, last, so_far);
  }

  std::unique_ptr<ResponsePieces> whole(std::vector<AnswerChoice> choices, const Usage& total) override {
    return chat_response_pieces(head_, std::move(choices), total);
  }

 private:
  void put(std::string& out, const ChatDelta& delta, const Usage& so_far) const {
    out += sse_event(chat_chunk(head_, delta, chunk_usage(so_far)));
  }
  std::string usage_chunk(const Usage& total) const override { return chat_usage_chunk(head_, total); }
};

class CompletionAnswer final : public OpenAiAnswer {
 public:
  CompletionAnswer(ResponseHead head, StreamUsage usage) : OpenAiAnswer(std::move(head), "cmpl-", usage) {}

  const char* kind() const override { return "completion"; }

  void piece(std::string& out, int choice, AnswerPiece piece, const Usage& so_far) override {
    const CompletionChoice one{choice, std::move(piece.content), piece.finish, std::move(piece.logprobs),
                               std::move(piece.stop_reason)};
    out += sse_event(completion_chunk(head_, one, chunk_usage(so_far)));
  }

  std::unique_ptr<ResponsePieces> whole(std::vector<AnswerChoice> choices, const Usage& total) override {
    std::vector<CompletionChoice> out;
    out.reserve(choices.size());
    for (AnswerChoice& one : choices) {
      out.push_back(
          {one.index, std::move(one.content), one.finish, std::move(one.logprobs), std::move(one.stop_reason)});
    }
    return completion_response_pieces(head_, std::move(out), total);
  }

 private:
  std::string usage_chunk(const Usage& total) const override { return completion_usage_chunk(head_, total); }
};

}  // namespace

std::unique_ptr<AnswerForm> make_chat_answer(ResponseHead head, StreamUsage usage) {
  return std::make_unique<ChatAnswer>(std::move(head), usage);
}

std::unique_ptr<AnswerForm> make_completion_answer(ResponseHead head, StreamUsage usage) {
  return std::make_unique<CompletionAnswer>(std::move(head), usage);
}

}  // namespace loralei
