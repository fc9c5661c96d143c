// SPDX-License-Identifier: Apache-2.0
// RankedModel: the model of a harness, computed by several ranks on threads of their own,
// in the harness's KV area. Stands in for its forward pass (ModelHarness::set_forward).
// One thread; the harness outlives it.
#pragma once

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
  static Result<std::unique_ptr<RankedModel>> open(const ModelHarness& harness, const HarnessOptions& options,
                                                   int ranks);
  Status forward(const ModelBatch& batch);
  ThreadGroup& group() { return *group_; }

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
