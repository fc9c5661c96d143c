// SPDX-License-Identifier: Apache-2.0
// How the kernels cut the caller's scratch: a shared part in front, then one equal part
// a worker. No allocation, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/limits.h"
#include "ops/op_table.h"

namespace loralei {

constexpr int64_t round_up64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Parts that different threads use at the same time end a page before the next one
// begins: a processor's prefetchers go on beyond the end of what a thread works through,
// and would take lines from the thread that is writing them.
constexpr int64_t kScratchPage = 4096;
constexpr int64_t scratch_part_bytes(int64_t bytes) {
  return (bytes + kScratchPage - 1) / kScratchPage * kScratchPage + kScratchPage;
}
// What a call takes of the scratch: the least size Scratch accepts.
constexpr int64_t scratch_bytes(int64_t shared_bytes, int64_t worker_bytes, int64_t threads) {
  return scratch_part_bytes(shared_bytes) + scratch_part_bytes(worker_bytes) * threads;
}

class Scratch {
 public:
  // Both sizes are what this call needs.
  Scratch(const OpContext& ctx, int64_t shared_bytes, int64_t worker_bytes)
      : base_(ctx.scratch.data()),
        shared_bytes_(scratch_part_bytes(shared_bytes)),
        worker_bytes_(scratch_part_bytes(worker_bytes)) {
    CHECK(scratch_bytes(shared_bytes, worker_bytes, ctx.pool->threads()) <= static_cast<int64_t>(ctx.scratch.size()));
  }
  template <typename T>
  T* shared() const {
    return reinterpret_cast<T*>(base_);
  }
  template <typename T>
  T* worker(int index) const {
    return reinterpret_cast<T*>(base_ + shared_bytes_ + worker_bytes_ * index);
  }

 private:
  std::byte* base_;
  int64_t shared_bytes_, worker_bytes_;
};

// What each kernel family needs, computed alike from OpLimits (in advance) and from its
// arguments (in the call).

// --- products of many plain rows (lane_product.inl.h)
// The inputs of a part of the rows, shared; for each worker a panel of weights, and the
// sums of the rows that meet it, or a block of it decoded. Lanes of both have one step
// more than they need.
constexpr int64_t kLanePartRows = 144;     // rows that meet the weights together
constexpr int64_t kLanePanelOutputs = 32;  // at most
constexpr int kLaneLevelsMax = 4;          // of the tree in which lanes are added
constexpr int64_t kLaneDecodedCols = 512;  // decoded together, a multiple of every format's block
constexpr int64_t lane_row_numbers(int64_t in) { return (in + 15) / 16 * 16 + 16; }
constexpr int64_t lane_input_bytes(int64_t rows, int64_t in) { return rows * lane_row_numbers(in) * 4; }
constexpr int64_t lane_worker_bytes(int64_t in) {
  constexpr int64_t kSums = (kLaneLevelsMax + 1) * kLanePartRows * kLanePanelOutputs;
  static_assert(kSums >= kRowTile * kLaneDecodedCols);  // decoded numbers lie where the sums will
  return (lane_row_numbers(in) * kLanePanelOutputs + kSums) * 4;
}

// --- products with bf16 and f16 weights on the matrix unit (matmul_amx.cc)
// The inputs of a part of the rows, cut into pieces; for each worker pieces of weights
// laid one behind the other, and the sums of the tiles of outputs it multiplies together.
constexpr int kMatrixPieces = 3;                            // bf16 numbers an input is cut into
constexpr int kMatrixWeightPieces = 2;                      // and a weight, at most
constexpr int kMatrixStepInputs = 32;                       // of one product
constexpr int64_t kMatrixPartRows = 256;                    // rows that meet the weights together
constexpr int64_t kMatrixStreamTiles = 2;                   // tiles of rows up to which weights are not gathered
constexpr int64_t kMatrixTilesTogether = 16;                // tiles of outputs that are
constexpr int64_t kMatrixBlockSteps = 4;                    // products' inputs that are
constexpr int64_t matrix_gather_bytes(int weight_pieces) {  // of a tile
  return kMatrixBlockSteps * kRowTile * kMatrixStepInputs * 2 * weight_pieces;
}
constexpr int64_t matrix_row_tiles(int64_t rows) { return (rows + kRowTile - 1) / kRowTile; }
constexpr int64_t matrix_tiles_together(int64_t rows) {
  return matrix_row_tiles(rows) <= kMatrixStreamTiles ? 2 : kMatrixTilesTogether;
}
constexpr int64_t matrix_gathered_bytes(int64_t rows, int weight_pieces) {
  return matrix_tiles_together(rows) * matrix_gather_bytes(weight_pieces);
}
constexpr int64_t matrix_worker_bytes(int64_t rows, int weight_pieces) {
  return matrix_gathered_bytes(rows, weight_pieces) +
         matrix_tiles_together(rows) * matrix_row_tiles(rows) * kRowTile * kRowTile * 4;
}
constexpr int64_t matrix_input_bytes(int64_t rows, int64_t in) {
  const int64_t held = rows <= kRowTile ? rows : matrix_row_tiles(rows) * kRowTile;
  return (in + kMatrixStepInputs - 1) / kMatrixStepInputs * kMatrixStepInputs * 2 * kMatrixPieces * held;
}

// --- products of bf16 weights with rounded inputs (matmul_bf16.cc)
// The inputs of a part of the rows, and for each worker the sums of a group of rows and
// a tile.
constexpr int kRoundedStepInputs = 32;
constexpr int kRoundedGroupRows = 12;      // at most
constexpr int64_t kRoundedPartRows = 256;  // rows that meet the weights together
constexpr int64_t rounded_row_bytes(int64_t in) {
  return (in + kRoundedStepInputs - 1) / kRoundedStepInputs * kRoundedStepInputs * 2;
}
constexpr int64_t rounded_worker_bytes() { return kRoundedGroupRows * kRowTile * 16 * 4; }

// --- attention
// Queries of one key/value head are handled in batches, positions in tiles
// of kTileTokens.
// A batch reads the whole context, so the larger the better, as long as there are items
// enough for all threads.
constexpr int kQueryBatch = 192, kQueryBatchLeast = 48;
constexpr int kDirectQueries = 8;  // up to here they read the cache directly
constexpr int kTileBlocks = 4;
constexpr int kTileTokens = kTileBlocks * kKvBlockTokens;
constexpr int kSumLanes = 16;      // partial sums of the softmax denominator
constexpr int kSplitTokens = 512;  // partial softmax ranges start at multiples of this position, whatever the batch
static_assert(kSplitTokens % kTileTokens == 0);
constexpr int64_t padded_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

struct AttentionSizes {
  int64_t queries = 0;       // vectors held at once, at most
  int64_t rows = 0;          // token rows they come from
  int64_t dim = 0;           // padded head_dim
  int64_t worker_bytes = 0;  // queries, one tile of K and of V, scores, parts, two states
  int64_t parts_bytes = 0;   // per query: which positions of a tile it attends to, its maximum there
  int64_t slot_bytes = 0;    // softmax state of one range
};
constexpr AttentionSizes attention_sizes(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  const int64_t group = kv_heads > 0 ? heads / kv_heads : 1;
  AttentionSizes sizes;
  sizes.rows = group >= kQueryBatch || group == 0 ? 1 : kQueryBatch / group;
  sizes.queries = sizes.rows * group;
  sizes.dim = padded_dim(head_dim);
  sizes.slot_bytes = round_up64(sizes.queries * (sizes.dim + kSumLanes + 1) * 4);
  sizes.parts_bytes = round_up64(sizes.queries * 12);
  sizes.worker_bytes = (sizes.queries * (sizes.dim + kTileTokens) + 2 * kTileTokens * sizes.dim) * 4 +
                       sizes.parts_bytes + 2 * sizes.slot_bytes;
  return sizes;
}
constexpr int64_t attention_split_slots(int threads) { return 4 * int64_t{threads}; }
constexpr int64_t attention_plan_bytes(int64_t groups) { return round_up64((2 * groups + 1) * 4); }

// --- LoRA: a batch is rows of segments, grouped by adapter, that fit the scratch ---
constexpr int kLoraTargetsMax = 8;
constexpr int kLoraSegments = 256;                       // segments looked at together
constexpr int kLoraRows = 1024;                          // rows of one batch
constexpr int64_t kLoraValues = int64_t{1} << 17;        // least number of low-rank values of one batch
constexpr int kExpandTokens = 8, kExpandOutputs = 1024;  // accumulators of one worker
// From token to token: 4 KiB apart all would have the same places in a cache.
constexpr int kExpandStride = kExpandOutputs + 16;
constexpr int64_t lora_values(int64_t rank_max) {
  const int64_t one_row = rank_max * kLoraTargetsMax;
  return one_row > kLoraValues ? one_row : kLoraValues;
}

// --- the gated delta rule (delta/delta_rule.inl.h) For each worker: q and k of a
// part of a sequence's rows, their decays and betas, a panel of a head's state, and
// what its columns recalled and will learn.
constexpr int kDeltaRows = 64;         // prepared together
constexpr int kDeltaColumns = 32;      // of a panel: with 128 keys half a first-level cache
constexpr int64_t kDeltaPadding = 16;  // lanes
constexpr int64_t delta_worker_bytes(int64_t key_dim, int64_t value_dim) {
  const int64_t keys = (key_dim + kDeltaPadding - 1) / kDeltaPadding * kDeltaPadding;
  const int64_t columns = (value_dim + kDeltaPadding - 1) / kDeltaPadding * kDeltaPadding;
  return (2 * kDeltaRows * (keys + 1) + keys * kDeltaColumns + 2 * columns) * 4;
}

int64_t cpu_scratch_bytes(const OpLimits& limits);
int64_t rounded_scratch_bytes(const OpLimits& limits);  // where bf16 weights meet rounded inputs
int64_t matrix_scratch_bytes(const OpLimits& limits);   // where bf16 and f16 weights meet the matrix unit

}  // namespace loralei
