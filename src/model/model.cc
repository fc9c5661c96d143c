// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "device/host/arena.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr size_t kAlignFloats = 16;  // 64 bytes

// Calls body(begin, count, saved) over runs of rows that share their full tensors (null: the base's).
template <typename Body>
void for_each_run(int32_t rows, std::span<const RowOverride> overrides, Body&& body) {
  int32_t row = 0;
  for (const RowOverride& run : overrides) {
    if (run.row_begin > row) body(row, run.row_begin - row, nullptr);
    body(run.row_begin, run.row_count, run.saved);
    row = run.row_begin + run.row_count;
  }
  if (row < rows) body(row, rows - row, nullptr);
}

const float* layer_override(const std::vector<const float*>& entries, int layer) {
  return entries.empty() ? nullptr : entries[static_cast<size_t>(layer)];
}

// Adds the time from its making to its end.
class Timed {
 public:
  explicit Timed(int64_t& total_ns) : total_ns_(total_ns), begin_ns_(SteadyClock().now_ns()) {}
  ~Timed() { total_ns_ += SteadyClock().now_ns() - begin_ns_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  int64_t& total_ns_;
  const int64_t begin_ns_;
};

}  // namespace

struct Model::State {
  ModelConfig config;
  ModelLimits limits;
  WeightStore* weights = nullptr;
  const OpTable* ops = nullptr;
  OpContext context;
  LayerProgram program;
  RopeTable rope;
  HostBuffer arena;

  // Activations, all [rows_max, width].
  float* x = nullptr;       // [rows, hidden] residual stream
  float* normed = nullptr;  // [rows, hidden]
  float* q = nullptr;       // [rows, heads * head_dim]
  float* k = nullptr;       // [rows, kv_heads * head_dim]
  float* v = nullptr;
  float* attended = nullptr;  // [rows, heads * head_dim]
  float* gate = nullptr;      // [rows, ffn]
  float* up = nullptr;
  float* angles = nullptr;  // [rows, head_dim] of the step's positions
  std::vector<LoraSegment> head_segments;
  std::vector<RowOverride> head_overrides;
  int64_t held_bytes = 0;
  ModelTimes times;

  int q_width() const { return config.heads * config.head_dim; }
  int kv_width() const { return config.kv_heads * config.head_dim; }

  Status allocate();
  Status embed(const ModelBatch& batch);
  void find_angles(const ModelBatch& batch);
  void norm(const float* input, float* output, int32_t rows, std::span<const RowOverride> overrides,
            const float* weight, const float* (*pick)(const SavedTensors&, int layer), int layer);
  Status project(const ModelBatch& batch, int layer, std::span<const Module> modules, const float* input,
                 int64_t input_stride, std::span<float* const> outputs, bool accumulate);
  Status attention_block(const ModelBatch& batch, const KvView& kv, int layer);
  Status ffn_block(const ModelBatch& batch, int layer);
  void head_norm(float* rows_data, float* output, const ModelBatch& batch, int32_t count, const float* base,
                 const float* (*pick)(const SavedTensors&, int layer), int layer, int heads);
  Status head(const ModelBatch& batch);
  void gather(const ModelBatch& batch, std::span<const int32_t> rows);
  void head_product(const ModelBatch& batch, const WeightView& w, int32_t row, int32_t count);
  Status head_matrix(const ModelBatch& batch);
  void replace_head_tokens(const ModelBatch& batch, int32_t row, int32_t count, const SavedTensors& saved);
};

namespace {

// Floats of the activations and bytes of the kernels' scratch for these limits.
struct ScratchSizes {
  int64_t floats = 0;
  int64_t kernel_bytes = 0;
  int64_t total_bytes() const { return floats * static_cast<int64_t>(sizeof(float)) + kernel_bytes; }
};

int64_t padded(int64_t floats) {
  constexpr auto kAlign = static_cast<int64_t>(kAlignFloats);
  return (floats + kAlign - 1) / kAlign * kAlign;
}

ScratchSizes scratch_sizes(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, int threads) {
  const int64_t rows = limits.rows_max;
  const int64_t gathered = std::max(limits.rows_max, limits.logits_rows_max);
  const int64_t q_width = int64_t{config.heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.kv_heads} * config.head_dim;
  ScratchSizes sizes;
  sizes.floats = padded(rows * config.hidden) + padded(gathered * config.hidden) + 2 * padded(rows * q_width) +
                 2 * padded(rows * kv_width) + 2 * padded(rows * config.ffn) + padded(rows * config.head_dim);
  OpLimits op_limits;
  op_limits.rows_max = std::max(limits.rows_max, limits.logits_rows_max);
  op_limits.in_max = static_cast<int32_t>(std::max({int64_t{config.hidden}, int64_t{config.ffn}, q_width}));
  op_limits.heads = config.heads;
  op_limits.kv_heads = config.kv_heads;
  op_limits.head_dim = config.head_dim;
  op_limits.rank_max = limits.rank_max;
  op_limits.segments_max = limits.segments_max;
  op_limits.threads = threads;
  sizes.kernel_bytes = ops.scratch_bytes(op_limits);
  return sizes;
}

}  // namespace

Status Model::State::allocate() {
  const auto rows = static_cast<int64_t>(limits.rows_max);
  const int64_t gathered = std::max(limits.rows_max, limits.logits_rows_max);
  const ScratchSizes sizes = scratch_sizes(config, *ops, limits, context.pool->threads());
  const int64_t scratch = sizes.kernel_bytes;
  held_bytes = sizes.total_bytes();
  TRY_ASSIGN(arena, HostBuffer::allocate(held_bytes));

  float* next = reinterpret_cast<float*>(arena.data());
  const auto take = [&](int64_t count) {
    float* start = next;
    next += padded(count);
    return start;
  };
  x = take(rows * config.hidden);
  normed = take(gathered * config.hidden);
  q = take(rows * q_width());
  attended = take(rows * q_width());
  k = take(rows * kv_width());
  v = take(rows * kv_width());
  gate = take(rows * config.ffn);
  up = take(rows * config.ffn);
  angles = take(rows * config.head_dim);
  context.scratch = {reinterpret_cast<std::byte*>(next), static_cast<size_t>(scratch)};
  head_segments.reserve(static_cast<size_t>(limits.segments_max));
  head_overrides.reserve(static_cast<size_t>(limits.rows_max));
  return {};
}

Status Model::State::embed(const ModelBatch& batch) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  TRY_ASSIGN(const EmbeddedRows base, weights->look_up(program.embed, batch.tokens));
  for_each_run(rows, batch.overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    EmbedArgs args;
    const bool replaced = saved != nullptr && !saved->embed.empty();
    args.tokens = (replaced ? batch.tokens.data() : base.tokens.data()) + begin;
    args.rows = count;
    args.w = replaced ? saved->embed : base.view;
    args.y = x + static_cast<int64_t>(begin) * config.hidden;
    args.y_stride = config.hidden;
    ops->embed(context, args);
    if (saved == nullptr || saved->embed_tokens.empty()) return;
    for (int32_t row = begin; row < begin + count; ++row) {
      const auto& ids = saved->embed_tokens;
      const auto found = std::lower_bound(ids.begin(), ids.end(), batch.tokens[static_cast<size_t>(row)]);
      if (found == ids.end() || *found != batch.tokens[static_cast<size_t>(row)]) continue;
      std::memcpy(x + static_cast<int64_t>(row) * config.hidden,
                  saved->embed_rows + (found - ids.begin()) * config.hidden,
                  sizeof(float) * static_cast<size_t>(config.hidden));
    }
  });
  if (batch.segments.empty()) return {};
  LoraEmbedArgs lora;
  lora.tokens = batch.tokens.data();
  lora.segments = batch.segments;
  lora.target.sources = batch.sources + static_cast<int64_t>(config.layers * kLayerModules + 1) * batch.slots;
  lora.target.y = x;
  lora.target.y_stride = config.hidden;
  lora.target.out = config.hidden;
  ops->lora_embed(context, lora);
  return {};
}

void Model::State::find_angles(const ModelBatch& batch) {
  RopeAnglesArgs args;
  args.positions = batch.positions.data();
  args.inv_freq = rope.inv_freq.data();
  args.attention_scale = rope.attention_scale;
  args.rows = static_cast<int32_t>(batch.tokens.size());
  args.head_dim = config.head_dim;
  args.angles = angles;
  ops->rope_angles(context, args);
}

void Model::State::norm(const float* input, float* output, int32_t rows, std::span<const RowOverride> overrides,
                        const float* weight, const float* (*pick)(const SavedTensors&, int layer), int layer) {
  for_each_run(rows, overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    const float* replaced = saved != nullptr ? pick(*saved, layer) : nullptr;
    RmsNormArgs args;
    args.x = input + static_cast<int64_t>(begin) * config.hidden;
    args.y = output + static_cast<int64_t>(begin) * config.hidden;
    args.x_stride = args.y_stride = config.hidden;
    args.weight = replaced != nullptr ? replaced : weight;
    args.rows = count;
    args.dim = config.hidden;
    args.eps = static_cast<float>(config.rms_eps);
    ops->rms_norm(context, args);
  });
}

// outputs[i] = input W_i^T (+ bias) for every module that shares this input, then one grouped LoRA call for all of
// them.
Status Model::State::project(const ModelBatch& batch, int layer, std::span<const Module> modules, const float* input,
                             int64_t input_stride, std::span<float* const> outputs, bool accumulate) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const LayerWeights& layer_weights = program.layers[static_cast<size_t>(layer)];
  std::array<LoraTarget, WeightUse::kMatricesMax> targets;
  std::array<TensorSlot, WeightUse::kMatricesMax> slots;
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto module = static_cast<size_t>(modules[i]);
    slots[i] = layer_weights.matrix[module];
    targets[i].y = outputs[i];
    targets[i].y_stride = targets[i].out = weights->view(slots[i]).rows;
    targets[i].sources =
        batch.sources == nullptr
            ? nullptr
            : batch.sources +
                  (static_cast<int64_t>(layer) * kLayerModules + static_cast<int64_t>(module)) * batch.slots;
  }
  WeightUse use(*weights, {slots.data(), modules.size()});
  for (;;) {
    TRY_ASSIGN(const bool more, use.next());
    if (!more) break;
    std::array<TileProduct, WeightUse::kMatricesMax> tiled;  // projections with tiles go through one product
    size_t tiled_count = 0;
    const Timed timed(times.products_ns);
    for (size_t i = 0; i < modules.size(); ++i) {
      const WeightView& w = use.view(i);
      const float* const bias = layer_weights.bias[static_cast<size_t>(modules[i])];
      if (w.panels.empty()) continue;
      if (w.layout == LayoutId::kTile16) {
        tiled[tiled_count++] = {w, bias, outputs[i], w.rows};
        continue;
      }
      MatmulArgs args;
      args.x = input;
      args.x_stride = input_stride;
      args.rows = rows;
      args.w = w;
      args.bias = bias;
      args.y = outputs[i];
      args.y_stride = w.rows;
      args.accumulate = accumulate;
      ops->matmul(context, args);
    }
    if (tiled_count == 0) continue;
    TileMatmulArgs args;
    args.x = input;
    args.x_stride = input_stride;
    args.rows = rows;
    args.products = {tiled.data(), tiled_count};
    args.accumulate = accumulate;
    ops->matmul_tiles(context, args);
  }
  if (batch.segments.empty()) return {};
  LoraArgs lora;
  lora.x = input;
  lora.x_stride = input_stride;
  lora.in = module_in(config, modules[0]);
  lora.segments = batch.segments;
  lora.targets = {targets.data(), modules.size()};
  const Timed timed(times.lora_ns);
  ops->lora(context, lora);
  return {};
}

// Per-head norm of q or k (Qwen3), in place.
void Model::State::head_norm(float* rows_data, float* output, const ModelBatch& batch, int32_t count, const float* base,
                             const float* (*pick)(const SavedTensors&, int layer), int layer, int heads) {
  for_each_run(count, batch.overrides, [&](int32_t begin, int32_t run, const SavedTensors* saved) {
    const float* replaced = saved != nullptr ? pick(*saved, layer) : nullptr;
    RmsNormArgs args;
    args.x = rows_data + static_cast<int64_t>(begin) * heads * config.head_dim;
    args.y = output + static_cast<int64_t>(begin) * heads * config.head_dim;
    args.x_stride = args.y_stride = static_cast<int64_t>(heads) * config.head_dim;
    args.weight = replaced != nullptr ? replaced : base;
    args.rows = run;
    args.vectors = heads;
    args.dim = config.head_dim;
    args.eps = static_cast<float>(config.rms_eps);
    ops->rms_norm(context, args);
  });
}

Status Model::State::attention_block(const ModelBatch& batch, const KvView& kv, int layer) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const LayerWeights& layer_weights = program.layers[static_cast<size_t>(layer)];
  norm(
      x, normed, rows, batch.overrides, layer_weights.input_norm,
      [](const SavedTensors& saved, int index) { return layer_override(saved.input_norm, index); }, layer);
  static constexpr Module kInputs[] = {Module::kQ, Module::kK, Module::kV};
  float* const outputs[] = {q, k, v};
  TRY(project(batch, layer, kInputs, normed, config.hidden, outputs, false));
  if (config.qk_norm) {
    head_norm(
        q, q, batch, rows, layer_weights.q_norm,
        [](const SavedTensors& saved, int index) { return layer_override(saved.q_norm, index); }, layer, config.heads);
    head_norm(
        k, k, batch, rows, layer_weights.k_norm,
        [](const SavedTensors& saved, int index) { return layer_override(saved.k_norm, index); }, layer,
        config.kv_heads);
  }
  RopeArgs rotate;
  rotate.angles = angles;
  rotate.rows = rows;
  rotate.head_dim = config.head_dim;
  rotate.x = q;
  rotate.stride = q_width();
  rotate.heads = config.heads;
  ops->rope(context, rotate);
  rotate.x = k;
  rotate.stride = kv_width();
  rotate.heads = config.kv_heads;
  ops->rope(context, rotate);

  KvStoreArgs store;
  store.k = k;
  store.v = v;
  store.stride = kv_width();
  store.kv = kv;
  store.layer = layer;
  store.groups = batch.groups;
  AttentionArgs attend;
  attend.q = q;
  attend.q_stride = q_width();
  attend.out = attended;
  attend.out_stride = q_width();
  attend.kv = kv;
  attend.layer = layer;
  attend.heads = config.heads;
  attend.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  attend.window = config.sliding.empty() ? 0 : config.sliding[static_cast<size_t>(layer)];
  attend.groups = batch.groups;
  {
    const Timed timed(times.attention_ns);
    ops->kv_store(context, store);
    ops->attention(context, attend);
  }

  static constexpr Module kOutput[] = {Module::kO};
  float* const residual[] = {x};
  return project(batch, layer, kOutput, attended, q_width(), residual, true);
}

Status Model::State::ffn_block(const ModelBatch& batch, int layer) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  norm(
      x, normed, rows, batch.overrides, program.layers[static_cast<size_t>(layer)].post_attention_norm,
      [](const SavedTensors& saved, int index) { return layer_override(saved.post_attention_norm, index); }, layer);
  static constexpr Module kInputs[] = {Module::kGate, Module::kUp};
  float* const outputs[] = {gate, up};
  TRY(project(batch, layer, kInputs, normed, config.hidden, outputs, false));
  SwigluArgs swiglu;
  swiglu.gate = gate;
  swiglu.up = up;
  swiglu.stride = config.ffn;
  swiglu.rows = rows;
  swiglu.dim = config.ffn;
  ops->swiglu(context, swiglu);
  static constexpr Module kOutput[] = {Module::kDown};
  float* const residual[] = {x};
  return project(batch, layer, kOutput, gate, config.ffn, residual, true);
}

// normed[i] = final_norm(x[rows[i]]); segments and overrides of the gathered rows land in head_segments and
// head_overrides.
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
  norm(
      normed, normed, static_cast<int32_t>(rows.size()), head_overrides, program.final_norm,
      [](const SavedTensors& saved, int) { return saved.final_norm; }, 0);
}

void Model::State::replace_head_tokens(const ModelBatch& batch, int32_t row, int32_t count, const SavedTensors& saved) {
  for (int32_t i = row; i < row + count; ++i) {
    const float* state = normed + static_cast<int64_t>(i) * config.hidden;
    for (size_t token = 0; token < saved.head_tokens.size(); ++token) {
      const float* weight = saved.head_rows + static_cast<int64_t>(token) * config.hidden;
      double sum = 0;
      for (int j = 0; j < config.hidden; ++j) sum += static_cast<double>(state[j]) * static_cast<double>(weight[j]);
      batch.logits[i * batch.logits_stride + saved.head_tokens[token]] = static_cast<float>(sum);
    }
  }
}

// Logits of a run of gathered rows from the panels of `w`.
void Model::State::head_product(const ModelBatch& batch, const WeightView& w, int32_t row, int32_t count) {
  const float* const input = normed + static_cast<int64_t>(row) * config.hidden;
  float* const output = batch.logits + row * batch.logits_stride;
  const Timed timed(times.products_ns);
  if (w.layout == LayoutId::kTile16) {
    const TileProduct product{w, nullptr, output, batch.logits_stride};
    ops->matmul_tiles(context, {.x = input, .x_stride = config.hidden, .rows = count, .products = {&product, 1}});
    return;
  }
  MatmulArgs args;
  args.x = input;
  args.x_stride = config.hidden;
  args.rows = count;
  args.w = w;
  args.y = output;
  args.y_stride = batch.logits_stride;
  ops->matmul(context, args);
}

// The base's head for the runs that use it, round by round, and the adapters' own for the others.
Status Model::State::head_matrix(const ModelBatch& batch) {
  const auto rows = static_cast<int32_t>(batch.logits_rows.size());
  const auto own_head = [](const SavedTensors* saved) { return saved != nullptr && !saved->lm_head.empty(); };
  bool base_used = false;
  for_each_run(rows, head_overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    if (own_head(saved)) {
      head_product(batch, saved->lm_head, begin, count);
    } else {
      base_used = true;
    }
  });
  if (base_used) {
    WeightUse use(*weights, {&program.head, 1});
    for (;;) {
      TRY_ASSIGN(const bool more, use.next());
      if (!more) break;
      for_each_run(rows, head_overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
        if (!own_head(saved)) head_product(batch, use.view(0), begin, count);
      });
    }
  }
  for_each_run(rows, head_overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    const int32_t vocab = own_head(saved) ? saved->lm_head.rows : weights->view(program.head).rows;
    for (int32_t i = begin; i < begin + count; ++i) {
      float* logits = batch.logits + i * batch.logits_stride;
      std::fill(logits + vocab, logits + batch.logits_stride, -std::numeric_limits<float>::infinity());
    }
    if (saved != nullptr && !saved->head_tokens.empty()) replace_head_tokens(batch, begin, count, *saved);
  });
  return {};
}

Status Model::State::head(const ModelBatch& batch) {
  if (!batch.hidden_rows.empty()) {
    gather(batch, batch.hidden_rows);
    std::memcpy(batch.hidden, normed, sizeof(float) * batch.hidden_rows.size() * static_cast<size_t>(config.hidden));
  }
  if (batch.logits_rows.empty()) return {};
  gather(batch, batch.logits_rows);
  TRY(head_matrix(batch));
  if (head_segments.empty()) return {};
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
  return {};
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, WeightStore& weights, const OpTable& ops,
                                             ThreadPool& pool, const ModelLimits& limits) {
  CHECK(limits.rows_max > 0 && limits.logits_rows_max > 0);
  auto state = std::make_unique<State>();
  state->config = config;
  state->limits = limits;
  state->weights = &weights;
  state->ops = &ops;
  state->context.pool = &pool;
  TRY_ASSIGN(state->program, make_layer_program(config, weights));
  state->rope = make_rope_table(config, limits.max_model_len);
  TRY(state->allocate());
  tune_tiles(state->context, ops, weights.formats(LayoutId::kTile16), SteadyClock());
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

Status Model::forward(const ModelBatch& batch, const KvView& kv) {
  CHECK(static_cast<int32_t>(batch.tokens.size()) <= state_->limits.rows_max);
  CHECK(static_cast<int32_t>(batch.segments.size()) <= state_->limits.segments_max);
  if (batch.tokens.empty()) return {};
  WeightPass pass(*state_->weights);
  TRY(state_->embed(batch));
  state_->find_angles(batch);
  for (int layer = 0; layer < state_->config.layers; ++layer) {
    TRY(state_->attention_block(batch, kv, layer));
    TRY(state_->ffn_block(batch, layer));
  }
  TRY(state_->head(batch));
  pass.done();
  return {};
}

const ModelConfig& Model::config() const { return state_->config; }
int64_t Model::scratch_bytes() const { return state_->held_bytes; }
int64_t Model::scratch_bytes(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, int threads) {
  return scratch_sizes(config, ops, limits, threads).total_bytes();
}
uint64_t Model::op_count() const { return state_->context.op_count; }
int64_t Model::streamed_bytes() const {
  return state_->weights->streams() ? state_->weights->stream_shape().streamed_bytes : 0;
}

ModelTimes Model::times() const {
  ModelTimes times = state_->times;
  const StreamerTotals totals = state_->weights->stream_totals();
  times.disk_ns = totals.waited_ns;
  times.disk_read_bytes = totals.read_bytes;
  return times;
}

}  // namespace loralei
