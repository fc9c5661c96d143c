// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, without CUDA's headers.
//
// Thread: any. Ownership: plain values. Failure: a machine without GPU, driver or CUDA
// is no error but an empty list with a reason; set_cuda_device answers an error that
// names the ordinal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace loralei {

struct CudaDeviceInfo {
  int ordinal = 0;
  std::string name;
  int64_t total_bytes = 0;
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
};

struct CudaDevices {
  std::vector<CudaDeviceInfo> list;
  std::string reason;  // why the list is empty: a sentence
};

// Looks only: none of them is opened, which would take some hundred megabytes of each.
CudaDevices cuda_devices();

// Later calls of this thread mean that device, until then device 0; opens it.
Status set_cuda_device(int ordinal);

struct CudaMemoryInfo {
  int64_t free_bytes = 0, total_bytes = 0;
};
Result<CudaMemoryInfo> cuda_memory_info();  // of this thread's device

// After some errors of a kernel or of the hardware (an illegal address, memory that
// cannot be corrected) every call about the device answers the same until the process
// ends. All of them are kUnavailable, and nothing else here is.
Error device_lost(const std::string& sentence);
inline bool is_device_lost(const Status& status) {
  return !status.ok() && status.error().code == ErrorCode::kUnavailable;
}

}  // namespace loralei
