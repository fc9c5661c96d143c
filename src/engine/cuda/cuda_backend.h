// SPDX-License-Identifier: Apache-2.0
// The backend of an NVIDIA GPU: CudaModel, CudaKv and their executor, within a budget.
// Unproven on a GPU so far (cuda_model.h).
//
// Thread, ownership and failure as DeviceBackend says. The budget is a share of the whole
// card, as vLLM's gpu_memory_utilization, and never more than what is free at start
// (other programs, and this one's CUDA context, keep what they have). Shares: weights,
// scratch and an allowance for the driver first, then KV and adapters (plan_memory).
#pragma once

#include "engine/device_backend.h"
#include "ops/cuda/cuda_probe.h"

namespace loralei {

struct CudaBackendOptions {
  int ordinal = 0;
  DType activation = DType::kBF16;  // CudaModelOptions
  bool graphs = true;               // CudaModelOptions
  bool batch_invariant = false;     // CudaModelOptions; the name then says so, since bits differ
  double memory_utilization = 0.9;  // above 0, at most 1
  cuda::CudaProbeSizes probe;       // of DeviceFactory::rates
};
DeviceFactory cuda_factory(const CudaBackendOptions& options);

}  // namespace loralei
