// SPDX-License-Identifier: Apache-2.0
// RankedModel: the model of a harness, computed by several ranks on threads of their own,
// in the harness's KV area. Stands in for its forward pass (ModelHarness::set_forward).
// One thread; the harness outlives it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/host/thread_pool.h"
#include "memory/ledger.h"
#include "model/model.h"
#include "parallel/thread_group.h"
#include "support/model_harness.h"
#include "weights/weight_store.h"

namespace loralei::test {

class RankedModel {
 public:
  // As the harness was opened; a table of its own, if any, by `options`. An error where
  // the model does not divide.
  // `stand_in`: the Collective that a rank computes with instead of the group's.
  using StandIn = std::function<Collective*(int rank, Collective& of_group)>;
  static Result<std::unique_ptr<RankedModel>> open(const ModelHarness& harness, const HarnessOptions& options,
                                                   int ranks, const ThreadGroupOptions& group = {},
                                                   const StandIn& stand_in = {});
  Status forward(const ModelBatch& batch);
  ThreadGroup& group() { return *group_; }
  Model& model(int rank) { return *ranks_[static_cast<size_t>(rank)].model; }

 private:
  struct Rank {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<WeightStore> weights;
    std::unique_ptr<Model> model;
  };
  RankedModel() = default;
  Status forward_rank(int rank, const ModelBatch& batch);

  const ModelHarness* harness_ = nullptr;
  Ledger ledger_{int64_t{8} * kGiB};
  std::unique_ptr<ThreadGroup> group_;
  std::vector<Rank> ranks_;
};

}  // namespace loralei::test
