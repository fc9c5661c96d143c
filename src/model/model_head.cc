// SPDX-License-Identifier: Apache-2.0
// Model: from the residual stream to logits, of the rows that want them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "model/model_state.h"

namespace loralei {

void Model::State::gather(const ModelBatch& batch, std::span<const int32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(normed + static_cast<int64_t>(i) * config.hidden, x + static_cast<int64_t>(rows[i]) * config.hidden,
                sizeof(float) * static_cast<size_t>(config.hidden));
  }
  const auto range = [&](int32_t begin, int32_t count) {
    const auto first = std::lower_bound(rows.begin(), rows.end(), begin);
    const auto last = std::lower_bound(first, rows.end(), begin + count);
    return std::pair{static_cast<int32_t>(first - rows.begin()), static_cast<int32_t>(last - first)};
  };
  head_segments.clear();
  for (LoraSegment segment : batch.segments) {
    std::tie(segment.row_begin, segment.row_count) = range(segment.row_begin, segment.row_count);
    if (segment.row_count > 0) head_segments.push_back(segment);
  }
  head_overrides.clear();
  for (RowOverride run : batch.overrides) {
    std::tie(run.row_begin, run.row_count) = range(run.row_begin, run.row_count);
    if (run.row_count > 0) head_overrides.push_back(run);
  }
  for_each_run(static_cast<int32_t>(rows.size()), head_overrides,
               [&](int32_t begin, int32_t count, const SavedTensors* saved) {
                 float* const at = normed + int64_t{begin} * config.hidden;
                 const bool own = saved != nullptr && saved->final_norm != nullptr;
                 RmsNormArgs args;
                 args.x = args.y = at;
                 args.x_stride = args.y_stride = args.dim = config.hidden;
                 args.weight = own ? saved->final_norm : program.final_norm;
                 args.bias = program.final_norm_bias;
                 args.rows = count;
                 args.eps = static_cast<float>(config.rms_eps);
                 ops->rms_norm(context, args);
               });
}

namespace {

// Eight sums, so that none waits for the one before; always added up in the same order.
float dot(const float* a, const float* b, int32_t count) {
  constexpr int32_t kSums = 8;
  double sums[kSums] = {};
  int32_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (int32_t s = 0; s < kSums; ++s) sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
  for (int32_t s = 0; i + s < count; ++s) sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
  for (int32_t s = 1; s < kSums; ++s) sums[0] += sums[s];
  return static_cast<float>(sums[0]);
}

}  // namespace

void Model::State::replace_head_tokens(const ModelBatch& batch, int32_t row, int32_t count, const SavedTensors& saved) {
  constexpr int64_t kGrain = 32;
  const auto tokens = static_cast<int64_t>(saved.head_tokens.size());
  const auto products = [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {  // all rows of a token, then the next
      const int64_t token = item / count, i = row + item % count;
      batch.logits[i * batch.logits_stride + saved.head_tokens[static_cast<size_t>(token)]] =
          dot(normed + i * config.hidden, saved.head_rows + token * config.hidden, config.hidden);
    }
  };
  context.pool->parallel_for(tokens * count, kGrain, products);
}

void Model::State::head_product(const WeightView& w, int32_t row, int32_t count, float* output, int64_t stride) {
  const float* const input = normed + static_cast<int64_t>(row) * config.hidden;
  const Timed timed(times.products_ns);
  if (w.layout == LayoutId::kTile16) {
    const TileProduct product{w, nullptr, output, stride};
    ops->matmul_tiles(context, {.x = input, .x_stride = config.hidden, .rows = count, .products = {&product, 1}});
    return;
  }
  MatmulArgs args;
  args.x = input;
  args.x_stride = config.hidden;
  args.rows = count;
  args.w = w;
  args.y = output;
  args.y_stride = stride;
  ops->matmul(context, args);
}

namespace {

bool has_own_head(const SavedTensors* saved) { return saved != nullptr && !saved->lm_head.empty(); }

}  // namespace

Status Model::State::head_matrix(const ModelBatch& batch) {
  const auto rows = static_cast<int32_t>(batch.logits_rows.size());
  bool base_used = false;
  for_each_run(rows, head_overrides, [&](int32_t, int32_t, const SavedTensors* saved) {
    if (!has_own_head(saved)) base_used = true;
  });
  if (base_used) {
    WeightUse use(*weights, {&program.head, 1});
    for (;;) {
      TRY_ASSIGN(const bool more, use.next());
      if (!more) break;
      for_each_run(rows, head_overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
        if (has_own_head(saved)) return;
        head_product(use.view(0), begin, count, batch.logits + begin * batch.logits_stride, batch.logits_stride);
      });
    }
  }
  own_heads(batch);
  return {};
}

void Model::State::own_heads(const ModelBatch& batch) {
  const auto rows = static_cast<int32_t>(batch.logits_rows.size());
  for_each_run(rows, head_overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    const int32_t vocab = has_own_head(saved) ? saved->lm_head.rows : config.vocab;
    float* const logits = batch.logits + begin * batch.logits_stride;
    if (has_own_head(saved)) head_product(saved->lm_head, begin, count, logits, batch.logits_stride);
    for (int32_t i = 0; i < count; ++i) {
      float* const row = logits + i * batch.logits_stride;
      std::fill(row + vocab, row + batch.logits_stride, -std::numeric_limits<float>::infinity());
    }
    if (saved != nullptr && !saved->head_tokens.empty()) replace_head_tokens(batch, begin, count, *saved);
  });
}

Status Model::State::head(const ModelBatch& batch) {
  const bool gives_results = shard().rank == 0;
  if (!batch.hidden_rows.empty() && gives_results) {
    gather(batch, batch.hidden_rows);
    std::memcpy(batch.hidden, normed, sizeof(float) * batch.hidden_rows.size() * static_cast<size_t>(config.hidden));
  }
  if (batch.logits_rows.empty()) return {};
  gather(batch, batch.logits_rows);
  TRY(group == nullptr ? head_matrix(batch) : gather_head(batch));
  if (!gives_results) return {};
  if (!head_segments.empty()) head_lora(batch);
  const auto rows = static_cast<int32_t>(batch.logits_rows.size());
  if (config.logits_divisor != 1) {
    ops->scale(context, {.y = batch.logits,
                         .y_stride = batch.logits_stride,
                         .rows = rows,
                         .dim = static_cast<int32_t>(batch.logits_stride),
                         .factor = static_cast<float>(1 / config.logits_divisor)});
  }
  if (config.logits_cap == 0) return {};
  // Those of the row's vocabulary alone: what is behind it stays -inf.
  for_each_run(rows, head_overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    ops->cap(context, {.y = batch.logits + begin * batch.logits_stride,
                       .y_stride = batch.logits_stride,
                       .rows = count,
                       .dim = has_own_head(saved) ? saved->lm_head.rows : config.vocab,
                       .cap = static_cast<float>(config.logits_cap)});
  });
  return {};
}

void Model::State::head_lora(const ModelBatch& batch) {
  LoraTarget target;
  target.y = batch.logits;
  target.y_stride = batch.logits_stride;
  target.out = static_cast<int32_t>(batch.logits_stride);  // resized vocabularies are wider than the base's
  target.sources = batch.sources + static_cast<int64_t>(config.layers) * kLayerModules * batch.slots;
  LoraArgs lora;
  lora.x = normed;
  lora.x_stride = config.hidden;
  lora.in = config.hidden;
  lora.segments = head_segments;
  lora.targets = {&target, 1};
  const Timed timed(times.lora_ns);
  ops->lora(context, lora);
}

}  // namespace loralei
