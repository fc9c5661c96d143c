// SPDX-License-Identifier: Apache-2.0
#include "apps/device_choice.h"

#include <charconv>
#include <limits>
#include <string_view>

#include "engine/emulated/emulated_backend.h"

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
                       .memory_utilization = flags.memory_utilization.value_or(0.9)});
#else
  return unsupported(
      "--device cuda: this build has no GPU support; build where the CUDA toolkit is installed (-DLORALEI_CUDA=on), or "
      "start with --device cpu.");
#endif
}

constexpr std::string_view kEmulated = "emulated:";
// Of links that are worth emulating.
constexpr double kLinkGbLeast = 0.001, kLinkGbMost = 10000, kLinkUsMost = 1e6;

// The number at the start of `text`, which becomes what follows it; NaN: there is none.
double take_number(std::string_view& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::numeric_limits<double>::quiet_NaN();
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

Result<DeviceFactory> emulated(const std::string& name, const GpuFlags& flags) {
  std::string_view text(name);
  text.remove_prefix(kEmulated.size());
  EmulatedOptions options;
  options.name = name;
  const double gb_per_s = take_number(text);
  double latency_us = static_cast<double>(options.link.latency_ns) * 1e-3;
  if (text.starts_with(',')) {
    text.remove_prefix(1);
    latency_us = take_number(text);
  }
  const bool right = text.empty() && gb_per_s >= kLinkGbLeast && gb_per_s <= kLinkGbMost && latency_us >= 0 &&
                     latency_us <= kLinkUsMost;
  if (!right) {
    return invalid_argument(
        "--device emulated:GB_S[,US] says how fast the link to the device is: 0.001 to 10000 GB/s, and 0 to 1000000 "
        "microseconds of every copy (10 where none are stated), like emulated:4 or emulated:12.5,20; not '" +
        name + "'.");
  }
  options.link.bytes_per_s = gb_per_s * 1e9;
  options.link.latency_ns = static_cast<int64_t>(latency_us * 1e3);
  options.memory_share = flags.memory_utilization.value_or(options.memory_share);
  if (options.memory_share >= 1) {
    return invalid_argument(
        "--gpu-memory-utilization 1 leaves the host nothing: of an emulated device it is the share of this machine's "
        "free memory, like 0.5.");
  }
  return emulated_factory(options);
}

}  // namespace

bool is_gpu(const std::string& device) { return device.starts_with("cuda"); }

Result<DeviceFactory> choose_device(const std::string& name, const GpuFlags& flags) {
  if (name == "auto" || name == "cpu") return DeviceFactory{};
  if (name == "cuda") return gpu(0, flags);
  if (name.rfind("cuda:", 0) == 0) {
    int ordinal = -1;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + 5, end, ordinal);
    if (error == std::errc() && at == end && ordinal >= 0) return gpu(ordinal, flags);
  }
  if (name.starts_with(kEmulated)) return emulated(name, flags);
  return invalid_argument(
      "--device is auto, cpu or cuda:N (N from 0), or emulated:GB_S[,US] for tests without a GPU, not '" + name + "'.");
}

}  // namespace loralei
