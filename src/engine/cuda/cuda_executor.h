// SPDX-License-Identifier: Apache-2.0
// The executor that computes steps on a GPU.
//
// Thread: as Executor.
// Ownership: borrows model, cache and the ledger that grants its results in host memory,
// all of which outlive it.
// Invariants: adapters that are on their way to the device are those of the tier's
// on_its_way(), where the model is made for them; what helpers compute for them is
// counted in the step's waits. The engine hands out the ids of `kv`'s blocks, whose bytes
// it does not have. A row's result depends on the kernel class of its step
// (cuda_model.h), so texts may differ in the last bits of their logits from those
// computed in other company, unless the model was made batch_invariant.
// Failure: as CudaModel::forward, and Executor::reserve_vocab; accepts() refuses the
// adapters that would fail a step.
#pragma once

#include <memory>

#include "engine/executor.h"
#include "engine/host_sums.h"
#include "engine/layer_assist.h"
#include "model/cuda/cuda_model.h"

namespace loralei {

// Helper processes beside the GPU, and the cores that stand in for them.
struct CudaAssist {
  std::unique_ptr<LayerAssist> helpers;  // null: none
  std::unique_ptr<HostSums> sums;
};
std::unique_ptr<Executor> make_cuda_executor(CudaModel& model, const CudaKv& kv, Ledger& ledger,
                                             CudaAssist assist = {});

}  // namespace loralei
