// SPDX-License-Identifier: Apache-2.0
// What a CUDA call answered, as a sentence. For device/cuda/real and what nvcc
// compiles of ops/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/result.h"

namespace loralei::cuda_runtime {

// "The GPU could not `what`: ...". kOverloaded: no memory; kUnavailable: the device is
// lost to this process (cuda_device.h); else kInternal. Takes the error back, so that the
// next launch does not find it; a lost device stays lost.
Error cuda_error(cudaError_t code, const std::string& what);

}  // namespace loralei::cuda_runtime
