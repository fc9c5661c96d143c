// SPDX-License-Identifier: Apache-2.0
// bench offload: a model under byte budgets it does not fit, beside the bound of FlexInfer's eq. 4:
//
//   1 / max(1 / compute, least_bytes / disk)     compute: the same build with everything resident
//   least_bytes = touched - (budget - fixed)     what any plan must read for a token at least (times what shrinking
//                                                leaves of it)
//   fixed = KV + activations + process + min(window, 128 MiB, three layers' streamed bytes)
//
// The disk is probed with the streamer's own block size and depth before and after each window of time; a window counts
// when its probes agree. Every part of `fixed` has a row of its own, so that locking less is no way out.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.h"
#include "bench/probes.h"
#include "bench/rig.h"
#include "bench/scenarios.h"
#include "sys/process.h"
#include "weights/pack.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

constexpr double kGb = 1e9;
constexpr double kProbesAgree = 0.10;
constexpr int kContextTokens = 128;
constexpr int kStepTokens = 32;  // rows of activations: a decode bench needs no more
constexpr int kTriesPerWindow = 3;

std::string budget_name(double gb) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1fgb", gb);
  return text;
}

BatchSpec offload_spec(const BenchOptions& options, const Rig& rig, int sequences, int new_tokens) {
  BatchSpec spec = batch_spec(options, rig, sequences);
  spec.prompt_tokens = 1;
  spec.new_tokens = new_tokens;
  return spec;
}

struct Point {
  std::vector<double> tok_s, bound, disk, read_bytes;  // a window each
  double peak_bytes = 0, window_bytes = 0, planned_bytes = 0, fixed_bytes = 0, kv_bytes = 0, scratch_bytes = 0,
         other_bytes = 0;
  int dropped = 0, disturbed = 0;
};

// One budget and policy. compute_tok_s: the resident rate.
Result<Point> measure_point(const BenchOptions& options, const std::string& packed, double compute_tok_s,
                            LogSink& log) {
  Point point;
  Rig rig;
  TRY(open_rig(options, 1, log, rig));
  const WeightStore& weights = rig.host->weights();
  const Ledger& ledger = rig.host->ledger();
  const int batch = options.batches.front();
  point.kv_bytes = static_cast<double>(ledger.used_bytes(MemoryUse::kKv));
  point.scratch_bytes = static_cast<double>(ledger.used_bytes(MemoryUse::kScratch));
  point.other_bytes = static_cast<double>(ledger.used_bytes(MemoryUse::kOther));
  const StreamShape shape = weights.stream_shape();
  point.window_bytes = static_cast<double>(shape.window_bytes);
  point.planned_bytes = static_cast<double>(shape.streamed_bytes);
  point.fixed_bytes = point.kv_bytes + point.scratch_bytes + point.other_bytes +
                      static_cast<double>(std::min(shape.window_bytes, shape.window_bound_bytes));
  const double budget = static_cast<double>(ledger.budget_bytes());
  // Shrunk weights take as much less of the disk as those that are streamed do.
  const double stored = shape.decoded_bytes > 0
                            ? static_cast<double>(shape.streamed_bytes) / static_cast<double>(shape.decoded_bytes)
                            : 1.0;
  const double least = std::max(0.0, rig.touched_bytes - (budget - point.fixed_bytes)) * stored;
  // A first look: warms up, checks every tile, and tells how many tokens fill a window.
  TRY_ASSIGN(const BatchTimes first, rig.runner->run(offload_spec(options, rig, batch, 4)));
  double rate = std::max(0.05, first.decode_tok_s() / batch);
  reset_peak_memory();
  for (int round = 0; std::ssize(point.tok_s) < options.rounds; ++round) {
    const int most = kContextTokens - 2;
    const int tokens = std::clamp(static_cast<int>(std::ceil(rate * options.window_s)) + 1, 3, most);
    TRY_ASSIGN(const double before, probe_stream_gb_s(packed, rig.clock, round));
    const StreamerTotals begun = weights.stream_totals();
    double seconds = 0, made = 0;
    while (seconds < options.window_s) {
      BatchSpec spec = offload_spec(options, rig, batch, tokens);
      spec.seed = static_cast<uint64_t>(round) * 1000 + static_cast<uint64_t>(made) + 2;
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      seconds += static_cast<double>(times.decode_ns) * 1e-9;
      made += static_cast<double>(times.decode_tokens);
    }
    const StreamerTotals ended = weights.stream_totals();
    TRY_ASSIGN(const double after, probe_stream_gb_s(packed, rig.clock, round + 5));
    rate = made / seconds / batch;
    const bool agree = std::fabs(before - after) <= kProbesAgree * std::max(before, after);
    if (!agree && point.dropped < kTriesPerWindow * options.rounds) {
      ++point.dropped;
      continue;
    }
    point.disturbed += agree ? 0 : 1;
    const double disk = (before + after) / 2;
    point.tok_s.push_back(made / seconds);
    point.disk.push_back(disk);
    point.bound.push_back(batch / std::max(batch / compute_tok_s, least / (disk * kGb)));
    const auto passes = static_cast<double>(std::max<int64_t>(1, ended.passes - begun.passes));
    point.read_bytes.push_back(static_cast<double>(ended.read_bytes - begun.read_bytes) / passes);
  }
  TRY_ASSIGN(const ProcessMemory memory, process_memory());
  point.peak_bytes = static_cast<double>(memory.rss_peak_bytes);
  return point;
}

double median(std::vector<double> values) { return summarise("", "", std::move(values)).value; }

void add_point(const Point& point, const std::string& name, double budget_gb, BenchReport& report) {
  const size_t first = report.rows.size();
  BenchRow rate = summarise(name + ".tok_s", "tok/s", point.tok_s);
  rate.bound = median(point.bound);
  report.rows.push_back(rate);
  std::vector<double> fractions;
  for (size_t i = 0; i < point.tok_s.size(); ++i) fractions.push_back(point.tok_s[i] / point.bound[i]);
  report.rows.push_back(summarise(name + ".of_bound", "ratio", std::move(fractions)));
  report.rows.push_back(summarise(name + ".disk_gb_s", "GB/s", point.disk));
  const auto gb = [&](const char* what, double bytes) {
    report.rows.push_back(summarise(name + what, "GB", {bytes / kGb}));
  };
  std::vector<double> read;
  for (double bytes : point.read_bytes) read.push_back(bytes / kGb);
  report.rows.push_back(summarise(name + ".read_gb_a_pass", "GB", std::move(read)));
  gb(".planned_gb_a_pass", point.planned_bytes);
  gb(".peak_gb", point.peak_bytes);
  gb(".window_gb", point.window_bytes);
  gb(".kv_gb", point.kv_bytes);
  gb(".scratch_gb", point.scratch_bytes);
  gb(".other_gb", point.other_bytes);
  gb(".fixed_gb", point.fixed_bytes);
  for (size_t i = first; i < report.rows.size() && point.dropped > 0; ++i) {
    report.rows[i].dropped = point.dropped;
    report.rows[i].note = std::to_string(point.dropped) + " windows dropped: the disk's probes did not agree";
    if (point.disturbed > 0)
      report.rows[i].note += ", " + std::to_string(point.disturbed) + " counted all the same: unreliable";
  }
  report.targets.push_back({name + ".of_bound", ">=", 0.90, report.rows[first + 1].value});
  report.targets.push_back({name + ".read_of_plan", "<=", 1.02, median(point.read_bytes) / point.planned_bytes});
  report.targets.push_back({name + ".peak_of_budget", "<=", 1.0, point.peak_bytes / kGb / budget_gb});
}

}  // namespace

Status bench_offload(const BenchOptions& given, LogSink& log, BenchReport& report) {
  BenchOptions options = given;
  options.new_tokens = kContextTokens - 17;  // open_rig adds 16 and the prompt
  if (options.host.engine.step_tokens == EngineOptions().step_tokens) options.host.engine.step_tokens = kStepTokens;
  options.host.engine.adapter_bytes = std::max<int64_t>(options.host.engine.adapter_bytes, kMiB);
  const int batch = options.batches.front();
  std::string packed, label;
  double compute_tok_s = 0;
  {
    Rig rig;
    TRY(open_rig(options, 1, log, rig));
    if (rig.host->weights().streams())
      return invalid_argument(
          "The resident rate is part of the bound, but the model does not fit this machine's memory.");
    label = rig.label + (batch > 1 ? ".n" + std::to_string(batch) : "");
    std::vector<double> rates;
    for (int round = 0; round <= options.rounds; ++round) {
      BatchSpec spec = offload_spec(options, rig, batch, kContextTokens / 2);
      spec.seed = static_cast<uint64_t>(round) + 1;
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      if (round > 0) rates.push_back(times.decode_tok_s());
    }
    compute_tok_s = median(rates);
    report.rows.push_back(summarise("offload." + label + ".unlimited.tok_s", "tok/s", std::move(rates)));
    add_ceilings(rig, report);
    TRY_ASSIGN(const PackedFile file,
               find_or_pack(rig.host->file(), rig.host->weight_options(), options.host.cache_dir, log));
    packed = file.path;
  }
  for (const double budget : options.budgets_gb) {
    for (const std::string& name : options.policies) {
      TRY_ASSIGN(options.host.residency.policy, parse_residency_policy(name));
      options.host.engine.memory_budget_bytes = static_cast<int64_t>(budget * kGb);
      log.log(LogLevel::kInfo, "budget " + budget_name(budget) + ", " + name);
      auto point = measure_point(options, packed, compute_tok_s, log);
      const std::string row = "offload." + label + "." + budget_name(budget) + "." + name;
      if (!point.ok()) {
        log.log(LogLevel::kWarning, row + ": " + point.error().message);
        continue;
      }
      add_point(*point, row, budget, report);
    }
  }
  return {};
}

}  // namespace loralei
