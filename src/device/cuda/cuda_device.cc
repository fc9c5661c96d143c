// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.h"

#include "device/cuda/runtime.h"

namespace loralei {

CudaDevices cuda_devices() { return cuda_runtime::devices(); }

Status set_cuda_device(int ordinal) { return cuda_runtime::set_device(ordinal); }

Result<CudaMemoryInfo> cuda_memory_info() {
  CudaMemoryInfo info;
  TRY(cuda_runtime::memory_info(&info.free_bytes, &info.total_bytes));
  return info;
}

Error device_lost(const std::string& sentence) {
  return {ErrorCode::kUnavailable, sentence + " The GPU is lost to this process: start it again."};
}

}  // namespace loralei
