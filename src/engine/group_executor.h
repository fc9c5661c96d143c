// SPDX-License-Identifier: Apache-2.0
// The executor of a model that several ranks compute (parallel/collective.h): rank 0,
// which the engine knows. It tells the others what it is told, in the same order, and
// computes its own part of every step; results are its own.
//
// Thread, invariants: Executor's. Ownership: borrows group, model and ledger.
// Failure: what a rank fails of ends the group for good: that step and all later ones
// answer kUnavailable with its sentence, and so does ready().
#pragma once

#include <memory>

#include "engine/executor.h"
#include "parallel/collective.h"

namespace loralei {

// Whether ranks can read each other's memory. Threads share one KV cache by heads, and
// one copy of each adapter. Processes have each a cache with the same blocks, set up
// before, and are sent adapters.
enum class RankMemory { kShared, kOwn };

// `model`: rank 0's part, created with `limits` and `group`. `whole`: of all ranks.
std::unique_ptr<Executor> make_group_executor(Collective& group, RankMemory memory, Model& model,
                                              const ModelConfig& whole, const ModelLimits& limits, Ledger& ledger);

}  // namespace loralei
