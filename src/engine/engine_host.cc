// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_host.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/printable.h"
#include "base/units.h"
#include "engine/engine_host_parts.h"
#include "engine/kv_on_disk.h"
#include "engine/start.h"
#include "engine/step_outputs.h"
#include "kv/block_pool.h"
#include "kv/kv_coder.h"
#include "kv/state_pool.h"
#include "model/layer_program.h"
#include "model/linear_state.h"
#include "sys/cpu.h"
#include "sys/posix_file.h"
#include "sys/process.h"
#include "weights/pack.h"

namespace loralei {

MemoryRequest asked_of(const EngineOptions& options, int64_t block_bytes, const KvTables& tables, int64_t state_bytes) {
  MemoryRequest request;
  request.block_bytes = block_bytes;
  request.tables = tables;
  request.state_bytes = state_bytes;
  request.max_model_len = options.max_model_len;
  request.max_sequences = options.max_sequences;
  request.kv_cache_bytes = options.kv_cache_bytes;
  request.keeps_prefixes = options.prefix_cache;
  request.adapter_bytes = options.adapter_bytes;
  return request;
}

MemoryRequest memory_request(const EngineOptions& options, const ModelConfig& config, int64_t block_bytes,
                             const KvTables& tables, int64_t state_bytes) {
  MemoryRequest request = asked_of(options, block_bytes, tables, state_bytes);
  request.model_len_max = options.max_model_len > 0 ? positions_reached(config) : config.max_position;
  return request;
}

namespace {

AdapterSource adapter_source(const ModelConfig& config, const WeightStore& weights, const EngineHostOptions& options) {
  static const PosixFileSystem machine;
  const FileSystem* const files = options.adapter_files != nullptr ? options.adapter_files : &machine;
  AdapterBase base;
  base.config = config;
  base.names = options.model_names;
  base.names.push_back(options.model_path);
  if (auto real = machine.real_path(options.model_path); real.ok()) base.names.push_back(*std::move(real));
  base.bias_context = &weights;
  base.bias = [](const void* context, int layer, Module module) {
    return base_bias(*static_cast<const WeightStore*>(context), layer, module);
  };
  AdapterSource source;
  source.stamp = [files](const std::string& path) { return adapter_stamp(*files, path); };
  source.load = [base, files](const std::string& path, const AdapterLoadOptions& options, AdapterVersionId version) {
    return load_adapter(*files, path, base, options, version);
  };
  return source;
}

// A damaged file that the server reads of itself is nothing that a caller named.
Status not_the_callers(Status status) {
  if (status.ok() || status.error().code != ErrorCode::kCorrupt) return status;
  return Error{ErrorCode::kInternal, std::move(status).error().message};
}

constexpr int64_t kOtherReserve = 16 * kMiB;  // code, vocabulary and connections still to come
// Reserved for a server's requests: a part of the budget within limits. What they need
// beyond it is borrowed where memory is free.
constexpr int64_t kRequestPart = 64, kRequestBytesLeast = 12 * kMiB, kRequestBytesMost = 256 * kMiB;

int64_t request_reserve(const EngineHostOptions& options, int64_t budget) {
  if (options.engine.request_bytes > 0) return options.engine.request_bytes;
  if (!options.process_bytes) return 0;  // who asks knows what it asks for
  return std::clamp(budget / kRequestPart, kRequestBytesLeast, kRequestBytesMost);
}

int64_t process_bytes() {
  const auto memory = process_memory();
  return memory.ok() ? memory->rss_bytes : 0;
}

// Of all that numbers depend on, but for adapters and positions: the weights' own is of
// their source.
std::string fingerprint_of(const EngineHostOptions& options, const std::string& weights,
                           const std::string& computed_by) {
  std::string text = "loralei-" + options.build + "-" + weights + "-" + computed_by;
  if (options.quantise) text += std::string("-") + dtype_info(*options.quantise).name;
  if (options.activations == Activations::kF32) text += "-f32";
  if (options.activations == Activations::kInt8) text += "-int8";
  return text;
}

FixedBytes fixed_bytes(const EngineHostOptions& options, const ModelConfig& config, const OpTable& ops, int threads,
                       int64_t budget) {
  FixedBytes fixed;
  fixed.kv_dtype = options.engine.kv_dtype.value_or(config.dtype == DType::kF32 ? DType::kF32 : DType::kF16);
  fixed.limits = step_limits(options.engine, config);
  fixed.scratch = scratch_bytes_of_ranks(options, config, ops, fixed.limits, threads);
  fixed.outputs = StepOutputs::bytes(fixed.limits, config.hidden, config.vocab);
  if (options.engine.kv_sharing != KvSharing::kExact && !options.device) {
    const KvShape shape{kv_layers(config), config.kv_heads, config.head_dim, fixed.kv_dtype};
    fixed.outputs += KvCoder::scratch_bytes(kv_grid_shape(shape), options.engine.kv_delta, threads);
    if (options.engine.kv_sharing == KvSharing::kBorrow)  // at most: who may borrow is known with the weights
      fixed.outputs += KvStreamShape{.dim = config.hidden, .levels = KvStreamShape::kLevelsMost}.block_bytes();
  }
  if (!options.engine.kv_dir.empty() && !options.device) {
    const KvShape shape{kv_layers(config), config.kv_heads, config.head_dim, fixed.kv_dtype};
    const auto disk = KvDisk::memory_bytes(kv_disk_sizes(options.engine, shape));
    fixed.outputs += disk.ok() ? *disk : 0;  // else start_engine says why
  }
  fixed.other = process_bytes() + kOtherReserve;
  fixed.requests = request_reserve(options, budget);
  fixed.tables = kv_tables_of(options, config, fixed.limits);
  fixed.state = state_bytes(state_floats(config));
  fixed.kv_block = kv_block_bytes({kv_layers(config),
                                   config_of_cache(options, config).kv_heads,
                                   config.head_dim,
                                   fixed.kv_dtype,
                                   {},
                                   fixed.tables});
  return fixed;
}

bool fits_resident(int64_t weight_bytes, const FixedBytes& fixed, const EngineOptions& engine, int64_t budget) {
  return weight_bytes + fixed.other + fixed.requests + fixed.scratch + fixed.outputs +
             least_beside_resident_bytes(asked_of(engine, fixed.kv_block, fixed.tables, fixed.state), budget) <=
         budget;
}

StreamShares stream_shares(const EngineOptions& engine, const FixedBytes& fixed, int64_t budget) {
  StreamShares shares;
  shares.kv = streaming_kv_bytes(asked_of(engine, fixed.kv_block, fixed.tables, fixed.state), budget);
  shares.adapters = engine.adapter_bytes > 0 ? engine.adapter_bytes : budget / kStreamingAdapterPart;
  shares.weights = budget - fixed.other - fixed.requests - shares.kv - shares.adapters - fixed.scratch - fixed.outputs;
  return shares;
}

// What the KV cache may grow to: every sequence at full length, as far as this machine
// could ever hold that.
int32_t kv_blocks_max(const MemoryPlan& plan, int32_t max_sequences, int64_t block_bytes, const KvTables& tables) {
  const int64_t wanted = tables.blocks_most(plan.max_model_len) * max_sequences;
  const int64_t most = std::min<int64_t>(total_memory_bytes() / block_bytes, INT32_MAX / kKvBlockTokens);
  return static_cast<int32_t>(std::max<int64_t>(plan.kv_blocks, std::min(wanted, most)));
}

}  // namespace

WeightOptions weight_options_of(const EngineHostOptions& options, int threads) {
  WeightOptions weights;
  weights.quantise = options.quantise;
  weights.quantised_layout = options.activations == Activations::kF32 ? LayoutId::kPlain : LayoutId::kTile16;
  weights.shrink = options.stream_shrink;
  weights.threads = threads;
  return weights;
}
Result<const OpTable*> op_table_of(const EngineHostOptions& options) {
  return select_op_table(options.isa,
                         options.activations == Activations::kAuto ? Bf16Inputs::kRounded : Bf16Inputs::kExact);
}
int threads_of(const EngineHostOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, usable_cpus());
}
int64_t budget_of(const EngineHostOptions& options) {
  if (options.engine.memory_budget_bytes > 0) return options.engine.memory_budget_bytes;
  return available_memory_bytes() / (options.processes == nullptr ? 1 : options.processes->ranks_here());
}

Result<StreamForecast> forecast_streaming(const EngineHostOptions& options) {
  TRY_ASSIGN(const BaseModelFile file, open_base_model(options.model_path));
  TRY_ASSIGN(const OpTable* const ops, op_table_of(options));
  const int threads = threads_of(options);
  const WeightOptions weight_options = weight_options_of(options, threads);
  const int64_t budget = budget_of(options);
  TRY(check_ranks(options, file, weight_options));
  const FixedBytes fixed = fixed_bytes(options, file.config, *ops, threads, budget);
  TRY_ASSIGN(std::vector<PlannedMatrix> planned, WeightStore::planned(file, weight_options));
  for (const std::string& path : packed_paths(file, weight_options, options.cache_dir)) {
    const auto packed = open_packed(path, file, weight_options);
    if (!packed.ok()) continue;
    for (size_t i = 0; i < planned.size(); ++i) planned[i].stored_tile_bytes = shrunk_tile_bytes(packed->matrices[i]);
    break;
  }
  const int ranks = options.tensor_parallel;
  TRY_ASSIGN(const int64_t weight_bytes, weight_bytes_of_ranks(options, file, weight_options));
  StreamForecast forecast;
  const bool resident = fits_resident(weight_bytes, fixed, options.engine, budget);
  if (!resident && ranks > 1) return parts_are_not_streamed(options, file, weight_bytes, budget);
  const StreamShares shares = stream_shares(options.engine, fixed, budget);
  TRY_ASSIGN(const ResidencyPlan plan,
             plan_residency(planned, resident ? weight_bytes : shares.weights, options.residency));
  const PassBytes bytes = pass_bytes(planned, plan, file.config.experts.used);
  forecast.touched_bytes = bytes.touched;
  forecast.streamed_bytes = bytes.read;
  forecast.text = "memory budget " + format_bytes(budget) + ": ";
  if (resident) {
    forecast.text += "everything is resident\n";
  } else {
    forecast.text += "KV " + format_bytes(shares.kv) + ", adapters " + format_bytes(shares.adapters) +
                     ", activations " + format_bytes(fixed.scratch + fixed.outputs) + ", requests " +
                     format_bytes(fixed.requests) + ", process " + format_bytes(fixed.other) + ", weights " +
                     format_bytes(shares.weights) + "\n";
  }
  if (ranks > 1) forecast.text += "weights of " + std::to_string(ranks) + " ranks " + format_bytes(weight_bytes) + "\n";
  forecast.text += describe_residency(planned, plan);
  return forecast;
}

// The weights' store when they are streamed; KV and adapters get their
// shares in `engine`.
Result<std::unique_ptr<WeightStore>> EngineHost::stream_weights(const StreamShares& shares, LogSink& log) {
  Parts& parts = *parts_;
  // A budget that cannot do is refused before gigabytes are written.
  TRY_ASSIGN(const std::vector<PlannedMatrix> planned, WeightStore::planned(parts.file, parts.weight_options));
  TRY(plan_residency(planned, shares.weights, parts.options.residency));
  StreamingOptions options = streaming(shares.weights);
  auto weights =
      WeightStore::stream_found(parts.file, *parts.ledger, parts.weight_options, parts.options.cache_dir, options, log);
  parts.packed_path = options.packed_path;
  return weights;
}

EngineHost::EngineHost() : parts_(std::make_unique<Parts>()) {}

EngineHost::~EngineHost() {
  if (parts_->engine != nullptr) parts_->engine->stop();
  parts_->mender.stop();
  if (parts_->requests != nullptr) parts_->requests->close();  // whose shares may outlive the ledger
}

Status check_budget(int64_t budget_bytes) {
  const int64_t most = total_memory_bytes();
  if (most <= 0 || budget_bytes <= most) return {};
  return too_large("A memory budget of " + format_bytes(budget_bytes) + " is more than the " + format_bytes(most) +
                   " that this machine, or its cgroup, has; state less.");
}

// All but the engine, whose parts they become.
Status EngineHost::prepare(const EngineHostOptions& options, LogSink& log, const LoadProgress& progress,
                           EngineParts& engine) {
  TRY(check_budget(options.engine.memory_budget_bytes));
  Parts& parts = *parts_;
  parts.options = options;
  TRY_ASSIGN(parts.file, open_base_model(options.model_path));
  TRY_ASSIGN(parts.ops, op_table_of(options));
  const int threads = threads_of(options);
  parts.pool = std::make_unique<ThreadPool>(threads_of_rank(options));
  int64_t budget = budget_of(options);
  parts.weight_options = weight_options_of(options, threads);
  parts.weight_options.progress = progress;
  TRY(check_states(options, parts.file.config));
  TRY(check_ranks(options, parts.file, parts.weight_options));

  for (const std::string& note : options.notes) log.log(LogLevel::kWarning, note);

  if (options.device) {  // first, since a device's libraries become part of the process
    TRY_ASSIGN(parts.device_budget, options.device.budget());
    TRY(leave_to_device(parts.device_budget, options.engine.memory_budget_bytes > 0, budget));
  }
  parts.ledger = std::make_unique<Ledger>(budget);
  const ModelConfig& config = parts.file.config;
  const FixedBytes fixed = fixed_bytes(options, config, *parts.ops, threads, budget);
  parts.kv_dtype = fixed.kv_dtype;
  auto other = parts.ledger->try_grant(MemoryUse::kOther, fixed.other);
  if (!other) return too_large("The process itself needs " + format_bytes(fixed.other) + "; raise --memory-budget.");
  parts.process = ProcessShare(*parts.ledger, std::move(*other));
  auto requests = parts.ledger->try_grant(MemoryUse::kRequests, fixed.requests);
  if (!requests) {
    return too_large("Requests are to have " + format_bytes(fixed.requests) + ", and beside the process itself " +
                     format_bytes(parts.ledger->available_bytes(MemoryUse::kRequests)) +
                     " of the memory budget are left; raise --memory-budget or lower --request-memory.");
  }
  parts.requests = std::make_shared<RequestBudget>(*parts.ledger, std::move(*requests));

  engine.options = options.engine;
  engine.options.kv_dtype = parts.kv_dtype;
  if (options.device) {
    TRY(use_device(fixed, engine, log));
  } else {
    TRY(use_cores(fixed, engine, log));
  }
  parts.weight_options.progress = {};  // the caller's, for the time of starting
  engine.options.max_model_len = parts.plan.max_model_len;
  engine.options.memory_budget_bytes = budget;
  engine.config = config_of_cache(options, config);
  engine.eos = config.eos;
  engine.adapters = adapter_source(config, *parts.weights, options);
  engine.ledger = parts.ledger.get();
  engine.device = parts.device_budget.device;
  engine.device_ledger = parts.device_ledger.get();
  engine.device_overhead = options.device ? &parts.device_overhead : nullptr;
  if (options.pace != nullptr) keep_pace(engine);
  engine.clock = &parts.clock;
  engine.log = &log;
  engine.pool = parts.pool.get();
  return {};
}

Result<std::unique_ptr<EngineHost>> EngineHost::start(const EngineHostOptions& options, LogSink& log,
                                                      const LoadProgress& progress) {
  std::unique_ptr<EngineHost> host(new EngineHost());
  Parts& parts = *host->parts_;
  EngineParts engine;
  TRY(host->prepare(options, log, progress, engine));
  engine.on_step = options.on_step;
  if (options.recall_lengths) engine.lengths = options.recall_lengths(parts.weights->fingerprint());
  engine.keep_lengths = options.keep_lengths;
  engine.kv_events = options.kv_events;
  host->control_memory(engine, log);
  engine.requests = parts.requests;
  engine.fingerprint = fingerprint_of(options, parts.weights->fingerprint(), parts.computed_by);
  TRY_ASSIGN(parts.engine, start_engine(std::move(engine)));
  return host;
}

void EngineHost::keep_pace(EngineParts& engine) {
  Parts& parts = *parts_;
  const Profile& profile = *parts.options.pace;
  const PaceWait wait = [&parts](int64_t until_ns) { parts.pace.until(until_ns); };
  const bool has_device = engine.executor->device_tier() != nullptr;
  engine.executor = make_paced_executor(std::move(engine.executor), profile, parts.clock, wait);
  engine.adapters = paced_adapters(std::move(engine.adapters), profile, has_device, parts.clock, wait);
  engine.before_stop = [&parts] { parts.pace.stop(); };
  constexpr int32_t kLoadsMost = 64;
  if (profile.disk) engine.options.adapter_load_threads = std::clamp(profile.disk->at_once, 1, kLoadsMost);
}

// How another memory budget is made true while the engine runs.
void EngineHost::control_memory(EngineParts& engine, LogSink& log) {
  Parts& parts = *parts_;
  if (!parts.options.device) engine.memory.joint = joint_memory(parts.options.engine);
  engine.memory.kv_blocks_max = parts.kv_blocks_max;
  if (engine.memory.joint.kv) {  // prefixes take whatever there is
    const int64_t block_bytes = parts.plan.kv_bytes / parts.plan.kv_blocks;
    const int64_t most = std::min<int64_t>(total_memory_bytes() / block_bytes, INT32_MAX / kKvBlockTokens);
    engine.memory.kv_blocks_max = static_cast<int32_t>(std::max<int64_t>(parts.kv_blocks_max, most));
  }
  engine.memory.prepare = [this, &log](int64_t bytes, int64_t idle_adapter_bytes,
                                       const std::stop_token& stop) -> Status {
    if (parts_->device != nullptr) {
      const char* const who = parts_->device_budget.of_host ? "an emulated device" : "a GPU";
      return unsupported("The memory budget cannot change while " + std::string(who) +
                         " computes; restart with another --memory-budget.");
    }
    if (parts_->options.tensor_parallel > 1) {
      return unsupported(
          "The memory budget cannot change with --tensor-parallel; restart with another --memory-budget.");
    }
    return not_the_callers(prepare_budget(bytes, idle_adapter_bytes, stop, log));
  };
  engine.memory.apply = [this, &log](int64_t bytes, const RoomMaker& room) {
    return not_the_callers(apply_budget(bytes, room, log));
  };
  if (parts.options.device) {
    engine.memory.watch = [this, &log](const GiveWay&) {
      watch_device(log);
      return false;
    };
  } else if (parts.options.process_bytes) {
    engine.memory.watch = [&parts, &log](const GiveWay& give_way) {
      return parts.process.follow(parts.options.process_bytes(), parts.clock.now_ns(), give_way, log);
    };
    parts.heap.emplace(*parts.requests, parts.options.process_bytes);
  }
}

// What the user left open may grow into what nobody needs.
JointMemory joint_memory(const EngineOptions& options) {
  const bool joint = options.memory_sharing == MemorySharing::kJoint;
  return {.kv = joint && options.kv_cache_bytes == 0, .adapters = joint && options.adapter_bytes == 0};
}

// Weights in memory or streamed, and a model over them that shares the cores' memory with
// KV cache and adapters.
Status EngineHost::use_cores(const FixedBytes& fixed, EngineParts& engine, LogSink& log) {
  Parts& parts = *parts_;
  const ModelConfig& config = parts.file.config;
  const int64_t budget = parts.ledger->budget_bytes();
  const int ranks = parts.options.tensor_parallel;
  TRY_ASSIGN(const int64_t weight_bytes, weight_bytes_of_ranks(parts.options, parts.file, parts.weight_options));
  const bool resident = fits_resident(weight_bytes, fixed, engine.options, budget);
  if (resident && ranks > 1) {
    TRY(load_ranks());
  } else if (resident) {
    TRY_ASSIGN(parts.weights, WeightStore::load(parts.file, *parts.ledger, parts.weight_options));
  } else if (ranks > 1) {
    return parts_are_not_streamed(parts.options, parts.file, weight_bytes, budget);
  } else {
    const StreamShares shares = stream_shares(engine.options, fixed, budget);
    engine.options.kv_cache_bytes = shares.kv;
    engine.options.adapter_bytes = shares.adapters;
    TRY_ASSIGN(parts.weights, stream_weights(shares, log));
  }
  use_kv_steps(engine, log);
  auto scratch = parts.ledger->try_grant(MemoryUse::kScratch, fixed.scratch);
  if (!scratch) {
    return too_large("Activations need " + format_bytes(fixed.scratch) + " and do not fit the memory budget of " +
                     format_bytes(budget) + "; raise --memory-budget or lower --max-num-batched-tokens.");
  }
  parts.scratch = std::move(*scratch);
  const int64_t kv_block = kv_block_bytes({kv_layers(config), config_of_cache(parts.options, config).kv_heads,
                                           config.head_dim, fixed.kv_dtype, parts.streams, fixed.tables});
  MemoryRequest request = memory_request(engine.options, config, kv_block, fixed.tables, fixed.state);
  request.left_bytes = budget - parts.ledger->used_bytes() - fixed.outputs;
  TRY_ASSIGN(parts.plan, plan_memory(request));
  engine.options.kv_cache_bytes = parts.plan.kv_bytes;
  engine.options.adapter_bytes = parts.plan.adapter_bytes;
  engine.options.max_sequences = parts.plan.max_sequences;
  engine.state_slots = parts.plan.state_slots;
  parts.kv_blocks_max = kv_blocks_max(parts.plan, engine.options.max_sequences, kv_block, fixed.tables);
  parts.kv_tables = engine.kv_tables = fixed.tables;
  ModelLimits limits = fixed.limits;
  limits.max_model_len = parts.plan.max_model_len;
  limits.kv_tables = fixed.tables;
  if (ranks > 1) return start_ranks(limits, engine);
  TRY_ASSIGN(parts.model, Model::create(config, *parts.weights, *parts.ops, *parts.pool, limits));
  engine.executor = make_host_executor(*parts.model, limits, *parts.ledger, [this, &log] { return mend_packed(log); });
  parts.computed_by = parts.ops->name;
  return {};
}

Engine& EngineHost::engine() { return *parts_->engine; }
const BaseModelFile& EngineHost::file() const { return parts_->file; }
int EngineHost::threads() const { return parts_->pool->threads(); }
int32_t EngineHost::max_sequences() const { return parts_->plan.max_sequences; }
DType EngineHost::kv_dtype() const { return parts_->kv_dtype; }
const char* EngineHost::isa() const { return parts_->ops->name; }
const WeightStore& EngineHost::weights() const { return *parts_->weights; }
const WeightOptions& EngineHost::weight_options() const { return parts_->weight_options; }
const Ledger& EngineHost::ledger() const { return *parts_->ledger; }
const Ledger* EngineHost::device_ledger() const { return parts_->device_ledger.get(); }

std::string EngineHost::threads_text() const {
  const int ranks = parts_->options.tensor_parallel;
  const std::string each = std::to_string(threads()) + (threads() == 1 && ranks > 1 ? " thread" : " threads");
  return ranks == 1 ? each : std::to_string(ranks) + " ranks of " + each + " each";
}

std::string EngineHost::banner() const {
  const ModelConfig& config = parts_->file.config;
  std::string text = config.architecture + ", " + std::to_string(config.layers) + " layers, hidden " +
                     std::to_string(config.hidden) + ", vocabulary " + std::to_string(config.vocab) + "; " +
                     threads_text() + ", kernels " + parts_->computed_by + "\n";
  if (parts_->options.pace != nullptr) {
    text += "PACED: steps and loads of adapters take what the profile '" + printable(parts_->options.pace->name) +
            "' says of another machine; times measured here are not this machine's\n";
  }
  text += "memory, of " + format_bytes(parts_->ledger->budget_bytes()) + ":\n" + parts_->ledger->describe();
  if (const Ledger* const device = device_ledger(); device != nullptr) {
    text += "memory of " + parts_->device_budget.device + ", of " + format_bytes(device->budget_bytes()) + ":\n" +
            device->describe();
  }
  if (parts_->options.device.taken_bytes) {
    text += "  beside it " + format_bytes(parts_->device_overhead.before_bytes) +
            " were taken by this program's context and others, " +
            format_bytes(parts_->device_overhead.since_bytes.load()) + " by the driver since\n";
  }
  text += parts_->weights->describe();
  text += "sequences of up to " + std::to_string(parts_->plan.max_model_len) + " tokens; " + describe_kv();
  text += describe_kv_sharing();
  if (const auto disk = parts_->engine->stats().kv_disk) {
    text += "prefixes are kept in " + printable(parts_->options.engine.kv_dir) + " as well, in at most " +
            format_bytes(disk->bytes_most) + "; " + std::to_string(disk->found_records * kKvBlockTokens) +
            " tokens of this model were found there\n";
  }
  return text;
}

std::vector<std::string> EngineHost::notes() const {
  std::vector<std::string> notes = parts_->file.notes;
  const EngineOptions& asked = parts_->options.engine;
  if (asked.assist_helpers > 0 && parts_->helpers == 0) {
    notes.push_back(
        "--assist-helpers changes nothing here: helper processes compute beside a --device, with --cold-start auto or "
        "assisted, which has to be stated with a GPU.");
  }
  if (asked.cold_start == ColdStart::kAssisted && parts_->helpers == 0)
    notes.push_back("--cold-start assisted is layered here: there are no helper processes.");
  if (const std::string whole = note_of_windows(); !whole.empty()) notes.push_back(whole);
  if (asked.speculate == Speculation::kLookup && parts_->plan.state_slots > 0) {
    notes.push_back(
        "--speculate lookup changes nothing here: the states of this model's linear layers cannot be taken back to the "
        "tokens that were guessed well.");
  }
  const ModelConfig& config = parts_->file.config;
  if (config.rope_scaling.kind == RopeScalingKind::kLongRope) {
    const std::string length = std::to_string(original_position_of(config));
    notes.push_back(uses_long_factors(config, parts_->plan.max_model_len)
                        ? "All texts are turned by the factors for long texts, since some may be longer than " +
                              length + " tokens; --max-model-len " + length + " takes those for short ones."
                        : "All texts are turned by the factors for short texts; those for long ones take a "
                          "--max-model-len above " +
                              length + ".");
  }
  notes.insert(notes.end(), parts_->plan.notes.begin(), parts_->plan.notes.end());
  return notes;
}

}  // namespace loralei
