// SPDX-License-Identifier: Apache-2.0
// agents:THINK:FILE: several agents read one growing context, each through an adapter of
// its own (LRAgent's trajectories). A question comes at each arrival; its steps follow
// each other by THINK seconds. Columns: dataset, question, step, agent, input_chars,
// output_chars, shared_prefix_any_agent_chars; four characters make a token.
//
// The agent is the adapter, the dataset the app, the question the key. A question's
// context is one text named by its key. A step whose prompt begins with all of that
// text as far as it was told goes on telling it: all of its prompt belongs to it. Any
// other step begins with as much of it as the file says. What an earlier step answered
// counts as new where it is read again: it was no part of a prompt. Questions come in
// an order drawn with the seed; when all have come they come again, under keys of
// their own (KEY#2).
//
// Thread: a pure function of its options and the file.
// Failure: a sentence about the word, or FILE:LINE about the file.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "workload/arrivals.h"
#include "workload/lengths.h"
#include "workload/workload.h"

namespace loralei {

// What `lengths` says of scale, limits and seed counts here too; its word does not.
// At most `count` requests before `seconds`, each of which may be 0: no such limit.
Result<Workload> agent_requests(const std::string& spec, std::span<const WorkloadArrival> questions,
                                const LengthOptions& lengths, double seconds, int64_t count);

}  // namespace loralei
