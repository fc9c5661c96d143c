// SPDX-License-Identifier: Apache-2.0
#include "apps/device_choice.h"

#include <charconv>

#ifdef LORALEI_WITH_CUDA
#include "engine/cuda/cuda_backend.h"
#endif

namespace loralei {
namespace {

Result<DeviceFactory> gpu([[maybe_unused]] int ordinal, [[maybe_unused]] const GpuFlags& flags) {
#ifdef LORALEI_WITH_CUDA
  return cuda_factory({.ordinal = ordinal,
                       .graphs = !flags.enforce_eager,
                       .batch_invariant = flags.batch_invariant,
                       .memory_utilization = flags.memory_utilization});
#else
  return unsupported(
      "--device cuda: this build has no GPU support; build where the CUDA toolkit is installed (-DLORALEI_CUDA=on), or "
      "start with --device cpu.");
#endif
}

}  // namespace

Result<DeviceFactory> choose_device(const std::string& name, const GpuFlags& flags) {
  if (name == "auto" || name == "cpu") return DeviceFactory{};
  if (name == "cuda") return gpu(0, flags);
  if (name.rfind("cuda:", 0) == 0) {
    int ordinal = -1;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + 5, end, ordinal);
    if (error == std::errc() && at == end && ordinal >= 0) return gpu(ordinal, flags);
  }
  return invalid_argument("--device is auto, cpu or cuda:N (N from 0), not '" + name + "'.");
}

}  // namespace loralei
