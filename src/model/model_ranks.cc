// SPDX-License-Identifier: Apache-2.0
// What is different in a model that several ranks compute: sums over their inputs, and
// the head, of which each has some rows of the vocabulary.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/head_parts.h"
#include "model/model_state.h"

namespace loralei {
namespace {

// Logits that are passed on together, of all ranks.
constexpr int64_t kChunkFloats = int64_t{1} << 18;

}  // namespace

int64_t part_stride_of(const Shard& shard, int32_t vocab) {
  int64_t most = 0;
  for (int rank = 0; rank < shard.size; ++rank)
    most = std::max(most, tiled_part({rank, shard.size}, vocab, kRowTile).count);
  return (most + kRowTile - 1) / kRowTile * kRowTile;
}

int32_t part_rows_of(const Shard& shard, int32_t vocab, int32_t rows) {
  const int64_t floats = part_stride_of(shard, vocab) * shard.size;
  return static_cast<int32_t>(std::clamp<int64_t>(kChunkFloats / floats, 1, rows));
}

ModelConfig config_of_rank(const ModelConfig& config, int size) {
  CHECK(config.heads % size == 0 && config.kv_heads % size == 0 && config.ffn % size == 0);
  ModelConfig part = config;
  part.heads /= size;
  part.kv_heads /= size;
  part.ffn /= size;
  return part;
}

KvView kv_of_rank(const KvView& kv, const Shard& shard) {
  const ShardPart heads = even_part(shard, kv.kv_heads);
  KvView part = kv;
  part.kv_heads = static_cast<int32_t>(heads.count);
  if (part.base != nullptr) part.base += heads.begin * kv.head_stride_bytes;
  return part;
}

int64_t part_logits_of(const Shard& shard, int32_t vocab, int32_t rows) {
  if (shard.whole()) return 0;
  const int64_t stride = part_stride_of(shard, vocab);
  return shard.rank == 0 ? stride * shard.size * part_rows_of(shard, vocab, rows) : stride * rows;
}

// The store holds these rows alone, or all of them as a tied head's embedding.
void Model::State::find_head_part() {
  const ShardPart part = tiled_part(shard(), config.vocab, kRowTile);
  head_part = weights->view(program.head);
  if (head_part.rows == part.count) return;
  CHECK(head_part.rows == config.vocab);
  const int64_t bytes = row_bytes(head_part.dtype, head_part.cols);
  for (const WeightPanel& panel : head_part.panels) {
    const int64_t begin = std::max<int64_t>(panel.row_begin, part.begin);
    const int64_t end = std::min<int64_t>(panel.row_begin + panel.row_count, part.end());
    if (begin >= end) continue;
    head_panels.push_back({panel.data + (begin - panel.row_begin) * bytes, static_cast<int32_t>(begin - part.begin),
                           static_cast<int32_t>(end - begin)});
  }
  head_part.rows = static_cast<int32_t>(part.count);
  head_part.panels = head_panels;
}

// The base's, of all rows, whatever heads adapters have: what is sent follows from the
// number of rows alone.
Status Model::State::gather_head(const ModelBatch& batch) {
  const Shard of = shard();
  const auto rows = static_cast<int32_t>(batch.logits_rows.size());
  const int64_t stride = part_stride_of(of, config.vocab);
  if (of.rank == 0) {
    head_product(head_part, 0, rows, batch.logits, batch.logits_stride);
  } else {
    head_product(head_part, 0, rows, part_logits, stride);
  }
  const int32_t most = part_rows_of(of, config.vocab, limits.logits_rows_max);
  for (int32_t row = 0; row < rows; row += most) {
    const int32_t count = std::min(most, rows - row);
    const auto floats = static_cast<size_t>(count * stride);
    if (of.rank > 0) {
      TRY(group->gather({part_logits + row * stride, floats}, {}));
      continue;
    }
    TRY(group->gather({part_logits, floats}, {part_logits, floats * static_cast<size_t>(of.size)}));
    for (int rank = 1; rank < of.size; ++rank) {
      const ShardPart part = tiled_part({rank, of.size}, config.vocab, kRowTile);
      for (int32_t i = 0; i < count; ++i)
        std::memcpy(batch.logits + (row + i) * batch.logits_stride + part.begin,
                    part_logits + (int64_t{rank} * count + i) * stride,
                    sizeof(float) * static_cast<size_t>(part.count));
    }
  }
  if (of.rank == 0) own_heads(batch);
  return {};
}

}  // namespace loralei
