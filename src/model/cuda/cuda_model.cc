// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/cuda_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/limits.h"
#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "model/cuda/cuda_program.h"
#include "model/cuda/step_graphs.h"
#include "model/head_parts.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Block tables of this many entries (16 MiB) hold 64 million positions: more
// than any cache.
constexpr int64_t kTableBlocksMax = int64_t{4} << 20;

// What a driver takes beside what is asked for, at first use: kernels' code (ours and
// cuBLASLt's), and the nodes of a recorded graph, several hundred launches of a few
// kilobytes. An H200 took 8 to 37 MB of both for a 7 B model.
constexpr int64_t kCodeBytes = 128 * kMiB;
constexpr int64_t kGraphBytes = 2 * kMiB;

StepTables::Options table_options(const ModelConfig& config, const CudaModelOptions& options) {
  StepTables::Options tables;
  tables.limits = options.limits;
  tables.tiled_attention =
      options.activation == DType::kBF16 && !options.batch_invariant && cuda::has_tiled_attention(config.head_dim);
  tables.buckets = options.graphs && options.graphs_max > 0;
  tables.positions_max = max_positions(config, options.limits);
  const int64_t per_sequence = tables.positions_max / kKvBlockTokens + 1;
  tables.table_blocks_max = options.table_blocks_max > 0
                                ? options.table_blocks_max
                                : std::min(kTableBlocksMax, options.limits.rows_max * per_sequence);
  tables.slots_max = options.adapters_max;
  tables.vocab_max = max_vocab(config, options);
  tables.host_rows_max = options.host_rows_max;
  return tables;
}

LayerExchange::Options exchange_options(const ModelConfig& config, const CudaModelOptions& options) {
  const int32_t q_width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
  return {.rows_max = options.host_rows_max,
          .in_max = std::max({config.hidden, config.ffn, q_width}),
          .outs_max = std::max({q_width + 2 * kv_width, config.hidden, 2 * config.ffn})};
}

CudaAdapters::Options adapter_options(const ModelConfig& config, const CudaModelOptions& options) {
  return {options.device,
          options.adapter_bytes_max,
          options.upload_bytes_max,
          {config.hidden, config.head_dim, config.layers},
          options.layered_adapters};
}

CudaProducts::Options product_options(const CudaModelOptions& options) {
  return {options.activation, std::max(options.limits.rows_max, options.limits.logits_rows_max),
          options.decode_bytes_max, options.batch_invariant};
}

int64_t result_floats(const ModelConfig& config, const CudaModelOptions& options) {
  return logits_floats(config, options) + int64_t{options.limits.rows_max} * config.hidden +
         options.limits.logits_rows_max;
}

std::vector<cuda::DeviceWeight> all_weights(const CudaWeights& weights) {
  std::vector<cuda::DeviceWeight> all;
  for (const CudaLayer& layer : weights.layers)
    all.insert(all.end(), layer.matrix.begin(), layer.matrix.begin() + static_cast<size_t>(Module::kDecay));
  all.push_back(weights.head);
  return all;
}

}  // namespace

struct CudaModel::State {
  CudaModelOptions options;
  CudaProgram program;
  PinnedBuffer results;  // logits, hidden states, chosen tokens
  std::unique_ptr<StepTables> tables;
  CudaAdapters adapters;
  ArrivingLayers arriving;
  StepGraphs graphs;
  int64_t held_bytes = 0;

  float* hidden_results() const {
    return reinterpret_cast<float*>(results.data()) + logits_floats(program.config, options);
  }
  TokenId* chosen_results() const {
    return reinterpret_cast<TokenId*>(hidden_results() + int64_t{options.limits.rows_max} * program.config.hidden);
  }
  bool gives_results() const { return program.shard().rank == 0; }
  // Until all of a step is done: of a rank, not longer than the group lives.
  Status finish() {
    return program.ranks == nullptr ? program.stream.synchronize() : program.ranks->finish(program.stream);
  }
  Result<StepView> launch(const ModelBatch& batch, const CudaKv& kv);
  Status fetch_logits(const ModelBatch& batch, const StepView& view);
  void give_results(const ModelBatch& batch, const StepView& view) const;
};

// The copies stay outside of what is recorded: their sizes are the step's own.
Result<StepView> CudaModel::State::launch(const ModelBatch& batch, const CudaKv& kv) {
  CudaStream& stream = program.stream;
  TRY_ASSIGN(const StepView view, tables->fill(batch, kv, adapters, arriving, stream));
  const auto launches = [&]() -> Status {
    TRY(program.layers(view));
    TRY(program.head(view));
    return gives_results() ? program.choose(view) : Status();
  };
  if (view.bucket) {
    TRY(graphs.run(*view.shape, stream, launches));
  } else if (batch.hidden_rows.empty() || !gives_results()) {
    TRY(launches());
  } else {
    TRY(program.layers(view));
    TRY(program.hidden(view));
    const int64_t floats = std::ssize(batch.hidden_rows) * program.config.hidden;
    TRY(copy_to_host(hidden_results(), program.at.gathered, kFloat * floats, stream));
    TRY(program.head(view));
    TRY(program.choose(view));
  }
  if (gives_results()) TRY(fetch_logits(batch, view));
  TRY(arriving.settle());
  return view;
}

// Tokens where they were chosen, logits where they were not: most steps bring a few bytes
// instead of megabytes.
Status CudaModel::State::fetch_logits(const ModelBatch& batch, const StepView& view) {
  const auto count = std::ssize(batch.logits_rows);
  if (!batch.choices.empty()) {
    TRY(copy_to_host(chosen_results(), program.at.chosen, static_cast<int64_t>(sizeof(TokenId)) * count,
                     program.stream));
  }
  for (int64_t begin = 0; begin < count;) {
    int64_t end = begin;
    while (end < count && !batch.is_chosen(static_cast<size_t>(end))) ++end;
    if (end > begin) {
      const int64_t at = begin * view.logits_stride, floats = (end - begin) * view.logits_stride;
      TRY(copy_to_host(results.data() + kFloat * at, program.at.logits + at, kFloat * floats, program.stream));
    }
    begin = end + 1;
  }
  return {};
}

void CudaModel::State::give_results(const ModelBatch& batch, const StepView& view) const {
  const auto count = static_cast<int32_t>(batch.logits_rows.size());
  CHECK(count == 0 || batch.logits_stride >= view.vocab);
  const auto* logits = reinterpret_cast<const float*>(results.data());
  for (const SavedRun& run : view.logits_saved) {
    const int64_t vocab = own_head(run) ? run.saved->lm_head.rows : program.config.vocab;
    for (int32_t row = run.row_begin; row < std::min(count, run.row_begin + run.row_count); ++row) {
      if (batch.is_chosen(static_cast<size_t>(row))) {
        batch.chosen[row] = chosen_results()[row];
        continue;
      }
      float* const to = batch.logits + row * batch.logits_stride;
      std::copy_n(logits + row * view.logits_stride, vocab, to);
      std::fill(to + vocab, to + batch.logits_stride, -std::numeric_limits<float>::infinity());
    }
  }
  if (batch.hidden_rows.empty()) return;
  std::memcpy(batch.hidden, hidden_results(),
              sizeof(float) * batch.hidden_rows.size() * static_cast<size_t>(program.config.hidden));
}

CudaModel::CudaModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaModel::~CudaModel() = default;

Result<CudaModel::DeviceBytes> CudaModel::device_bytes(const ModelConfig& config, const WeightStore& weights,
                                                       const CudaModelOptions& options, const Shard& shard) {
  DeviceBytes bytes;
  TRY_ASSIGN(bytes.weights, cuda_weight_bytes(config, weights, shard));
  TRY_ASSIGN(const LayerProgram program, make_layer_program(config, weights, shard));
  std::vector<cuda::DeviceWeight> matrices;
  const auto shape_of = [&](TensorSlot slot) -> cuda::DeviceWeight {
    const WeightView& view = weights.view(slot);
    return {nullptr, view.dtype, view.layout, view.rows, view.cols};
  };
  for (const LayerWeights& layer : program.layers)
    for (const TensorSlot slot : layer.matrix) matrices.push_back(shape_of(slot));
  matrices.push_back(head_of_rank(shape_of(program.head), shard, config.vocab));
  CudaActivations places;
  bytes.scratch = CudaProducts::device_bytes(matrices, product_options(options)) +
                  place_activations(config, options, shard, nullptr, places) +
                  StepTables::bytes(config, table_options(config, options));
  bytes.driver = kCodeBytes + (options.graphs && shard.whole() ? options.graphs_max * kGraphBytes : 0);
  return bytes;
}

int64_t CudaModel::pinned_bytes(const ModelConfig& config, const CudaModelOptions& options) {
  return kFloat * result_floats(config, options) + StepTables::bytes(config, table_options(config, options)) +
         LayerExchange::host_bytes(exchange_options(config, options)) +
         CudaAdapters::pinned_bytes(adapter_options(config, options));
}

namespace {

// What the program of a GPU has.
Status check_config(const ModelConfig& config) {
  const bool multiplies = config.embed_scale != 1 || config.residual_scale != 1 || config.attention_scale != 0 ||
                          config.logits_divisor != 1;
  const bool norms = has_norm(config, LayerNorm::kAttentionOut) || config.whole_qk_norm;
  const bool shapes = config.attention_cap != 0 || config.logits_cap != 0 || config.rotary_dim != 0 ||
                      config.sliding_rope || config.activation != Activation::kSilu || !config.gated ||
                      config.norm_plus_one || config.centred_norms || config.sinks;
  const bool linear = has_linear(config) || config.attention_gate;
  if (config.experts.count > 0 || linear || multiplies || norms || shapes || !config.unturned.empty()) {
    return unsupported("Models of the architecture " + config.architecture +
                       " cannot be computed on a GPU yet; run it on the CPU (--device cpu).");
  }
  return {};
}

Status check_options(const CudaModelOptions& options, const Shard& shard) {
  CHECK(options.limits.rows_max > 0 && options.limits.logits_rows_max > 0 && options.limits.rank_max > 0);
  CHECK(options.activation == DType::kBF16 || options.activation == DType::kF32);
  CHECK(options.graphs_max >= 0);
  if (std::max(options.limits.rows_max, options.limits.logits_rows_max) > cuda::kRowsMax) {
    return unsupported("A GPU takes at most " + std::to_string(cuda::kRowsMax) +
                       " rows in one step: lower --max-num-batched-tokens.");
  }
  if (!shard.whole() && (options.layered_adapters || options.host_rows_max > 0)) {
    return unsupported(
        "Ranks on GPUs wait for all of an adapter: leave out --cold-start layered, assisted or auto, or "
        "--tensor-parallel.");
  }
  return {};
}

// A rank has its rows of the head and all rows of the embedding.
Status check_vocabulary(const ModelConfig& config, const CudaWeights& weights, const Shard& shard) {
  if (weights.head.rows == tiled_part(shard, config.vocab, kRowTile).count && weights.embed.rows == config.vocab)
    return {};
  return corrupt("The model's embedding or head has not the " + std::to_string(config.vocab) +
                 " rows its config promises; the files do not belong together.");
}

}  // namespace

Result<std::unique_ptr<CudaModel>> CudaModel::create(const ModelConfig& config, const WeightStore& weights,
                                                     const CudaModelOptions& asked, DeviceGroup* group) {
  auto state = std::make_unique<State>();
  CudaProgram& program = state->program;
  program.ranks = group != nullptr && group->size() > 1 ? group : nullptr;
  const Shard shard = program.shard();
  TRY(check_config(config));
  TRY(check_options(asked, shard));
  program.config = config;
  program.part_rows = part_rows_of(shard, config.vocab, asked.limits.logits_rows_max);
  CudaModelOptions& options = state->options;
  options = asked;
  options.graphs = asked.graphs && shard.whole();
  TRY_ASSIGN(const DeviceBytes bytes, device_bytes(config, weights, options, shard));
  state->held_bytes = bytes.weights + bytes.scratch;
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
  TRY_ASSIGN(program.stream, CudaStream::create());
  TRY_ASSIGN(program.weights, upload_weights(config, weights, shard, options.limits.max_model_len, program.stream));
  TRY(check_vocabulary(config, program.weights, shard));
  TRY_ASSIGN(program.products, CudaProducts::create(all_weights(program.weights), product_options(options)));
  TRY_ASSIGN(program.memory, allocate_on_device(place_activations(config, options, shard, nullptr, program.at),
                                                "Activations", "give the model fewer rows a step or less context."));
  place_activations(config, options, shard, program.memory.data(), program.at);
  TRY_ASSIGN(state->results, PinnedBuffer::allocate(kFloat * result_floats(config, options)));
  TRY_ASSIGN(StepTables tables, StepTables::create(program.config, table_options(config, options)));
  state->tables = std::make_unique<StepTables>(std::move(tables));
  TRY_ASSIGN(state->adapters, CudaAdapters::create(adapter_options(config, options)));
  TRY_ASSIGN(LayerExchange exchange, LayerExchange::create(exchange_options(config, options)));
  state->arriving = ArrivingLayers(config.layers, std::move(exchange));
  state->graphs = StepGraphs(options.graphs ? options.graphs_max : 0, options.log);
  return std::unique_ptr<CudaModel>(new CudaModel(std::move(state)));
}

Status CudaModel::forward(const ModelBatch& batch, const CudaKv& kv, int64_t wait_at_most_ns, LayerSums* sums) {
  ArrivingLayers& arriving = state_->arriving;
  arriving.begin(batch, wait_at_most_ns, sums);
  const ModelLimits& limits = state_->options.limits;
  const ModelConfig& config = state_->program.config;
  CHECK(static_cast<int32_t>(batch.tokens.size()) <= limits.rows_max);
  CHECK(static_cast<int32_t>(batch.hidden_rows.size()) <= limits.rows_max);
  CHECK(static_cast<int32_t>(batch.logits_rows.size()) <= limits.logits_rows_max);
  CHECK(static_cast<int32_t>(batch.segments.size()) <= limits.segments_max);
  CHECK(batch.logits_rows.empty() || batch.logits_stride >= config.vocab || !state_->gives_results());
  CHECK(batch.segments.empty() || batch.versions.size() == static_cast<size_t>(batch.slots));
  CHECK(batch.choices.empty() || batch.choices.size() == batch.logits_rows.size());
  CHECK(kv.view().kv_heads == config.kv_heads && kv.view().head_dim == config.head_dim);
  if (batch.tokens.empty()) return {};
  for (const RowGroup& group : batch.groups) {
    if (group.position + group.row_count <= max_positions(config, limits)) continue;
    return Error{ErrorCode::kTooLarge, "A sequence has more positions than the " +
                                           std::to_string(max_positions(config, limits)) +
                                           " the model was made for: start it with a larger max-model-len."};
  }
  TRY(set_cuda_device(state_->options.device));
  const Result<StepView> view = state_->launch(batch, kv);
  if (!view.ok()) arriving.end();
  DeviceGroup* const ranks = state_->program.ranks;
  if (!view.ok() && ranks != nullptr) ranks->fail(view.error());
  // Failed or not: what was launched reads the host's buffers.
  const Status done = state_->finish();
  if (!done.ok() && ranks != nullptr) ranks->fail(done.error());
  arriving.close();
  if (!view.ok() && !is_device_lost(done)) return view.error();
  TRY(done);
  if (state_->gives_results()) state_->give_results(batch, *view);
  return {};
}

CudaAdapters& CudaModel::adapters() { return state_->adapters; }
const ModelConfig& CudaModel::config() const { return state_->program.config; }
const ModelLimits& CudaModel::limits() const { return state_->options.limits; }
int32_t CudaModel::vocab_max() const { return max_vocab(state_->program.config, state_->options); }
int64_t CudaModel::sources_made() const { return state_->tables->sources_made(); }
const StepWaits& CudaModel::waits() const { return state_->arriving.waits(); }
const StepGraphs& CudaModel::graphs() const { return state_->graphs; }
int64_t CudaModel::device_bytes() const { return state_->held_bytes; }

}  // namespace loralei
