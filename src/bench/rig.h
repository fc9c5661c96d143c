// SPDX-License-Identifier: Apache-2.0
// What the scenarios share: a running engine with what its bounds need, and rounds that
// count only when the machine was quiet.
//
// One thread. Ownership: a Rig owns the engine it measures. Failure: a sentence when the
// measurement cannot be made.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/load.h"
#include "bench/scenarios.h"
#include "device/device_rates.h"
#include "engine/engine_host.h"
#include "ops/op_table.h"

namespace loralei {

// A running engine with the batch runner that drives it, and what the bounds need.
struct Rig {
  std::unique_ptr<EngineHost> host;
  std::unique_ptr<ThreadPool> probe_pool;  // the engine's own is asleep while the probes run; null with a device
  std::unique_ptr<BatchRunner> runner;
  SteadyClock clock;
  std::string label;  // "llama-1b.bf16"
  int vocab = 0;
  int threads = 1;
  std::function<Result<DeviceRates>()> device_rates;  // empty: the cores compute
  double read_gb_s = 0;                               // best of the run, of the memory that steps read
  double upload_gb_s = 0;                             // from host memory to a device
  double touched_bytes = 0;                           // weights read in a decode step, without experts
  double expert_bytes = 0;                            // of all experts of a mixture
  double expert_share = 1;                            // of them a row uses
  double kv_bytes_token = 0;                          // of all layers
  std::vector<int32_t> windows;  // [layers] that attend to so many tokens, 0: to all; empty: all do
  // Weights of one product rate. On a device there is one (bf16), on the cores one for
  // every int8_bits().
  struct Products {
    double layer_weights = 0, head_weights = 0;  // numbers in matrices
    double gop_s = 0;                            // best of the run
  };
  std::map<int, Products> products;  // by bits
  double attention_width = 0;        // numbers of q, all layers together
};

// The model that is measured, made where it is a shape: its path goes to `host`. Answers
// its name in rows ("llama-1b.bf16").
Result<std::string> choose_model_file(const BenchOptions& options, LogSink& log, EngineHostOptions& host);
// prompt_tokens: the longest prompt that will be run.
Status open_rig(const BenchOptions& options, int prompt_tokens, LogSink& log, Rig& rig);
Status measure_ceilings(Rig& rig);  // keeps the best
void add_ceilings(const Rig& rig, BenchReport& report);

struct BenchAdapters {
  std::vector<std::string> names, paths;
  double bytes_each = 0;  // on average
};
// Loads `count` adapters: --adapter's in turn, or generated ones of `files` different
// files (each name is a copy of its own wherever it lies, whatever its file).
Result<BenchAdapters> load_adapters(const BenchOptions& options, int count, int files, Rig& rig);

BatchSpec batch_spec(const BenchOptions& options, const Rig& rig, int sequences);
// Says how a generated file grows, every fifth of it.
std::function<void(int64_t, int64_t)> progress_lines(LogSink& log, std::string what);

// Seconds a decode step of `rows` rows must take at least: its bytes (weights once,
// the KV of every row, adapters), or its operations at the product rate.
double decode_bound_s(const Rig& rig, const BenchOptions& options, int prompt_tokens, int rows,
                      double adapter_bytes = 0);
// By operations; attention's count on a device alone, where both run on the same units.
double prefill_bound_tok_s(const Rig& rig, int prompt_tokens);

// What the machine has used since it started.
struct CpuUse {
  double wall_s = 0, machine_s = 0, own_s = 0;
};
CpuUse cpu_use_now();

// Hands out rounds until enough of them were quiet: the first warms up and never counts,
// one in which others used more than foreign_max of a core is dropped and repeated.
// After as many drops as twice the rounds asked for, rounds count as they come,
// and the note says so.
class QuietRounds {
 public:
  QuietRounds(int rounds, double foreign_max, std::function<CpuUse()> use = cpu_use_now);
  // Starts a round; false: enough.
  bool next();
  // Ends it; true: its figures count.
  bool keep();
  int number() const { return started_; }  // of this round, from 0 (the warm-up); never the same twice
  int dropped() const { return dropped_; }
  // Tells the rows added to the report since `first_row` what was dropped.
  void describe(BenchReport& report, size_t first_row) const;

 private:
  int rounds_;
  double foreign_max_;
  std::function<CpuUse()> use_;
  CpuUse begin_;
  int started_ = -1, kept_ = 0, dropped_ = 0, disturbed_ = 0;
};

}  // namespace loralei
