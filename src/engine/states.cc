// SPDX-License-Identifier: Apache-2.0
// What sequences begin with: the prefix that is there and, of a model that keeps one, the
// state at its end (kv/state_pool.h).
#include <algorithm>

#include "base/check.h"
#include "engine/loop.h"
#include "kv/block_count.h"

namespace loralei {

void EngineLoop::lease_prefix(Sequence& sequence) {
  const Request& request = *sequence.request;
  const int32_t limit = match_limit(sequence);
  const int32_t length_max = request.prompt_size() + request.max_output;
  sequence.lease = parts_.kv->match(request.key, sequence.text(), limit, kv_blocks_for(length_max));
  sequence.computed = sequence.lease.shared() * kKvBlockTokens;
  CHECK(sequence.computed <= std::max(0, limit));
  if (!keeps_states()) return;
  CHECK(sequence.lease.state_at() == sequence.computed);
  sequence.borrowed = 0;  // nobody lends here, and it may begin earlier than when that was asked
}

// What a step that has failed left of the states of its rows is of no text: who goes on
// computes from the longest prefix on.
void EngineLoop::renew_states() {
  if (!keeps_states()) return;
  for (Sequence* sequence : group_sequences_) {
    if (sequence->phase != SeqPhase::kRunning) continue;
    sequence->lease.release();
    sequence->pooled.clear();
    lease_prefix(*sequence);
  }
}

// False: the copy of a state that one was to begin with has given way to the state of
// another that was admitted before it; the step is given up, and planned anew.
bool EngineLoop::found_as_planned() {
  if (!keeps_states()) return true;
  const bool all =
      std::all_of(planned_.plan.groups.begin(), planned_.plan.groups.end(),
                  [this](const PlanGroup& group) { return sequences_.at(group.seq)->computed == group.position; });
  if (!all) group_sequences_.clear();
  given_up_ = !all;
  return all;
}

}  // namespace loralei
