// SPDX-License-Identifier: Apache-2.0
// bench trace: a workload against a running server, open loop. A request is sent when it
// is due, whatever became of those before it, and its clock starts then.
//
// Prompts have the wanted number of tokens: they are token ids, drawn from those that the
// server's own /tokenize names for a text of plain words. Any server with
// /v1/completions, /v1/models and /tokenize will do (vLLM, llama-server, Loralei).
//
// One thread calls; each request under way has a thread that sleeps in its socket, one
// more looks at /metrics once a second, and the share of a core that all of them take is
// a row of the report. Failure: a sentence
// where the server cannot be asked at all; a request that fails is counted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench/report.h"
#include "bench/server_metrics.h"
#include "workload/served.h"

namespace loralei {

struct TraceBenchOptions {
  std::string url;                    // http://HOST:PORT
  std::string workload;               // file
  std::vector<std::string> adapters;  // of the server, in the place of the workload's names, in turn; empty: those
  ServedObjectives objectives;
  bool ignore_eos = true;  // answers have the wanted number of tokens
};

struct TraceRun {
  Workload workload;
  std::vector<ServedRequest> served;  // beside it
  GapCounts gaps;
  std::vector<LoadSample> samples;
  std::optional<EngineStats> counted;  // by the server, meanwhile; none: it does not say
  double client_cores = 0;
  double late_s = 0;  // of the request that was sent latest behind its time
  std::string first_failure;
};

Result<TraceRun> run_trace(const TraceBenchOptions& options, LogSink& log);
// As far as the server's /metrics says.
Result<ServedMemory> ask_memory(const std::string& url);

// The run, and its rows ("trace.*") and plots in the report.
Result<TraceRun> bench_trace(const TraceBenchOptions& options, LogSink& log, BenchReport& report);

// The same run as it was simulated stands beside it: as the peer of rows of the same
// name, with targets for how far they may differ, and in the same plots.
void compare_with_simulated(const BenchReport& simulated, BenchReport& report);

}  // namespace loralei
