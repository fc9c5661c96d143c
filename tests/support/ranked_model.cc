// SPDX-License-Identifier: Apache-2.0
#include "support/ranked_model.h"

#include <deque>
#include <thread>

#include "adapters/adapter_of_rank.h"

namespace loralei::test {

Result<std::unique_ptr<RankedModel>> RankedModel::open(const ModelHarness& harness, const HarnessOptions& options,
                                                       int ranks, const ThreadGroupOptions& group,
                                                       const StandIn& stand_in) {
  std::unique_ptr<RankedModel> made(new RankedModel());
  made->harness_ = &harness;
  made->group_ = std::make_unique<ThreadGroup>(ranks, group);
  WeightOptions weights;
  weights.quantise = options.quantise;
  weights.quantised_layout = options.quantised_layout;
  TRY(check_shards(harness.file(), weights, ranks));
  TRY_ASSIGN(const OpTable* const ops, table_of(options));
  const ModelConfig config = config_of_rank(harness.config(), ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    Rank& one = made->ranks_.emplace_back();
    weights.shard = {rank, ranks};
    one.pool = std::make_unique<ThreadPool>(options.threads);
    TRY_ASSIGN(one.weights, WeightStore::load(harness.file(), made->ledger_, weights));
    Collective& of_group = made->group_->rank(rank);
    Collective* const used = stand_in ? stand_in(rank, of_group) : &of_group;
    TRY_ASSIGN(one.model, Model::create(config, *one.weights, *ops, *one.pool, limits_of(options), used));
  }
  return made;
}

Status RankedModel::forward_rank(int rank, const ModelBatch& batch) {
  const Shard shard{rank, group_->size()};
  const int64_t modules = int64_t{harness_->config().layers} * kLayerModules + 2;
  std::deque<LoraPair> pairs;
  std::vector<LoraSource> sources(static_cast<size_t>(modules * batch.slots));
  for (int64_t at = 0; at < modules * batch.slots; ++at) {
    const LoraPair* const pair = batch.sources[at].pair;
    if (pair == nullptr) continue;
    const int64_t module = at / batch.slots;
    const Module kind = module + 2 >= modules ? Module::kEmbed : static_cast<Module>(module % kLayerModules);
    pairs.push_back(pair_of_rank(*pair, kind, shard));
    sources[static_cast<size_t>(at)].pair = &pairs.back();
  }
  ModelBatch own = batch;
  own.sources = batch.sources == nullptr ? nullptr : sources.data();
  if (rank > 0) own.logits = own.hidden = nullptr;
  const Status status = ranks_[static_cast<size_t>(rank)].model->forward(own, kv_of_rank(harness_->kv(), shard));
  if (!status.ok()) group_->rank(rank).fail(status.error());
  return status;
}

Status RankedModel::forward(const ModelBatch& batch) {
  std::vector<std::thread> others;
  for (int rank = 1; rank < group_->size(); ++rank)
    others.emplace_back([this, rank, &batch] { (void)forward_rank(rank, batch).ok(); });
  Status status = forward_rank(0, batch);
  for (std::thread& other : others) other.join();
  return status;
}

}  // namespace loralei::test
