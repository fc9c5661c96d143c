// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/head_parts.h"
#include "model/model_state.h"

namespace loralei {
namespace {

// Floats of the activations and bytes of the kernels' scratch for these limits.
struct ScratchSizes {
  int64_t floats = 0;
  int64_t part_logits = 0;  // of floats
  int64_t kernel_bytes = 0;
  int64_t lists = 0;  // bytes of those of experts
  int64_t arena_bytes() const { return floats * static_cast<int64_t>(sizeof(float)) + kernel_bytes; }
  int64_t total_bytes() const { return arena_bytes() + lists; }
};

int64_t padded(int64_t floats) {
  constexpr int64_t kAlign = 16;  // 64 bytes
  return (floats + kAlign - 1) / kAlign * kAlign;
}

// What layers of gated linear attention and gates of attention work in.
int64_t linear_floats(const ModelConfig& config, int64_t rows) {
  const LinearConfig& linear = config.linear;
  const int64_t q_width = int64_t{config.heads} * config.head_dim;
  const int64_t gates = config.attention_gate ? padded(2 * rows * q_width) + padded(rows * q_width) : 0;
  return gates + padded(rows * linear.channels()) + padded(rows * linear.value_width()) +
         2 * padded(rows * linear.v_heads);
}

// What layers with experts work in.
int64_t expert_floats(const ModelConfig& config, int64_t rows) {
  const ExpertConfig& experts = config.experts;
  if (experts.count == 0) return 0;
  const int64_t assignments = rows * experts.used;
  const int64_t shared = experts.shared_width > 0 ? padded(rows * config.hidden) + padded(rows) : 0;
  return padded(rows * experts.count) + padded(assignments * config.hidden) + 2 * padded(assignments * experts.width) +
         shared;
}

ScratchSizes scratch_sizes(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, int threads,
                           const Shard& shard) {
  const int64_t rows = limits.rows_max;
  const int64_t gathered = std::max(limits.rows_max, limits.logits_rows_max);
  const int64_t q_width = int64_t{config.heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.kv_heads} * config.head_dim;
  ScratchSizes sizes;
  sizes.floats = padded(rows * config.hidden) + padded(gathered * config.hidden) + 2 * padded(rows * q_width) +
                 2 * padded(rows * kv_width) + 2 * padded(rows * config.ffn) +
                 (config.sliding_rope ? 2 : 1) * padded(rows * config.head_dim);
  sizes.floats += linear_floats(config, rows);
  sizes.part_logits = padded(part_logits_of(shard, config.vocab, limits.logits_rows_max));
  sizes.floats += sizes.part_logits + expert_floats(config, rows);
  if (config.experts.count > 0) sizes.lists = ExpertRows::bytes(config.experts, limits.rows_max);
  OpLimits op_limits;
  op_limits.rows_max = std::max(limits.rows_max, limits.logits_rows_max);
  op_limits.in_max =
      static_cast<int32_t>(std::max({int64_t{config.hidden}, int64_t{config.ffn}, q_width,
                                     int64_t{config.experts.width}, int64_t{config.linear.value_width()}}));
  op_limits.key_dim = config.linear.key_dim;
  op_limits.value_dim = config.linear.value_dim;
  op_limits.heads = config.heads;
  op_limits.kv_heads = config.kv_heads;
  op_limits.head_dim = config.head_dim;
  op_limits.rank_max = limits.rank_max;
  op_limits.segments_max = limits.segments_max;
  op_limits.threads = threads;
  sizes.kernel_bytes = ops.scratch_bytes(op_limits);
  return sizes;
}

// [layers]; linear layers keep no K and V.
std::vector<KvPlace> places_of(const KvTables& tables, const ModelConfig& config) {
  if (!has_linear(config)) return kv_places(tables, config.sliding, config.layers);
  std::vector<KvPlace> places;
  int32_t next = 0;
  for (int layer = 0; layer < config.layers; ++layer) places.push_back({0, is_linear(config, layer) ? -1 : next++});
  return places;
}

}  // namespace

Status Model::State::allocate() {
  const auto rows = static_cast<int64_t>(limits.rows_max);
  const int64_t normed_rows = std::max(limits.rows_max, limits.logits_rows_max);
  const ScratchSizes sizes = scratch_sizes(config, *ops, limits, context.pool->threads(), shard());
  const int64_t scratch = sizes.kernel_bytes;
  held_bytes = sizes.total_bytes();
  TRY_ASSIGN(arena, HostBuffer::allocate(sizes.arena_bytes()));

  float* next = reinterpret_cast<float*>(arena.data());
  const auto take = [&](int64_t count) {
    float* start = next;
    next += padded(count);
    return start;
  };
  x = take(rows * config.hidden);
  normed = take(normed_rows * config.hidden);
  q = take(rows * q_width());
  attended = take(rows * q_width());
  k = take(rows * kv_width());
  v = take(rows * kv_width());
  gate = take(rows * config.ffn);
  up = take(rows * config.ffn);
  angles = take(rows * config.head_dim);
  if (config.sliding_rope) sliding_angles = take(rows * config.head_dim);
  if (config.attention_gate) {
    gated_q = take(2 * rows * q_width());
    q_gates = take(rows * q_width());
  }
  mixed = take(rows * config.linear.channels());
  value_gates = take(rows * config.linear.value_width());
  beta = take(rows * config.linear.v_heads);
  decay = take(rows * config.linear.v_heads);
  state_rows.reserve(has_linear(config) ? static_cast<size_t>(limits.rows_max) : 0);
  part_logits = take(sizes.part_logits);
  if (config.experts.count > 0) {
    const ExpertConfig& experts = config.experts;
    const int64_t assignments = rows * experts.used;
    scores = take(rows * experts.count);
    gathered = take(assignments * config.hidden);
    expert_gate = take(assignments * experts.width);
    expert_up = take(assignments * experts.width);
    if (experts.shared_width > 0) {
      shared = take(rows * config.hidden);
      shared_scores = take(rows);
    }
    expert_rows = ExpertRows(experts, limits.rows_max);
    expert_views.resize(static_cast<size_t>(experts.count));
    expert_tiles.reserve(2 * static_cast<size_t>(experts.count));
    expert_runs.reserve(static_cast<size_t>(experts.count));
    score_sources.resize(static_cast<size_t>(limits.segments_max));
  }
  context.scratch = {reinterpret_cast<std::byte*>(next), static_cast<size_t>(scratch)};
  head_segments.reserve(static_cast<size_t>(limits.segments_max));
  head_overrides.reserve(static_cast<size_t>(limits.rows_max));
  return {};
}

Status Model::State::embed(const ModelBatch& batch) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  Status looked_up;
  for_each_run(rows, batch.overrides, [&](int32_t begin, int32_t count, const SavedTensors* saved) {
    if (!looked_up.ok()) return;
    const std::span<const TokenId> tokens =
        batch.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    EmbedArgs args;
    args.tokens = tokens.data();
    args.rows = count;
    if (saved != nullptr && !saved->embed.empty()) {  // with ids of its own, maybe
      args.w = saved->embed;
    } else {
      const Result<EmbeddedRows> base = weights->look_up(program.embed, tokens);
      if (!base.ok()) {
        looked_up = base.error();
        return;
      }
      args.tokens = base->tokens.data();
      args.w = base->view;
    }
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
  TRY(std::move(looked_up));
  if (!batch.segments.empty()) embed_lora(batch);
  if (config.embed_scale == 1) return {};
  ops->scale(context, {.y = x,
                       .y_stride = config.hidden,
                       .rows = rows,
                       .dim = config.hidden,
                       .factor = static_cast<float>(config.embed_scale)});
  return {};
}

void Model::State::embed_lora(const ModelBatch& batch) {
  LoraEmbedArgs lora;
  lora.tokens = batch.tokens.data();
  lora.segments = batch.segments;
  lora.target.sources = batch.sources + static_cast<int64_t>(config.layers * kLayerModules + 1) * batch.slots;
  lora.target.y = x;
  lora.target.y_stride = config.hidden;
  lora.target.out = config.hidden;
  ops->lora_embed(context, lora);
}

void Model::State::find_angles(const ModelBatch& batch, const RopeTable& table, float* out) {
  RopeAnglesArgs args;
  args.positions = batch.positions.data();
  args.inv_freq = table.inv_freq.data();
  args.attention_scale = table.attention_scale;
  args.rows = static_cast<int32_t>(batch.tokens.size());
  args.head_dim = rotary_dim_of(config);
  args.angles = out;
  ops->rope_angles(context, args);
}

void Model::State::norm_rows(const ModelBatch& batch, LayerNorm which, int layer, const float* input, float* output) {
  RmsNormArgs args;
  args.dim = norm_width(config, which);
  args.x_stride = config.hidden;
  if (which == LayerNorm::kQ || which == LayerNorm::kK) {
    args.x_stride = which == LayerNorm::kQ ? q_width() : kv_width();
    args.vectors = static_cast<int32_t>(args.x_stride) / args.dim;
  }
  args.y_stride = args.x_stride;
  args.eps = static_cast<float>(config.rms_eps);
  const LayerWeights& weights_of_layer = program.layers[static_cast<size_t>(layer)];
  const float* const base = weights_of_layer.norm[static_cast<size_t>(which)];
  args.bias = weights_of_layer.norm_bias[static_cast<size_t>(which)];
  for_each_run(static_cast<int32_t>(batch.tokens.size()), batch.overrides,
               [&](int32_t begin, int32_t count, const SavedTensors* saved) {
                 const float* const replaced = saved != nullptr ? saved->norm(which, layer) : nullptr;
                 args.x = input + begin * args.x_stride;
                 args.y = output + begin * args.y_stride;
                 args.weight = replaced != nullptr ? replaced : base;
                 args.rows = count;
                 ops->rms_norm(context, args);
               });
}

// What a block reads of the stream.
const float* Model::State::block_input(const ModelBatch& batch, LayerNorm norm, int layer) {
  if (!has_norm(config, norm)) return x;
  norm_rows(batch, norm, layer, x, normed);
  return normed;
}

void Model::State::turn(int32_t rows, int layer) {
  RopeArgs rotate;
  rotate.angles = has_sliding_rope(config, layer) ? sliding_angles : angles;
  rotate.rows = rows;
  rotate.head_dim = config.head_dim;
  rotate.rotary_dim = config.rotary_dim;
  rotate.x = q;
  rotate.stride = q_width();
  rotate.heads = config.heads;
  ops->rope(context, rotate);
  rotate.x = k;
  rotate.stride = kv_width();
  rotate.heads = config.kv_heads;
  ops->rope(context, rotate);
}

std::span<const RowGroup> Model::State::groups_of(const ModelBatch& batch, int layer) {
  const int32_t table = kv_places[static_cast<size_t>(layer)].table;
  if (table == 0) return batch.groups;
  CHECK(batch.table_strides.size() == batch.groups.size());
  kv_groups.assign(batch.groups.begin(), batch.groups.end());
  for (size_t group = 0; group < kv_groups.size(); ++group)
    kv_groups[group].blocks += int64_t{table} * batch.table_strides[group];
  return kv_groups;
}

Status Model::State::attention_block(const ModelBatch& batch, const KvView& kv, int layer) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  const float* const input = block_input(batch, LayerNorm::kInput, layer);
  static constexpr Module kInputs[] = {Module::kQ, Module::kK, Module::kV};
  float* const outputs[] = {config.attention_gate ? gated_q : q, k, v};
  TRY(project(batch, layer, kInputs, input, config.hidden, outputs, false));
  if (config.attention_gate) split_gates(rows);
  if (has_norm(config, LayerNorm::kQ)) norm_rows(batch, LayerNorm::kQ, layer, q, q);
  if (has_norm(config, LayerNorm::kK)) norm_rows(batch, LayerNorm::kK, layer, k, k);
  if (config.unturned.empty() || config.unturned[static_cast<size_t>(layer)] == 0) turn(rows, layer);

  const std::span<const RowGroup> in_cache = groups_of(batch, layer);
  const int32_t layer_of_blocks = kv_places[static_cast<size_t>(layer)].layer;
  KvStoreArgs store;
  store.k = k;
  store.v = v;
  store.stride = kv_width();
  store.kv = kv;
  store.layer = layer_of_blocks;
  store.groups = in_cache;
  AttentionArgs attend;
  attend.q = q;
  attend.q_stride = q_width();
  attend.out = attended;
  attend.out_stride = q_width();
  attend.kv = kv;
  attend.layer = layer_of_blocks;
  attend.heads = config.heads;
  attend.scale = static_cast<float>(attention_scale_of(config));
  attend.window = config.sliding.empty() ? 0 : config.sliding[static_cast<size_t>(layer)];
  attend.cap = static_cast<float>(config.attention_cap);
  attend.groups = in_cache;
  attend.sinks = program.layers[static_cast<size_t>(layer)].sinks;
  {
    const Timed timed(times.attention_ns);
    ops->kv_store(context, store);
    ops->attention(context, attend);
  }

  const float* const result = config.attention_gate ? gate_attended(rows) : attended;
  return project_to_stream(batch, layer, Module::kO, result, q_width());
}

// What several ranks have to add is summed beside the stream, so that this is the same
// bits in all of them; so is what is added in part. The input norm's output is not read
// any more by then.
Status Model::State::project_to_stream(const ModelBatch& batch, int layer, Module module, const float* input,
                                       int64_t input_stride) {
  const LayerNorm after = module == Module::kO ? LayerNorm::kAttentionOut : LayerNorm::kFfnOut;
  const bool beside = group != nullptr || config.residual_scale != 1 || has_norm(config, after);
  float* const outputs[] = {beside ? normed : x};
  TRY(project(batch, layer, {&module, 1}, input, input_stride, outputs, !beside));
  if (!beside) return {};
  if (group != nullptr) TRY(group->all_reduce_sum({normed, batch.tokens.size() * static_cast<size_t>(config.hidden)}));
  add_to_stream(batch, after, layer);
  return {};
}

void Model::State::add_to_stream(const ModelBatch& batch, LayerNorm after, int layer) {
  if (has_norm(config, after)) norm_rows(batch, after, layer, normed, normed);
  AddArgs add;
  add.x = normed;
  add.y = x;
  add.x_stride = add.y_stride = add.dim = config.hidden;
  add.rows = static_cast<int32_t>(batch.tokens.size());
  add.scale = static_cast<float>(config.residual_scale);
  ops->add(context, add);
}

Status Model::State::ffn_block(const ModelBatch& batch, int layer) {
  if (has_experts(config, layer)) return experts_block(batch, layer);
  TRY(gate_times_up(batch, layer, block_input(batch, LayerNorm::kFfnInput, layer)));
  return project_to_stream(batch, layer, Module::kDown, gate, config.ffn);
}

Status Model::State::gate_times_up(const ModelBatch& batch, int layer, const float* input) {
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  static constexpr Module kInputs[] = {Module::kGate, Module::kUp};
  float* const outputs[] = {gate, up};
  static constexpr Module kUngated[] = {Module::kUp};
  float* const ungated[] = {gate};
  if (config.gated) {
    TRY(project(batch, layer, kInputs, input, config.hidden, outputs, false));
  } else {
    TRY(project(batch, layer, kUngated, input, config.hidden, ungated, false));
  }
  SwigluArgs swiglu;
  swiglu.gate = gate;
  swiglu.up = config.gated ? up : nullptr;
  swiglu.clamp = config.clamp;
  swiglu.stride = config.ffn;
  swiglu.rows = rows;
  swiglu.dim = config.ffn;
  swiglu.activation = config.activation;
  ops->swiglu(context, swiglu);
  return {};
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, WeightStore& weights, const OpTable& ops,
                                             ThreadPool& pool, const ModelLimits& limits, Collective* group) {
  CHECK(limits.rows_max > 0 && limits.logits_rows_max > 0);
  auto state = std::make_unique<State>();
  state->config = config;
  state->limits = limits;
  state->weights = &weights;
  state->ops = &ops;
  state->context.pool = &pool;
  state->group = group != nullptr && group->size() > 1 ? group : nullptr;
  TRY_ASSIGN(state->program, make_layer_program(config, weights, state->shard()));
  if (state->group != nullptr) state->find_head_part();
  state->rope = make_rope_table(config, limits.max_model_len);
  if (config.sliding_rope) state->sliding_rope = make_rope_table(with_sliding_rope(config), limits.max_model_len);
  state->kv_places = places_of(limits.kv_tables, config);
  TRY(state->allocate());
  tune_tiles(state->context, ops, weights.formats(LayoutId::kTile16), SteadyClock());
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

Status Model::forward(const ModelBatch& batch, const KvView& kv, const KvStreams& streams) {
  CHECK(static_cast<int32_t>(batch.tokens.size()) <= state_->limits.rows_max);
  CHECK(static_cast<int32_t>(batch.segments.size()) <= state_->limits.segments_max);
  CHECK(batch.choices.empty());  // tokens are chosen by the caller, from logits
  CHECK(state_->group == nullptr || streams.shape.dim == 0);
  CHECK(!has_linear(state_->config) || (batch.states.size() == batch.groups.size() && batch.streams.empty()));
  if (batch.tokens.empty()) return {};
  WeightPass pass(*state_->weights);
  if (batch.inputs != nullptr) TRY(batch.inputs->reach(kEmbeddingLayer));
  TRY(state_->embed(State::begun(batch, 0)));
  state_->find_angles(batch, state_->rope, state_->angles);
  if (state_->sliding_angles != nullptr) state_->find_angles(batch, state_->sliding_rope, state_->sliding_angles);
  for (int layer = 0; layer < state_->config.layers; ++layer) {
    state_->pass_streams(batch, streams, layer);
    const ModelBatch rows = State::begun(batch, layer);
    if (rows.inputs != nullptr) TRY(rows.inputs->reach(layer));
    const bool linear = is_linear(state_->config, layer);
    TRY(linear ? state_->linear_block(rows, layer) : state_->attention_block(rows, kv, layer));
    TRY(state_->ffn_block(rows, layer));
  }
  if (batch.inputs != nullptr && !(batch.logits_rows.empty() && batch.hidden_rows.empty()))
    TRY(batch.inputs->reach(state_->config.layers));
  TRY(state_->head(batch));
  pass.done();
  return {};
}

const ModelConfig& Model::config() const { return state_->config; }
int64_t Model::scratch_bytes() const { return state_->held_bytes; }
int64_t Model::scratch_bytes(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, int threads,
                             const Shard& shard) {
  return scratch_sizes(config, ops, limits, threads, shard).total_bytes();
}
uint64_t Model::op_count() const { return state_->context.op_count; }
int64_t Model::streamed_bytes() const { return state_->weights->read_bytes_per_pass(); }

ModelTimes Model::times() const {
  ModelTimes times = state_->times;
  const StreamerTotals totals = state_->weights->stream_totals();
  times.disk_ns = totals.waited_ns;
  times.disk_read_bytes = totals.read_bytes;
  const ExpertTotals experts = state_->weights->expert_totals();
  times.expert_hits = experts.hits;
  times.expert_misses = experts.misses;
  if (state_->group != nullptr) {
    const CollectiveTotals others = state_->group->totals();
    times.collective_ns = others.ns;
    times.collective_bytes = others.bytes;
  }
  return times;
}

}  // namespace loralei
