// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_host.h"

#include <algorithm>
#include <utility>

#include "adapters/adapter.h"
#include "base/limits.h"
#include "base/units.h"
#include "engine/memory_plan.h"
#include "engine/start.h"
#include "kv/block_pool.h"
#include "model/model.h"
#include "sys/cpu.h"
#include "sys/process.h"
#include "weights/pack.h"
#include "weights/weight_store.h"

namespace loralei {

// In the order of construction: what is declared later is destroyed first.
struct EngineHost::Parts {
  BaseModelFile file;
  SteadyClock clock;
  std::unique_ptr<Ledger> ledger;
  std::unique_ptr<ThreadPool> pool;
  const OpTable* ops = nullptr;
  std::unique_ptr<WeightStore> weights;
  Grant scratch, other;
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
  MemoryPlan plan;
  DType kv_dtype = DType::kF16;
};

namespace {

AdapterSource adapter_source(const Model& model) {
  AdapterBase base;
  base.config = model.config();
  base.bias_context = &model;
  base.bias = [](const void* context, int layer, Module module) {
    return static_cast<const Model*>(context)->bias(layer, module);
  };
  AdapterSource source;
  source.stamp = [](const std::string& path) { return adapter_stamp(path); };
  source.load = [base](const std::string& path, const AdapterLoadOptions& options, AdapterVersionId version) {
    return load_adapter(path, base, options, version);
  };
  return source;
}

Result<MemoryPlan> make_plan(const EngineOptions& options, const ModelConfig& config, DType kv_dtype,
                             int64_t left_bytes) {
  MemoryRequest request;
  request.left_bytes = left_bytes;
  request.block_bytes = kv_block_bytes({config.layers, config.kv_heads, config.head_dim, kv_dtype});
  request.model_len_max = config.max_position;
  // Dynamic scaling stretches to whatever length is asked for; its factor is fixed from that length.
  if (config.rope_scaling.kind == RopeScalingKind::kDynamic) {
    request.model_len_max = std::max<int64_t>(options.max_model_len, config.max_position);
  }
  request.max_model_len = options.max_model_len;
  request.max_sequences = options.max_sequences;
  request.kv_cache_bytes = options.kv_cache_bytes;
  request.adapter_bytes = options.adapter_bytes;
  return plan_memory(request);
}

// --- what streaming leaves for everything else ---
constexpr int64_t kOtherReserve = 24 * kMiB;  // code, vocabulary and connections still to come
constexpr int64_t kStreamingKvTokens = 1024;  // KV by default, where that is not more than an eighth of the budget
constexpr int64_t kResidentKvTokens = 256;    // with less beside resident weights streaming serves better

int64_t process_bytes() {
  const auto memory = process_memory();
  return memory.ok() ? memory->rss_bytes : 0;
}

}  // namespace

// The share of each use when weights are streamed: KV and adapters first, the weights take what is left.
Result<std::unique_ptr<WeightStore>> EngineHost::stream_weights(const EngineHostOptions& options,
                                                                const WeightOptions& weight_options,
                                                                EngineOptions& engine, int64_t taken_bytes,
                                                                int64_t block_bytes, LogSink& log) {
  Parts& parts = *parts_;
  const int64_t budget = parts.ledger->budget_bytes();
  const int64_t other = process_bytes() + kOtherReserve;
  auto other_grant = parts.ledger->try_grant(MemoryUse::kOther, other);
  if (!other_grant) return too_large("The process itself needs " + format_bytes(other) + "; raise --memory-budget.");
  parts.other = std::move(*other_grant);
  if (engine.kv_cache_bytes == 0) {
    const int64_t tokens = engine.max_model_len > 0 ? engine.max_model_len : kStreamingKvTokens;
    const int64_t blocks = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    engine.kv_cache_bytes = std::max(block_bytes, blocks * block_bytes);
    if (engine.max_model_len == 0)
      engine.kv_cache_bytes = std::max(block_bytes, std::min(engine.kv_cache_bytes, budget / 8));
  }
  if (engine.adapter_bytes == 0) engine.adapter_bytes = budget / 32;
  TRY_ASSIGN(const PackedFile packed, find_or_pack(parts.file, weight_options, options.cache_dir, log));
  StreamingOptions streaming;
  streaming.weight_bytes = budget - other - taken_bytes - engine.kv_cache_bytes - engine.adapter_bytes;
  streaming.residency = options.residency;
  streaming.rows_max = std::max(engine.step_tokens, engine.max_sequences);
  streaming.packed_path = packed.path;
  return WeightStore::stream(parts.file, *parts.ledger, weight_options, streaming, log);
}

EngineHost::EngineHost() : parts_(std::make_unique<Parts>()) {}

EngineHost::~EngineHost() {
  if (parts_->engine != nullptr) parts_->engine->stop();
}

Result<std::unique_ptr<EngineHost>> EngineHost::start(const EngineHostOptions& options, LogSink& log,
                                                      const LoadProgress& progress) {
  std::unique_ptr<EngineHost> host(new EngineHost());
  Parts& parts = *host->parts_;
  TRY_ASSIGN(parts.file, open_base_model(options.model_path));
  TRY_ASSIGN(parts.ops, select_op_table(options.isa));
  const int threads = options.threads > 0 ? options.threads : std::max(1, usable_cpus());
  parts.pool = std::make_unique<ThreadPool>(threads);
  const int64_t budget =
      options.engine.memory_budget_bytes > 0 ? options.engine.memory_budget_bytes : available_memory_bytes();
  parts.ledger = std::make_unique<Ledger>(budget);

  WeightOptions weight_options;
  weight_options.quantise = options.quantise;
  weight_options.quantised_layout = options.int8_activations ? LayoutId::kTile16 : LayoutId::kPlain;
  weight_options.threads = threads;
  weight_options.progress = progress;

  const ModelConfig& config = parts.file.config;
  EngineOptions engine = options.engine;
  parts.kv_dtype = engine.kv_dtype.value_or(config.dtype == DType::kF32 ? DType::kF32 : DType::kF16);
  engine.kv_dtype = parts.kv_dtype;
  ModelLimits limits = step_limits(engine, config);
  const int64_t scratch_bytes = Model::scratch_bytes(config, *parts.ops, limits, threads);
  // The engine holds the logits of a step beside the model's activations.
  const int64_t logits_bytes = int64_t{limits.logits_rows_max} * config.vocab * static_cast<int64_t>(sizeof(float));
  const int64_t block_bytes = kv_block_bytes({config.layers, config.kv_heads, config.head_dim, parts.kv_dtype});
  TRY_ASSIGN(const int64_t weight_bytes, WeightStore::bytes_needed(parts.file, weight_options));
  const int64_t beside = scratch_bytes + logits_bytes + kResidentKvTokens / kKvBlockTokens * block_bytes;
  if (weight_bytes <= budget - beside) {
    TRY_ASSIGN(parts.weights, WeightStore::load(parts.file, *parts.ledger, weight_options));
  } else {
    TRY_ASSIGN(parts.weights,
               host->stream_weights(options, weight_options, engine, scratch_bytes + logits_bytes, block_bytes, log));
  }
  auto scratch = parts.ledger->try_grant(MemoryUse::kScratch, scratch_bytes);
  if (!scratch) {
    return too_large("Activations need " + format_bytes(scratch_bytes) + " and do not fit the memory budget of " +
                     format_bytes(budget) + "; raise --memory-budget or lower --max-num-batched-tokens.");
  }
  parts.scratch = std::move(*scratch);
  TRY_ASSIGN(parts.plan, make_plan(engine, config, parts.kv_dtype, budget - parts.ledger->used_bytes() - logits_bytes));
  engine.max_model_len = parts.plan.max_model_len;
  engine.kv_cache_bytes = parts.plan.kv_bytes;
  engine.adapter_bytes = parts.plan.adapter_bytes;
  engine.memory_budget_bytes = budget;
  limits.max_model_len = engine.max_model_len;
  TRY_ASSIGN(parts.model, Model::create(config, *parts.weights, *parts.ops, *parts.pool, limits));

  EngineParts engine_parts;
  engine_parts.executor = make_host_executor(*parts.model, limits);
  engine_parts.config = config;
  engine_parts.eos = config.eos;
  engine_parts.adapters = adapter_source(*parts.model);
  engine_parts.ledger = parts.ledger.get();
  engine_parts.clock = &parts.clock;
  engine_parts.log = &log;
  engine_parts.pool = parts.pool.get();
  engine_parts.options = engine;
  engine_parts.fingerprint = "loralei-" + options.build + "-" + parts.weights->fingerprint() + "-" + parts.ops->name +
                             (options.int8_activations ? "" : "-f32");
  TRY_ASSIGN(parts.engine, start_engine(std::move(engine_parts)));
  return host;
}

Engine& EngineHost::engine() { return *parts_->engine; }
const BaseModelFile& EngineHost::file() const { return parts_->file; }
int EngineHost::threads() const { return parts_->pool->threads(); }
DType EngineHost::kv_dtype() const { return parts_->kv_dtype; }
const char* EngineHost::isa() const { return parts_->ops->name; }
const WeightStore& EngineHost::weights() const { return *parts_->weights; }

std::string EngineHost::banner() const {
  const ModelConfig& config = parts_->file.config;
  std::string text = config.architecture + ", " + std::to_string(config.layers) + " layers, hidden " +
                     std::to_string(config.hidden) + ", vocabulary " + std::to_string(config.vocab) + "; " +
                     std::to_string(threads()) + " threads, kernels " + isa() + "\n";
  text += "memory, of " + format_bytes(parts_->ledger->budget_bytes()) + ":\n" + parts_->ledger->describe();
  text += parts_->weights->describe();
  text += "sequences of up to " + std::to_string(parts_->plan.max_model_len) + " tokens; KV in " +
          dtype_info(parts_->kv_dtype).name + " holds " +
          std::to_string(int64_t{parts_->plan.kv_blocks} * kKvBlockTokens) + " tokens\n";
  for (const std::string& note : parts_->file.notes) text += "note: " + note + "\n";
  for (const std::string& note : parts_->plan.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace loralei
