// SPDX-License-Identifier: Apache-2.0
// RankThreads: the ranks of a model as threads of this process. Rank 0's parts are the
// caller's; this has the others' and their threads.
//
// Thread: made and destroyed by one. Ownership: weights, pools and models of ranks above
// 0; borrows the ledger and the group. Destroyed after the executor that tells them, and
// after rank 0's model is not used any more.
// Failure: a sentence when weights, scratch or threads are not to be had.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "engine/rank_worker.h"
#include "formats/base_model.h"
#include "ops/op_table.h"
#include "parallel/thread_group.h"
#include "weights/weight_store.h"

namespace loralei {

// Progress of one rank's load as that of all of them, one after the other.
LoadProgressFn progress_of_rank(const LoadProgressFn& all, const Shard& shard);

class RankThreads {
 public:
  explicit RankThreads(ThreadGroup& group) : group_(group) {}
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Of ranks above 0, one after the other; `whole`, rank 0's, gets their fingerprints.
  Status load(const BaseModelFile& model, Ledger& ledger, const WeightOptions& options, WeightStore& whole);
  // They wait for commands from now on. `config`: config_of_rank().
  Status start(const ModelConfig& config, const OpTable& ops, const ModelLimits& limits, Ledger& ledger, int threads);

 private:
  struct Rank {
    std::unique_ptr<WeightStore> weights;
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<Model> model;
    std::unique_ptr<RankLink> link;
    std::unique_ptr<RankWorker> worker;
    std::thread thread;
  };
  ThreadGroup& group_;
  std::vector<Rank> ranks_;
};

}  // namespace loralei
