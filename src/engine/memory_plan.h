// SPDX-License-Identifier: Apache-2.0
// plan_memory: how the bytes left after the weights are shared between KV cache and
// adapters. A pure function.
//
// Defaults: KV gets what max_model_len x max_sequences needs, at most half of what is
// left, or what one sequence of a stated length needs, beside adapters of a stated size;
// adapters a quarter of the rest. On a device, where nothing else wants memory, KV gets
// at most what adapters leave (seven eighths where nobody said how much these have),
// and adapters all of the rest. Stated bytes of KV are used whole where prefixes are
// kept; else a note says how many no sequence could use. A model length that the user did
// not state shrinks to what the KV cache can hold, and a note says so; a stated one that
// cannot fit is refused with numbers.
//
// Where a sequence has a state beside its KV (kv/state_pool.h), states have at most half
// of what KV gets, but one at least: a slot for each of max_sequences, and twice as many
// for copies where prefixes are kept. If the half has fewer, copies keep a quarter of
// them, and fewer sequences run at once, which a note says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/kv_tables.h"

namespace loralei {

struct MemoryRequest {
  bool on_device = false;
  int64_t left_bytes = 0;     // of the budget, after weights and activations
  int64_t block_bytes = 0;    // of one KV block (kv/block_pool.h)
  KvTables tables = {};       // how many of these a sequence has
  int64_t state_bytes = 0;    // of the state of a sequence; 0: it has none
  int64_t model_len_max = 0;  // what the model can do; of an unstated length, what it says itself
  int64_t max_model_len = 0;  // as stated by the user; 0: not stated
  int32_t max_sequences = 0;
  int64_t kv_cache_bytes = 0;  // as stated; 0: default
  bool keeps_prefixes = true;  // so what no sequence needs is of use
  int64_t adapter_bytes = 0;   // as stated; 0: default
};

struct MemoryPlan {
  int32_t kv_blocks = 0;
  int64_t kv_bytes = 0;       // of the blocks
  int32_t state_slots = 0;    // beside them
  int32_t max_sequences = 0;  // no more than asked for, nor than have a state
  int64_t state_bytes = 0;    // of all slots
  int64_t adapter_bytes = 0;
  int64_t max_model_len = 0;
  std::vector<std::string> notes;  // what a user should know, one sentence each
};

// Of what weights, activations and KV leave of host memory.
inline constexpr int64_t default_adapter_bytes(int64_t left_bytes) { return left_bytes / 4; }

Result<MemoryPlan> plan_memory(const MemoryRequest& request);

}  // namespace loralei
