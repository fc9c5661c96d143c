// SPDX-License-Identifier: Apache-2.0
// --device: where steps are computed. Any thread. Failure: a sentence for a name that
// is none, and for a GPU in a build without GPU support; whether the device is there is
// found out when the engine starts.
#pragma once

#include <optional>
#include <string>

#include "engine/device_backend.h"

namespace loralei {

// How a GPU computes; the cores need none of it.
struct GpuFlags {
  bool enforce_eager = false;    // --enforce-eager: no recorded graphs
  bool batch_invariant = false;  // --batch-invariant: one kernel class; on the cores it is always so
  // --gpu-memory-utilization: above 0, at most 1; not stated: 0.9 of a GPU's memory, and
  // half of this machine's free memory for an emulated device.
  std::optional<double> memory_utilization;
};

// auto and cpu: empty (the cores); cuda:N or cuda (0): a GPU; emulated:GB_S or
// emulated:GB_S,US: the cores behind a link of that speed. Auto is the cores as long as
// GPUs are not proved.
Result<DeviceFactory> choose_device(const std::string& name, const GpuFlags& flags = {});

// Whether steps of that device are computed by a GPU.
bool is_gpu(const std::string& device);

}  // namespace loralei
