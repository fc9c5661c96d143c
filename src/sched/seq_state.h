// SPDX-License-Identifier: Apache-2.0
// SeqState: what the planner may know of a sequence, as a plain value.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace loralei {

// An adapter of a sequence: applied with `scale` to the tokens from first_position on,
// before end_position, in the layers from first_layer on.
struct SeqAdapter {
  AdapterVersionId version;
  float scale = 1.0f;
  int32_t first_position = 0;
  int32_t end_position = INT32_MAX;
  int32_t first_layer = 0;
};

enum class HiddenRows : uint8_t { kNone, kLast, kAll };

struct SeqState {
  SeqId id;
  uint64_t order = 0;  // arrival; smaller is older
  const TokenId* tokens = nullptr;
  int32_t known = 0;  // tokens whose ids are known: prompt and output
  // Running: positions with KV. Offered: positions that the prefix cache holds.
  int32_t computed = 0;
  // Blocks of text: running: that it has; offered: that the cache holds. And of the pool,
  // which counts where there are windows (KvTables): else these are as many.
  int32_t blocks = 0, blocks_held = 0;
  // Of the pool. Running: blocks that preempting it would give back. Offered: of its
  // blocks, those that count as available now.
  int32_t blocks_exclusive = 0;
  // Scale 0 left out; by first_position, so that a row's adapters are summed in one order
  // whatever the chunks.
  std::span<const SeqAdapter> adapters;
  std::span<const TokenId> draft;            // guessed to follow; only where one known token is left to compute
  bool waits = false;                        // running: gets no rows in this step, but may be preempted
  bool sample = true;                        // wants logits at the last known token
  int32_t logits_begin = 0, logits_end = 0;  // further positions that want logits (prompt logprobs)
  HiddenRows hidden = HiddenRows::kNone;
  // Positions before `borrowed` are computed from layer begin_layer on: what lies below
  // has been lent (KvCache::borrow).
  int32_t borrowed = 0, begin_layer = 0;
  int32_t queue = 0;              // by its size (PlanInput::row_shares)
  int32_t rows_most = INT32_MAX;  // of a step, beside what all share
  int32_t rows_end = INT32_MAX;   // a step's rows end at this position, if they get there

  int32_t remaining() const { return known - computed; }
  int32_t begins_at() const { return computed < borrowed ? begin_layer : 0; }  // the next row's layer
};

}  // namespace loralei
