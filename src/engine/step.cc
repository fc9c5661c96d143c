// SPDX-License-Identifier: Apache-2.0
// One step: plan on scratch, commit the plan, begin it; and its end.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

// Sequences that are to stand ready with their first mask: more would only hold memory.
constexpr size_t kFormedMax = 64;

// That a cold request took.
ColdStart way_of(const Request& request) {
  if (!request.early) return ColdStart::kOndemand;
  return request.assisted ? ColdStart::kAssisted : ColdStart::kLayered;
}

}  // namespace

// Positions below this may come from the cache: the last known token must be computed,
// and so must whatever gives results of its own.
int32_t EngineLoop::match_limit(const Sequence& sequence) const {
  const Request& request = *sequence.request;
  int32_t limit = static_cast<int32_t>(sequence.text().size()) - 1;
  if (request.wants_prompt_logprobs()) limit = std::min(limit, request.prompt_logprobs_next - 1);
  if (request.submit.pooling == Pooling::kMean) limit = 0;
  return limit;
}

// How far somebody lends what it would begin with, from there on.
int32_t EngineLoop::lent_to(const Sequence& sequence, int32_t computed) const {
  const Request& request = *sequence.request;
  if (!request.lower.may_borrow || computed >= request.lower.until) return computed;
  const int32_t blocks = parts_.kv->lent(request.key, sequence.text(), request.lower.until, computed / kKvBlockTokens,
                                         request.lower.layers);
  return computed + blocks * kKvBlockTokens;
}

SeqState EngineLoop::state_of(const Sequence& sequence, int32_t computed, const HeldBlocks& held) const {
  const Request& request = *sequence.request;
  SeqState state;
  state.id = sequence.id;
  state.order = sequence.order;
  state.tokens = sequence.text().data();
  state.known = static_cast<int32_t>(sequence.text().size());
  state.computed = computed;
  state.blocks = held.of_text;
  state.blocks_held = held.of_pool;
  state.blocks_exclusive = held.exclusive;
  state.adapters = request.segments;
  state.queue = sequence.standing.queue;
  state.waits = waits_for_mask(sequence);
  if (sequence.phase == SeqPhase::kRunning) state.waits |= waits_for_layers(sequence);
  state.borrowed = sequence.borrowed;
  state.begin_layer = request.lower.layers;
  state.sample = request.samples();
  if (request.wants_prompt_logprobs()) {
    state.logits_begin = request.prompt_logprobs_next - 1;
    state.logits_end = request.prompt_size() - 1;
  }
  if (request.submit.pooling == Pooling::kLast) state.hidden = HiddenRows::kLast;
  if (request.submit.pooling == Pooling::kMean) state.hidden = HiddenRows::kAll;
  return state;
}

bool EngineLoop::speculates() const {
  if (keeps_states()) return false;  // a state cannot be taken back to the rows that were guessed well
  return parts_.speculate == Speculation::kLookup ||
         (parts_.speculate == Speculation::kAuto && parts_.executor->streams());
}

// For a sequence that is through its prompt and has one token to compute. The last token
// of the output is never part of a draft: nothing would follow it.
std::span<const TokenId> EngineLoop::draft_of(Sequence& sequence) const {
  const Request& request = *sequence.request;
  const auto known = static_cast<int32_t>(sequence.tokens.size());
  const int32_t outputs = known - request.prompt_size();
  if (!request.samples() || outputs < 1 || known - sequence.computed != 1) return {};
  return sequence.lookup.propose(
      sequence.tokens,
      {.tokens_max = request.max_output - outputs - 1, .vocab = request.vocab, .ends = request.forbidden});
}

// Those that run want their next mask. Of those that do not, more get their first one
// only while few stand ready to be admitted: each takes memory.
void EngineLoop::make_masks() {
  masks_wanted_.clear();
  bool others = false, grammars = false;
  const auto look_at = [&](Sequence* sequence) {
    if (waits_for_mask(*sequence)) {
      masks_wanted_.push_back(sequence);
    } else {
      (sequence->grammar == nullptr ? others : grammars) = true;
    }
  };
  for (Sequence* sequence : running_) look_at(sequence);
  grammars |= waiting_formed_ > 0;
  others |= admission_.size() > waiting_formed_;
  const size_t dear = first_dear();
  size_t looked_at = 0;
  if (waiting_formed_ < kFormedMax) {
    looked_at = std::min(dear, kFormedMax);
    masks_wanted_.insert(masks_wanted_.end(), forming_.begin(), forming_.begin() + static_cast<int64_t>(looked_at));
    if (dear < forming_.size()) masks_wanted_.push_back(forming_[dear]);
  }
  if (masks_wanted_.empty()) return;
  // Where nothing could be computed in the last turn, nobody is slowed.
  MaskWork::Beside beside = MaskWork::Beside::kNobody;
  if (computed_ && grammars) beside = MaskWork::Beside::kGrammars;
  if (computed_ && others) beside = MaskWork::Beside::kOthers;
  masks_.run(masks_wanted_, beside);
  take_formed(looked_at, dear);
}

size_t EngineLoop::first_dear() const {
  const auto found = std::partition_point(forming_.begin(), forming_.end(),
                                          [](const Sequence* sequence) { return !has_dear_mask(*sequence); });
  return static_cast<size_t>(found - forming_.begin());
}

// Of forming_, of which the first `looked_at` and that at `dear` were worked on: those
// whose mask is there go on to wait, those whose mask was found to be dear go to the end.
void EngineLoop::take_formed(size_t looked_at, size_t dear) {
  CHECK(looked_at <= dear && dear <= forming_.size());
  moved_.clear();
  if (dear < forming_.size() && !waits_for_mask(*forming_[dear])) {
    moved_.push_back(forming_[dear]);
    forming_.erase(forming_.begin() + static_cast<int64_t>(dear));
  }
  size_t kept = 0;
  for (size_t index = 0; index < looked_at; ++index) {
    Sequence* const sequence = forming_[index];
    if (waits_for_mask(*sequence) && !has_dear_mask(*sequence)) {
      forming_[kept++] = sequence;
    } else {
      moved_.push_back(sequence);
    }
  }
  forming_.erase(forming_.begin() + static_cast<int64_t>(kept), forming_.begin() + static_cast<int64_t>(looked_at));
  for (Sequence* sequence : moved_) enqueue(*sequence);
}

// What the steps so far say of the rows that prompts may have beside those that decode. A
// pass over streamed weights costs its reading: it should compute as many as it can.
PrefillRows EngineLoop::prefill_rows() const {
  const int64_t tpot_ns = least_tpot_ns();
  const bool unbounded = parts_.step_time_ns == kStepTimeUnbounded && tpot_ns == INT64_MAX;
  if (unbounded || (parts_.executor->streams() && parts_.step_time_ns == 0)) return {};
  StepLoad decode;
  int64_t context = 0, prompts = 0, backlog = waiting_rows_;
  for (const SeqState& state : running_states_) {
    if (state.waits) continue;
    if (state.remaining() == 1) {
      ++decode.rows;
      decode.attended += state.known;
    } else {
      context += state.computed;
      backlog += state.remaining();
      ++prompts;
    }
  }
  return times_.prefill_rows(decode, static_cast<int32_t>(prompts > 0 ? context / prompts : 0), backlog, tpot_ns);
}

// In the order of admission, until it has nobody more to ask.
void EngineLoop::offer_waiting() {
  refused_.reset();
  if (admission_.empty()) return;
  if (running_.size() == static_cast<size_t>(parts_.max_sequences)) return stop_offers(WaitCause::kSlots);
  const int64_t now_ns = parts_.clock->now_ns();
  admission_.begin(scheduling_.rooms(now_ns));
  registry_.reserve();
  while (const auto id = admission_.next()) {
    Sequence& sequence = *sequences_.at(*id);
    const std::optional<Fit> fit = offer(sequence, now_ns);
    if (!fit && sequence.request->lacks) admission_.refused(Lack::kAdapter, place_ns(*sequence.request, now_ns));
    if (!fit) continue;
    switch (*fit) {
      case Fit::kAdmitted:
      case Fit::kImpossible:
        continue;
      case Fit::kNoRows:
        admission_.refused(Lack::kRows);
        stop_offers(WaitCause::kRows);
        break;
      case Fit::kNoBlocks:
        admission_.refused(Lack::kMemory);
        stop_offers(WaitCause::kKv);
        break;
      case Fit::kNoSlots:
        admission_.refused(Lack::kSlots);
        stop_offers(WaitCause::kSlots);
        break;
    }
    refused_ = sequence.id;
    drop_unused_leases(*sequence.request);
  }
  if (!refused_ && admission_.short_of_quota()) stop_offers(WaitCause::kQuota);
}

// What the planner says of one that waits; nullopt: it was not asked, since the request
// has not got its leases (it lacks its adapters' place, or waits for no step any more).
std::optional<Fit> EngineLoop::offer(Sequence& sequence, int64_t now_ns) {
  Request& request = *sequence.request;
  CHECK(sequence.phase == SeqPhase::kWaiting && request.ready);
  const Leases leases = take_leases(sequence);
  if (leases != Leases::kGone) set_lacks(request, leases == Leases::kSkip);
  if (leases != Leases::kTaken) return std::nullopt;
  CHECK(request.pins.size() == request.sources.size());
  const KvMatch match = parts_.kv->peek(request.key, sequence.text(), match_limit(sequence));
  sequence.borrowed = lent_to(sequence, match.tokens());
  SeqState state = state_of(sequence, match.tokens(), {match.blocks, match.held, match.evictable});
  state.rows_end = match.keep_at[0];
  take_assist_rows(request, state);
  const Fit fit = planner_.offer(state);
  if (fit == Fit::kAdmitted) {
    sequence.passes_until_ns = admission_.passed() ? now_ns + sequence.standing.run_ns : 0;
    leave_waiting(sequence);
    ++request.running;
    request.held_as_is = 0;
    if (request.arriving || (request.provisional && !request.early)) begin_early(request);
    charge_prompt(request);
    count_waiting(request, false);
  } else if (fit == Fit::kImpossible) {  // it ends with its leases
    end(sequence, EndReason::kError,
        too_large("the text of " + std::to_string(sequence.text().size()) +
                  " tokens does not fit the KV cache; give it more memory"));
  }
  return fit;
}

// Those that were asked in a turn of the others, and are to begin in a step of their own.
void EngineLoop::offer_alone() {
  refused_.reset();
  const int64_t now_ns = parts_.clock->now_ns();
  for (const SeqId id : std::exchange(alone_waiting_, {})) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || found->second->phase != SeqPhase::kWaiting) continue;
    const auto fit = offer(*found->second, now_ns);
    if (!fit || *fit == Fit::kAdmitted || *fit == Fit::kImpossible) continue;
    drop_unused_leases(*found->second->request);
    admission_.places_changed();  // it is asked in its turn again
  }
}

// Whoever is not admitted now waits for this, as far as nobody after it lacks more.
void EngineLoop::stop_offers(WaitCause cause) { waits_.queue_waits_for(cause, parts_.clock->now_ns()); }

bool EngineLoop::plan() {
  waits_.queue_waits_for(WaitCause::kTurn, parts_.clock->now_ns());
  lay_out_queues();
  squash_late();
  if (running_.empty() && admission_.empty()) return false;
  fit_kv();
  settle_early();
  // In turns, where both kinds have rows.
  alone_turn_ = !alone_last_ && wants_alone();
  bool planned = plan_step();
  if (!planned && health_.ok() && (alone_turn_ || wants_alone())) {
    alone_turn_ = !alone_turn_;
    planned = plan_step();
  }
  alone_last_ = planned && alone_turn_;
  return planned;
}

// Of the sequences that this turn is for.
bool EngineLoop::plan_step() {
  KvCache& kv = *parts_.kv;
  const bool drafts = speculates();
  ++plans_;
  running_states_.clear();
  assist_rows_left_ = tier_ == nullptr ? 0 : parts_.executor->assist_state().rows;
  for (Sequence* sequence : running_) {
    const KvLease& lease = sequence->lease;
    running_states_.push_back(
        state_of(*sequence, sequence->computed, {lease.places(), lease.held(), kv.exclusive(lease)}));
    running_states_.back().rows_end = lease.keeps_next(sequence->computed);
    take_assist_rows(*sequence->request, running_states_.back());
    if (drafts && !running_states_.back().waits) running_states_.back().draft = draft_of(*sequence);
  }
  rows_now_ = prefill_rows();
  planner_.begin({.step = steps_,
                  .running = running_states_,
                  .blocks_available = kv.available(),
                  .blocks_total = kv.total(),
                  .tables = kv.tables(),
                  .blocks_for_new = kv_room_.blocks_for_new(),
                  .rows = rows_now_,
                  .row_shares = scheduling_.row_shares()});
  const uint64_t generation = registry_.generation();
  alone_turn_ ? offer_alone() : offer_waiting();
  prefetch();
  planner_.finish(planned_);
  commit_plan();
  if (!health_.ok()) {  // an upload found the device lost
    end_if_lost();
    group_sequences_.clear();
    return false;
  }
  stalled_ = group_sequences_.empty() && ended_.empty() && !std::exchange(given_up_, false);
  if (stalled_ && refused_ && kv.pages() > 0) stalled_ = false;  // what is encoded gives way to it in the next turn
  // Pins that were taken and given back are nothing new for those that wait for loads.
  const bool as_before = planned_.admitted.empty() && planned_.preempted.empty();
  if (stalled_ && as_before && generation == round_generation_) round_generation_ = registry_.generation();
  notice_stuck(stalled_ && running_.empty() && refused_);
  return !group_sequences_.empty();
}

// Nothing runs, and yet one that has all its leases was not admitted, so that nobody will
// ever wake it: a defect. It is tried again about once a second.
void EngineLoop::notice_stuck(bool stuck) {
  if (stuck && !stuck_)
    parts_.log->log(LogLevel::kError, "nothing runs, yet the oldest request does not fit; please report this");
  stuck_ = stuck;
}

void EngineLoop::preempt(Sequence& sequence) {
  CHECK(!in_flight_ && sequence.phase == SeqPhase::kRunning && sequence.request->running > 0);
  sequence.lease.release();
  stand_down(sequence);
  if (--sequence.request->running == 0) {
    drop_leases(*sequence.request);
    count_waiting(*sequence.request, true);
  }
  sequence.computed = sequence.borrowed = 0;
  sequence.pooled.clear();
  ++counters_.preemptions;
  enqueue(sequence);
}

// The youngest make room, as for a step that is short of blocks.
Status EngineLoop::resize_kv(int32_t blocks) {
  KvCache& kv = *parts_.kv;
  CHECK(!in_flight_ && blocks > 0);
  while (kv.leased() > blocks) {
    CHECK(!running_.empty());  // nobody else leases
    Sequence& youngest = *running_.back();
    running_.pop_back();
    preempt(youngest);
  }
  std::vector<KvLease*> leases;
  for (Sequence* sequence : running_) leases.push_back(&sequence->lease);
  return kv.resize(blocks, leases);
}

void EngineLoop::admit(Sequence& sequence) {
  Request& request = *sequence.request;
  CHECK(sequence.phase == SeqPhase::kWaiting && request.running > 0);
  CHECK(running_.size() < static_cast<size_t>(parts_.max_sequences));
  CHECK(request.pins.size() == request.sources.size());
  const int32_t length_max = request.prompt_size() + request.max_output;
  lease_prefix(sequence);
  sequence.phase = SeqPhase::kRunning;
  sequence.admitted_ns = parts_.clock->now_ns();
  if (scheduling_.has_queues()) scheduling_.take(sequence.standing);
  if (!sequence.admitted) {
    sequence.admitted = true;
    sequence.tokens.reserve(static_cast<size_t>(length_max));
    sequence.tokens = request.submit.prompt;
    sequence.cached_tokens = sequence.computed;
    sequence.queue_ns = parts_.clock->now_ns() - request.arrived_ns;
    counters_.prompt_tokens += static_cast<uint64_t>(request.prompt_size());
    counters_.cached_tokens += static_cast<uint64_t>(sequence.computed);
    counters_.prefix_queries += static_cast<uint64_t>(request.prompt_size());
    counters_.prefix_hits += static_cast<uint64_t>(sequence.computed);
    if (request.was_cold && !std::exchange(request.cold_counted, true))
      ++counters_.cold_starts.requests[static_cast<size_t>(way_of(request))];
  }
  leave_queue(request);
  const auto place = std::upper_bound(running_.begin(), running_.end(), &sequence,
                                      [](const Sequence* a, const Sequence* b) { return a->order < b->order; });
  running_.insert(place, &sequence);
}

// Carries out what the planner decided, and pairs groups with sequences. All blocks are
// had before anything is computed.
void EngineLoop::commit_plan() {
  group_sequences_.clear();
  for (const SeqId id : planned_.preempted) {
    Sequence& sequence = *sequences_.at(id);
    std::erase(running_, &sequence);
    preempt(sequence);
  }
  for (const SeqId id : planned_.admitted) admit(*sequences_.at(id));
  if (!materialise_admitted() || !borrow_admitted() || !found_as_planned()) return;
  for (const PlanGroup& group : planned_.plan.groups) {
    Sequence* sequence = sequences_.at(group.seq);
    CHECK(sequence->phase == SeqPhase::kRunning && sequence->computed == group.position);
    if (!parts_.kv->reserve(sequence->lease, group.position + group.row_count)) {
      // The planner counts conservatively, so this is a defect; the step is given up and
      // the sequence ends, nobody else suffers.
      parts_.log->log(LogLevel::kError, "the KV cache is shorter than planned; a request ends with an internal error");
      end(*sequence, EndReason::kError, internal_error("the KV cache was shorter than planned; please report this"));
      group_sequences_.clear();
      return;
    }
    group_sequences_.push_back(sequence);
  }
}

// Once all are leased: what is decoded takes blocks. False: the step is given up, since
// something encoded was damaged (memory has errors, or this is a defect); whoever was to
// read it ends, nobody else suffers.
bool EngineLoop::materialise_admitted() {
  bool whole = true;
  for (const SeqId id : planned_.admitted) {
    Sequence& sequence = *sequences_.at(id);
    if (parts_.kv->materialise(sequence.lease)) continue;
    const char* const what = "a cached prefix could not be decoded";
    parts_.log->log(LogLevel::kError, std::string(what) + "; it is dropped, and a request ends with an internal error");
    end(sequence, EndReason::kError, internal_error(std::string(what) + "; send the request again"));
    whole = false;
  }
  if (!whole) group_sequences_.clear();
  return whole;
}

// What is lent is copied at once: it may leave. False: some of what the plan counts upon
// has left already, to make room for others; the step is given up, and planned anew.
bool EngineLoop::borrow_admitted() {
  bool whole = true;
  for (const SeqId id : planned_.admitted) {
    Sequence& sequence = *sequences_.at(id);
    if (sequence.phase != SeqPhase::kRunning || sequence.borrowed <= sequence.computed) continue;
    const Request& request = *sequence.request;
    const int32_t wanted = std::exchange(sequence.borrowed, 0);
    const int32_t blocks =
        parts_.kv->borrow(sequence.lease, request.key, sequence.tokens, wanted / kKvBlockTokens, request.lower.layers);
    sequence.borrowed = blocks * kKvBlockTokens;
    whole = whole && sequence.borrowed == wanted;
    const int32_t tokens = std::max(0, sequence.borrowed - sequence.computed);
    sequence.borrowed_tokens += sequence.announced ? 0 : tokens;
    counters_.borrowed_tokens += static_cast<uint64_t>(tokens);
  }
  if (!whole) group_sequences_.clear();
  return whole;
}

const StepBatch& EngineLoop::begin_step() {
  CHECK(!in_flight_ && !group_sequences_.empty());
  step_begin_ns_ = parts_.clock->now_ns();
  in_flight_ = true;
  for (Sequence* sequence : group_sequences_) {
    CHECK(!keeps_states() || sequence->lease.state_at() == sequence->computed);
    sequence->lease.change_state();
  }
  return slot_.fill(planned_.plan, group_sequences_, parts_.executor->chooses_tokens(), arrivals_wait_ns());
}

void EngineLoop::finish(const StepDone& done, EngineOutput& output) {
  const StepBatch& batch = slot_.batch();
  const Status& status = done.status;
  CHECK(in_flight_ && done.step == batch.step);
  output_ = &output;
  in_flight_ = false;
  pass_ns_ = parts_.clock->now_ns() - step_begin_ns_;
  ++steps_;
  if (parts_.on_step) record_.features = features_of(batch, ranks_);  // before adapters may leave
  counters_.rows_last = static_cast<int32_t>(batch.tokens.size());
  counters_.rows += batch.tokens.size();
  const auto limit = std::lower_bound(kStepRowsLimits.begin(), kStepRowsLimits.end(), counters_.rows_last);
  ++counters_.steps_by_rows[static_cast<size_t>(limit - kStepRowsLimits.begin())];
  count_waits(done.waits);
  if (status.ok()) {
    confirm_step();
    commit_rows();
    commit_samples();
  } else if (done.waits.ended_by != AdapterVersionId()) {
    give_up_early(done.waits);
    renew_states();
  } else if (status.error().code == ErrorCode::kUnavailable) {
    lose(status.error());
    end_if_lost();
  } else {
    parts_.log->log(LogLevel::kError, "a step failed: " + status.error().message);
    // Whatever it was (a damaged file, a disk that fails), it is not the request's fault.
    const Error error = internal_error("A step of the model failed: " + status.error().message);
    for (Sequence* sequence : group_sequences_) end(*sequence, EndReason::kError, error);
    ask_ready();  // what can be mended is begun with at once
  }
  const int64_t end_ns = parts_.clock->now_ns(), step_ns = end_ns - step_begin_ns_;
  masks_.step_took(step_ns);
  counters_.step_ms_last = static_cast<double>(step_ns) * 1e-6;
  const int64_t turn_ns = taken_in_ns_ + end_ns - next_begin_ns_;
  counters_.step_s += static_cast<double>(turn_ns) * 1e-9;
  if (status.ok() && done.waits.assisted_layers == 0) learn_step(turn_ns - done.waits.ns);
  owe_rest();
  if (status.ok() && parts_.on_step) record_step(turn_ns, done.waits.ns);
  forget_ended();
  collect_replies();
  output_ = nullptr;
}

void EngineLoop::learn_step(int64_t ns) {
  StepLoad load;
  const int32_t layers = std::max(1, parts_.config.layers);
  for (const PlanGroup& group : planned_.plan.groups) {
    const int64_t rows = group.row_count, computed = layers - group.begin_layer;  // of the layers
    load.rows += static_cast<int32_t>((rows * computed + layers - 1) / layers);
    load.attended += (rows * group.position + rows * (rows + 1) / 2) * computed / layers;
  }
  if (load.rows > 0) times_.learn(load, ns);  // else all of it was lent
  scheduling_.learn_step(ns);
}

void EngineLoop::record_step(int64_t ns, int64_t waited_ns) {
  record_.step = slot_.batch().step;
  record_.begin_ns = next_begin_ns_;
  record_.ns = ns;
  record_.waited_ns = waited_ns;
  record_.waiting = queued_;
  record_.admitted.clear();
  for (const SeqId id : planned_.admitted) {
    const RequestId request = sequences_.at(id)->request->id;
    if (record_.admitted.empty() || record_.admitted.back() != request) record_.admitted.push_back(request);
  }
  parts_.on_step(record_);
}

// Nothing can be computed from now on.
void EngineLoop::lose(const Error& error) {
  health_ = Error(error).with_context("Nothing can be computed any more");
  parts_.log->log(LogLevel::kError, health_.error().message);
}

// Whatever waits or runs ends with the sentence.
void EngineLoop::end_if_lost() {
  if (!health_.ok()) end_requests(EndReason::kError, health_.error());
}

void EngineLoop::ask_ready() {
  if (!ready_.ok()) room_changed();  // what mending had borrowed may be back
  ready_ = parts_.executor->ready();
}

void EngineLoop::end_if_not_ready() {
  if (requests_.empty() && ready_.ok()) return;
  ask_ready();
  if (!ready_.ok()) end_requests(EndReason::kError, ready_.error());
}

}  // namespace loralei
