// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_program.h"

#include <algorithm>
#include <cmath>

#include "base/limits.h"
#include "model/head_parts.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kFloat = sizeof(float);
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

const float* of_layer(const std::vector<const float*>& vectors, int layer) {
  return vectors.empty() ? nullptr : vectors[static_cast<size_t>(layer)];
}
const float* own_final_norm(const DeviceSaved& saved) { return saved.final_norm; }

}  // namespace

int64_t max_positions(const ModelConfig& config, const ModelLimits& limits) {
  return limits.max_model_len > 0 ? limits.max_model_len : config.max_position;
}

int32_t max_vocab(const ModelConfig& config, const CudaModelOptions& options) {
  const int64_t more = options.extra_logits_bytes_max / kFloat / options.limits.logits_rows_max;
  return static_cast<int32_t>(std::min<int64_t>(config.vocab + more, kMaxVocab));
}

int64_t logits_floats(const ModelConfig& config, const CudaModelOptions& options) {
  return int64_t{options.limits.logits_rows_max} * logits_stride(max_vocab(config, options));
}

int64_t place_activations(const ModelConfig& config, const CudaModelOptions& options, const Shard& shard,
                          std::byte* base, CudaActivations& to) {
  const ModelLimits& limits = options.limits;
  const int64_t rows = limits.rows_max, gathered = std::max(limits.rows_max, limits.logits_rows_max);
  const int64_t q_width = int64_t{config.heads} * config.head_dim,
                kv_width = int64_t{config.kv_heads} * config.head_dim;
  int64_t used = 0;
  const auto take = [&](int64_t floats) {
    std::byte* const at = base == nullptr ? nullptr : base + used;
    used += aligned(floats * kFloat);
    return reinterpret_cast<float*>(at);
  };
  to.x = take(rows * config.hidden);
  to.input = reinterpret_cast<std::byte*>(
      take(std::max({gathered * config.hidden, rows * int64_t{config.ffn}, rows * q_width})));
  to.q = take(rows * q_width);
  to.k = take(rows * kv_width);
  to.v = take(rows * kv_width);
  to.gate = take(rows * config.ffn);
  to.up = take(rows * config.ffn);
  to.gathered = take(gathered * config.hidden);
  to.logits = take(shard.rank == 0 ? logits_floats(config, options) : 0);
  to.part_logits = take(part_logits_of(shard, config.vocab, limits.logits_rows_max));
  to.chosen = reinterpret_cast<TokenId*>(take(limits.logits_rows_max));
  to.lora = take(int64_t{3} * StepTables::entries_max(limits) * limits.rank_max);  // q, k and v share an input
  const auto longest = static_cast<int32_t>(max_positions(config, limits));
  const int64_t one_row = cuda::attention_scratch_floats(1, config.heads, config.head_dim, longest);
  to.attention_floats = std::max(one_row, std::min(one_row * rows, options.attention_bytes_max / kFloat));
  to.attention = take(to.attention_floats);
  return used;
}

void CudaProgram::add(Group& group, int layer, Module module, float* y) const {
  const CudaLayer& from = weights.layers[static_cast<size_t>(layer)];
  const auto m = static_cast<size_t>(module);
  const cuda::DeviceWeight& w = from.matrix[m];
  group.products[group.count] = {&w, from.bias[m], y, w.rows};
  group.modules[group.count++] = static_cast<size_t>(layer) * static_cast<size_t>(kLayerModules) + m;
}

// y += the adapters' parts, for every product's y; `input` null: an embedding, by tokens.
Status CudaProgram::lora(std::span<const CudaProduct> products, std::span<const size_t> modules, const CudaInput* input,
                         const StepView& view, const LoraUse& use) {
  const bool of_rows = &use == &view.lora;  // of which some adapters may be apart
  TRY(lora_of(products, modules, input, view, use, of_rows ? ArrivingLayers::kNotApart : ArrivingLayers::kAll));
  if (!of_rows) return {};
  for (const ApartLora& apart : view.apart) {
    if (view.arriving->on_host(apart.arriving)) continue;
    TRY(lora_of(products, modules, input, view, apart.use, apart.arriving));
  }
  return {};
}

// `arriving`: whose pairs are read, as ArrivingLayers says.
Status CudaProgram::lora_of(std::span<const CudaProduct> products, std::span<const size_t> modules,
                            const CudaInput* input, const StepView& view, const LoraUse& use, size_t arriving) {
  if (use.entries == 0) return {};
  cuda::LoraArgs args;
  for (size_t i = 0; i < products.size(); ++i) {
    const size_t module = modules[i];
    const int32_t rank = view.shape->ranks[module];
    if (rank < 0) continue;
    args.rank_max = std::max(args.rank_max, rank);
    args.targets[args.target_count++] = {products[i].y, products[i].y_stride,
                                         view.sources + module * static_cast<size_t>(view.shape->slots),
                                         products[i].w->rows};
  }
  if (args.target_count == 0) return {};
  if (view.arriving != nullptr) TRY(view.arriving->reach_pairs(stream, modules, arriving));
  if (input != nullptr) {
    args.x = input->x;
    args.x_dtype = input->dtype;
    args.x_stride = args.in = input->in;
  } else {
    args.tokens = view.tokens;
  }
  args.step = use.step;
  args.v = at.lora;
  args.entries = use.entries;
  return cuda::lora(stream, args);
}

Status CudaProgram::project(const Group& group, const CudaInput& input, const StepView& view, const LoraUse& use,
                            bool accumulate) {
  const std::span<const size_t> modules(group.modules.data(), group.count);
  if (view.arriving != nullptr) TRY(view.arriving->publish(stream, group.all(), modules, input));
  TRY(products.run(stream, input, group.all(), accumulate));
  TRY(lora(group.all(), modules, &input, view, use));
  return view.arriving != nullptr ? view.arriving->add_sums(stream, group.all()) : Status();
}

template <typename Own>
Status CudaProgram::norm(std::span<const SavedRun> runs, const cuda::RmsNormArgs& args, Own&& own) {
  const auto weight_of = [&](const SavedRun& run) {
    const float* const replaced = run.saved == nullptr ? nullptr : own(*run.saved);
    return replaced == nullptr ? args.weight : replaced;
  };
  for (size_t i = 0; i < runs.size();) {
    cuda::RmsNormArgs part = args;
    part.x += runs[i].row_begin * args.x_stride;
    part.y = static_cast<std::byte*>(args.y) + runs[i].row_begin * row_bytes(args.y_dtype, args.y_stride);
    part.weight = weight_of(runs[i]);
    for (part.rows = 0; i < runs.size() && weight_of(runs[i]) == part.weight; ++i) part.rows += runs[i].row_count;
    TRY(cuda::rms_norm(stream, part));
  }
  return {};
}

cuda::RmsNormArgs CudaProgram::norm_args(const float* x, const float* weight, void* y, DType y_dtype) const {
  return {.x = x,
          .x_stride = config.hidden,
          .y = y,
          .y_dtype = y_dtype,
          .y_stride = config.hidden,
          .weight = weight,
          .dim = config.hidden,
          .eps = static_cast<float>(config.rms_eps)};
}

template <typename Own>
Result<CudaInput> CudaProgram::normed(const float* x, int32_t rows, const float* weight, std::span<const SavedRun> runs,
                                      Own&& own, std::span<const CudaProduct> group) {
  const CudaInput input{at.input, products.input_type(group, rows), rows, config.hidden};
  TRY(norm(runs, norm_args(x, weight, at.input, input.dtype), own));
  return input;
}

// A row whose token the adapter has trained takes that, whatever the table says.
Status CudaProgram::embed(const StepView& view) {
  if (view.arriving != nullptr) TRY(view.arriving->reach_embedding(stream));
  for (const SavedRun& run : view.saved) {
    TRY(cuda::embed(stream, {.tokens = view.tokens + run.row_begin,
                             .rows = run.row_count,
                             .w = own_embed(run) ? run.saved->embed : weights.embed,
                             .y = at.x + int64_t{run.row_begin} * config.hidden,
                             .y_stride = config.hidden}));
    if (run.trained_count == 0) continue;
    TRY(cuda::gather_rows(stream, {.x = static_cast<const float*>(run.saved->embed_rows.data),
                                   .x_stride = config.hidden,
                                   .from = run.trained_from,
                                   .y = at.x,
                                   .y_stride = config.hidden,
                                   .rows = run.trained_count,
                                   .dim = config.hidden,
                                   .to = run.trained_to}));
  }
  cuda::DeviceWeight shape;  // of the output alone
  shape.rows = config.hidden;
  const CudaProduct product{&shape, nullptr, at.x, config.hidden};
  const size_t module = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules) + 1;
  return lora({&product, 1}, {&module, 1}, nullptr, view, view.lora);
}

// The rows' attention into `input`: runs row by row as far as the scratch goes,
// then all tiles.
Status CudaProgram::attend(const StepView& view, int layer, DType out_dtype) {
  cuda::AttentionArgs args;
  args.q_stride = args.out_stride = q_width();
  args.out_dtype = out_dtype;
  args.kv = view.shape->kv;
  args.layer = layer;
  args.heads = config.heads;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  args.window = config.sliding.empty() ? 0 : config.sliding[static_cast<size_t>(layer)];
  args.scratch = at.attention;
  for (const AttentionRun& run : view.runs) {
    const int64_t one_row = cuda::attention_scratch_floats(1, config.heads, config.head_dim, run.positions_max);
    const auto fitting = static_cast<int32_t>(std::clamp<int64_t>(at.attention_floats / one_row, 1, run.row_count));
    args.positions_max = run.positions_max;
    for (int32_t done = 0; done < run.row_count; done += fitting) {
      const int32_t row = run.row_begin + done;
      args.q = at.q + int64_t{row} * q_width();
      args.out = at.input + int64_t{row} * row_bytes(out_dtype, q_width());
      args.rows = view.rows;
      args.rows.rows = std::min(fitting, run.row_count - done);
      args.rows.positions += row;
      args.rows.tables += row;
      TRY(cuda::attention(stream, args));
    }
  }
  if (view.tile_count == 0) return {};
  args.q = at.q;
  args.out = at.input;
  args.rows = view.rows;
  return cuda::tiled_attention(stream, {args, view.tiles, view.tile_count});
}

Status CudaProgram::attention_block(const StepView& view, int layer) {
  const CudaLayer& layer_weights = weights.layers[static_cast<size_t>(layer)];
  const int32_t rows = view.rows.rows;
  Group inputs, output;
  add(inputs, layer, Module::kQ, at.q);
  add(inputs, layer, Module::kK, at.k);
  add(inputs, layer, Module::kV, at.v);
  add(output, layer, Module::kO, sums());
  const auto own_norm = [layer](const DeviceSaved& saved) { return of_layer(saved.input_norm, layer); };
  TRY_ASSIGN(const CudaInput input, normed(at.x, rows, layer_weights.input_norm, view.saved, own_norm, inputs.all()));
  TRY(project(inputs, input, view, view.lora, false));

  struct Turned {
    float* x;
    int32_t heads;
    const float* norm;
    std::vector<const float*> DeviceSaved::*own_norm;
  };
  for (const Turned& turned : {Turned{at.q, config.heads, layer_weights.q_norm, &DeviceSaved::q_norm},
                               Turned{at.k, config.kv_heads, layer_weights.k_norm, &DeviceSaved::k_norm}}) {
    const int64_t stride = int64_t{turned.heads} * config.head_dim;
    if (has_norm(config, LayerNorm::kQ)) {
      cuda::RmsNormArgs args = norm_args(turned.x, turned.norm, turned.x, DType::kF32);
      args.x_stride = args.y_stride = stride;
      args.vectors = turned.heads;
      args.dim = config.head_dim;
      TRY(norm(view.saved, args, [&](const DeviceSaved& saved) { return of_layer(saved.*turned.own_norm, layer); }));
    }
    TRY(cuda::rope(stream, {.x = turned.x,
                            .stride = stride,
                            .rows = rows,
                            .heads = turned.heads,
                            .head_dim = config.head_dim,
                            .positions = view.rows.positions,
                            .inv_freq = weights.inv_freq,
                            .attention_scale = weights.rope_attention_scale}));
  }
  TRY(cuda::kv_store(
      stream, {.k = at.k, .v = at.v, .stride = kv_width(), .kv = view.shape->kv, .layer = layer, .rows = view.rows}));
  const DType attended = products.input_type(output.all(), rows);
  TRY(attend(view, layer, attended));
  return project_to_stream(output, {at.input, attended, rows, q_width()}, view);
}

Status CudaProgram::ffn_block(const StepView& view, int layer) {
  const int32_t rows = view.rows.rows;
  Group inputs, output;
  add(inputs, layer, Module::kGate, at.gate);
  add(inputs, layer, Module::kUp, at.up);
  add(output, layer, Module::kDown, sums());
  const auto own_norm = [layer](const DeviceSaved& saved) { return of_layer(saved.post_attention_norm, layer); };
  TRY_ASSIGN(const CudaInput input, normed(at.x, rows, weights.layers[static_cast<size_t>(layer)].post_attention_norm,
                                           view.saved, own_norm, inputs.all()));
  TRY(project(inputs, input, view, view.lora, false));
  const DType activated = products.input_type(output.all(), rows);
  TRY(cuda::swiglu(stream, {.gate = at.gate,
                            .up = at.up,
                            .stride = config.ffn,
                            .y = at.input,
                            .y_dtype = activated,
                            .y_stride = config.ffn,
                            .rows = rows,
                            .dim = config.ffn}));
  return project_to_stream(output, {at.input, activated, rows, config.ffn}, view);
}

Status CudaProgram::gather(const int32_t* from, int32_t rows) {
  return cuda::gather_rows(stream, {.x = at.x,
                                    .x_stride = config.hidden,
                                    .from = from,
                                    .y = at.gathered,
                                    .y_stride = config.hidden,
                                    .rows = rows,
                                    .dim = config.hidden});
}

Status CudaProgram::hidden(const StepView& view) {
  const int32_t rows = view.shape->hidden_rows;
  if (rows == 0) return {};
  if (view.arriving != nullptr) TRY(view.arriving->reach_head(stream));
  TRY(gather(view.hidden_from, rows));
  const auto args = norm_args(at.gathered, weights.final_norm, at.gathered, DType::kF32);
  return norm(view.hidden_saved, args, own_final_norm);
}

// Logits of rows with a head, or with trained tokens in it, of their own, over what the
// model's head gave. Their input takes the place of at.x, which nobody reads any more.
Status CudaProgram::own_heads(const StepView& view) {
  for (const SavedRun& run : view.logits_saved) {
    if (run.saved == nullptr || run.saved->lm_head.rows + run.saved->head_rows.rows == 0) continue;
    const CudaInput input{at.x, products.activation(), run.row_count, config.hidden};
    const SavedRun rows{.row_count = run.row_count, .saved = run.saved};
    const float* const gathered = at.gathered + int64_t{run.row_begin} * config.hidden;
    TRY(norm({&rows, 1}, norm_args(gathered, weights.final_norm, at.x, input.dtype), own_final_norm));
    float* const logits = at.logits + int64_t{run.row_begin} * view.logits_stride;
    if (own_head(run)) {
      TRY(products.run_own(stream, input, {.w = &run.saved->lm_head, .y = logits, .y_stride = view.logits_stride}));
    }
    if (run.saved->head_rows.rows == 0) continue;
    TRY(products.run_own(
        stream, input,
        {.w = &run.saved->head_rows, .y = logits, .y_stride = view.logits_stride, .columns = run.saved->head_tokens}));
  }
  return {};
}

// The model's head for all rows if one of them uses it: what others use
// comes in its place.
Status CudaProgram::head(const StepView& view) {
  const int32_t rows = view.shape->logits_rows;
  if (rows == 0) return {};
  if (view.arriving != nullptr) TRY(view.arriving->reach_head(stream));
  TRY(gather(view.logits_from, rows));
  const CudaProduct product{&weights.head, nullptr, at.logits, view.logits_stride};
  TRY_ASSIGN(const CudaInput input,
             normed(at.gathered, rows, weights.final_norm, view.logits_saved, own_final_norm, {&product, 1}));
  if (ranks != nullptr) {
    TRY(gather_head(view, input));
    if (ranks->rank() > 0) return {};
  } else if (!std::all_of(view.logits_saved.begin(), view.logits_saved.end(), own_head)) {
    TRY(products.run(stream, input, {&product, 1}, false));
  }
  TRY(own_heads(view));
  cuda::DeviceWeight shape;  // of the output alone
  shape.rows = view.vocab;
  const CudaProduct all{&shape, nullptr, at.logits, view.logits_stride};
  const size_t module = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules);
  return lora({&all, 1}, {&module, 1}, &input, view, view.head_lora);
}

Status CudaProgram::choose(const StepView& view) {
  if (!view.shape->chooses) return {};
  return cuda::sample(stream, {.logits = at.logits,
                               .stride = view.logits_stride,
                               .rows = view.shape->logits_rows,
                               .choices = view.choices,
                               .tokens = at.chosen});
}

Status CudaProgram::layers(const StepView& view) {
  TRY(embed(view));
  for (int layer = 0; layer < config.layers; ++layer) {
    if (view.arriving != nullptr) {
      TRY(view.arriving->pace(layer));
      TRY(view.arriving->reach_norms(stream, layer));
    }
    TRY(attention_block(view, layer));
    TRY(ffn_block(view, layer));
  }
  return {};
}

}  // namespace loralei
