// SPDX-License-Identifier: Apache-2.0
// The work list of one LoRA call: rows of the segments, grouped by the adapter they use,
// so that an adapter is read once for all its rows wherever they stand.
//
// Thread: built by the calling thread, then read by the pool.
// Ownership: lies in the caller's scratch.
// Invariants: no row stands twice in one batch; a row's segments come in their order,
// one batch after the other; a batch holds as many rows as the scratch can take.
#pragma once

#include <cstdint>
#include <span>

#include "ops/args.h"
#include "ops/cpu/scratch.h"
#include "ops/lora_factors.h"

namespace loralei {

struct LoraRow {
  int32_t row = 0;  // of x and y
  float scale = 1;
};

// What one target gets from one adapter.
struct LoraPart {
  const LoraPair* pair = nullptr;  // null: nothing to do
  int32_t first = 0;               // the pair's first rank among the group's values
  bool shares_a = false;           // an earlier target has the same A: nothing to shrink
  int32_t chunk = 0;               // outputs of one expansion item
  int32_t chunks = 0;
};

struct LoraGroup {
  int32_t slot = 0;
  int32_t rows_begin = 0, rows = 0;  // in LoraBatch::rows
  int32_t ranks = 0;                 // of all parts side by side, a shared A once
  float* values = nullptr;           // [rows, ranks]: A x
  int64_t shrink_end = 0;            // items of this and all earlier groups
  int64_t expand_end = 0;
  int32_t tiles = 0;         // shrink tiles
  int32_t row_blocks = 0;    // shrink items of a tile
  int32_t shrinks_left = 0;  // items; the one field that changes while the pool works
  LoraPart parts[kLoraTargetsMax];
};

struct LoraBatch {
  LoraGroup* groups = nullptr;
  int32_t group_count = 0;
  LoraRow* rows = nullptr;
  int32_t tile_ranks = 0;  // ranks of one shrink tile
  int64_t shrink_items = 0;
  int64_t expand_items = 0;
};

// At most 8 ranks of equal format, side by side although they may come from
// several targets.
struct ShrinkTile {
  int32_t first = 0;  // among the group's values
  int32_t count = 0;
  const LoraPair* pairs[8] = {};
  int32_t ranks[8] = {};  // of each within its pair
};

constexpr int kShrinkRows = 32;  // rows of one shrink item

constexpr int64_t lora_groups_bytes() { return round_up64(kLoraSegments * static_cast<int64_t>(sizeof(LoraGroup))); }
constexpr int64_t lora_rows_bytes() { return round_up64(kLoraRows * static_cast<int64_t>(sizeof(LoraRow))); }
constexpr int64_t lora_worker_bytes() { return scratch_part_bytes(int64_t{kExpandTokens} * kExpandStride * 4); }
constexpr int64_t lora_shared_bytes(int64_t rank_max) {
  return lora_groups_bytes() + lora_rows_bytes() + round_up64(lora_values(rank_max) * 4);
}

// Walks the segments and fills one batch after the other. A source is read
// once per batch.
class LoraPlanner {
 public:
  // `shared` holds the groups, their rows and the low-rank values of a batch.
  LoraPlanner(std::span<const LoraSegment> segments, std::span<const LoraTarget> targets, int threads,
              std::span<std::byte> shared);
  // False when no work is left.
  bool next(LoraBatch& batch);

 private:
  struct Taken {
    int32_t segment = 0;  // in the window
    int32_t group = 0;
    int32_t row = 0, rows = 0;  // inside the segment
  };

  void enter_window();
  void take_rows(LoraBatch& batch);
  LoraGroup& group_of(int32_t slot, LoraBatch& batch);
  void place_rows(LoraBatch& batch);
  void count_items(LoraBatch& batch);

  std::span<const LoraSegment> segments_;  // not yet entered
  std::span<const LoraSegment> window_;
  std::span<const LoraTarget> targets_;
  const int threads_;
  LoraGroup* const groups_;
  LoraRow* const rows_;
  float* const values_;
  const int64_t values_max_;
  int32_t done_[kLoraSegments];  // rows of each segment of the window
  Taken taken_[kLoraSegments];
  int32_t taken_count_ = 0;
};

ShrinkTile shrink_tile_at(const LoraGroup& group, std::span<const LoraTarget> targets, int32_t tile_ranks,
                          int32_t index);

// The group that holds an item; `end` is the member that counts the items of one phase.
inline LoraGroup& group_of_item(const LoraBatch& batch, int64_t LoraGroup::*end, int64_t item) {
  int32_t low = 0, high = batch.group_count - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (item < batch.groups[middle].*end) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return batch.groups[low];
}

// The number of the group's first item.
inline int64_t first_item(const LoraBatch& batch, const LoraGroup& group, int64_t LoraGroup::*end) {
  return &group == batch.groups ? 0 : (&group - 1)->*end;
}

// Any worker: one shrink item of the group is done; waiting until all are.
void mark_shrunk(LoraGroup& group);
void wait_shrunk(LoraGroup& group);

// The part of the scratch behind the workers' parts.
inline std::span<std::byte> lora_shared(const OpContext& ctx) {
  const int64_t workers = lora_worker_bytes() * ctx.pool->threads();
  CHECK(workers + lora_groups_bytes() + lora_rows_bytes() < static_cast<int64_t>(ctx.scratch.size()));
  return ctx.scratch.subspan(static_cast<size_t>(workers));
}
inline float* lora_accumulators(const OpContext& ctx, int worker) {  // [kExpandTokens, kExpandStride]
  return reinterpret_cast<float*>(ctx.scratch.data() + lora_worker_bytes() * worker);
}

}  // namespace loralei
