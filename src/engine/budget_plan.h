// SPDX-License-Identifier: Apache-2.0
// Who gets what of a memory budget that changes while requests run: what a start with
// that budget would give, as far as the running server can. Pure functions.
//
// Activations and the process keep their bytes. KV has its blocks as at start: a stated
// --kv-cache-memory, else half of what resident weights leave, or the streaming default;
// less where the weights could not be streamed otherwise, but never less than one
// sequence of the length that was announced, which any accepted request may need,
// and never more than the addresses set aside for it. Adapters have what was stated.
// Else those in use stay, and what nobody uses stays where it finds room: beside resident
// weights in what they and KV leave, while weights are streamed in the adapters' part of
// the budget; weights are never streamed for its sake. The weights take what is left.
#pragma once

#include <cstdint>

#include "engine/memory_plan.h"

namespace loralei {

inline constexpr int64_t kStreamingAdapterPart = 32;  // of the budget, one part for adapters while weights are streamed
inline constexpr int64_t kResidentKvTokens = 256;     // with less beside resident weights streaming serves better

// KV of a start that streams: one sequence of the length asked for at least; several side
// by side share a pass, where that costs little. Of `request` block_bytes, max_model_len,
// max_sequences and kv_cache_bytes count.
int64_t streaming_kv_bytes(const MemoryRequest& request, int64_t budget_bytes);

// KV and adapters of a start beside resident weights, at least: with less, weights are
// streamed. Whatever more is left, plan_memory() can do with it. Of `request` count the
// same and adapter_bytes.
int64_t least_beside_resident_bytes(const MemoryRequest& request, int64_t budget_bytes);

struct RunningMemory {
  int64_t kept_bytes = 0;          // activations, requests and the process
  int64_t adapter_bytes = 0;       // in use or pinned; the others may go
  int64_t whole_weight_bytes = 0;  // when nothing is streamed
  int64_t least_weight_bytes = 0;  // with which everything can be streamed
  int32_t kv_blocks_least = 0;     // one sequence of the announced length
  int32_t kv_blocks_most = 0;
  MemoryRequest asked;  // as at start: block_bytes, max_model_len, max_sequences, kv_cache_bytes, adapter_bytes
};

struct BudgetShares {
  int32_t kv_blocks = 0;
  int64_t adapter_bytes = 0;
  int64_t weight_bytes = 0;  // less than least_weight_bytes: the budget cannot do
};
BudgetShares share_budget(const RunningMemory& memory, int64_t budget_bytes);

// What adapters keep in every case.
int64_t kept_adapter_bytes(const RunningMemory& memory);

// The least budget whose shares can do.
int64_t least_budget_bytes(const RunningMemory& memory);

}  // namespace loralei
