// SPDX-License-Identifier: Apache-2.0
// Generation: one chat or completions request from Submit to the last byte: decodes
// tokens, finds stop strings, passes pieces on or collects the answer, lets the engine
// rest while the client is slow, cancels when it leaves.
//
// Thread: start() on a text thread, events and ticks on the dispatcher's, cancel() on
// any; a mutex makes them one at a time.
// Ownership: shared by the dispatcher (until the last choice ended) and, weakly, by the
// connection's on_closed callback.
// Invariants: what is collected of an answer has been granted; a choice ends once;
// nothing is written after the end; text is valid UTF-8 and cut at code points; every
// token has an entry of log probabilities, the one that ends its choice too, which has
// no text unless include_stop asks for it; they are sent with the text they belong to,
// and those of a stop string's tokens never. The answer's status is decided by the first
// event: an error before it is an HTTP error, one after it an error event.
// Failure: every failure is answered to the client; none is returned.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/context.h"
#include "serve/reply.h"
#include "serve/resolve.h"
#include "serve/submit_window.h"
#include "serve/text_model.h"
#include "serve/tool_call_stream.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"
#include "wire/answer_form.h"

namespace loralei {

struct GenerationPlan {
  std::unique_ptr<AnswerForm> form;  // in which it is answered
  std::string response_id;           // without its prefix
  ResolvedModel model;
  std::shared_ptr<const TextModel> text;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::string> echo_texts;  // one per prompt when the prompt is to be echoed, else empty
  Submit submit;                        // per prompt: id and prompt are filled, limits cut to what the context holds
  std::shared_ptr<const StopStrings> stop;  // of all choices
  std::vector<TokenId> named_stop_ids;      // of submit.stop_ids, those that stop_reason tells
  bool include_stop = false;  // what ends the text is part of it: a stop string, or a token as far as it is decoded
  bool skip_special = true;
  std::optional<Reasoning> reasoning;  // tell it from the content
  bool show_reasoning = true;          // false: it is left out
  std::vector<TokenId> marks;          // special tokens that are text all the same: those around reasoning
  bool stream = false;
  bool logprobs = false;
  bool own_seeds = false;             // the client sent none: every prompt gets one derived from that of submit
  std::optional<ToolCallForm> tools;  // read calls of this form out of the text
  int64_t arrived_ns = 0;
};

class Generation final : public EventSink, public std::enable_shared_from_this<Generation> {
 public:
  Generation(ServeContext context, std::shared_ptr<Reply> reply, GenerationPlan plan);

  // Submits the prompts, a window at a time; answers the client when the engine refuses.
  void start();
  void cancel();  // the client is gone
  void on_event(TokenEvent event) override;
  void on_tick(int64_t now_ns) override;
  const std::string& request_id() const override { return reply_->request_id(); }

 private:
  struct PendingLogprob {
    size_t offset;  // of the token in the text of its choice, in bytes
    WireLogprob logprob;
  };
  struct Choice {
    Choice(const GenerationPlan& plan, size_t index);
    StreamDecoder decoder;
    StopMatcher stop;
    std::optional<ReasoningStream> reasoning;
    std::optional<ToolCallStream> tools;
    std::string text, reasoned;  // emitted so far; only collected for whole answers
    size_t decoded_bytes = 0, emitted_bytes = 0;
    int64_t decoded_characters = 0;  // with those of the echoed prompt
    int64_t tokens = 0;
    int64_t last_token_ns = 0;
    std::vector<PendingLogprob> pending;  // not sent yet
    std::vector<WireLogprob> sent;        // collected for whole answers
    FinishReason finish = FinishReason::kNone;
    StopReason stop_reason;
    bool begun = false, done = false;
    bool found_stop = false;  // a stop string came
  };
  void advance();
  size_t choice_index(const TokenEvent& event) const;
  void begin_choice(size_t index, const TokenEvent& event);
  void take_token(Choice& choice, const TokenEvent& event, std::string& text);
  void add_text(Choice& choice, const std::string& decoded, std::string& text) const;
  void end_choice(size_t index, const TokenEvent& event, std::string& text);
  void split_reasoning(Choice& choice, AnswerPiece& piece, bool has_token);
  static void read_tools(Choice& choice, AnswerPiece& piece);
  void pass_on(size_t index, std::string text, bool has_token);
  void release_logprobs(Choice& choice, AnswerPiece& piece) const;
  void write_piece(size_t index, AnswerPiece piece, bool first);
  void collect_piece(Choice& choice, AnswerPiece piece);
  bool hold(int64_t bytes);
  void rest_if_slow();
  void resume();                           // the client has taken what waited
  void begin_stream(std::string& frames);  // once
  void write_frames(const std::string& frames);
  void fail(const Error& error);
  void finish();
  void close(const char* end);
  WireLogprob wire_logprob(TokenId token, const TokenLogprobs* logprobs) const;
  std::vector<WireLogprob> echo_logprobs(size_t prompt, const TokenEvent& event) const;
  Usage usage() const;

  const ServeContext context_;
  const std::shared_ptr<Reply> reply_;
  GenerationPlan plan_;
  std::mutex mutex_;
  SubmitWindow window_;  // of the prompts
  std::vector<Choice> choices_;
  size_t open_choices_ = 0;
  int64_t held_bytes_ = 0;  // of the request's memory: what it had at first, and what is collected since
  bool rests_ = false;      // the engine computes nothing of it, since the client is slow to take
  bool begun_ = false;      // the status has been sent
  bool closed_ = false;     // the answer is complete or given up
  int64_t last_write_ns_ = 0;
  int64_t reasoning_tokens_ = 0;
  RequestRecord record_;
};

}  // namespace loralei
