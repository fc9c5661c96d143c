// SPDX-License-Identifier: Apache-2.0
// CudaRanks: the model of a harness, computed by several ranks on GPUs (emulated ones, or
// as many as there are), on threads of their own. Stands in for its forward pass
// (ModelHarness::set_forward). One thread; the harness outlives it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "memory/ledger.h"
#include "model/cuda/cuda_model.h"
#include "model/cuda/device_group.h"
#include "parallel/thread_group.h"
#include "support/model_harness.h"
#include "weights/weight_store.h"

namespace loralei::test {

class CudaRanks {
 public:
  struct Options {
    int ranks = 2;
    CudaModelOptions model;
    // What a rank computes with, over the hosts' Collective, or another one in its place.
    std::function<Result<std::unique_ptr<DeviceGroup>>(int rank, Collective& of_hosts)> group;
  };
  // As the harness was opened.
  static Result<std::unique_ptr<CudaRanks>> open(const ModelHarness& harness, const HarnessOptions& options,
                                                 Options ranks);
  // Rank 0's status; statuses() has everybody's.
  Status forward(const ModelBatch& batch);
  const std::vector<Status>& statuses() const { return statuses_; }
  CudaModel& model(int rank) { return *ranks_[static_cast<size_t>(rank)].model; }
  const WeightStore& weights(int rank) const { return *ranks_[static_cast<size_t>(rank)].weights; }
  DeviceGroup& group(int rank) { return *ranks_[static_cast<size_t>(rank)].group; }
  ~CudaRanks();

 private:
  struct Rank {
    std::unique_ptr<WeightStore> weights;
    std::unique_ptr<DeviceGroup> group;
    std::unique_ptr<CudaModel> model;
    CudaKv kv;
  };
  CudaRanks() = default;
  Status open_rank(int rank, const HarnessOptions& options);
  Status forward_rank(int rank, const ModelBatch& batch);
  template <typename Body>
  void on_all(Body&& body);

  const ModelHarness* harness_ = nullptr;
  Options options_;
  Ledger ledger_{int64_t{8} << 30};
  std::unique_ptr<ThreadGroup> hosts_;
  std::vector<Rank> ranks_;
  std::vector<Status> statuses_;
};

}  // namespace loralei::test
