// SPDX-License-Identifier: Apache-2.0
// Rows that begin at a layer where others have left the base's residual stream
// (ops/kv_streams.h).
#include <algorithm>

#include "base/check.h"
#include "model/model_state.h"
#include "tensor/codec.h"

namespace loralei {

ModelBatch Model::State::begun(const ModelBatch& batch, int layer) {
  if (batch.streams.empty() || batch.streams.back().begin_layer <= layer) return batch;
  const auto later = std::partition_point(batch.streams.begin(), batch.streams.end(),
                                          [layer](const GroupStream& group) { return group.begin_layer <= layer; });
  const auto groups = static_cast<size_t>(later - batch.streams.begin());
  const int32_t rows = batch.groups[groups].row_begin;
  const auto before = [rows](const auto& run) { return run.row_begin < rows; };
  ModelBatch begun = batch;
  begun.tokens = batch.tokens.first(static_cast<size_t>(rows));
  begun.positions = batch.positions.first(static_cast<size_t>(rows));
  begun.groups = batch.groups.first(groups);
  begun.streams = batch.streams.first(groups);
  begun.segments = batch.segments.first(
      static_cast<size_t>(std::ranges::partition_point(batch.segments, before) - batch.segments.begin()));
  begun.overrides = batch.overrides.first(
      static_cast<size_t>(std::ranges::partition_point(batch.overrides, before) - batch.overrides.begin()));
  return begun;
}

void Model::State::pass_streams(const ModelBatch& batch, const KvStreams& streams, int layer) {
  const int32_t level = layer == 0 || batch.streams.empty() ? -1 : streams.shape.level_of(layer);
  for (size_t index = 0; index < batch.streams.size() && layer > 0; ++index) {
    const GroupStream& stream = batch.streams[index];
    const RowGroup& group = batch.groups[index];
    const bool begins = stream.begin_layer == layer, leaves = stream.begin_layer < layer && stream.base_layers >= layer;
    CHECK(!begins || level >= 0);
    if (level < 0 || (!begins && !leaves)) continue;
    const int32_t count = begins ? group.row_count : stream.rows;
    for (int32_t row = 0; row < count; ++row) {
      const int32_t position = group.position + row;
      uint16_t* const kept = streams.rows(group.blocks[position / kKvBlockTokens], level) +
                             static_cast<int64_t>(position % kKvBlockTokens) * config.hidden;
      float* const now = x + static_cast<int64_t>(group.row_begin + row) * config.hidden;
      if (!begins) {
        for (int32_t i = 0; i < config.hidden; ++i) kept[i] = f32_to_bf16(now[i]);
      }
      if (!begins && stream.base_layers != layer) continue;
      for (int32_t i = 0; i < config.hidden; ++i) now[i] = bf16_to_f32(kept[i]);
    }
  }
}

}  // namespace loralei
