// SPDX-License-Identifier: Apache-2.0
// The executor that computes steps on a GPU.
//
// Thread: as Executor.
// Ownership: borrows model, cache and the ledger that grants its results in host memory,
// all of which outlive it.
// Invariant: the engine hands out the ids of `kv`'s blocks, whose bytes it does not have.
// A row's result depends on the kernel class of its step (cuda_model.h), so texts may
// differ in the last bits of their logits from those computed in other company, unless
// the model was made batch_invariant.
// Failure: as CudaModel::forward, and Executor::reserve_vocab; accepts() refuses the
// adapters that would fail a step.
#pragma once

#include <memory>

#include "engine/executor.h"
#include "model/cuda/cuda_model.h"

namespace loralei {

std::unique_ptr<Executor> make_cuda_executor(CudaModel& model, const CudaKv& kv, Ledger& ledger);

}  // namespace loralei
