// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_ranks.h"

#include <deque>
#include <thread>

#include "adapters/adapter_of_rank.h"
#include "device/cuda/cuda_device.h"

namespace loralei::test {

// Each on a thread of its own, whose device is the rank's.
template <typename Body>
void CudaRanks::on_all(Body&& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options_.ranks; ++rank)
    threads.emplace_back([&, rank] { statuses_[static_cast<size_t>(rank)] = body(rank); });
  for (std::thread& thread : threads) thread.join();
}

// A rank that cannot begin ends the group, so that nobody waits for it.
Status CudaRanks::open_rank(int rank, const HarnessOptions& options) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  CudaModelOptions model = options_.model;
  model.device = rank % static_cast<int>(cuda_devices().list.size());
  const ModelConfig config = config_of_rank(harness_->config(), options_.ranks);
  TRY(set_cuda_device(model.device));
  TRY_ASSIGN(own.group, options_.group(rank, hosts_->rank(rank)));
  TRY_ASSIGN(own.model, CudaModel::create(config, *own.weights, model, own.group.get()));
  TRY_ASSIGN(own.kv, CudaKv::create(config, options.kv_dtype, harness_->total_blocks()));
  return {};
}

Result<std::unique_ptr<CudaRanks>> CudaRanks::open(const ModelHarness& harness, const HarnessOptions& options,
                                                   Options ranks) {
  std::unique_ptr<CudaRanks> made(new CudaRanks());
  made->harness_ = &harness;
  made->options_ = std::move(ranks);
  const int size = made->options_.ranks;
  made->hosts_ = std::make_unique<ThreadGroup>(size, ThreadGroupOptions{.late_ns = int64_t{600} * 1'000'000'000});
  made->ranks_.resize(static_cast<size_t>(size));
  made->statuses_.resize(static_cast<size_t>(size));
  WeightOptions weights;
  weights.quantise = options.quantise;
  weights.quantised_layout = options.quantised_layout;
  TRY(check_shards(harness.file(), weights, size));
  for (int rank = 0; rank < size; ++rank) {
    weights.shard = {rank, size};
    TRY_ASSIGN(made->ranks_[static_cast<size_t>(rank)].weights,
               WeightStore::load(harness.file(), made->ledger_, weights));
  }
  made->on_all([&](int rank) {
    Status opened = made->open_rank(rank, options);
    if (!opened.ok()) made->hosts_->rank(rank).fail(opened.error());
    return opened;
  });
  for (const Status& status : made->statuses_) TRY(Status(status));
  return made;
}

CudaRanks::~CudaRanks() {
  for (Rank& rank : ranks_) rank.model.reset();
}

Status CudaRanks::forward_rank(int rank, const ModelBatch& batch) {
  const Shard shard{rank, options_.ranks};
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
  if (rank > 0) {
    own.logits = own.hidden = nullptr;
    own.chosen = nullptr;
    own.logits_stride = 0;
  }
  Rank& of = ranks_[static_cast<size_t>(rank)];
  return of.model->forward(own, of.kv);
}

Status CudaRanks::forward(const ModelBatch& batch) {
  on_all([&](int rank) { return forward_rank(rank, batch); });
  return statuses_[0];
}

}  // namespace loralei::test
