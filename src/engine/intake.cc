// SPDX-License-Identifier: Apache-2.0
// What arrives: requests, cancels, adapter commands, finished loads; and the way of a request from cold to ready.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {

void EngineLoop::receive(Arrival&& arrival) {
  const RequestId id = arrival.submit.id;
  if (requests_.count(id) != 0) {
    // A reused id would make two requests indistinguishable above: the second one ends here.
    parts_.queued->fetch_sub(1, std::memory_order_relaxed);
    for (int32_t choice = 0; choice < arrival.submit.choices; ++choice) {
      output_->tokens.push_back({.id = id,
                                 .choice = choice,
                                 .end = EndReason::kError,
                                 .error = invalid_argument("request id " + std::to_string(id.value) + " is in use")});
    }
    return;
  }
  auto owned = std::make_unique<Request>();
  Request& request = *owned;
  request.id = id;
  request.submit = std::move(arrival.submit);
  request.order = next_order_++;
  request.since = registry_.serial();
  request.arrived_ns = arrival.arrived_ns;
  const Submit& submit = request.submit;
  for (const AdapterUse& use : submit.adapters) {
    request.names.push_back(use.name);
    request.texts.push_back(use.texts);
  }
  request.max_output =
      submit.pooling != Pooling::kNone ? 0 : std::min(submit.max_tokens, parts_.max_model_len - request.prompt_size());
  request.forbidden = submit.stop_ids;
  if (!submit.ignore_eos) request.forbidden.insert(request.forbidden.end(), parts_.eos.begin(), parts_.eos.end());
  if (submit.prompt_logprobs) request.prompt_logprobs.resize(submit.prompt.size());
  for (int32_t choice = 0; choice < submit.choices; ++choice) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = SeqId{next_seq_++};
    sequence->request = &request;
    sequence->choice = choice;
    sequence->order = request.order * kMaxChoices + static_cast<uint64_t>(choice);
    sequences_.emplace(sequence->id, sequence.get());
    request.choices.push_back(std::move(sequence));
  }
  request.unfinished = submit.choices;
  requests_.emplace(id, std::move(owned));
  if (request.names.empty()) {
    make_ready(request);
  } else {
    cold_.push_back(&request);
    cold_changed_ = true;
  }
}

void EngineLoop::receive(const Cancel& cancel) {
  const auto found = requests_.find(cancel.id);
  if (found == requests_.end()) return;
  Request& request = *found->second;
  if (cancel.choice == kAllChoices) return end_request(request, EndReason::kCancelled, {});
  for (const auto& sequence : request.choices) {
    if (sequence->choice == cancel.choice) return end(*sequence, EndReason::kCancelled);
  }
}

void EngineLoop::receive(const Hold& hold) {
  const auto found = requests_.find(hold.id);
  if (found == requests_.end() || found->second->held == hold.held) return;
  Request& request = *found->second;
  request.held = hold.held;
  for (const auto& sequence : request.choices) {
    if (hold.held && sequence->phase == SeqPhase::kRunning) {
      std::erase(running_, sequence.get());
      preempt(*sequence);
    } else if (hold.held && sequence->phase == SeqPhase::kWaiting) {
      leave_waiting(*sequence);
      enqueue(*sequence);
    } else if (hold.held && sequence->phase == SeqPhase::kForming) {
      std::erase(forming_, sequence.get());
      enqueue(*sequence);
    } else if (sequence->parked && sequence->phase == SeqPhase::kHeld) {
      sequence->parked = false;
      --parked_;
      enqueue(*sequence);
    }
  }
}

void EngineLoop::receive(const AdapterCommand& command) {
  switch (command.action) {
    case AdapterAction::kRegister:
      registry_.register_name(command.ticket, command.name, command.path, command.replace);
      break;
    case AdapterAction::kLoad:
      registry_.load(command.ticket, command.name, command.path, command.replace, command.texts);
      break;
    case AdapterAction::kUnload:
      registry_.unload(command.ticket, command.name);
      break;
    case AdapterAction::kPin:
      registry_.pin(command.ticket, command.name);
      break;
    case AdapterAction::kUnpin:
      registry_.unpin(command.ticket, command.name);
      break;
  }
}

void EngineLoop::receive(LoadDone&& done) { registry_.on_load_done(std::move(done)); }

void EngineLoop::receive(HeaderCheck&& check) { registry_.checked(check); }

void EngineLoop::receive(const TierNews&) { arriving_changed_ = true; }
void EngineLoop::receive(const LedgerNews&) { room_changed(); }

// Between two steps: nobody uses weights or KV now.
void EngineLoop::receive(const MemoryCommand& command) {
  const RoomMaker room{.resize_kv = [this](int32_t blocks) { return resize_kv(blocks); },
                       .idle_adapter_bytes = registry_.idle_bytes(),
                       .shrink_adapters = [this](int64_t bytes) { registry_.evict_idle(bytes); }};
  Status changed = parts_.set_budget(command.budget_bytes, room);
  if (!changed.ok()) ask_ready();  // weights that could not be read, perhaps
  output_->replies.push_back({.ticket = command.ticket, .status = std::move(changed)});
  room_changed();
}

// One round over those who wait for adapters, oldest first. Only when something changed since the last one.
void EngineLoop::acquire_adapters() {
  if (!cold_changed_ && registry_.generation() == round_generation_) return;
  if (cold_.empty() && !cold_changed_ && !registry_.loading()) {
    round_generation_ = registry_.generation();
    return;
  }
  cold_changed_ = false;
  registry_.begin_round();
  Error error;
  size_t kept = 0;
  for (size_t index = 0; index < cold_.size(); ++index) {
    Request& request = *cold_[index];
    switch (registry_.acquire(request.names, request.order, request.since, request.pins, error, request.texts)) {
      case AcquireOutcome::kReady:
        make_ready(request);
        break;
      case AcquireOutcome::kWaiting:
        cold_[kept++] = &request;
        break;
      case AcquireOutcome::kFailed:
        request.ready = true;
        end_request(request, EndReason::kError, error);
        break;
    }
  }
  cold_.resize(kept);
  const uint64_t before = registry_.generation();
  registry_.pump();
  round_generation_ = before;  // what pump() changed is looked at in the next turn
}

void EngineLoop::make_ready(Request& request) {
  request.ready = true;
  const Status status = prepare(request);
  if (!status.ok()) return end_request(request, EndReason::kError, status.error());
  if (tier_ == nullptr || request.segments.empty()) return start_choices(request);
  request.arriving = arriving_changed_ = true;
  const auto place = std::upper_bound(arriving_.begin(), arriving_.end(), &request,
                                      [](const Request* a, const Request* b) { return a->order < b->order; });
  arriving_.insert(place, &request);
}

// Choices after the first find its prompt in the cache (and its prompt log-probabilities) when it is through.
void EngineLoop::start_choices(Request& request) {
  const bool hold = parts_.prefix_cache || request.wants_prompt_logprobs();
  bool led = false;
  for (const auto& sequence : request.choices) {
    if (sequence->phase == SeqPhase::kEnded) continue;  // cancelled meanwhile
    if (!led || !hold) enqueue(*sequence);
    led = true;
  }
}

// Room on the device for what the request applies.
Result<bool> EngineLoop::hold_adapters(Request& request) {
  std::vector<const Adapter*> wanted;
  for (const AdapterPin& pin : request.pins) {
    const auto names = [&](const SeqAdapter& segment) { return segment.version == pin->version; };
    const bool applied = std::any_of(request.segments.begin(), request.segments.end(), names);
    if (applied && std::find(wanted.begin(), wanted.end(), &*pin) == wanted.end()) wanted.push_back(&*pin);
  }
  return request.hold.take(*tier_, wanted);
}

Result<bool> EngineLoop::have_arrived(const Request& request) {
  for (const AdapterVersionId version : request.hold.versions()) {
    const Result<bool> there = tier_->arrived(version);
    if (there.ok() && *there) continue;
    if (there.ok()) return false;
    const auto named = std::find_if(request.pins.begin(), request.pins.end(),
                                    [&](const AdapterPin& pin) { return pin->version == version; });
    const std::string& name = request.names[static_cast<size_t>(named - request.pins.begin())];
    return Error(there.error()).with_context("adapter \"" + name + "\" could not be brought to the device");
  }
  return true;
}

// One round over those whose adapters are on their way to the device, oldest first. While an older one waits for room
// there, no younger one begins: it would take that room, or keep what must go for it in use for ever.
void EngineLoop::bring_adapters() {
  if (!std::exchange(arriving_changed_, false)) return;
  bool room = true;
  size_t kept = 0;
  for (size_t index = 0; index < arriving_.size(); ++index) {
    Request& request = *arriving_[index];
    Result<bool> there = true;
    if (!request.hold && room) {
      there = hold_adapters(request);
      room = !there.ok() || *there;
    }
    if (there.ok()) there = request.hold ? have_arrived(request) : Result<bool>(false);
    if (there.ok() && !*there) {
      arriving_[kept++] = &request;
      continue;
    }
    request.arriving = false;
    if (there.ok()) {
      start_choices(request);
    } else {
      if (there.error().code == ErrorCode::kUnavailable && health_.ok()) lose(there.error());
      end_request(request, EndReason::kError, there.error());
    }
  }
  arriving_.resize(kept);
}

// Everything that follows from prompt and adapters together.
Status EngineLoop::prepare(Request& request) {
  std::vector<KvIdentityPart> identity;
  request.vocab = request.embed_vocab = parts_.config.vocab;
  TRY(apply_adapters(request, identity));
  const auto check_tokens = [&](int32_t begin, int32_t end, int32_t vocab) -> Status {
    for (int32_t position = begin; position < end; ++position) {
      const TokenId token = request.submit.prompt[static_cast<size_t>(position)];
      if (token >= vocab) {
        return invalid_argument("the prompt holds the token id " + std::to_string(token) + ", but the vocabulary has " +
                                std::to_string(vocab));
      }
    }
    return {};
  };
  const int32_t prompt = request.prompt_size();
  const int32_t changed = request.saved == nullptr ? prompt : std::min(prompt, request.saved_first_position);
  TRY(check_tokens(0, changed, request.saved == nullptr ? request.embed_vocab : parts_.config.vocab));
  TRY(check_tokens(changed, prompt, request.embed_vocab));
  request.vocab = std::min(request.vocab, request.embed_vocab);  // what is sampled is read in the next step
  request.key = make_kv_key(parts_.kv->identities(), identity, request.submit.cache_salt);
  return {};
}

namespace {

// First position of the last occurrence of `wanted` in `prompt`; nullopt when there is none.
std::optional<int32_t> last_occurrence(const std::vector<TokenId>& prompt, const std::vector<TokenId>& wanted) {
  const auto found = std::find_end(prompt.begin(), prompt.end(), wanted.begin(), wanted.end());
  if (found == prompt.end()) return std::nullopt;
  return static_cast<int32_t>(found - prompt.begin());
}

}  // namespace

Status EngineLoop::apply_adapters(Request& request, std::vector<KvIdentityPart>& identity) {
  for (size_t index = 0; index < request.pins.size(); ++index) {
    const Adapter& adapter = *request.pins[index];
    const AdapterUse& use = request.submit.adapters[index];
    if (!request.version.empty()) request.version += '+';
    request.version += digest_hex(adapter.digest).substr(0, 12);
    if (adapter.saved.any() && (request.pins.size() > 1 || use.scale != 1.0f)) {
      return invalid_argument(
          "adapter \"" + use.name +
          "\" replaces whole tensors of the model, so it can neither be summed with another nor scaled");
    }
    const Status accepted = parts_.executor->accepts(adapter);
    if (!accepted.ok()) return Error(accepted.error()).with_context("adapter \"" + use.name + "\"");
    if (use.scale == 0.0f) continue;  // adds nothing: the text is the base's
    int32_t first_position = 0;
    if (!adapter.alora_invocation.empty()) {
      const auto start = last_occurrence(request.submit.prompt, adapter.alora_invocation);
      if (!start) continue;  // never invoked, so never active (as PEFT does)
      first_position = *start;
    }
    request.segments.push_back({adapter.version, use.scale, first_position});
    identity.push_back({adapter.digest, use.scale, first_position});
    if (adapter.embed_pair().rank > 0) request.embed_vocab = std::min(request.embed_vocab, adapter.embed_pair().in);
    if (!adapter.saved.any()) continue;
    request.saved = &adapter.saved;
    request.saved_first_position = first_position;
    request.vocab = adapter.vocab;
    if (!adapter.saved.embed.empty()) request.embed_vocab = adapter.saved.embed.rows;
    TRY(parts_.slot->reserve_vocab(std::max(adapter.vocab, parts_.config.vocab)));
  }
  std::stable_sort(request.segments.begin(), request.segments.end(),
                   [](const SeqAdapter& a, const SeqAdapter& b) { return a.first_position < b.first_position; });
  return {};
}

void EngineLoop::collect_replies() {
  registry_.take_replies(replies_);
  for (RegistryReply& reply : replies_) {
    output_->replies.push_back({reply.ticket, std::move(reply.status), reply.bytes_freed, std::move(reply.version)});
  }
  replies_.clear();
}

}  // namespace loralei
