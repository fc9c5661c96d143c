// SPDX-License-Identifier: Apache-2.0
// What arrives: requests, cancels, commands, what has ended elsewhere.
#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {
namespace {

constexpr int64_t kMemoryWatchNs = 1'000'000'000;
constexpr int64_t kKeepLengthsNs = 180'000'000'000;

}  // namespace

void EngineLoop::receive(std::vector<Message>& messages, EngineOutput& output) {
  for (const Message& message : messages) {
    if (const auto* done = std::get_if<StepDone>(&message)) finish(*done, output);
  }
  if (in_flight_) {
    kept_.insert(kept_.end(), std::make_move_iterator(messages.begin()), std::make_move_iterator(messages.end()));
    return messages.clear();
  }
  const int64_t begin_ns = parts_.clock->now_ns();
  output_ = &output;
  watch_memory();
  for (std::vector<Message>* arrived : {&kept_, &messages}) {
    for (Message& message : *arrived) take(message);
    arrived->clear();
  }
  end_if_lost();  // before they ask for room on a device that is gone
  end_if_not_ready();
  registry_.foresee();
  if (kv_room_.joint()) kv_room_.keep(blocks_of_running());  // before loads ask for room
  look_at_cold();
  if (std::exchange(arriving_changed_, false)) {
    device_full_ = false;
    admission_.places_changed();
  }
  forget_ended();
  keep_lengths(kKeepLengthsNs);
  output_ = nullptr;
  taken_in_ns_ = parts_.clock->now_ns() - begin_ns;
}

void EngineLoop::take(Message& message) {
  std::visit(
      [this](auto& value) {
        if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(value)>, StepDone>) receive(std::move(value));
      },
      message);
}

// About once a second. A device's is looked at behind steps alone: between them benches
// measure it, in memory of their own.
void EngineLoop::watch_memory() {
  const int64_t now_ns = parts_.clock->now_ns();
  if (!parts_.watch_memory || now_ns - memory_watched_ns_ < kMemoryWatchNs) return;
  if (tier_ != nullptr && std::exchange(steps_watched_, steps_) == steps_) return;
  memory_watched_ns_ = now_ns;
  memory_moves_ = parts_.watch_memory([this](int64_t bytes) { give_way(bytes); });
  room_changed();
}

void EngineLoop::receive(Arrival&& arrival) {
  const RequestId id = arrival.submit.id;
  if (requests_.count(id) != 0) {
    // A reused id would make two requests indistinguishable above: the second one ends
    // here.
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
    request.sources.push_back(use.source);
    request.labels.push_back(registry_.label(use.source));
  }
  request.max_output =
      submit.pooling != Pooling::kNone ? 0 : std::min(submit.max_tokens, parts_.max_model_len - request.prompt_size());
  request.forbidden = submit.stop_ids;
  if (!submit.ignore_eos) request.forbidden.insert(request.forbidden.end(), parts_.eos.begin(), parts_.eos.end());
  if (request.samples()) {
    request.length_features = scheduling_.features_of(
        request.sources.empty() ? AdapterSourceId{} : request.sources.front(),
        {.prompt = submit.prompt, .output_most = request.max_output, .formed = submit.sampling.grammar != nullptr});
  }
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
  ++queued_;
  client_came(request);
  waits_.came(request.arrived_ns, parts_.clock->now_ns());
  registry_.asked(request.sources);
  if (request.sources.empty()) {
    make_ready(request, {});
  } else {
    count_waiting(request, true);
    wait_for_adapters(request);
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
  request.was_held |= hold.held;
  set_lacks(request, false);
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
  note_wait(request);
}

void EngineLoop::receive(const AdapterCommand& command) {
  switch (command.action) {
    case AdapterAction::kAdd:
      introduce(command.source);
      registry_.add(command.ticket, command.source, parts_.cold_start == ColdStart::kCached);
      break;
    case AdapterAction::kLoad:
      introduce(command.source);
      registry_.load(command.ticket, command.source, command.reload, command.replaces);
      break;
    case AdapterAction::kDrop:
      registry_.drop(command.ticket, command.source.id);
      break;
    case AdapterAction::kPin:
      registry_.pin(command.ticket, command.source.id);
      break;
    case AdapterAction::kUnpin:
      registry_.unpin(command.ticket, command.source.id);
      break;
  }
}

// By what its files lie at: that is the same in the next process.
void EngineLoop::introduce(const AdapterSourceSpec& source) {
  if (scheduling_.predicts() && !source.path.empty())
    scheduling_.lengths().introduce(source.id, LengthPredictor::key_of(source.path));
}

void EngineLoop::receive(LoadDone&& done) { registry_.on_load_done(std::move(done)); }

void EngineLoop::receive(HeaderCheck&& check) { registry_.checked(check); }

void EngineLoop::receive(const UploadDone& done) {
  arriving_changed_ = true;
  note_arrived(done);
  learn_uploads();
  const auto found = prefetched_.find(done.version);
  if (found == prefetched_.end()) return;
  prefetch_due_ |= done.status.ok();  // else not before something else has changed: it may fail for ever
  const bool wanted = waiting_by_source_.count(found->second) != 0;
  prefetched_.erase(found);
  if (!wanted && !parts_.adapter_keeping.keeps) drop_copy(done.version);
}

// Between two steps: nobody uses weights or KV now.
void EngineLoop::receive(const BudgetReady& ready) {
  const MemoryCommand& command = ready.command;
  if (!ready.prepared.ok()) {
    output_->replies.push_back({.ticket = command.ticket, .status = ready.prepared});
    return room_changed();  // what prepare() had borrowed
  }
  const RoomMaker room{.resize_kv = [this](int32_t blocks) -> Status {
                         TRY(resize_kv(blocks));
                         kv_room_.set_floor(blocks);
                         return {};
                       },
                       .idle_adapter_bytes = registry_.idle_bytes(),
                       .shrink_adapters = [this](int64_t bytes) { registry_.evict_idle(bytes); },
                       .set_adapter_floor = [this](int64_t bytes) { kv_room_.set_adapter_floor(bytes); },
                       .kv_blocks = kv_room_.floor_blocks()};
  Status changed = parts_.set_budget(command.budget_bytes, room);
  if (!changed.ok()) ask_ready();  // weights that could not be read, perhaps
  tell_adapters(*output_);         // who had to leave
  output_->replies.push_back({.ticket = command.ticket, .status = std::move(changed)});
  room_changed();
}

void EngineLoop::collect_replies() {
  registry_.take_replies(replies_);
  if (!replies_.empty()) tell_adapters(*output_);
  for (RegistryReply& reply : replies_) {
    output_->replies.push_back({reply.ticket, std::move(reply.status), reply.bytes_freed, std::move(reply.version)});
  }
  replies_.clear();
}

}  // namespace loralei
