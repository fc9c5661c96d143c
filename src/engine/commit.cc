// SPDX-License-Identifier: Apache-2.0
// What a computed step becomes: valid KV, tokens, log-probabilities, embeddings, ends.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

TokenLogprobs logprobs_of(const RowSample& sample) {
  return {sample.logprob, {sample.top.begin(), sample.top.begin() + sample.top_count}};
}

int32_t outputs_of(const Sequence& sequence) {
  return static_cast<int32_t>(sequence.text().size()) - sequence.request->prompt_size();
}

}  // namespace

// KV of the step's rows is valid now, but for that of a draft; rows that asked for logits
// become sampling tasks, rows that asked for hidden states are pooled. A draft stands
// behind its sequence's tokens until it is sampled.
void EngineLoop::commit_rows() {
  samples_.clear();
  const StepBatch& batch = slot_.batch();
  const StepResult result = parts_.executor->result();
  size_t hidden_index = 0, logits_index = 0;
  for (size_t index = 0; index < planned_.plan.groups.size(); ++index) {
    const PlanGroup& group = planned_.plan.groups[index];
    Sequence& sequence = *group_sequences_[index];
    Request& request = *sequence.request;
    CHECK(sequence.phase == SeqPhase::kRunning && sequence.computed == group.position);
    const int32_t drafted = group.provisional ? group.row_count - 1 : 0;
    sequence.computed = group.position + group.row_count - drafted;
    if (!request.provisional) parts_.kv->publish(sequence.lease, request.key, sequence.tokens, sequence.computed);
    parts_.kv->keep_state(sequence.lease, sequence.computed);
    parts_.kv->pass(sequence.lease, sequence.computed);
    const auto draft_end = planned_.plan.tokens.begin() + group.row_begin + group.row_count;
    sequence.tokens.insert(sequence.tokens.end(), draft_end - drafted, draft_end);
    counters_.drafted_tokens += static_cast<uint64_t>(drafted);
    for (int32_t i = 0; i < group.logits_count; ++i, ++logits_index) {
      const int32_t row = planned_.plan.logits_rows[static_cast<size_t>(group.logits_begin + i)];
      RowSample& sample = samples_.emplace_back();
      sample.sequence = &sequence;
      sample.chosen = batch.is_chosen(logits_index);
      if (sample.chosen) {
        sample.token = result.chosen[logits_index];
      } else {
        sample.logits = result.logits_of(logits_index, request.vocab);
      }
      sample.position = group.predicted_position(row);
      sample.of_prompt = sample.position < request.prompt_size();
      sample.of_draft = group.provisional && i > 0;
    }
    if (group.want_hidden) commit_hidden(sequence, group, result, hidden_index);
  }
  CHECK(logits_index == batch.logits_rows.size() && hidden_index == batch.hidden_rows.size());
}

void EngineLoop::commit_hidden(Sequence& sequence, const PlanGroup& group, const StepResult& result,
                               size_t& hidden_index) {
  const bool mean = sequence.request->submit.pooling == Pooling::kMean;
  const int32_t rows = mean ? group.row_count : 1;
  for (int32_t row = 0; row < rows; ++row) {
    const auto hidden = result.hidden_of(hidden_index++);
    sequence.pooled.resize(hidden.size());
    for (size_t i = 0; i < hidden.size(); ++i)
      sequence.pooled[i] += hidden[i];  // in order of position: the same for every chunking
  }
}

void EngineLoop::commit_samples() {
  const auto drafts = static_cast<size_t>(std::count_if(samples_.begin(), samples_.end(), [](const RowSample& sample) {
    return sample.of_draft && sample.sequence->grammar != nullptr;
  }));
  masks_.charge(sampler_.run(samples_, masks_.work_for_draft(pass_ns_, drafts)));
  for (size_t index = 0; index < group_sequences_.size(); ++index) {  // every draft was a guess
    const PlanGroup& group = planned_.plan.groups[index];
    if (group.provisional) group_sequences_[index]->tokens.resize(static_cast<size_t>(group.position) + 1);
  }
  for (const RowSample& sample : samples_) {
    Request& request = *sample.sequence->request;
    if (!sample.of_prompt) continue;
    if (sample.position != request.prompt_logprobs_next) continue;
    request.prompt_logprobs[static_cast<size_t>(sample.position)] = logprobs_of(sample);
    ++request.prompt_logprobs_next;
  }
  for (const RowSample& sample : samples_) {
    if (sample.of_prompt || sample.rejected) continue;
    if (sample.of_draft) accept(*sample.sequence);
    commit_token(*sample.sequence, sample);
  }
  for (size_t index = 0; index < group_sequences_.size(); ++index) {
    const PlanGroup& group = planned_.plan.groups[index];
    Sequence& sequence = *group_sequences_[index];
    if (group.provisional) sequence.lookup.learn(group.row_count - 1, sequence.computed - group.position - 1);
  }
  for (Sequence* sequence : group_sequences_) {
    if (sequence->phase != SeqPhase::kRunning) continue;
    if (!sequence->request->samples()) finish_unsampled(*sequence);
  }
  for (Sequence* sequence : group_sequences_) {
    if (sequence->computed >= sequence->request->prompt_size()) release_siblings(*sequence->request);
  }
}

// The row that read the last token was computed in this very step, as part of a draft.
void EngineLoop::accept(Sequence& sequence) {
  CHECK(sequence.phase == SeqPhase::kRunning);  // nothing comes after the end
  CHECK(sequence.computed < static_cast<int32_t>(sequence.tokens.size()));
  ++sequence.computed;
  ++counters_.accepted_tokens;
  parts_.kv->publish(sequence.lease, sequence.request->key, sequence.tokens, sequence.computed);
  parts_.kv->pass(sequence.lease, sequence.computed);
}

// The first event of a choice carries what is known of the prompt.
TokenEvent& EngineLoop::new_event(Sequence& sequence) {
  TokenEvent& event = output_->tokens.emplace_back();
  const Request& request = *sequence.request;
  event.id = request.id;
  event.choice = sequence.choice;
  if (!sequence.announced) {
    sequence.announced = true;
    event.cached_tokens = sequence.cached_tokens;
    event.borrowed_tokens = sequence.borrowed_tokens;
    event.queue_ns = sequence.queue_ns;
    event.adapter_version = request.version;
    if (request.submit.prompt_logprobs && !request.wants_prompt_logprobs())
      event.prompt_logprobs = request.prompt_logprobs;
  }
  return event;
}

void EngineLoop::commit_token(Sequence& sequence, const RowSample& sample) {
  CHECK(sequence.phase == SeqPhase::kRunning);
  const Request& request = *sequence.request;
  if (sample.token == kNoToken && sequence.mask_refusal) {
    return end(sequence, EndReason::kError, std::move(*sequence.mask_refusal));
  }
  if (sample.token == kNoToken && sequence.grammar != nullptr && sequence.grammar->too_ambiguous()) {
    return end(
        sequence, EndReason::kError,
        invalid_argument("the form can be read in too many ways at once to be followed; write the pattern or schema "
                         "with fewer alternatives that begin alike, and smaller counts behind them"));
  }
  if (sample.token == kNoToken) {
    return end(sequence, EndReason::kError,
               internal_error("no token is possible here: every logit is masked or not a number; check the model's "
                              "weights and the request's grammar"));
  }
  sequence.tokens.push_back(sample.token);
  ++counters_.generated_tokens;
  note_token(sequence);
  scheduling_.grow(sequence.standing, static_cast<int32_t>(sequence.tokens.size()));
  const int32_t outputs = outputs_of(sequence);
  CHECK(outputs >= 1 && outputs <= request.max_output);
  const auto among = [&](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), sample.token) != ids.end();
  };
  const bool stop_token =
      (!request.submit.ignore_eos && among(parts_.eos)) || among(request.submit.stop_ids) || sample.is_end_token;
  const bool stops = stop_token || sample.grammar_ends;
  TokenEvent& event = new_event(sequence);
  event.has_token = true;
  event.token = sample.token;
  if (request.submit.sampling.logprobs >= 0) event.logprobs = logprobs_of(sample);
  if (stop_token) event.stop_token = sample.token;
  if (stops || outputs >= request.max_output) {
    event.end = stops ? EndReason::kStop : EndReason::kLength;
    end(sequence, event.end);
  }
}

// Embeddings, and prompts of which only the log-probabilities were wanted, end with their
// last row.
void EngineLoop::finish_unsampled(Sequence& sequence) {
  const Request& request = *sequence.request;
  if (sequence.computed < static_cast<int32_t>(sequence.tokens.size())) return;
  note_answer(*sequence.request);
  TokenEvent& event = new_event(sequence);
  event.end = EndReason::kLength;
  if (request.submit.pooling != Pooling::kNone) {
    event.end = EndReason::kStop;
    const double count = request.submit.pooling == Pooling::kMean ? static_cast<double>(request.prompt_size()) : 1.0;
    for (const double sum : sequence.pooled) event.embedding.push_back(static_cast<float>(sum / count));
  }
  end(sequence, event.end);
}

// Choices that wait for the first one to get through the prompt.
void EngineLoop::release_siblings(Request& request) {
  if (request.unfinished == 0 || request.choices.size() == 1) return;
  for (const auto& sequence : request.choices) {
    if (sequence->phase != SeqPhase::kHeld) continue;
    enqueue(*sequence);
    if (request.wants_prompt_logprobs()) return;  // the next one computes them
  }
}

// Releases everything the sequence holds. kStop and kLength were announced with the last
// token; the others are announced here.
void EngineLoop::end(Sequence& sequence, EndReason reason, Error error) {
  if (sequence.phase == SeqPhase::kEnded) return;
  if (reason == EndReason::kCancelled || reason == EndReason::kError) {
    TokenEvent& event = new_event(sequence);
    event.end = reason;
    event.error = std::move(error);
  }
  const bool ran = sequence.phase == SeqPhase::kRunning;
  if (ran) {
    std::erase(running_, &sequence);
    const bool cut = reason != EndReason::kStop;
    const int64_t ran_ns = parts_.clock->now_ns() - sequence.admitted_ns;
    scheduling_.ended(asked_of(sequence), sequence.standing, outputs_of(sequence), cut,
                      static_cast<double>(ran_ns) * 1e-9);
    stand_down(sequence);
  }
  if (sequence.phase == SeqPhase::kForming) std::erase(forming_, &sequence);
  if (sequence.phase == SeqPhase::kWaiting) leave_waiting(sequence);
  const bool led = sequence.phase != SeqPhase::kHeld || sequence.parked;
  parked_ -= std::exchange(sequence.parked, false) ? 1 : 0;
  CHECK(parked_ >= 0);
  sequence.phase = SeqPhase::kEnded;
  sequence.lease.release();
  Request& request = *sequence.request;
  note_end(sequence);
  CHECK(request.unfinished > 0 && (!ran || request.running > 0));
  if (ran && --request.running == 0) drop_leases(request);
  if (--request.unfinished == 0) {
    leave_queue(request);
    client_left(request);
    if (!request.ready) {
      leave_cold(request);
      request.ready = true;
      cold_changed_ = true;
    }
    drop_leases(request);
    count_waiting(request, false);
    if (!request.sources.empty() && !cold_.empty()) cold_changed_ = true;  // what it waited with may be others' room
    let_go_unused(request);
    registry_.answered(request.sources);
    request.claims.clear();
    set_lacks(request, false);
    ended_.push_back(request.id);
  } else {
    if (led && request.ready) release_siblings(request);
    note_wait(request);
  }
}

void EngineLoop::end_request(Request& request, EndReason reason, const Error& error) {
  // Held ones first, so that no sibling is set free for nothing.
  for (const SeqPhase phase : {SeqPhase::kHeld, SeqPhase::kForming, SeqPhase::kWaiting, SeqPhase::kRunning}) {
    for (const auto& sequence : request.choices) {
      if (sequence->phase == phase) end(*sequence, reason, error);
    }
  }
}

// Oldest first.
void EngineLoop::end_requests(EndReason reason, const Error& error) {
  std::vector<Request*> all;
  for (const auto& [id, request] : requests_) all.push_back(request.get());
  std::sort(all.begin(), all.end(), [](const Request* a, const Request* b) { return a->order < b->order; });
  for (Request* request : all) end_request(*request, reason, error);
}

void EngineLoop::forget_ended() {
  for (const RequestId id : ended_) {
    const auto found = requests_.find(id);
    CHECK(found != requests_.end() && found->second->unfinished == 0 && found->second->pins.empty());
    for (const auto& sequence : found->second->choices) sequences_.erase(sequence->id);
    requests_.erase(found);
  }
  ended_.clear();
}

void EngineLoop::enqueue(Sequence& sequence) {
  CHECK(sequence.phase != SeqPhase::kEnded && sequence.lease.blocks().empty());
  if (sequence.request->held) {
    parked_ += sequence.parked ? 0 : 1;
    sequence.parked = true;
    sequence.phase = SeqPhase::kHeld;
    return;
  }
  const auto older = [](const Sequence* a, const Sequence* b) { return a->order < b->order; };
  if (waits_for_mask(sequence)) {
    sequence.phase = SeqPhase::kForming;
    const auto dear = forming_.begin() + static_cast<int64_t>(first_dear());
    const auto place =
        has_dear_mask(sequence) ? forming_.end() : std::upper_bound(forming_.begin(), dear, &sequence, older);
    forming_.insert(place, &sequence);
    return note_wait(*sequence.request);
  }
  sequence.phase = SeqPhase::kWaiting;
  const KvMatch match = parts_.kv->peek(sequence.request->key, sequence.text(), match_limit(sequence));
  const auto known = static_cast<int32_t>(sequence.text().size());
  sequence.standing = scheduling_.place(asked_of(sequence));
  if (!std::exchange(sequence.request->counted_in, true))
    scheduling_.arrived(sequence.standing, parts_.clock->now_ns());
  sequence.waiting = {.id = sequence.id,
                      .order = sequence.order,
                      .rows = known - match.tokens(),
                      .priority = sequence.standing.priority,
                      .rank = sequence.standing.rank,
                      .queue = sequence.standing.queue,
                      .tokens = sequence.standing.tokens,
                      .run_ns = sequence.squashed ? INT64_MAX : sequence.standing.run_ns};
  begin_wait(sequence);
  prefetch_due_ = true;
  waiting_formed_ += sequence.grammar != nullptr ? 1 : 0;
  waiting_rows_ += static_cast<int64_t>(sequence.text().size());
  note_wait(*sequence.request);
}

void EngineLoop::leave_waiting(const Sequence& sequence) {
  CHECK(sequence.phase == SeqPhase::kWaiting);
  admission_.leave(sequence.waiting);
  if (scheduling_.has_clients()) clients_.end_wait(sequence.waiting.client);
  waiting_formed_ -= sequence.grammar != nullptr ? 1 : 0;
  waiting_rows_ -= static_cast<int64_t>(sequence.text().size());
}

void EngineLoop::leave_queue(Request& request) {
  if (!request.queued) return;
  request.queued = false;
  --queued_;
  parts_.queued->fetch_sub(1, std::memory_order_relaxed);
  note_wait(request);
}

// What it waits for, before anything of it was admitted.
std::optional<WaitCause> EngineLoop::wait_of(const Request& request) const {
  if (!request.queued || request.held) return std::nullopt;
  if (!request.ready) return WaitCause::kAdapterLoad;
  if (!request.disk_keys.empty()) return WaitCause::kKvDisk;
  if (request.lacks) return WaitCause::kAdapterRoom;
  const auto has_choice = [&](SeqPhase phase) {
    return std::any_of(request.choices.begin(), request.choices.end(),
                       [phase](const auto& choice) { return choice->phase == phase; });
  };
  if (has_choice(SeqPhase::kWaiting)) return WaitCause::kTurn;
  return has_choice(SeqPhase::kForming) ? std::optional(WaitCause::kGrammar) : std::nullopt;
}

void EngineLoop::note_wait(Request& request) {
  waits_.waits_for(request.wait, wait_of(request), parts_.clock->now_ns());
}

}  // namespace loralei
