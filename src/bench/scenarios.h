// SPDX-License-Identifier: Apache-2.0
// The benchmark scenarios (docs/benchmarks.md): each fills a report. One thread; each
// owns the engine it measures. Failure: a sentence when the measurement itself could not
// be made; a missed target is a row in the report, not a failure.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "bench/report.h"
#include "cost/profile.h"
#include "engine/engine_host.h"

namespace loralei {

// Of bench prefix.
struct PrefixBenchOptions {
  std::vector<std::string> setups = {"S1", "S2", "S3", "S4", "S5"}, tasks = {"conversation", "writing"};
  double scale = 1;           // of all lengths and of KV's memory
  int requests = 200;         // of a round
  double think_s = 0.01;      // between an answer and the next request, in the mean
  std::string app_usage;      // chances of applications (workload/app_walk.h); empty: made up
  std::string agents;         // trajectories (workload/agents.h), instead of the setups
  int questions = 12;         // of these, at once
  std::string memory_trace;   // file that gets a line for each step; empty: none
  std::vector<TokenId> text;  // that texts are cut from; empty: drawn
};

// Of bench coldstart.
struct ColdStartBenchOptions {
  std::vector<ColdStart> ways = {ColdStart::kOndemand, ColdStart::kLayered, ColdStart::kAssisted, ColdStart::kAuto};
  std::vector<double> links_gb_s;               // to the device
  std::vector<double> link_ratios;              // a copy takes so many times the prefill of the median prompt
  std::vector<double> loads = {0.3, 0.6, 0.9};  // requests a second, of what cached completes
  std::vector<int> ranks = {32, 64};
  int requests = 0;                     // of a round; 0: those of about a minute
  std::string lengths = "fixed:16:49";  // workload/lengths.h; medians of Alpaca
  std::string popularity;  // calls of functions (workload/adapters.h), instead of an adapter for each request
  bool plain = false;      // first requests to adapters in files, on the cores, and nothing else
  bool unused = false;     // what the ways cost where nothing is cold, and nothing else
};

struct BenchOptions {
  std::string shape;           // generated model; empty: host.model_path is the model
  std::string quant = "bf16";  // of the generated model
  std::string cache_dir;
  std::vector<int> batches = {1, 8};
  std::vector<int> prompts = {32};  // prefill measures each; the others use the first
  int context = 0;                  // decode: tokens before the answer, computed once; 0: the prompt is all there is
  int new_tokens = 128;
  float temperature = 0;  // how tokens are chosen; 0: the most likely one
  float top_p = 1;
  int adapters = 8;
  std::vector<int> populations = {5, 200};  // flatness: adapters that requests draw from
  int fit = 8;                              // overflow: adapters that memory has room for
  int rank = 16;
  std::string targets = "all";             // all, qkvo or qkv
  std::vector<std::string> adapter_paths;  // instead of generated ones
  int rounds = 5;
  int tax_pairs = 30;
  double foreign_max = 0.05;  // cores that other processes may use in a round that counts
  std::vector<double> budgets_gb = {1.0, 1.5, 2.0, 2.5, 3.0, 3.5};  // offload; GB = 1e9 bytes
  std::vector<std::string> policies = {"balanced", "flex", "layer-order", "attn-first", "ffn-first", "none", "sync"};
  double window_s = 10;        // offload, overflow: of one measurement
  double budget_minutes = 0;   // offload: turns begun under one budget; 0: until each policy has its windows
  int together = 0;            // offload: so many requests beside one alone, instead of the policies
  bool bounded_steps = false;  // in time, as a server's; else prompts take all the rows of a step
  double minutes = 3;          // profile: of measuring
  std::string step_log;        // profile: file that gets every step; empty: none
  int long_prompt = 3000;      // blocking: tokens of one long prompt; four have half of it each
  int resident_pairs = 0;      // offload: a streamed model grown whole beside a loaded one, instead of the policies
  PrefixBenchOptions prefix;
  ColdStartBenchOptions cold_start;
  EngineHostOptions host;
};

// What generated files are there: makes them (the model, `adapters` adapters) and
// answers their paths.
Result<std::vector<std::string>> bench_generate(const BenchOptions& options, bool gguf_adapters, LogSink& log);
Status bench_machine(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_decode(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_prefill(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_offload(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_flatness(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_overflow(const BenchOptions& options, LogSink& log, BenchReport& report);
// Prefixes found again, by what the cache does (MobiLoRA's evaluation).
Status bench_prefix(const BenchOptions& options, LogSink& log, BenchReport& report);
// Requests whose adapter is not on the device, by what becomes of them (CaraServe's
// evaluation).
Status bench_coldstart(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_blocking(const BenchOptions& options, LogSink& log, BenchReport& report);
// Fits a profile to this machine; the report says how well.
Status bench_profile(const BenchOptions& options, LogSink& log, BenchReport& report, Profile& profile);
// Made blocks of a shape's KV cache: their size encoded, and how fast that goes.
Status bench_kv_codec(const BenchOptions& options, LogSink& log, BenchReport& report);
Status bench_mixed(const BenchOptions& options, LogSink& log, BenchReport& report);

}  // namespace loralei
