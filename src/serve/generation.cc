// SPDX-License-Identifier: Apache-2.0
#include "serve/generation.h"

#include <algorithm>

#include "base/prng.h"
#include "base/units.h"
#include "serve/request_memory.h"
#include "serve/request_slo.h"

namespace loralei {
namespace {

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

constexpr int64_t kHeldStep = 64 * 1024;              // in which the memory of an answer grows
constexpr int64_t kTokenBytes = 2 * sizeof(TokenId);  // of one more, in the engine
constexpr int64_t kSmallAnswerBytes = 256 * 1024;     // made at once, with its length in the head

// Held once, and written up to four times, in growing texts.
constexpr int64_t kKeptFactor = 10;

int64_t text_bytes(const AnswerPiece& piece) {
  size_t bytes = piece.content.size() + piece.reasoning.size();
  for (const ToolCallDelta& call : piece.tools) bytes += call.arguments.size();
  return static_cast<int64_t>(bytes);
}

const char* end_name(FinishReason reason) {
  const char* name = finish_reason_name(reason);
  return name ? name : "abort";
}

}  // namespace

Generation::Choice::Choice(const GenerationPlan& plan, size_t index)
    : decoder(plan.text->tokenizer(), StreamDecoder::Mode::kMidStream, {plan.skip_special, plan.marks}),
      stop(plan.stop, plan.include_stop) {
  if (plan.reasoning) reasoning.emplace(*plan.reasoning);
  // Calls' ids are as unique as the answer's own.
  if (plan.tools) tools.emplace(*plan.tools, plan.response_id + "_" + std::to_string(index));
}

Generation::Generation(ServeContext context, std::shared_ptr<Reply> reply, GenerationPlan plan)
    : context_(context), reply_(std::move(reply)), plan_(std::move(plan)), window_(context_, plan_.prompts.size()) {
  const size_t per_prompt = static_cast<size_t>(plan_.submit.choices);
  choices_.reserve(plan_.prompts.size() * per_prompt);
  for (size_t i = 0; i < plan_.prompts.size() * per_prompt; ++i) choices_.emplace_back(plan_, i);
  open_choices_ = choices_.size();
  held_bytes_ = reply_->memory().bytes();
  last_write_ns_ = plan_.arrived_ns;
  record_.id = reply_->request_id();
  record_.adapter = plan_.model.label;
  record_.adapters = plan_.model.entries.size();
  record_.kind = plan_.form->kind();
  record_.choices = plan_.submit.choices;
  record_.max_tokens = plan_.submit.max_tokens;
  for (const auto& prompt : plan_.prompts) record_.prompt_tokens += static_cast<int64_t>(prompt.size());
}

void Generation::start() {
  reply_->writer().on_closed([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->cancel();
  });
  std::lock_guard lock(mutex_);
  advance();
}

void Generation::advance() {
  if (closed_ || rests_) return;
  const Status status = window_.advance(shared_from_this(), [&](size_t prompt) {
    Submit submit = plan_.submit;
    submit.prompt = plan_.prompts[prompt];
    submit.slo = slo_left(submit.slo, context_.clock.now_ns() - plan_.arrived_ns);
    if (plan_.own_seeds) submit.sampling.seed = derived_seed(submit.sampling.seed, static_cast<uint32_t>(prompt));
    const int64_t room = context_.engine.max_model_len() - static_cast<int64_t>(submit.prompt.size());
    submit.max_tokens = static_cast<int32_t>(std::min<int64_t>(submit.max_tokens, room));
    return submit;
  });
  if (!status.ok()) fail(status.error());
}

void Generation::cancel() {
  std::lock_guard lock(mutex_);
  if (!closed_) close("abort");
}

void Generation::on_tick(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  advance();
  if (closed_ || rests_ || !plan_.stream || now_ns - last_write_ns_ < context_.ping_interval_ns) return;
  std::string frames;
  begin_stream(frames);
  frames += plan_.form->ping();
  last_write_ns_ = now_ns;
  if (!reply_->writer().write(frames)) close("abort");
}

void Generation::begin_stream(std::string& frames) {
  if (std::exchange(begun_, true)) return;
  reply_->start_events();
  plan_.form->begin(frames, usage());
}

size_t Generation::choice_index(const TokenEvent& event) const {
  const auto prompt = window_.part_of(event.id);
  if (!prompt) return choices_.size();
  return *prompt * static_cast<size_t>(plan_.submit.choices) + static_cast<size_t>(event.choice);
}

void Generation::on_event(TokenEvent event) {
  std::lock_guard lock(mutex_);
  const size_t index = choice_index(event);
  if (closed_ || index >= choices_.size()) return;
  if (event.end == EndReason::kError) return fail(event.error);
  Choice& choice = choices_[index];
  if (choice.done) return;  // tokens that were computed after a stop string was found
  if (event.end == EndReason::kCancelled) {
    return fail({ErrorCode::kUnavailable, "The server stopped before the request was finished."});
  }
  if (!hold(kTokenBytes)) return;
  if (!choice.begun) begin_choice(index, event);
  if (closed_) return;
  std::string text;
  if (event.has_token) take_token(choice, event, text);
  if (event.end != EndReason::kNone || choice.found_stop) {
    end_choice(index, event, text);
    // The engine knows no stop strings: with siblings still running this choice
    // would be computed on.
    if (event.end == EndReason::kNone && open_choices_ > 0) context_.engine.cancel(event.id, event.choice);
  }
  pass_on(index, std::move(text), event.has_token);
  if (closed_) return;
  if (open_choices_ == 0) return finish();
  if (choice.done) advance();
}

void Generation::begin_choice(size_t index, const TokenEvent& event) {
  Choice& choice = choices_[index];
  const size_t prompt = index / static_cast<size_t>(plan_.submit.choices);
  if (!record_.admitted) record_.queue_s = window_.queue_s(prompt, event, plan_.arrived_ns);
  choice.begun = record_.admitted = true;
  if (event.choice == 0) {
    record_.cached_tokens += event.cached_tokens;
    record_.borrowed_tokens += event.borrowed_tokens;
    if (record_.version.empty()) record_.version = event.adapter_version;
  }
  if (plan_.stream) {
    std::string frames;
    begin_stream(frames);
    plan_.form->begin_choice(frames, static_cast<int>(index), usage());
    write_frames(frames);
  }
  if (plan_.echo_texts.empty()) return;
  AnswerPiece piece;
  piece.content = plan_.echo_texts[prompt];
  if (plan_.logprobs) piece.logprobs = echo_logprobs(prompt, event);
  choice.decoded_characters = count_characters(piece.content);
  write_piece(index, std::move(piece), true);
}

// The text that the token makes ready to send.
void Generation::take_token(Choice& choice, const TokenEvent& event, std::string& text) {
  const int64_t now_ns = context_.clock.now_ns();
  RecentAnswerTimes& recent = context_.metrics.recent();
  if (record_.ttft_s < 0) {
    record_.ttft_s = static_cast<double>(now_ns - plan_.arrived_ns) * 1e-9;
    recent.first_token.add(now_ns, record_.ttft_s);
  }
  if (choice.tokens > 0) {
    const double between_s = static_cast<double>(now_ns - choice.last_token_ns) * 1e-9;
    context_.metrics.inter_token(between_s);
    recent.between_tokens.add(now_ns, between_s);
  }
  choice.last_token_ns = now_ns;
  ++choice.tokens;
  ++record_.output_tokens;
  if (event.stop_token) {
    const auto& named = plan_.named_stop_ids;
    if (std::find(named.begin(), named.end(), event.token) != named.end()) choice.stop_reason = event.token;
    add_text(choice, choice.decoder.flush(), text);  // what is left of a character stands before it
  }
  if (plan_.logprobs) {
    choice.pending.push_back(
        {choice.decoded_bytes, wire_logprob(event.token, event.logprobs ? &*event.logprobs : nullptr)});
    choice.pending.back().logprob.text_offset = choice.decoded_characters;
  }
  // With tools special tokens are decoded for the sake of calls alone.
  if (!event.stop_token || (plan_.include_stop && !plan_.tools))
    add_text(choice, choice.decoder.push(event.token), text);
}

// Adds to `text` what of the decoded text is ready to send.
void Generation::add_text(Choice& choice, const std::string& decoded, std::string& text) const {
  choice.decoded_bytes += decoded.size();
  choice.decoded_characters += count_characters(decoded);
  // Before min_tokens a stop string is text like any other.
  if (choice.tokens < plan_.submit.min_tokens) {
    text += decoded;
    return;
  }
  StopMatcher::Output out = choice.stop.push(decoded);
  text += out.text;
  if (out.stop == nullptr) return;
  choice.found_stop = true;
  choice.stop_reason = *out.stop;
}

void Generation::end_choice(size_t index, const TokenEvent& event, std::string& text) {
  Choice& choice = choices_[index];
  if (!choice.found_stop) {
    add_text(choice, choice.decoder.flush(), text);
    if (!choice.found_stop) text += choice.stop.flush();
  }
  choice.finish = choice.found_stop || event.end == EndReason::kStop ? FinishReason::kStop : FinishReason::kLength;
  choice.done = true;
  --open_choices_;
  const auto n = static_cast<size_t>(plan_.submit.choices);
  const auto first = choices_.begin() + static_cast<std::ptrdiff_t>(index - index % n);  // of this prompt
  if (std::all_of(first, first + plan_.submit.choices, [](const Choice& one) { return one.done; })) window_.ended();
}

// Log probabilities of tokens whose text begins within what has been sent; at an end
// without a stop string all of them.
void Generation::release_logprobs(Choice& choice, AnswerPiece& piece) const {
  if (!plan_.logprobs) return;
  piece.logprobs.emplace();
  const bool all = choice.done && !choice.found_stop;
  size_t n = 0;
  while (n < choice.pending.size() && (all || choice.pending[n].offset < choice.emitted_bytes)) {
    piece.logprobs->push_back(std::move(choice.pending[n].logprob));
    ++n;
  }
  choice.pending.erase(choice.pending.begin(), choice.pending.begin() + static_cast<std::ptrdiff_t>(n));
}

// Moves reasoning out of the piece's text. A token counts to it that leaves the text
// inside, or was read there.
void Generation::split_reasoning(Choice& choice, AnswerPiece& piece, bool has_token) {
  const bool was_inside = choice.reasoning->inside();
  ReasoningStream::Piece read = choice.reasoning->push(piece.content, choice.done);
  piece.content = std::move(read.content);
  if (plan_.show_reasoning) piece.reasoning = std::move(read.reasoning);
  if (!has_token) return;
  if (was_inside)
    ++reasoning_tokens_;
  else if (choice.reasoning->inside())
    reasoning_tokens_ += choice.tokens;  // those of the mark
}

// Moves calls out of the piece's text.
void Generation::read_tools(Choice& choice, AnswerPiece& piece) {
  ToolCallStream::Piece read = choice.tools->push(piece.content, choice.done);
  piece.content = std::move(read.content);
  piece.tools = std::move(read.deltas);
  if (choice.done && choice.finish == FinishReason::kStop && choice.tools->ends_with_calls())
    choice.finish = FinishReason::kToolCalls;
}

void Generation::pass_on(size_t index, std::string text, bool has_token) {
  Choice& choice = choices_[index];
  AnswerPiece piece;
  piece.content = std::move(text);
  choice.emitted_bytes += piece.content.size();
  release_logprobs(choice, piece);
  if (choice.reasoning) split_reasoning(choice, piece, has_token);
  if (choice.tools) read_tools(choice, piece);
  const bool has_logprobs = piece.logprobs && !piece.logprobs->empty();
  const bool says_nothing = piece.reasoning.empty() && piece.content.empty() && piece.tools.empty();
  if (says_nothing && !has_logprobs && !choice.done) return;
  write_piece(index, std::move(piece), false);
}

void Generation::write_piece(size_t index, AnswerPiece piece, bool first) {
  Choice& choice = choices_[index];
  if (!plan_.stream) return collect_piece(choice, std::move(piece));
  if (choice.done && !first) {
    piece.finish = choice.finish;
    piece.stop_reason = std::move(choice.stop_reason);
  }
  if (plan_.form->keeps_text() && !hold(kKeptFactor * text_bytes(piece))) return;
  std::string frames;
  plan_.form->piece(frames, static_cast<int>(index), std::move(piece), usage());
  write_frames(frames);
}

void Generation::collect_piece(Choice& choice, AnswerPiece piece) {
  int64_t bytes = 2 * text_bytes(piece);
  std::vector<WireLogprob> logprobs;
  if (piece.logprobs) logprobs = std::move(*piece.logprobs);
  for (const WireLogprob& one : logprobs) bytes += logprob_bytes(one);
  if (!hold(bytes)) return;
  choice.text += piece.content;
  choice.reasoned += piece.reasoning;
  std::move(logprobs.begin(), logprobs.end(), std::back_inserter(choice.sent));
}

// So many bytes more, before they are allocated. False: there are none, and the request
// has ended with that.
bool Generation::hold(int64_t bytes) {
  ByteShare& memory = reply_->memory();
  held_bytes_ += bytes;
  if (held_bytes_ <= memory.bytes()) return true;
  if (memory.grow_to(held_bytes_ + kHeldStep) || memory.grow_to(held_bytes_)) return true;
  fail({ErrorCode::kOverloaded,
        "The server has no memory for the rest of this answer, of which it holds " + format_bytes(memory.bytes()) +
            ". Ask for fewer tokens, choices or log-probabilities, stream it, or try again in a moment."});
  return false;
}

void Generation::write_frames(const std::string& frames) {
  if (closed_ || frames.empty()) return;
  last_write_ns_ = context_.clock.now_ns();
  if (!reply_->writer().write(frames)) return close("abort");
  rest_if_slow();
}

// What is under way in the engine still comes, and finds room; nothing more is computed
// until it has been taken.
void Generation::rest_if_slow() {
  if (rests_ || open_choices_ == 0 || reply_->writer().wants_more()) return;
  rests_ = true;
  window_.hold(true);
  reply_->writer().on_room([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->resume();
  });
}

void Generation::resume() {
  std::lock_guard lock(mutex_);
  if (closed_ || !std::exchange(rests_, false)) return;
  window_.hold(false);
  advance();
}

void Generation::fail(const Error& error) {
  if (closed_) return;
  reply_->settle(record_);
  ApiError told = to_api_error(with_names(error, plan_.model));
  if (begun_) {
    std::string frames;
    plan_.form->error(frames, told);
    (void)reply_->writer().write(frames);
    reply_->writer().finish();
  } else {
    reply_->error(told);
  }
  close("error");
}

void Generation::finish() {
  reply_->settle(record_);
  const Usage total = usage();
  FinishReason last = FinishReason::kNone;
  for (const Choice& choice : choices_) last = std::max(last, choice.finish);
  if (plan_.stream) {
    std::string frames;
    plan_.form->end(frames, total);
    (void)reply_->writer().write(frames);
    reply_->writer().finish();
    return close(end_name(last));
  }
  std::vector<AnswerChoice> out;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    AnswerChoice& one = out.emplace_back();
    one.index = static_cast<int>(i);
    one.content = std::move(choice.text);
    one.reasoning_content = std::move(choice.reasoned);
    if (choice.tools) one.tool_calls = choice.tools->take_calls();
    one.finish = choice.finish;
    one.stop_reason = std::move(choice.stop_reason);
    if (plan_.logprobs) one.logprobs = std::move(choice.sent);
  }
  // Small answers have their length in the head. What a large one is made of takes the
  // place of its text.
  auto pieces = plan_.form->whole(std::move(out), total);
  if (held_bytes_ <= kSmallAnswerBytes)
    reply_->json(200, whole_response(*pieces));
  else
    reply_->json_pieces(200, std::move(pieces), plan_.text);
  close(end_name(last));
}

// Gives the engine back what it still computes for this request, counts it and logs it.
void Generation::close(const char* end) {
  closed_ = true;
  window_.close();
  reply_->settle(record_);
  record_.end = end;
  record_.total_s = static_cast<double>(context_.clock.now_ns() - plan_.arrived_ns) * 1e-9;
  for (const Choice& choice : choices_) record_.longest_output = std::max(record_.longest_output, choice.tokens);
  context_.metrics.request_done(record_);
  log_request(context_.log, record_);
}

WireLogprob Generation::wire_logprob(TokenId token, const TokenLogprobs* logprobs) const {
  const Tokenizer& tokenizer = *plan_.text->tokenizer();
  WireLogprob out;
  out.chosen.bytes = tokenizer.token_bytes(token);
  out.has_logprob = logprobs != nullptr;
  if (!logprobs) return out;
  out.chosen.logprob = logprobs->logprob;
  for (const TokenLogprob& other : logprobs->top) {
    out.top.emplace_back(tokenizer.token_bytes(other.token), other.logprob);
  }
  return out;
}

std::vector<WireLogprob> Generation::echo_logprobs(size_t prompt, const TokenEvent& event) const {
  std::vector<WireLogprob> out;
  const std::vector<TokenId>& ids = plan_.prompts[prompt];
  const Tokenizer& tokenizer = *plan_.text->tokenizer();
  StreamDecoder decoder(plan_.text->tokenizer(), StreamDecoder::Mode::kTextStart, {.skip_special = true});
  std::string_view rest = plan_.echo_texts[prompt];
  int64_t offset = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool known = i < event.prompt_logprobs.size() && event.prompt_logprobs[i];
    out.push_back(wire_logprob(ids[i], known ? &*event.prompt_logprobs[i] : nullptr));
    out.back().text_offset = offset;
    size_t bytes = decoder.push(ids[i]).size();
    // A special token is in the text where the client wrote it or asked for it, and not
    // where the tokenizer put it.
    if (tokenizer.is_special(ids[i])) {
      const std::string_view written = tokenizer.token_bytes(ids[i]);
      bytes = rest.starts_with(written) ? written.size() : 0;
    }
    offset += count_characters(rest.substr(0, bytes));
    rest.remove_prefix(std::min(bytes, rest.size()));
  }
  return out;
}

Usage Generation::usage() const {
  return {record_.prompt_tokens, record_.output_tokens, record_.cached_tokens, reasoning_tokens_,
          record_.borrowed_tokens};
}

}  // namespace loralei
