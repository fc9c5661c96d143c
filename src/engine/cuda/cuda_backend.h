// SPDX-License-Identifier: Apache-2.0
// The backend of an NVIDIA GPU: CudaModel, CudaKv and their executor. Unproven on a GPU so far (cuda_model.h).
//
// Thread, ownership and failure as DeviceBackend says. Weights stay in host memory beside their copy on the device.
#pragma once

#include "engine/device_backend.h"

namespace loralei {

struct CudaBackendOptions {
  int ordinal = 0;
  DType activation = DType::kBF16;  // CudaModelOptions
  bool graphs = true;               // CudaModelOptions
  bool batch_invariant = false;     // CudaModelOptions; the name then says so, since bits differ
};
Result<DeviceBackend> make_cuda_backend(const CudaBackendOptions& options, const DeviceRequest& request);

}  // namespace loralei
