// SPDX-License-Identifier: Apache-2.0
// A model that several ranks compute: what goes together with that, their shares of the
// weights, and the group.
#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "engine/engine_host_parts.h"
#include "engine/group_executor.h"

namespace loralei {

int threads_of_rank(int threads, int ranks) { return std::max(1, threads / ranks); }

Status check_ranks(const EngineHostOptions& options, const BaseModelFile& model, const WeightOptions& weights) {
  const int ranks = options.tensor_parallel;
  if (ranks == 1) return {};
  if (ranks < 1 || ranks > kRanksMax) {
    return invalid_argument("--tensor-parallel is a number of ranks from 1 to " + std::to_string(kRanksMax) + ", not " +
                            std::to_string(ranks) + ".");
  }
  const auto refuse = [&](const std::string& what) {
    return unsupported("--tensor-parallel " + std::to_string(ranks) + " computes on the cores, and not with " + what +
                       "; leave one of both out.");
  };
  if (options.device) return refuse("--device");
  if (options.engine.kv_sharing == KvSharing::kBorrow) return refuse("--kv-sharing borrow");
  if (options.engine.assist_helpers > 0) return refuse("--assist-helpers");
  const ColdStart cold = options.engine.cold_start;
  if (options.engine.cold_start_stated && (cold == ColdStart::kLayered || cold == ColdStart::kAssisted))
    return refuse(std::string("--cold-start ") + kColdStartNames[static_cast<size_t>(cold)]);
  return check_shards(model, weights, ranks);
}

Result<int64_t> weight_bytes_of_ranks(const BaseModelFile& model, WeightOptions options, int ranks) {
  int64_t bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    options.shard = {rank, ranks};
    TRY_ASSIGN(const int64_t own, WeightStore::bytes_needed(model, options));
    bytes += own;
  }
  return bytes;
}

int64_t scratch_bytes_of_ranks(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, int threads,
                               int ranks) {
  if (ranks == 1) return Model::scratch_bytes(config, ops, limits, threads);
  int64_t bytes = 0;
  for (int rank = 0; rank < ranks; ++rank)
    bytes += Model::scratch_bytes(config_of_rank(config, ranks), ops, limits, threads_of_rank(threads, ranks),
                                  {rank, ranks});
  return bytes;
}

Error parts_are_not_streamed(const BaseModelFile& model, int64_t weight_bytes, int ranks, int64_t budget) {
  return too_large("With --tensor-parallel " + std::to_string(ranks) + " weights are held in memory, where they need " +
                   format_bytes(weight_bytes) + " and leave too little of the budget of " + format_bytes(budget) +
                   "; " + smaller_weights_advice(model) +
                   ", raise --memory-budget, or leave --tensor-parallel out to stream them from disk.");
}

Status EngineHost::load_ranks() {
  Parts& parts = *parts_;
  const int ranks = parts.options.tensor_parallel;
  parts.group = std::make_unique<ThreadGroup>(ranks);
  parts.ranks = std::make_unique<RankThreads>(*parts.group);
  WeightOptions options = parts.weight_options;
  options.shard = {0, ranks};
  options.progress = progress_of_rank(parts.weight_options.progress, options.shard);
  TRY_ASSIGN(parts.weights, WeightStore::load(parts.file, *parts.ledger, options));
  return parts.ranks->load(parts.file, *parts.ledger, parts.weight_options, *parts.weights);
}

Status EngineHost::start_ranks(const ModelLimits& limits, EngineParts& engine) {
  Parts& parts = *parts_;
  const int ranks = parts.options.tensor_parallel;
  const ModelConfig config = config_of_rank(parts.file.config, ranks);
  Collective& group = parts.group->rank(0);
  TRY_ASSIGN(parts.model, Model::create(config, *parts.weights, *parts.ops, *parts.pool, limits, &group));
  TRY(parts.ranks->start(config, *parts.ops, limits, *parts.ledger, parts.pool->threads()));
  engine.executor = make_group_executor(group, *parts.model, parts.file.config, limits, *parts.ledger);
  parts.computed_by = std::string(parts.ops->name) + "-tp" + std::to_string(ranks);
  return {};
}

}  // namespace loralei
