// SPDX-License-Identifier: Apache-2.0
// StepBatch: a step as a value: ids and offsets only. It can be logged, costed, or sent
// elsewhere: nothing in it says where adapters, KV or results lie. That is the executor's
// to know (executor.h). StepDone and StepResult: what comes back.
//
// Thread: plain values. Ownership: the spans of a batch are the BatchSlot's and stay as
// they are while the step is computed; those of a result are the executor's, until its
// next start(). No failure.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "model/layer_inputs.h"
#include "ops/args.h"
#include "ops/kv_streams.h"
#include "ops/row_choice.h"

namespace loralei {

// One sequence's rows. Position p of it lies in
// blocks[blocks_begin + p / kKvBlockTokens]; where there are several tables (KvTables),
// each has blocks_count entries, one behind the other.
struct BatchGroup {
  int32_t row_begin = 0, row_count = 0;
  int32_t position = 0;  // of the first row
  int32_t blocks_begin = 0, blocks_count = 0;
  GroupStream stream = {};
  int32_t state = -1;  // slot of the sequence's state, of the tokens before `position`; -1: the model keeps none
};

// Rows that read the full tensors which a version has in the place of the model's.
struct VersionRows {
  int32_t row_begin = 0, row_count = 0;
  AdapterVersionId version;
};

struct StepBatch {
  uint64_t step = 0;
  std::span<const TokenId> tokens;             // [rows], each below the vocabulary its row uses
  std::span<const int32_t> positions;          // [rows]
  std::span<const int32_t> blocks;             // tables of all groups, one behind the other
  std::span<const BatchGroup> groups;          // cover all rows in order
  std::span<const LoraSegment> segments;       // each of adapters[slot]
  std::span<const AdapterVersionId> adapters;  // [slots], ascending
  std::span<const int32_t> first_layers;       // [slots], of those: below it the slot changes nothing
  std::span<const VersionRows> replaced;       // ascending, disjoint
  std::span<const int32_t> logits_rows;        // ascending
  std::span<const RowChoice> choices;          // [logits_rows], or empty where all logits are wanted
  std::span<const int32_t> hidden_rows;        // ascending
  int64_t arrivals_wait_ns = 0;                // in all, for layers of adapters that are on their way

  // The executor gives the token of this row of logits, and no logits.
  bool is_chosen(size_t logits_row) const { return !choices.empty() && choices[logits_row].vocab > 0; }
};

// A step has ended. An error: nothing of it counts; kUnavailable: the executor can
// compute nothing any more, whatever the step (a device that is lost).
struct StepDone {
  uint64_t step = 0;
  Status status;
  StepWaits waits = {};
};

struct StepResult {
  const float* logits = nullptr;  // [logits_rows, logits_stride]; columns beyond a row's vocabulary are -inf
  int64_t logits_stride = 0;
  std::span<const TokenId> chosen;  // [logits_rows] where the batch had choices; kNoToken: none is possible
  const float* hidden = nullptr;    // [hidden_rows, hidden_size] after the final norm
  int32_t hidden_size = 0;

  std::span<const float> logits_of(size_t row, int32_t vocab) const {
    return {logits + static_cast<int64_t>(row) * logits_stride, static_cast<size_t>(vocab)};
  }
  std::span<const float> hidden_of(size_t row) const {
    return {hidden + static_cast<int64_t>(row) * hidden_size, static_cast<size_t>(hidden_size)};
  }
};

}  // namespace loralei
