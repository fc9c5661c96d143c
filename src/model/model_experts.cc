// SPDX-License-Identifier: Apache-2.0
// Model: layers with experts. Every row goes through those that its scores choose:
//
//   scores = input router^T                       choose (expert_rows.h)
//   gathered[assignment] = input[its row]
//   for each expert, in any order:                gate, up -> swiglu -> down, of its run;
//                                                 the result takes the place of the input
//   sum[row] = its uses by ascending expert, weight * result, then the shared expert's
//
// A row's sums have one order whatever else is in the batch, so a row alone and among
// others has the same bits, and so has a model whose experts come in another order.
#include <cmath>
#include <cstring>

#include <algorithm>

#include "base/check.h"
#include "model/model_state.h"

namespace loralei {
namespace {

constexpr int64_t kRowsTogether = 4;       // of a thread
constexpr int64_t kColsTogether = 4096;    // summed by one
constexpr size_t kLoraSegmentsMost = 128;  // of one call

}  // namespace

// scores[row] = input[row] matrix^T (+ bias), and what adapters add.
void Model::State::score(const ModelBatch& batch, int layer, const float* input, const float* matrix, const float* bias,
                         int32_t out, std::vector<LoraPair> ExpertPairs::*pairs, float* scores) {
  const ResidentMatrix held(matrix, out, config.hidden);
  MatmulArgs args;
  args.x = input;
  args.x_stride = config.hidden;
  args.rows = static_cast<int32_t>(batch.tokens.size());
  args.w = held.view();
  args.bias = bias;
  args.y = scores;
  args.y_stride = out;
  ops->matmul(context, args);
  if (batch.segments.empty() || batch.experts.empty()) return;
  CHECK(batch.slots <= std::ssize(score_sources));
  bool any = false;
  for (int32_t slot = 0; slot < batch.slots; ++slot) {
    const auto index = static_cast<size_t>(slot);
    const ExpertPairs* const own = batch.experts_from(slot, layer);
    const bool has = own != nullptr && !(own->*pairs).empty() && (own->*pairs)[static_cast<size_t>(layer)].rank > 0;
    score_sources[index].pair = has ? &(own->*pairs)[static_cast<size_t>(layer)] : nullptr;
    any = any || has;
  }
  if (!any) return;
  const LoraTarget target{scores, out, score_sources.data(), out};
  LoraArgs lora;
  lora.x = input;
  lora.x_stride = lora.in = config.hidden;
  lora.segments = batch.segments;
  lora.targets = {&target, 1};
  const Timed timed(times.lora_ns);
  ops->lora(context, lora);
}

const float* Model::State::expert_bias(int layer, int32_t expert, int part) const {
  const float* const all = program.layers[static_cast<size_t>(layer)].expert_bias[static_cast<size_t>(part)];
  const int64_t out = part + 1 == kExpertMatrixCount ? config.hidden : config.experts.width;
  return all == nullptr ? nullptr : all + expert * out;
}

// The products of these experts with `parts` of their matrices: those in tiles in one
// call, which a single row meets as what it is for all of its experts, one input.
void Model::State::expert_products(int layer, std::span<const ExpertView> views, std::span<const int> parts,
                                   const float* input, int64_t stride, std::span<float* const> outputs,
                                   int64_t out_stride) {
  const Timed timed(times.products_ns);
  const bool one_input = parts.size() > 1 && expert_rows.assignments() == config.experts.used;
  expert_tiles.clear();
  expert_runs.clear();
  for (const ExpertView& view : views) {
    const ExpertRows::Run run = expert_rows.run_of(view.expert);
    const std::array<const WeightView*, kExpertParts> all = {&view.gate, &view.up, &view.down};
    const size_t first = expert_tiles.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      const WeightView& w = *all[static_cast<size_t>(parts[i])];
      float* const output = outputs[i] + run.begin * out_stride;
      const float* const bias = expert_bias(layer, view.expert, parts[i]);
      if (w.panels.empty()) continue;
      if (w.layout == LayoutId::kTile16) {
        expert_tiles.push_back({w, bias, output, out_stride});
        continue;
      }
      MatmulArgs args;
      args.x = input + run.begin * stride;
      args.x_stride = stride;
      args.rows = run.count;
      args.w = w;
      args.bias = bias;
      args.y = output;
      args.y_stride = out_stride;
      ops->matmul(context, args);
    }
    const std::span<const TileProduct> own = std::span(expert_tiles).subspan(first);
    if (own.empty()) continue;
    if (one_input && !expert_runs.empty()) {
      TileRows& before = expert_runs.front();
      before.products = {before.products.data(), before.products.size() + own.size()};
    } else {
      expert_runs.push_back({run.begin, run.count, own});
    }
  }
  if (!expert_runs.empty()) ops->matmul_tile_runs(context, {.x = input, .x_stride = stride, .runs = expert_runs});
}

// What adapters add to `parts` of these experts' results, which share an input. Segments
// of the batch become those of each expert's run; a call takes as many as there is room
// for, and a row's come in their order.
void Model::State::expert_lora(const ModelBatch& batch, int layer, std::span<const ExpertView> views,
                               std::span<const int> parts, const float* input, int32_t in,
                               std::span<float* const> outputs, int32_t out) {
  if (batch.segments.empty() || batch.experts.empty()) return;
  const Timed timed(times.lora_ns);
  std::array<LoraSegment, kLoraSegmentsMost> segments;
  std::array<std::array<LoraSource, kLoraSegmentsMost>, 2> sources;
  std::array<LoraTarget, 2> targets;
  size_t count = 0;
  for (size_t i = 0; i < parts.size(); ++i) targets[i] = {outputs[i], out, sources[i].data(), out};
  const auto flush = [&] {
    if (count == 0) return;
    LoraArgs lora;
    lora.x = input;
    lora.x_stride = lora.in = in;
    lora.segments = std::span(segments).first(count);
    lora.targets = std::span(targets).first(parts.size());
    ops->lora(context, lora);
    count = 0;
  };
  for (const ExpertView& view : views) {
    const ExpertRows::Run run = expert_rows.run_of(view.expert);
    const std::span<const int32_t> rows = expert_rows.rows_of(run);
    for (const LoraSegment& segment : batch.segments) {
      const ExpertPairs* const own = batch.experts_from(segment.slot, layer);
      if (own == nullptr || own->matrices.empty()) continue;
      const auto first = std::lower_bound(rows.begin(), rows.end(), segment.row_begin);
      const auto last = std::lower_bound(first, rows.end(), segment.row_begin + segment.row_count);
      bool any = false;
      for (size_t i = 0; i < parts.size() && first != last; ++i) {
        const LoraPair& pair = own->matrix(layer, view.expert, parts[i]);
        sources[i][count].pair = pair.rank > 0 ? &pair : nullptr;
        any = any || pair.rank > 0;
      }
      if (!any) continue;
      segments[count] = {run.begin + static_cast<int32_t>(first - rows.begin()), static_cast<int32_t>(last - first),
                         static_cast<int32_t>(count), segment.scale};
      if (++count == kLoraSegmentsMost) flush();
    }
  }
  flush();
}

// gathered: the rows' inputs of these experts, then their results.
void Model::State::use_experts(const ModelBatch& batch, int layer, std::span<const ExpertView> views) {
  static constexpr int kGateUp[] = {0, 1}, kDown[] = {2};
  const int32_t width = config.experts.width;
  float* const inner[] = {expert_gate, expert_up};
  float* const results[] = {gathered};
  expert_products(layer, views, kGateUp, gathered, config.hidden, inner, width);
  expert_lora(batch, layer, views, kGateUp, gathered, config.hidden, inner, width);
  for (size_t i = 0; i < views.size();) {  // runs of neighbours are one
    ExpertRows::Run run = expert_rows.run_of(views[i].expert);
    for (++i; i < views.size() && expert_rows.run_of(views[i].expert).begin == run.begin + run.count; ++i)
      run.count += expert_rows.run_of(views[i].expert).count;
    SwigluArgs swiglu;
    swiglu.gate = expert_gate + int64_t{run.begin} * width;
    swiglu.up = expert_up + int64_t{run.begin} * width;
    swiglu.stride = swiglu.dim = width;
    swiglu.rows = run.count;
    swiglu.activation = config.activation;
    swiglu.clamp = config.clamp;
    ops->swiglu(context, swiglu);
  }
  expert_products(layer, views, kDown, expert_gate, width, results, config.hidden);
  expert_lora(batch, layer, views, kDown, expert_gate, width, results, config.hidden);
}

// sum[row] of the results of its experts, and of the shared one times the sigmoid of
// its score.
void Model::State::sum_experts(int32_t rows, float* sum) {
  const int64_t hidden = config.hidden;
  const int64_t pieces = (hidden + kColsTogether - 1) / kColsTogether;
  const auto sum_of = [&](int64_t row, int64_t begin, int64_t end) {
    float* const out = sum + row * hidden;
    std::fill(out + begin, out + end, 0.0f);
    for (const ExpertRows::Use& use : expert_rows.uses(static_cast<int32_t>(row))) {
      const float* const result = gathered + use.at * hidden;
      for (int64_t i = begin; i < end; ++i) out[i] += use.weight * result[i];
    }
    if (config.experts.shared_width == 0) return;
    const float weight = 1.0f / (1.0f + std::exp(-shared_scores[row]));
    const float* const result = shared + row * hidden;
    for (int64_t i = begin; i < end; ++i) out[i] += weight * result[i];
  };
  context.pool->parallel_for(rows * pieces, kRowsTogether, [&](int64_t first, int64_t last, int) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t begin = item % pieces * kColsTogether;
      sum_of(item / pieces, begin, std::min(begin + kColsTogether, hidden));
    }
  });
}

Status Model::State::shared_expert(const ModelBatch& batch, int layer, const float* input) {
  TRY(gate_times_up(batch, layer, input));
  float* const outputs[] = {shared};
  static constexpr Module kDown[] = {Module::kDown};
  TRY(project(batch, layer, kDown, gate, config.ffn, outputs, false));
  score(batch, layer, input, program.layers[static_cast<size_t>(layer)].shared_gate, nullptr, 1,
        &ExpertPairs::shared_gates, shared_scores);
  return {};
}

Status Model::State::experts_block(const ModelBatch& batch, int layer) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const LayerWeights& layer_weights = program.layers[static_cast<size_t>(layer)];
  const float* const input = block_input(batch, LayerNorm::kFfnInput, layer);
  score(batch, layer, input, layer_weights.router, layer_weights.router_bias, config.experts.count,
        &ExpertPairs::router, scores);
  expert_rows.choose(scores, rows, *context.pool);
  ExpertUse use(*weights, layer_weights.experts, expert_rows.chosen(), expert_views);  // reads begin here
  if (config.experts.shared_width > 0) TRY(shared_expert(batch, layer, input));
  const auto bytes = static_cast<size_t>(config.hidden) * sizeof(float);
  context.pool->parallel_for(expert_rows.assignments(), kRowsTogether, [&](int64_t begin, int64_t end, int) {
    for (int64_t at = begin; at < end; ++at)
      std::memcpy(gathered + at * config.hidden,
                  input + int64_t{expert_rows.row_of(static_cast<int32_t>(at))} * config.hidden, bytes);
  });
  for (;;) {
    TRY_ASSIGN(const bool more, use.next());
    if (!more) break;
    use_experts(batch, layer, use.views());
  }
  sum_experts(rows, normed);  // the input is not read any more
  add_to_stream(batch, LayerNorm::kFfnOut, layer);
  return {};
}

}  // namespace loralei
