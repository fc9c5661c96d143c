// SPDX-License-Identifier: Apache-2.0
// The benchmark scenarios (docs/benchmarks.md): each fills a report. One thread; each owns the engine it measures.
// Failure: a sentence when the measurement itself could not be made; a missed target is a row in the report, not a
// failure.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "bench/report.h"
#include "engine/engine_host.h"

namespace loralei {

struct BenchOptions {
  std::string shape;           // generated model; empty: host.model_path is the model
  std::string quant = "bf16";  // of the generated model
  std::string cache_dir;
  std::vector<int> batches = {1, 8};
  int prompt_tokens = 32;
  int new_tokens = 128;
  int adapters = 8;
  int rank = 16;
  std::string targets = "all";             // all or qkvo
  std::vector<std::string> adapter_paths;  // instead of generated ones
  int rounds = 5;
  int tax_pairs = 30;
  EngineHostOptions host;
};

Status bench_machine(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_decode(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_prefill(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_mixed(const BenchOptions& options, LogSink& log, BenchReport& report);

}  // namespace loralei
