// SPDX-License-Identifier: Apache-2.0
// Where sequences stand in admission, and what they take of their queues' quotas.
#include <algorithm>

#include "engine/loop.h"

namespace loralei {

AskedFor EngineLoop::asked_of(const Sequence& sequence) const {
  const Request& request = *sequence.request;
  AskedFor asked{.prompt = request.prompt_size(),
                 .output_most = std::max(0, request.max_output),
                 .output_so_far = static_cast<int32_t>(sequence.text().size()) - request.prompt_size(),
                 .arrived_ns = request.arrived_ns,
                 .features = request.length_features,
                 .foreseen = sequence.standing.foreseen,
                 .priority = request.submit.priority,
                 .ttft_ns = request.answered ? 0 : request.submit.slo.ttft_ns};
  if (parts_.foresee_output) asked.output_foreseen = parts_.foresee_output(request.submit);
  // Of one that is gone nothing is learned any more: it would be kept for ever.
  if (!request.sources.empty() && registry_.knows(request.sources.front())) asked.source = request.sources.front();
  for (const AdapterSourceId source : request.sources) asked.adapter_bytes += registry_.bytes_of(source);
  return asked;
}

// What KV and adapters have room for where steps use them.
int64_t EngineLoop::tokens_total() const {
  const int64_t adapters =
      tier_ != nullptr ? tier_->bytes_max()
                       : std::min(parts_.ledger->cap_bytes(MemoryUse::kAdapters), parts_.ledger->budget_bytes());
  return text_blocks(kv_room_.floor_blocks()) * kKvBlockTokens + adapters / kv_bytes_per_token();
}

// Now and then the queues are others: everybody has another place.
void EngineLoop::lay_out_queues() {
  if (!scheduling_.has_queues()) return;
  if (tokens_total() != scheduling_.queues().total()) scheduling_.set_total(tokens_total());
  if (!scheduling_.refit(parts_.clock->now_ns())) return;
  admission_.lay_out([this](Waiting& waiting) {
    Sequence& sequence = *sequences_.at(waiting.id);
    scheduling_.place_anew(sequence.standing);
    waiting.queue = sequence.standing.queue;
    waiting.tokens = sequence.standing.tokens;
    sequence.waiting = waiting;
  });
  for (Sequence* sequence : running_) {
    scheduling_.place_anew(sequence->standing);
    scheduling_.take(sequence->standing);
  }
}

// When one that lacks its adapter's place may have it: its copy has arrived, or the first
// of those that run has ended.
int64_t EngineLoop::place_ns(const Request& request, int64_t now_ns) const {
  if (!scheduling_.has_queues()) return INT64_MAX;
  if (request.arriving) {
    int64_t bytes = 0;
    for (const AdapterPin& pin : request.pins) bytes += pin->bytes;
    return now_ns + static_cast<int64_t>(upload_times_.predict_s(bytes) * 1e9);
  }
  int64_t first_ns = INT64_MAX;
  for (const Sequence* sequence : running_)
    if (!sequence->request->pins.empty())
      first_ns = std::min(first_ns, sequence->admitted_ns + sequence->standing.run_ns);
  return first_ns == INT64_MAX ? now_ns : std::max(now_ns, first_ns);
}

// Those that passed others, and run longer than they were to, give their place back: they
// run again from where they are.
void EngineLoop::squash_late() {
  if (!scheduling_.has_queues()) return;
  const int64_t now_ns = parts_.clock->now_ns();
  for (size_t index = running_.size(); index-- > 0;) {
    Sequence& sequence = *running_[index];
    if (sequence.passes_until_ns == 0 || sequence.passes_until_ns > now_ns) continue;
    sequence.passes_until_ns = 0;
    if (admission_.set_aside(sequence.standing.queue) == 0) continue;
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    sequence.squashed = true;
    preempt(sequence);
    ++counters_.squashes;
  }
}

// It does not run any more: what it took of its queue's quota is others'.
void EngineLoop::stand_down(Sequence& sequence) {
  if (scheduling_.has_queues()) scheduling_.give_back(sequence.standing);
  sequence.passes_until_ns = 0;
  if (kv_room_.joint() && registry_.loading()) room_changed();  // a load may have what it leased
}

}  // namespace loralei
