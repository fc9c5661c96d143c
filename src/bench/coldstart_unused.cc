// SPDX-License-Identifier: Apache-2.0
// bench coldstart --unused: does anybody pay for the ways who has nothing cold? An engine
// that could start requests early, with helpers that are there, beside one that waits for
// all of an adapter; in pairs, with all adapters on the device.
#include "bench/coldstart.h"
#include "bench/coldstart_figures.h"
#include "bench/load.h"
#include "bench/rig.h"
#include "engine/emulated/emulated_backend.h"

namespace loralei {
namespace {

constexpr double kMemoryShare = 0.3;  // of what is free, for each of both
constexpr double kNs = 1e-9;
constexpr int kTokens = 32, kPrompt = 128;  // of one pair
constexpr double kPercentMost = 0.5;

struct Side {
  std::unique_ptr<EngineHost> host;
  std::unique_ptr<BatchRunner> runner;
  std::vector<std::string> names = {};
  int vocab = 0;

  uint64_t cold() const {
    uint64_t all = 0;
    for (const uint64_t requests : host->engine().stats().cold_starts.requests) all += requests;
    return all;
  }
};

Result<Side> open_side(const BenchOptions& options, ColdStart way, const std::vector<std::string>& files,
                       const Clock& clock, LogSink& log, EngineHostOptions host) {
  host.engine.cold_start = way;
  host.engine.max_sequences = options.batches.back();
  host.engine.max_model_len = kPrompt + kTokens;
  host.engine.step_time_ns = options.bounded_steps ? host.engine.step_time_ns : kStepTimeUnbounded;
  host.device = emulated_factory({.memory_share = kMemoryShare});
  Side side;
  TRY_ASSIGN(side.host, EngineHost::start(host, log, {}));
  side.runner = std::make_unique<BatchRunner>(side.host->engine(), clock);
  side.vocab = side.host->file().config.vocab;
  for (size_t i = 0; i < files.size(); ++i) side.names.push_back("unused-" + std::to_string(i));
  TRY(side.runner->load(side.names, files));
  return side;
}

struct Times {
  double decode_s = 0, prefill_s = 0;
};
Result<Times> run_side(Side& side, int decoding, uint64_t seed) {
  BatchSpec spec{.sequences = decoding, .prompt_tokens = 1, .new_tokens = kTokens, .adapters = side.names};
  spec.seed = seed;
  spec.vocab = side.vocab;
  TRY_ASSIGN(const BatchTimes decode, side.runner->run(spec));
  spec.sequences = 1, spec.prompt_tokens = kPrompt, spec.new_tokens = 1;
  TRY_ASSIGN(const BatchTimes prefill, side.runner->run(spec));
  return Times{static_cast<double>(decode.wall_ns) * kNs, static_cast<double>(prefill.wall_ns) * kNs};
}

void add_row(const std::string& name, const std::vector<double>& percents, BenchReport& report) {
  const Interval interval = median_interval(percents);
  BenchRow row = summarise(name, "%", percents);
  row.note = interval_note(interval);
  if (interval.high > kPercentMost && interval.low < kPercentMost) row.note += ", not resolved at this noise";
  report.rows.push_back(row);
  report.targets.push_back({name, "<=", kPercentMost, row.value});
}

}  // namespace

Status bench_coldstart_unused(const BenchOptions& options, LogSink& log, BenchReport& report) {
  EngineHostOptions host = options.host;
  TRY_ASSIGN(const std::string label, choose_model_file(options, log, host));
  TRY_ASSIGN(const std::vector<std::string> files, cold_adapter_files(options, options.cold_start.ranks.back()));
  const SteadyClock clock;
  Side sides[2];
  TRY_ASSIGN(sides[1], open_side(options, ColdStart::kAuto, files, clock, log, host));
  host.engine.assist_helpers = 0;
  TRY_ASSIGN(sides[0], open_side(options, ColdStart::kOndemand, files, clock, log, host));
  std::vector<double> decode, prefill;
  uint64_t cold_before = 0;
  QuietRounds pairs(options.tax_pairs, options.foreign_max);
  while (pairs.next()) {
    Times times[2];
    for (int turn = 0; turn < 2; ++turn) {
      const int at = (pairs.number() + turn) % 2;  // who goes first alternates
      TRY_ASSIGN(times[at], run_side(sides[at], options.batches.back(), static_cast<uint64_t>(pairs.number()) + 1));
    }
    if (pairs.number() == 0) cold_before = sides[0].cold() + sides[1].cold();  // now all are there
    if (!pairs.keep()) continue;
    decode.push_back(percent_over(times[1].decode_s, times[0].decode_s));
    prefill.push_back(percent_over(times[1].prefill_s, times[0].prefill_s));
  }
  const std::string prefix = "coldstart." + label + ".unused.";
  const size_t first_row = report.rows.size();
  report.rows.push_back(
      summarise(prefix + "helpers", "", {static_cast<double>(sides[1].host->engine().stats().cold_starts.helpers)}));
  add_row(prefix + "decode_over", decode, report);
  add_row(prefix + "prefill_over", prefill, report);
  const uint64_t cold = sides[0].cold() + sides[1].cold() - cold_before;
  report.targets.push_back({prefix + "cold_requests", "<=", 0, static_cast<double>(cold)});
  pairs.describe(report, first_row);
  return {};
}

}  // namespace loralei
