// SPDX-License-Identifier: Apache-2.0
// gpu_smoke [--device N] [--cache-dir DIR]: a line for each layer of
// bench/cuda/gpu_smoke.h. Ends with 1 when one of them failed.
#include <charconv>
#include <cstdio>
#include <cstring>

#include "bench/cuda/gpu_smoke.h"

int main(int argc, char** argv) {
  loralei::GpuSmokeOptions options{.device = 0, .cache_dir = "gpu-bench-files"};
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const char* const end = value.data() + value.size();
    bool taken = !value.empty() && (flag == "--device" || flag == "--cache-dir");
    if (taken && flag == "--device") {
      const auto [at, error] = std::from_chars(value.data(), end, options.device);
      taken = error == std::errc() && at == end && options.device >= 0;
    } else if (taken) {
      options.cache_dir = value;
    }
    if (!taken) {
      std::fprintf(stderr, "gpu_smoke: cannot use '%s %s'\nusage: gpu_smoke [--device N] [--cache-dir DIR]\n",
                   flag.c_str(), value.c_str());
      return 2;
    }
  }
  const bool all = loralei::run_gpu_smoke(options, [](const loralei::GpuSmokeLayer& layer) {
    const bool ok = layer.found.ok();
    std::printf("%-14s %-6s %8.1f ms  %s\n", layer.name, ok ? "ok" : "FAILED", layer.ms,
                ok ? layer.found->c_str() : layer.found.error().message.c_str());
    std::fflush(stdout);  // a layer may be the end of the process
  });
  return all ? 0 : 1;
}
