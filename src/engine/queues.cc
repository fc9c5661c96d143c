// SPDX-License-Identifier: Apache-2.0
// Who stands in which queue, and why: made when somebody asks.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/loop.h"

namespace loralei {
namespace {

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// What is known of the queues without those that stand in them.
QueueState shape_of(const Scheduling& scheduling, int32_t queue) {
  const SizeQueues& queues = scheduling.queues();
  const std::vector<double>& borders = queues.groups().borders;
  const auto index = static_cast<size_t>(queue);
  QueueState state;
  state.size_from = index == 0 ? 0 : borders[index - 1];
  state.size_to = index < borders.size() ? borders[index] : std::numeric_limits<double>::infinity();
  state.taken_tokens = queues.taken(queue);
  if (!scheduling.has_queues()) return state;
  state.quota_tokens = queues.quota(queue);
  if (queues.refits() == 0) return state;
  const QueueLoad& load = queues.loads()[index];
  state.least_tokens = least_tokens(load);
  state.wanted_s = load.slo_s;
  state.arrivals_per_s = load.arrivals_per_s;
  return state;
}

}  // namespace

void EngineLoop::receive(const QueuesCommand& command) {
  output_->replies.push_back(
      {.ticket = command.ticket, .queues = std::make_shared<const QueuesState>(queues_state(command.listed_max))});
}

QueuesState EngineLoop::queues_state(int32_t listed_max) const {
  const int64_t now_ns = parts_.clock->now_ns();
  const SizeQueues& queues = scheduling_.queues();
  QueuesState state;
  state.policy = scheduling_.policy();
  if (scheduling_.predicts()) state.prediction = scheduling_.prediction();
  state.tokens_total = tokens_total();
  if (scheduling_.has_queues()) {
    const SizeQueues::Options& options = queues.options();
    const auto left = static_cast<int64_t>(options.first_fit) - static_cast<int64_t>(queues.arrivals());
    state.refits = queues.refits();
    if (state.refits > 0) state.refit_ago_s = seconds(now_ns - queues.refit_ns());
    if (queues.arrivals() > 0)
      state.refit_in_s = std::max(0.0, seconds(queues.refit_ns() + options.interval_ns - now_ns));
    if (state.refits == 0) state.refit_in_requests = std::max<int64_t>(0, left);
  }
  const auto most = static_cast<size_t>(std::max(0, listed_max));
  fill_queues(state, most, now_ns);
  fill_unplaced(state, most, now_ns);
  return state;
}

QueuedSequence EngineLoop::queued(const Sequence& sequence, int64_t now_ns) const {
  const Request& request = *sequence.request;
  QueuedSequence entry;
  entry.request = request.id;
  entry.choice = sequence.choice;
  for (const std::string& label : request.labels) entry.adapter += (entry.adapter.empty() ? "" : "+") + label;
  entry.input_tokens = request.prompt_size();
  entry.output_tokens = static_cast<int32_t>(sequence.text().size()) - request.prompt_size();
  const bool placed = sequence.phase == SeqPhase::kWaiting || sequence.phase == SeqPhase::kRunning;
  if (placed && scheduling_.predicts()) entry.output_predicted = sequence.standing.size.output;
  entry.since_arrival_s = seconds(now_ns - request.arrived_ns);
  if (sequence.phase == SeqPhase::kRunning) {
    entry.running_s = seconds(now_ns - sequence.admitted_ns);
  } else if (!request.ready) {
    entry.cause = WaitCause::kAdapterLoad;
  } else if (request.lacks) {
    entry.cause = WaitCause::kAdapterRoom;
  } else {
    entry.cause = sequence.phase == SeqPhase::kForming ? WaitCause::kGrammar : waits_.queue_cause();
  }
  return entry;
}

void EngineLoop::fill_queues(QueuesState& state, size_t listed_max, int64_t now_ns) const {
  for (int32_t queue = 0; queue < scheduling_.queues().count(); ++queue) {
    QueueState& shown = state.queues.emplace_back(shape_of(scheduling_, queue));
    shown.waiting = static_cast<int32_t>(admission_.size(queue));
    shown.set_aside = static_cast<int32_t>(admission_.set_aside(queue));
  }
  admission_.for_first(admission_.size(), [&](SeqId id) {
    const Sequence& sequence = *sequences_.at(id);
    QueueState& shown = state.queues[static_cast<size_t>(sequence.waiting.queue)];
    shown.longest_wait_s = std::max(shown.longest_wait_s, seconds(now_ns - sequence.request->arrived_ns));
    if (shown.first_waiting.size() < listed_max) shown.first_waiting.push_back(queued(sequence, now_ns));
  });
  for (const Sequence* sequence : running_) {
    QueueState& shown = state.queues[static_cast<size_t>(sequence->standing.queue)];
    ++shown.running;
    if (shown.first_running.size() < listed_max) shown.first_running.push_back(queued(*sequence, now_ns));
  }
}

// A request that waits for its adapters is one entry: its first choice that is open.
void EngineLoop::fill_unplaced(QueuesState& state, size_t listed_max, int64_t now_ns) const {
  state.unplaced = static_cast<int32_t>(cold_.size() + forming_.size());
  state.held = parked_;
  const auto list = [&](const Sequence& sequence) {
    if (state.first_unplaced.size() < listed_max) state.first_unplaced.push_back(queued(sequence, now_ns));
  };
  for (auto oldest = cold_.begin(); oldest != cold_.end() && state.first_unplaced.size() < listed_max; ++oldest) {
    const auto& choices = oldest->second->choices;
    const auto open = std::find_if(choices.begin(), choices.end(),
                                   [](const auto& choice) { return choice->phase != SeqPhase::kEnded; });
    if (open != choices.end()) list(**open);
  }
  for (const Sequence* sequence : forming_) list(*sequence);
}

}  // namespace loralei
