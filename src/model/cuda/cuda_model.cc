// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/limits.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_products.h"
#include "model/cuda/cuda_weights.h"
#include "model/cuda/step_tables.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kFloat = sizeof(float);
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Block tables of this many entries (16 MiB) hold 64 million positions: more than any cache.
constexpr int64_t kTableBlocksMax = int64_t{4} << 20;

int64_t max_positions(const ModelConfig& config, const ModelLimits& limits) {
  return limits.max_model_len > 0 ? limits.max_model_len : config.max_position;
}

StepTables::Options table_options(const ModelConfig& config, const CudaModelOptions& options) {
  StepTables::Options tables;
  tables.limits = options.limits;
  tables.tiled_attention = options.activation == DType::kBF16 && cuda::has_tiled_attention(config.head_dim);
  const int64_t per_sequence = max_positions(config, options.limits) / kKvBlockTokens + 1;
  tables.table_blocks_max = options.table_blocks_max > 0
                                ? options.table_blocks_max
                                : std::min(kTableBlocksMax, options.limits.rows_max * per_sequence);
  tables.host_delta_bytes_max = options.host_delta_bytes_max;
  tables.slots_max = options.adapters_max;
  return tables;
}

CudaProducts::Options product_options(const CudaModelOptions& options) {
  return {options.activation, std::max(options.limits.rows_max, options.limits.logits_rows_max),
          options.decode_bytes_max};
}

// Activations in one piece of memory.
struct Activations {
  float* x = nullptr;          // [rows, hidden] residual stream
  std::byte* input = nullptr;  // [rows, widest input of a product] in the type that the product wants
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  float* gate = nullptr;
  float* up = nullptr;
  float* gathered = nullptr;  // [rows, hidden] rows of x that want logits or hidden states
  float* logits = nullptr;    // [logits rows, vocab]
  float* lora = nullptr;      // [targets][entries][rank]
  float* attention = nullptr;
  int64_t attention_floats = 0;
};

// Places everything behind `base` (null: only counts) and answers the bytes.
int64_t place(const ModelConfig& config, const CudaModelOptions& options, std::byte* base, Activations& to) {
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

int64_t result_floats(const ModelConfig& config, const ModelLimits& limits) {
  return int64_t{limits.logits_rows_max} * config.vocab + int64_t{limits.rows_max} * config.hidden;
}

std::vector<cuda::DeviceWeight> all_weights(const CudaWeights& weights) {
  std::vector<cuda::DeviceWeight> all;
  for (const CudaLayer& layer : weights.layers) all.insert(all.end(), layer.matrix.begin(), layer.matrix.end());
  all.push_back(weights.head);
  return all;
}

}  // namespace

struct CudaModel::State {
  ModelConfig config;
  CudaModelOptions options;
  CudaStream stream;
  CudaWeights weights;
  CudaProducts products;
  DeviceBuffer activations;
  Activations at;
  PinnedBuffer results;  // logits, then hidden states
  std::unique_ptr<StepTables> tables;
  CudaAdapters adapters{0};
  int64_t held_bytes = 0;

  int32_t q_width() const { return config.heads * config.head_dim; }
  int32_t kv_width() const { return config.kv_heads * config.head_dim; }
  float* hidden_results() const {
    return reinterpret_cast<float*>(results.data()) + int64_t{options.limits.logits_rows_max} * config.vocab;
  }

  // Projections that share an input. Made before the input, whose type they decide.
  struct Group {
    std::array<CudaProduct, 3> products;
    std::array<size_t, 3> modules;  // as ModelBatch::sources numbers them
    size_t count = 0;
    std::span<const CudaProduct> all() const { return {products.data(), count}; }
  };
  void add(Group& group, int layer, Module module, float* y) const {
    const CudaLayer& from = weights.layers[static_cast<size_t>(layer)];
    const auto m = static_cast<size_t>(module);
    const cuda::DeviceWeight& w = from.matrix[m];
    group.products[group.count] = {&w, from.bias[m], y, w.rows};
    group.modules[group.count++] = static_cast<size_t>(layer) * static_cast<size_t>(kLayerModules) + m;
  }

  Status project(const Group& group, const CudaInput& input, const StepView& view, const LoraUse& use, bool accumulate);
  Status lora(std::span<const CudaProduct> products, std::span<const size_t> modules, const CudaInput* input,
              const StepView& view, const LoraUse& use);
  Result<CudaInput> normed(const float* x, int32_t rows, const float* weight, std::span<const CudaProduct> products);
  Status embed(const StepView& view);
  Status attend(const StepView& view, const CudaKv& kv, int layer, DType out_dtype);
  Status attention_block(const StepView& view, const CudaKv& kv, int layer);
  Status ffn_block(const StepView& view, int layer);
  Status hidden(const StepView& view, int32_t rows);
  Status head(const StepView& view, int32_t rows);
  Status launch(const ModelBatch& batch, const CudaKv& kv);
  void give_results(const ModelBatch& batch) const;
};

// y += the adapters' parts, for every product's y; `input` null: an embedding, by tokens.
Status CudaModel::State::lora(std::span<const CudaProduct> products, std::span<const size_t> modules,
                              const CudaInput* input, const StepView& view, const LoraUse& use) {
  if (use.entries == 0) return {};
  cuda::LoraArgs args;
  for (size_t i = 0; i < products.size(); ++i) {
    const size_t module = modules[i];
    if (view.ranks[module] < 0) continue;
    args.rank_max = std::max(args.rank_max, view.ranks[module]);
    args.targets[args.target_count++] = {products[i].y, products[i].y_stride,
                                         view.sources + module * static_cast<size_t>(view.slots), products[i].w->rows};
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

Status CudaModel::State::project(const Group& group, const CudaInput& input, const StepView& view, const LoraUse& use,
                                 bool accumulate) {
  TRY(products.run(stream, input, group.all(), accumulate));
  return lora(group.all(), {group.modules.data(), group.count}, &input, view, use);
}

Result<CudaInput> CudaModel::State::normed(const float* x, int32_t rows, const float* weight,
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

Status CudaModel::State::embed(const StepView& view) {
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
Status CudaModel::State::attend(const StepView& view, const CudaKv& kv, int layer, DType out_dtype) {
  cuda::AttentionArgs args;
  args.q_stride = args.out_stride = q_width();
  args.out_dtype = out_dtype;
  args.kv = kv.view();
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

Status CudaModel::State::attention_block(const StepView& view, const CudaKv& kv, int layer) {
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
  TRY(cuda::kv_store(stream,
                     {.k = at.k, .v = at.v, .stride = kv_width(), .kv = kv.view(), .layer = layer, .rows = view.rows}));
  const DType attended = products.input_type(output.all(), rows);
  TRY(attend(view, kv, layer, attended));
  return project(output, {at.input, attended, rows, q_width()}, view, view.lora, true);
}

Status CudaModel::State::ffn_block(const StepView& view, int layer) {
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

Status CudaModel::State::hidden(const StepView& view, int32_t rows) {
  if (rows == 0) return {};
  TRY(cuda::gather_rows(stream, {.x = at.x,
                                 .x_stride = config.hidden,
                                 .from = view.hidden_from,
                                 .y = at.gathered,
                                 .y_stride = config.hidden,
                                 .rows = rows,
                                 .dim = config.hidden}));
  TRY(cuda::rms_norm(stream, {.x = at.gathered,
                              .x_stride = config.hidden,
                              .y = at.gathered,
                              .y_dtype = DType::kF32,
                              .y_stride = config.hidden,
                              .weight = weights.final_norm,
                              .rows = rows,
                              .dim = config.hidden,
                              .eps = static_cast<float>(config.rms_eps)}));
  return copy_to_host(hidden_results(), at.gathered, kFloat * rows * config.hidden, stream);
}

Status CudaModel::State::head(const StepView& view, int32_t rows) {
  if (rows == 0) return {};
  TRY(cuda::gather_rows(stream, {.x = at.x,
                                 .x_stride = config.hidden,
                                 .from = view.logits_from,
                                 .y = at.gathered,
                                 .y_stride = config.hidden,
                                 .rows = rows,
                                 .dim = config.hidden}));
  Group group;
  group.products[0] = {&weights.head, nullptr, at.logits, config.vocab};
  group.modules[0] = static_cast<size_t>(config.layers) * static_cast<size_t>(kLayerModules);
  group.count = 1;
  TRY_ASSIGN(const CudaInput input, normed(at.gathered, rows, weights.final_norm, group.all()));
  TRY(project(group, input, view, view.head_lora, false));
  return copy_to_host(results.data(), at.logits, kFloat * rows * config.vocab, stream);
}

Status CudaModel::State::launch(const ModelBatch& batch, const CudaKv& kv) {
  TRY_ASSIGN(const StepView view, tables->fill(batch, kv.blocks(), adapters, stream));
  TRY(embed(view));
  for (int layer = 0; layer < config.layers; ++layer) {
    TRY(attention_block(view, kv, layer));
    TRY(ffn_block(view, layer));
  }
  TRY(hidden(view, static_cast<int32_t>(batch.hidden_rows.size())));
  return head(view, static_cast<int32_t>(batch.logits_rows.size()));
}

void CudaModel::State::give_results(const ModelBatch& batch) const {
  const auto vocab = static_cast<size_t>(config.vocab);
  const auto* logits = reinterpret_cast<const float*>(results.data());
  for (size_t row = 0; row < batch.logits_rows.size(); ++row) {
    float* to = batch.logits + static_cast<int64_t>(row) * batch.logits_stride;
    std::memcpy(to, logits + row * vocab, vocab * sizeof(float));
    std::fill(to + vocab, to + batch.logits_stride, -std::numeric_limits<float>::infinity());
  }
  if (batch.hidden_rows.empty()) return;
  std::memcpy(batch.hidden, hidden_results(),
              sizeof(float) * batch.hidden_rows.size() * static_cast<size_t>(config.hidden));
}

CudaModel::CudaModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaModel::~CudaModel() = default;

Result<int64_t> CudaModel::device_bytes(const ModelConfig& config, const WeightStore& weights,
                                        const CudaModelOptions& options) {
  TRY_ASSIGN(const int64_t weight_bytes, cuda_weight_bytes(config, weights));
  TRY_ASSIGN(const LayerProgram program, make_layer_program(config, weights));
  std::vector<cuda::DeviceWeight> matrices;
  const auto add = [&](TensorSlot slot) {
    const WeightView& view = weights.view(slot);
    matrices.push_back({nullptr, view.dtype, view.layout, view.rows, view.cols});
  };
  for (const LayerWeights& layer : program.layers) std::for_each(layer.matrix.begin(), layer.matrix.end(), add);
  add(program.head);
  Activations places;
  return weight_bytes + CudaProducts::device_bytes(matrices, product_options(options)) +
         place(config, options, nullptr, places) + StepTables::bytes(config, table_options(config, options));
}

Result<std::unique_ptr<CudaModel>> CudaModel::create(const ModelConfig& config, const WeightStore& weights,
                                                     const CudaModelOptions& options) {
  CHECK(options.limits.rows_max > 0 && options.limits.logits_rows_max > 0 && options.limits.rank_max > 0);
  CHECK(options.activation == DType::kBF16 || options.activation == DType::kF32);
  auto state = std::make_unique<State>();
  state->config = config;
  state->options = options;
  TRY_ASSIGN(state->held_bytes, device_bytes(config, weights, options));
  TRY(set_cuda_device(options.device));
  TRY_ASSIGN(const CudaMemoryInfo memory, cuda_memory_info());
  if (state->held_bytes > memory.free_bytes) {
    return Error{ErrorCode::kOverloaded, "The model needs " + format_bytes(state->held_bytes) +
                                             " of GPU memory for weights and activations, and " +
                                             format_bytes(memory.free_bytes) + " of " +
                                             format_bytes(memory.total_bytes) +
                                             " are free: quantise the weights, give it fewer rows a step, or run it "
                                             "on the CPU."};
  }
  TRY_ASSIGN(state->stream, CudaStream::create());
  TRY_ASSIGN(state->weights, upload_weights(config, weights, options.limits.max_model_len, state->stream));
  if (state->weights.head.rows != config.vocab || state->weights.embed.rows != config.vocab) {
    return corrupt("The model's embedding or head has not the " + std::to_string(config.vocab) +
                   " rows its config promises; the files do not belong together.");
  }
  TRY_ASSIGN(state->products, CudaProducts::create(all_weights(state->weights), product_options(options)));
  TRY_ASSIGN(state->activations, allocate_on_device(place(config, options, nullptr, state->at), "Activations",
                                                    "give the model fewer rows a step or less context."));
  place(config, options, state->activations.data(), state->at);
  TRY_ASSIGN(state->results, PinnedBuffer::allocate(kFloat * result_floats(config, options.limits)));
  TRY_ASSIGN(StepTables tables, StepTables::create(state->config, table_options(config, options)));
  state->tables = std::make_unique<StepTables>(std::move(tables));
  state->adapters = CudaAdapters(options.adapter_bytes_max);
  return std::unique_ptr<CudaModel>(new CudaModel(std::move(state)));
}

Status CudaModel::forward(const ModelBatch& batch, const CudaKv& kv) {
  const ModelLimits& limits = state_->options.limits;
  CHECK(static_cast<int32_t>(batch.tokens.size()) <= limits.rows_max);
  CHECK(static_cast<int32_t>(batch.hidden_rows.size()) <= limits.rows_max);
  CHECK(static_cast<int32_t>(batch.logits_rows.size()) <= limits.logits_rows_max);
  CHECK(static_cast<int32_t>(batch.segments.size()) <= limits.segments_max);
  CHECK(batch.logits_rows.empty() || batch.logits_stride >= state_->config.vocab);
  CHECK(kv.view().kv_heads == state_->config.kv_heads && kv.view().head_dim == state_->config.head_dim);
  if (batch.tokens.empty()) return {};
  if (!batch.overrides.empty()) {
    return unsupported(
        "An adapter replaces whole tensors of the model (modules_to_save or trained tokens), which is not supported on "
        "a GPU yet: run it on the CPU.");
  }
  for (const RowGroup& group : batch.groups) {
    if (group.position + group.row_count <= max_positions(state_->config, limits)) continue;
    return Error{ErrorCode::kTooLarge, "A sequence has more positions than the " +
                                           std::to_string(max_positions(state_->config, limits)) +
                                           " the model was made for: start it with a larger max-model-len."};
  }
  TRY(set_cuda_device(state_->options.device));
  const Status launched = state_->launch(batch, kv);
  const Status done = state_->stream.synchronize();  // failed or not: what was launched reads the host's buffers
  TRY(launched);
  TRY(done);
  state_->give_results(batch);
  return {};
}

CudaAdapters& CudaModel::adapters() { return state_->adapters; }
const ModelConfig& CudaModel::config() const { return state_->config; }
const ModelLimits& CudaModel::limits() const { return state_->options.limits; }
int64_t CudaModel::device_bytes() const { return state_->held_bytes; }

}  // namespace loralei
