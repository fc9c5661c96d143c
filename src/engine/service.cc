// SPDX-License-Identifier: Apache-2.0
// What clients have had of the server, by which they have turns, and what requests want
// of time.
//
// A client is charged what the usage of its answers says: each request's prompt once,
// when the first of its choices is admitted, and each token when it is made. What is
// computed again (preempted, squashed) is charged to nobody.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/loop.h"

namespace loralei {

void EngineLoop::client_came(const Request& request) {
  if (scheduling_.has_clients()) clients_.came(request.submit.client);
}

void EngineLoop::client_left(const Request& request) {
  if (scheduling_.has_clients()) clients_.left(request.submit.client);
}

// What is left of its place in admission is of its client and of time.
void EngineLoop::begin_wait(Sequence& sequence) {
  const Standing& standing = sequence.standing;
  Waiting& waiting = sequence.waiting;
  waiting.since_ns = parts_.clock->now_ns();
  waiting.until_ns = waiting.since_ns + standing.wanted_ns;
  waiting.deadline_ns = standing.deadline_ns;
  waiting.latest_ns = standing.latest_ns;
  if (!scheduling_.has_clients()) return admission_.arrive(waiting);
  waiting.client = sequence.request->submit.client;
  admission_.arrive(waiting, clients_.begin_wait(waiting.client));
}

void EngineLoop::charge_prompt(Request& request) {
  if (!std::exchange(request.charged, true)) charge(request, request.prompt_size(), 0);
}

void EngineLoop::charge(const Request& request, int64_t input_tokens, int64_t output_tokens) {
  if (!scheduling_.has_clients()) return;
  const ClientId client = request.submit.client;
  admission_.set_served(client, clients_.serve(client, input_tokens, output_tokens));
}

// Of those that decode.
int64_t EngineLoop::least_tpot_ns() const {
  int64_t least_ns = INT64_MAX;
  for (const Sequence* sequence : running_) {
    const int64_t wanted_ns = sequence->request->submit.slo.tpot_ns;
    if (wanted_ns > 0 && sequence->first_token_ns > 0) least_ns = std::min(least_ns, wanted_ns);
  }
  return least_ns;
}

void EngineLoop::note_token(Sequence& sequence) {
  Request& request = *sequence.request;
  charge(request, 0, 1);
  if (request.submit.slo.ttft_ns <= 0 && request.submit.slo.tpot_ns <= 0) return;
  sequence.last_token_ns = parts_.clock->now_ns();
  if (sequence.first_token_ns == 0) sequence.first_token_ns = sequence.last_token_ns;
  note_answer(request);
}

void EngineLoop::note_answer(Request& request) {
  const int64_t wanted_ns = request.submit.slo.ttft_ns;
  if (std::exchange(request.answered, true) || wanted_ns <= 0) return;
  count_slo(SloKind::kTtft, parts_.clock->now_ns() - request.arrived_ns <= wanted_ns);
}

// The last choice decides. One that ends before there is an answer has missed its time if
// that is over; before, it says nothing. Of times between tokens the mean of each choice
// counts.
void EngineLoop::note_end(const Sequence& sequence) {
  Request& request = *sequence.request;
  const RequestSlo& slo = request.submit.slo;
  const int64_t gaps = static_cast<int64_t>(sequence.text().size()) - request.prompt_size() - 1;
  if (slo.tpot_ns > 0 && gaps > 0 && !request.was_held) {
    request.tpot_known = true;
    request.tpot_missed |= (sequence.last_token_ns - sequence.first_token_ns) / gaps > slo.tpot_ns;
  }
  if (request.unfinished > 1) return;
  if (request.tpot_known) count_slo(SloKind::kTpot, !request.tpot_missed);
  const bool late = parts_.clock->now_ns() - request.arrived_ns > slo.ttft_ns;
  if (slo.ttft_ns > 0 && !request.answered && late) count_slo(SloKind::kTtft, false);
}

void EngineLoop::check_clients() const {
  clients_.check();
  CHECK(scheduling_.has_clients() || clients_.known() == 0);
  for (const auto& [id, request] : requests_) {
    const bool wants_time = request->submit.slo.ttft_ns > 0 || request->submit.slo.tpot_ns > 0;
    for (const auto& sequence : request->choices) {
      CHECK(wants_time || sequence->first_token_ns == 0);
      CHECK(!sequence->admitted || request->charged);
    }
  }
}

}  // namespace loralei
