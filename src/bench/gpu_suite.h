// SPDX-License-Identifier: Apache-2.0
// What the GPU backend promises, measured: the scenarios with the settings and targets of
// docs/benchmarks.md ("On a GPU"), in parts that run one by one, each in a few minutes on
// a data-centre GPU.
//
// - decode: steps behind 512 tokens, of the bound of their bytes
// - prefill: one long prompt, of the rate of a large product
// - mixed: the tax of 32 adapters in a step
// - flatness: 2,000 adapters against 5, all of them on the GPU
// - overflow: the same with a tenth of them there
// - invariant: what --batch-invariant costs
//
// One thread. Failure: as scenarios.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/scenarios.h"

namespace loralei {

struct GpuSuiteOptions {
  std::function<DeviceFactory(bool batch_invariant)> device;
  std::string shape = "llama-7b";
  std::string cache_dir;
  std::vector<int> batches = {1, 8, 32, 128};  // the second is that of `invariant`
  int context = 512, new_tokens = 64;
  int prompt = 2048;                // of prefill
  int adapters = 32;                // of mixed, and the batch of flatness and overflow
  int rank = 16;                    // all on q, k and v
  int few = 5, many = 2000;         // adapters that flatness and overflow draw from
  int resident = 200;               // of overflow, on the GPU
  int rounds = 5, pairs = 30;       // pairs: of mixed
  int threads = 0;                  // 0: the cores of this process
  int64_t memory_budget_bytes = 0;  // of the host; 0: what is free
};

std::vector<std::string> gpu_parts();
// Makes what the parts load, so that none of them has to.
Status make_gpu_files(const GpuSuiteOptions& suite, LogSink& log);
Status run_gpu_part(const GpuSuiteOptions& suite, const std::string& part, LogSink& log, BenchReport& report);

}  // namespace loralei
