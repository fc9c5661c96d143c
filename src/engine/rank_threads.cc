// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_threads.h"

#include <utility>

#include "sys/threads.h"

namespace loralei {

LoadProgressFn progress_of_rank(const LoadProgressFn& all, const Shard& shard) {
  if (!all) return {};
  return [all, shard](int64_t done, int64_t total) { all(shard.rank * total + done, shard.size * total); };
}

RankThreads::~RankThreads() {
  // They have ended where an executor told them to; else they do now.
  group_.rank(0).fail({ErrorCode::kUnavailable, "the server has stopped"});
  for (Rank& rank : ranks_) {
    if (rank.thread.joinable()) rank.thread.join();
  }
}

Status RankThreads::load(const BaseModelFile& model, Ledger& ledger, const WeightOptions& options, WeightStore& whole) {
  for (int number = 1; number < group_.size(); ++number) {
    WeightOptions own = options;
    own.shard = {number, group_.size()};
    own.progress = progress_of_rank(options.progress, own.shard);
    Rank& rank = ranks_.emplace_back();
    TRY_ASSIGN(rank.weights, WeightStore::load(model, ledger, own));
    whole.join_fingerprint(rank.weights->fingerprint());
  }
  return {};
}

Status RankThreads::start(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, Ledger& ledger,
                          int threads) {
  for (size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = ranks_[index];
    Collective& group = group_.rank(static_cast<int>(index) + 1);
    rank.pool = std::make_unique<ThreadPool>(threads);
    TRY_ASSIGN(rank.model, Model::create(config, *rank.weights, ops, *rank.pool, limits, &group));
    rank.link = std::make_unique<RankLink>(group);
    rank.worker = std::make_unique<RankWorker>(group, *rank.link, *rank.model, limits, ledger);
    TRY_ASSIGN(rank.thread, start_thread([worker = rank.worker.get()] { (void)worker->run().ok(); }));
  }
  return {};
}

}  // namespace loralei
