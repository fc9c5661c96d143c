// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/lora_plan.h"

#include <algorithm>

namespace loralei {

LoraPlanner::LoraPlanner(std::span<const LoraSegment> segments, std::span<const LoraTarget> targets,
                         std::span<std::byte> shared)
    : segments_(segments),
      targets_(targets),
      pieces_(reinterpret_cast<LoraPiece*>(shared.data())),
      values_(reinterpret_cast<float*>(shared.data() + lora_pieces_bytes())),
      values_max_((static_cast<int64_t>(shared.size()) - lora_pieces_bytes()) / 4) {
  CHECK(targets.size() <= kLoraTargetsMax);
}

bool LoraPlanner::enter_segment(const LoraSegment& segment) {
  values_a_row_ = 0;
  bool work = false;
  for (size_t t = 0; t < targets_.size(); ++t) {
    ResolvedLora source = resolve_lora(targets_[t].sources[segment.slot]);
    if (source.pair != nullptr && source.pair->rank == 0 && source.pair->bias_delta == nullptr) source.pair = nullptr;
    if (source.pair != nullptr) values_a_row_ += source.pair->rank;
    work = work || source.pair != nullptr || source.delta != nullptr;
    sources_[t] = source;
  }
  return work;
}

void LoraPlanner::add_piece(const LoraSegment& segment, int32_t rows, LoraBatch& batch) {
  LoraPiece& piece = batch.pieces[batch.count++];
  piece = LoraPiece{segment.row_begin + row_, rows, segment.scale, {}};
  for (size_t t = 0; t < targets_.size(); ++t) {
    LoraWork& work = piece.works[t];
    work.pair = sources_[t].pair;
    if (sources_[t].delta != nullptr) work.delta = sources_[t].delta + int64_t{row_} * targets_[t].out;
    if (work.pair == nullptr) continue;
    CHECK(work.pair->out <= targets_[t].out);
    work.values = values_ + values_used_;
    values_used_ += int64_t{rows} * work.pair->rank;
    batch.rank_max = std::max(batch.rank_max, work.pair->rank);
  }
}

bool LoraPlanner::next(LoraBatch& batch) {
  batch = LoraBatch{pieces_, 0, 0};
  values_used_ = 0;
  while (segment_ < segments_.size() && batch.count < kLoraPieces) {
    const LoraSegment& segment = segments_[segment_];
    if (segment.row_count <= 0 || (row_ == 0 && !enter_segment(segment))) {
      ++segment_;
      continue;
    }
    int64_t rows = std::min(kLoraPieceRows, segment.row_count - row_);
    if (values_a_row_ > 0) rows = std::min(rows, (values_max_ - values_used_) / values_a_row_);
    if (rows == 0) {
      CHECK(batch.count > 0);  // OpLimits::rank_max was smaller than this rank
      break;
    }
    add_piece(segment, static_cast<int32_t>(rows), batch);
    row_ += static_cast<int32_t>(rows);
    if (row_ == segment.row_count) {
      row_ = 0;
      ++segment_;
    }
  }
  return batch.count > 0;
}

int32_t expand_outputs(std::span<const LoraTarget> targets, int threads) {
  int64_t total = 0;
  for (const LoraTarget& target : targets) total += target.out;
  const int64_t share = (total / (4 * int64_t{threads}) + 63) / 64 * 64;
  return static_cast<int32_t>(std::clamp<int64_t>(share, 256, kExpandOutputs));
}

}  // namespace loralei
