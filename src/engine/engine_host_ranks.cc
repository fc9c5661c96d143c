// SPDX-License-Identifier: Apache-2.0
// A model that several ranks compute: what goes together with that, their shares of the
// weights, and the group.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "engine/engine_host_parts.h"
#include "engine/group_executor.h"
#include "kv/block_pool.h"
#include "weights/read_units.h"

namespace loralei {

// Threads that compute here are shared by the ranks that do.
int threads_of_rank(const EngineHostOptions& options) {
  const int here = options.processes != nullptr ? options.processes->ranks_here() : options.tensor_parallel;
  return std::max(1, threads_of(options) / std::max(1, here));
}

namespace {

bool are_processes(const EngineHostOptions& options) { return options.processes != nullptr; }

// What processes cannot do that have each a KV cache, of which one engine knows the
// blocks alone.
Status check_processes(const EngineHostOptions& options) {
  const int started = options.processes->collective().size();
  if (started != options.tensor_parallel) {
    return invalid_argument("mpirun has started " + std::to_string(started) + " processes for --tensor-parallel " +
                            std::to_string(options.tensor_parallel) + "; make both numbers the same.");
  }
  const auto refuse = [](const std::string& what) {
    return unsupported("Ranks that are processes do not go together with " + what +
                       "; leave that out, or start the server without mpirun: the ranks are threads then.");
  };
  if (options.engine.kv_sharing != KvSharing::kExact) return refuse("--kv-sharing but for exact");
  if (!options.engine.kv_dir.empty()) return refuse("--kv-dir");
  return {};
}

}  // namespace

Status check_ranks(const EngineHostOptions& options, const BaseModelFile& model, const WeightOptions& weights) {
  const int ranks = options.tensor_parallel;
  if (ranks < 1 || ranks > kRanksMax) {
    return invalid_argument("--tensor-parallel is a number of ranks from 1 to " + std::to_string(kRanksMax) + ", not " +
                            std::to_string(ranks) + ".");
  }
  if (are_processes(options)) TRY(check_processes(options));
  if (ranks == 1) return {};
  const auto refuse = [&](const std::string& what) {
    return unsupported("--tensor-parallel " + std::to_string(ranks) + " computes on the cores, and not with " + what +
                       "; leave one of both out.");
  };
  if (options.device) {
    return unsupported("--tensor-parallel " + std::to_string(ranks) +
                       " computes on the cores, and not with --device: ranks on several GPUs are built and tested on "
                       "emulated ones alone, and stay off until GPUs have proved them; leave one of both out.");
  }
  if (options.engine.kv_sharing == KvSharing::kBorrow) return refuse("--kv-sharing borrow");
  if (options.engine.assist_helpers > 0) return refuse("--assist-helpers");
  const ColdStart cold = options.engine.cold_start;
  if (options.engine.cold_start_stated && (cold == ColdStart::kLayered || cold == ColdStart::kAssisted))
    return refuse(std::string("--cold-start ") + kColdStartNames[static_cast<size_t>(cold)]);
  return check_shards(model, weights, ranks);
}

namespace {

// Calls body(shard) for the ranks of this process.
template <typename Body>
Status for_ranks_here(const EngineHostOptions& options, Body&& body) {
  if (are_processes(options)) return body(Shard{options.processes->collective().rank(), options.tensor_parallel});
  for (int rank = 0; rank < options.tensor_parallel; ++rank) TRY(body(Shard{rank, options.tensor_parallel}));
  return {};
}

}  // namespace

Result<int64_t> weight_bytes_of_ranks(const EngineHostOptions& options, const BaseModelFile& model,
                                      WeightOptions weights) {
  int64_t bytes = 0;
  TRY(for_ranks_here(options, [&](const Shard& shard) -> Status {
    weights.shard = shard;
    TRY_ASSIGN(const int64_t own, WeightStore::bytes_needed(model, weights));
    bytes += own;
    return {};
  }));
  return bytes;
}

int64_t scratch_bytes_of_ranks(const EngineHostOptions& options, const ModelConfig& config, const OpTable& ops,
                               const ModelLimits& limits, int threads) {
  const int ranks = options.tensor_parallel;
  if (ranks == 1) return Model::scratch_bytes(config, ops, limits, threads);
  int64_t bytes = 0;
  const Status summed = for_ranks_here(options, [&](const Shard& shard) -> Status {
    bytes += Model::scratch_bytes(config_of_rank(config, ranks), ops, limits, threads_of_rank(options), shard);
    return {};
  });
  CHECK(summed.ok());
  return bytes;
}

ModelConfig config_of_cache(const EngineHostOptions& options, const ModelConfig& config) {
  return are_processes(options) ? config_of_rank(config, options.tensor_parallel) : config;
}

Error parts_are_not_streamed(const EngineHostOptions& options, const BaseModelFile& model, int64_t weight_bytes,
                             int64_t budget) {
  return too_large("With --tensor-parallel " + std::to_string(options.tensor_parallel) +
                   " weights are held in memory, where they need " + format_bytes(weight_bytes) +
                   " and leave too little of the budget of " + format_bytes(budget) + "; " +
                   smaller_weights_advice(model) +
                   ", raise --memory-budget, or leave --tensor-parallel out to stream them from disk.");
}

namespace {

// A fingerprint as it travels.
using FingerprintWords = std::array<float, 2>;
FingerprintWords words_of(const std::string& fingerprint) {
  return std::bit_cast<FingerprintWords>(fingerprint_value(fingerprint));
}

}  // namespace

// The model's, of all ranks' parts, at rank 0.
Status EngineHost::join_fingerprints() {
  Collective& group = parts_->options.processes->collective();
  const FingerprintWords own = words_of(parts_->weights->fingerprint());
  std::vector<float> all(own.size() * static_cast<size_t>(group.size()));
  TRY(group.gather(own, all));
  for (size_t at = own.size(); at < all.size(); at += own.size()) {
    const FingerprintWords other = {all[at], all[at + 1]};
    parts_->weights->join_fingerprint(fingerprint_text(std::bit_cast<uint64_t>(other)));
  }
  return {};
}

Status EngineHost::load_ranks() {
  Parts& parts = *parts_;
  const int ranks = parts.options.tensor_parallel;
  WeightOptions options = parts.weight_options;
  options.shard = {0, ranks};
  if (are_processes(parts.options)) {
    TRY_ASSIGN(parts.weights, WeightStore::load(parts.file, *parts.ledger, options));
    return join_fingerprints();
  }
  parts.group = std::make_unique<ThreadGroup>(ranks);
  parts.ranks = std::make_unique<RankThreads>(*parts.group);
  options.progress = progress_of_rank(parts.weight_options.progress, options.shard);
  TRY_ASSIGN(parts.weights, WeightStore::load(parts.file, *parts.ledger, options));
  return parts.ranks->load(parts.file, *parts.ledger, parts.weight_options, *parts.weights);
}

Status EngineHost::start_ranks(const ModelLimits& limits, EngineParts& engine) {
  Parts& parts = *parts_;
  const int ranks = parts.options.tensor_parallel;
  const bool processes = are_processes(parts.options);
  const ModelConfig config = config_of_rank(parts.file.config, ranks);
  Collective& group = processes ? parts.options.processes->collective() : parts.group->rank(0);
  TRY_ASSIGN(parts.model, Model::create(config, *parts.weights, *parts.ops, *parts.pool, limits, &group));
  if (processes) {
    // All ranks have the same blocks, and this engine's cache neither grows nor shrinks.
    engine.options.memory_sharing = MemorySharing::kFixed;
    parts.options.engine.memory_sharing = MemorySharing::kFixed;
    parts.kv_blocks_max = parts.plan.kv_blocks;
    const RankSetUp set_up{limits, parts.plan.kv_blocks, parts.kv_dtype};
    RankLink link(group);
    TRY(link.send(RankCommand::kSetUp, std::as_bytes(std::span(&set_up, 1))));
  } else {
    TRY(parts.ranks->start(config, *parts.ops, limits, *parts.ledger, parts.pool->threads()));
  }
  engine.executor = make_group_executor(group, processes ? RankMemory::kOwn : RankMemory::kShared, *parts.model,
                                        parts.file.config, limits, *parts.ledger);
  parts.computed_by = std::string(parts.ops->name) + "-tp" + std::to_string(ranks);
  return {};
}

namespace {

Result<RankSetUp> receive_set_up(RankLink& link) {
  TRY_ASSIGN(const RankLink::Received received, link.receive());
  RankSetUp set_up;
  if (received.command != RankCommand::kSetUp || received.payload.size() != sizeof set_up)
    return internal_error("Rank 0 is of another program; start all ranks from the same one.");
  std::memcpy(&set_up, received.payload.data(), sizeof set_up);
  return set_up;
}

Status compute_rank(const EngineHostOptions& options, const LoadProgress& progress) {
  Collective& group = options.processes->collective();
  TRY_ASSIGN(const BaseModelFile file, open_base_model(options.model_path));
  TRY_ASSIGN(const OpTable* const ops, op_table_of(options));
  WeightOptions weight_options = weight_options_of(options, threads_of_rank(options));
  TRY(check_ranks(options, file, weight_options));
  weight_options.shard = {group.rank(), group.size()};
  weight_options.progress = progress;
  Ledger ledger(budget_of(options));
  TRY_ASSIGN(const std::unique_ptr<WeightStore> weights, WeightStore::load(file, ledger, weight_options));
  TRY(group.gather(words_of(weights->fingerprint()), {}));
  RankLink link(group);
  TRY_ASSIGN(const RankSetUp set_up, receive_set_up(link));
  const ModelConfig config = config_of_rank(file.config, group.size());
  ThreadPool pool(threads_of_rank(options));
  const int64_t scratch_bytes = Model::scratch_bytes(config, *ops, set_up.limits, pool.threads(), weight_options.shard);
  const auto scratch = ledger.try_grant(MemoryUse::kScratch, scratch_bytes);
  if (!scratch) return too_large("Activations need " + format_bytes(scratch_bytes) + "; raise --memory-budget.");
  TRY_ASSIGN(const std::unique_ptr<Model> model, Model::create(config, *weights, *ops, pool, set_up.limits, &group));
  TRY_ASSIGN(const std::unique_ptr<BlockPool> kv,
             BlockPool::create({kv_layers(config), config.kv_heads, config.head_dim, set_up.kv_dtype}, set_up.kv_blocks,
                               ledger));
  RankWorker worker(group, link, *model, set_up.limits, ledger, kv->view());
  return worker.run();
}

}  // namespace

Status run_rank(const EngineHostOptions& options, LogSink& log, const LoadProgress& progress) {
  CHECK(are_processes(options) && options.processes->collective().rank() > 0);
  Status ended = compute_rank(options, progress);
  if (ended.ok()) return {};
  Collective& group = options.processes->collective();
  group.fail(ended.error());
  const Error why = std::move(ended).error().with_context("Rank " + std::to_string(group.rank()));
  log.log(LogLevel::kError, why.message);
  return why;
}

}  // namespace loralei
