// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_program.h"

#include <algorithm>
#include <cmath>

#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kFloat = sizeof(float);
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

int64_t max_positions(const ModelConfig& config, const ModelLimits& limits) {
  return limits.max_model_len > 0 ? limits.max_model_len : config.max_position;
}

int64_t place_activations(const ModelConfig& config, const CudaModelOptions& options, std::byte* base,
                          Activations& to) {
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
  to.logits = take(int64_t{limits.logits_rows_max} * config.vocab);
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
  TRY(products.run(stream, input, group.all(), accumulate));
  return lora(group.all(), {group.modules.data(), group.count}, &input, view, use);
}

Result<CudaInput> CudaProgram::normed(const float* x, int32_t rows, const float* weight,
                                      std::span<const CudaProduct> group) {
  const CudaInput input{at.input, products.input_type(group, rows), rows, config.hidden};
  TRY(cuda::rms_norm(stream, {.x = x,
                              .x_stride = config.hidden,
                              .y = at.input,
                              .y_dtype = input.dtype,
                              .y_stride = config.hidden,
                              .weight = weight,
                              .rows = rows,
                              .dim = config.hidden,
                              .eps = static_cast<float>(config.rms_eps)}));
  return input;
}

Status CudaProgram::embed(const StepView& view) {
  TRY(cuda::embed(
      stream,
      {.tokens = view.tokens, .rows = view.rows.rows, .w = weights.embed, .y = at.x, .y_stride = config.hidden}));
  cuda::DeviceWeight shape;  // of the output alone
  shape.rows = config.hidden;
  const CudaProduct product{&shape, nullptr, at.x, config.hidden};
  const size_t module = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules) + 1;
  return lora({&product, 1}, {&module, 1}, nullptr, view, view.lora);
}

// The rows' attention into `input`: runs row by row as far as the scratch goes, then all tiles.
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
  add(output, layer, Module::kO, at.x);
  TRY_ASSIGN(const CudaInput input, normed(at.x, rows, layer_weights.input_norm, inputs.all()));
  TRY(project(inputs, input, view, view.lora, false));

  struct Turned {
    float* x;
    int32_t heads;
    const float* norm;
  };
  for (const Turned& turned :
       {Turned{at.q, config.heads, layer_weights.q_norm}, Turned{at.k, config.kv_heads, layer_weights.k_norm}}) {
    const int64_t stride = int64_t{turned.heads} * config.head_dim;
    if (config.qk_norm) {
      TRY(cuda::rms_norm(stream, {.x = turned.x,
                                  .x_stride = stride,
                                  .y = turned.x,
                                  .y_dtype = DType::kF32,
                                  .y_stride = stride,
                                  .weight = turned.norm,
                                  .rows = rows,
                                  .vectors = turned.heads,
                                  .dim = config.head_dim,
                                  .eps = static_cast<float>(config.rms_eps)}));
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
  return project(output, {at.input, attended, rows, q_width()}, view, view.lora, true);
}

Status CudaProgram::ffn_block(const StepView& view, int layer) {
  const int32_t rows = view.rows.rows;
  Group inputs, output;
  add(inputs, layer, Module::kGate, at.gate);
  add(inputs, layer, Module::kUp, at.up);
  add(output, layer, Module::kDown, at.x);
  TRY_ASSIGN(const CudaInput input,
             normed(at.x, rows, weights.layers[static_cast<size_t>(layer)].post_attention_norm, inputs.all()));
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
  return project(output, {at.input, activated, rows, config.ffn}, view, view.lora, true);
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
  TRY(gather(view.hidden_from, rows));
  return cuda::rms_norm(stream, {.x = at.gathered,
                                 .x_stride = config.hidden,
                                 .y = at.gathered,
                                 .y_dtype = DType::kF32,
                                 .y_stride = config.hidden,
                                 .weight = weights.final_norm,
                                 .rows = rows,
                                 .dim = config.hidden,
                                 .eps = static_cast<float>(config.rms_eps)});
}

Status CudaProgram::head(const StepView& view) {
  const int32_t rows = view.shape->logits_rows;
  if (rows == 0) return {};
  TRY(gather(view.logits_from, rows));
  Group group;
  group.products[0] = {&weights.head, nullptr, at.logits, config.vocab};
  group.modules[0] = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules);
  group.count = 1;
  TRY_ASSIGN(const CudaInput input, normed(at.gathered, rows, weights.final_norm, group.all()));
  return project(group, input, view, view.head_lora, false);
}

Status CudaProgram::layers(const StepView& view) {
  TRY(embed(view));
  for (int layer = 0; layer < config.layers; ++layer) {
    TRY(attention_block(view, layer));
    TRY(ffn_block(view, layer));
  }
  return {};
}

}  // namespace loralei
