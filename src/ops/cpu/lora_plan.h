// SPDX-License-Identifier: Apache-2.0
// The work list of one LoRA call: segments cut into pieces of a few rows, and for each (piece, target) the source as it
// was read once.
//
// Thread: built by the calling thread, then read by the pool. Ownership: lies in the caller's scratch. Invariant:
// pieces follow the order of the segments, so that overlapping segments are added in their order. A batch holds as many
// pieces as the scratch can take.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu/scratch.h"
#include "ops/lora_source.h"

namespace loralei {

struct LoraWork {
  const LoraPair* pair = nullptr;  // null: nothing low-rank to do
  const float* delta = nullptr;    // [row_count, out] or null
  float* values = nullptr;         // [row_count, rank]: A x
};

struct LoraPiece {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  float scale = 1;
  LoraWork works[kLoraTargetsMax];
};

struct LoraBatch {
  LoraPiece* pieces = nullptr;  // [kLoraPieces]
  int count = 0;
  int32_t rank_max = 0;  // of the works of this batch
};

constexpr int64_t lora_pieces_bytes() { return round_up64(kLoraPieces * static_cast<int64_t>(sizeof(LoraPiece))); }
constexpr int64_t lora_worker_bytes() { return int64_t{kExpandTokens} * kExpandOutputs * 4; }
constexpr int64_t lora_shared_bytes(int64_t rank_max) {
  return lora_pieces_bytes() + round_up64(lora_values(rank_max) * 4);
}

// Walks the segments and fills one batch after the other. Each source is read once, when its segment is reached.
class LoraPlanner {
 public:
  // `shared` holds the pieces and then the low-rank values of a batch.
  LoraPlanner(std::span<const LoraSegment> segments, std::span<const LoraTarget> targets, std::span<std::byte> shared);
  // False when no work is left.
  bool next(LoraBatch& batch);

 private:
  bool enter_segment(const LoraSegment& segment);  // false: nothing to do there
  void add_piece(const LoraSegment& segment, int32_t rows, LoraBatch& batch);

  std::span<const LoraSegment> segments_;
  std::span<const LoraTarget> targets_;
  LoraPiece* pieces_;
  float* values_;
  int64_t values_max_;
  int64_t values_used_ = 0;
  size_t segment_ = 0;
  int32_t row_ = 0;           // inside the segment
  int64_t values_a_row_ = 0;  // of the current segment
  ResolvedLora sources_[kLoraTargetsMax];
};

// The part of the scratch in front of the workers' parts.
inline std::span<std::byte> lora_shared(const OpContext& ctx) {
  const int64_t workers = lora_worker_bytes() * ctx.pool->threads();
  CHECK(workers + lora_pieces_bytes() < static_cast<int64_t>(ctx.scratch.size()));
  return ctx.scratch.subspan(static_cast<size_t>(workers));
}
inline float* lora_accumulators(const OpContext& ctx, int worker) {  // [kExpandTokens, kExpandOutputs]
  return reinterpret_cast<float*>(ctx.scratch.data() + lora_worker_bytes() * worker);
}

// How many outputs one work item expands, so that all threads find work; a multiple of 64.
int32_t expand_outputs(std::span<const LoraTarget> targets, int threads);

}  // namespace loralei
