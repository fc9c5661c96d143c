// SPDX-License-Identifier: Apache-2.0
// QueuesState: who stands in which queue of the scheduler and why, and who runs, at one
// moment between two steps.
//
// Plain values. Made when somebody asks (QueuesCommand): that costs the engine's thread
// what waits and runs in all, and a step nothing. Sequences are counted, so a request of
// four choices is up to four entries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "sched/scheduling.h"
#include "sched/wait_times.h"

namespace loralei {

// Asks for a QueuesState; it comes with the reply.
struct QueuesCommand {
  uint64_t ticket = 0;
  int32_t listed_max = 50;  // that are named of each queue, waiting and running
};

// One choice of a request.
struct QueuedSequence {
  RequestId request;
  int32_t choice = 0;
  std::string adapter;                          // labels, joined by "+"; empty: the base
  int32_t input_tokens = 0, output_tokens = 0;  // of the prompt; that are out already
  std::optional<double> output_predicted;       // none where the policy needs no prediction
  double since_arrival_s = 0;
  double running_s = 0;            // of one that runs: since it was admitted last
  std::optional<WaitCause> cause;  // of one that waits: for what now; none: it runs
};

struct QueueState {
  // Of sizes (SizeQueues): from the one up to the other; infinite: no end.
  double size_from = 0, size_to = 0;
  std::optional<int64_t> quota_tokens;  // none: the queue may take everything
  int64_t taken_tokens = 0;
  // Once the queues have been laid out by what came: what it needs at least, what its
  // requests are wanted to take from arrival to their end, how many come.
  std::optional<double> least_tokens, wanted_s, arrivals_per_s;
  int32_t waiting = 0, running = 0;
  int32_t set_aside = 0;                      // of those that wait: until their adapter's place may be had
  double longest_wait_s = 0;                  // of those that wait, since their arrival
  std::vector<QueuedSequence> first_waiting;  // in the order in which they will be asked
  std::vector<QueuedSequence> first_running;  // oldest first
};

struct QueuesState {
  SchedulePolicy policy = SchedulePolicy::kFifo;
  std::optional<LengthPrediction> prediction;  // none: the policy asks for no lengths
  int64_t tokens_total = 0;                    // that KV and adapters have room for
  uint64_t refits = 0;                         // how often queues and quotas were laid out
  std::optional<double> refit_ago_s;
  // When they will be: at the earlier of so many seconds and so many requests from now.
  std::optional<double> refit_in_s;
  std::optional<int64_t> refit_in_requests;
  std::vector<QueueState> queues;  // small requests first
  // In no queue yet: requests whose adapter is on its way into memory, and sequences
  // whose grammar's first mask is being made.
  int32_t unplaced = 0;
  int32_t held = 0;                            // rest since nobody takes what they say
  std::vector<QueuedSequence> first_unplaced;  // those with adapters by age, then those with grammars
};

}  // namespace loralei
