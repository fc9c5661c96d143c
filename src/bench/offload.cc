// SPDX-License-Identifier: Apache-2.0
// bench offload: a model under byte budgets it does not fit, beside the bound of FlexInfer's eq. 4:
//
//   1 / max(1 / compute, least_bytes / disk)     compute: the same build with everything resident
//   least_bytes = touched - (budget - fixed)     what any plan must read for a token at least (times what shrinking
//                                                leaves of it)
//   fixed = KV + activations + process + min(window, 128 MiB, three layers' streamed bytes)
//
// The disk is probed with the streamer's own block size and depth before and after each window of time; a window counts
// when its probes agree. The disk into memory of the window's size is probed beside it (weights/disk_probe.h says why
// it may be slower); what the bound would be with it has rows of its own. Every part of `fixed` has a row of its own,
// so that locking less is no way out.
//
// Besides the policies, "none" streams every layer whole and "sync" is the balanced plan read when it is waited for.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.h"
#include "bench/offload_bound.h"
#include "bench/probes.h"
#include "bench/rig.h"
#include "bench/scenarios.h"
#include "sys/process.h"
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
  // A window each; "wide": with the disk's rate into memory of the window's size.
  std::vector<double> tok_s, bound, disk, wide_bound, wide_disk, read_bytes, waited;
  OffloadBytes bytes;
  double peak_bytes = 0;
  int dropped = 0, disturbed = 0;
};

// One budget and policy. compute_tok_s: the resident rate.
Result<Point> measure_point(const BenchOptions& options, const std::string& packed, double compute_tok_s,
                            LogSink& log) {
  Point point;
  Rig rig;
  TRY(open_rig(options, 1, log, rig));
  const WeightStore& weights = rig.host->weights();
  const int batch = options.batches.front();
  point.bytes = offload_bytes(rig);
  const double least = point.bytes.least;
  // A first look: warms up, checks every tile, and tells how many tokens fill a window.
  TRY_ASSIGN(const BatchTimes first, rig.runner->run(offload_spec(options, rig, batch, 4)));
  double rate = std::max(0.05, first.decode_tok_s() / batch);
  for (int round = 0; std::ssize(point.tok_s) < options.rounds; ++round) {
    const int most = kContextTokens - 2;
    const int tokens = std::clamp(static_cast<int>(std::ceil(rate * options.window_s)) + 1, 3, most);
    const auto window_bytes = static_cast<int64_t>(point.bytes.window);
    TRY_ASSIGN(const double before, probe_round_gb_s(packed, round));
    TRY_ASSIGN(const double wide_before, probe_round_gb_s(packed, round, window_bytes));
    reset_peak_memory();
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
    TRY_ASSIGN(const ProcessMemory memory, process_memory());
    point.peak_bytes = std::max(point.peak_bytes, static_cast<double>(memory.rss_peak_bytes));
    TRY_ASSIGN(const double wide_after, probe_round_gb_s(packed, round + 5, window_bytes));
    TRY_ASSIGN(const double after, probe_round_gb_s(packed, round + 5));
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
    point.wide_disk.push_back((wide_before + wide_after) / 2);
    const auto bound = [&](double gb_s) { return batch / std::max(batch / compute_tok_s, least / (gb_s * kGb)); };
    point.bound.push_back(bound(disk));
    point.wide_bound.push_back(bound(point.wide_disk.back()));
    const auto passes = static_cast<double>(std::max<int64_t>(1, ended.passes - begun.passes));
    point.waited.push_back(static_cast<double>(ended.waited_ns - begun.waited_ns) * 1e-9 / seconds);
    point.read_bytes.push_back(static_cast<double>(ended.read_bytes - begun.read_bytes) / passes);
  }
  return point;
}

void add_point(const Point& point, const std::string& name, double budget_gb, BenchReport& report) {
  const size_t first = report.rows.size();
  BenchRow rate = summarise(name + ".tok_s", "tok/s", point.tok_s);
  rate.bound = median(point.bound);
  report.rows.push_back(rate);
  const auto fractions = [&](const std::vector<double>& bounds) {
    std::vector<double> parts;
    for (size_t i = 0; i < bounds.size(); ++i) parts.push_back(point.tok_s[i] / bounds[i]);
    return parts;
  };
  report.rows.push_back(summarise(name + ".of_bound", "ratio", fractions(point.bound)));
  report.rows.push_back(summarise(name + ".of_bound_into_window", "ratio", fractions(point.wide_bound)));
  report.rows.push_back(summarise(name + ".disk_gb_s", "GB/s", point.disk));
  report.rows.push_back(summarise(name + ".disk_into_window_gb_s", "GB/s", point.wide_disk));
  const auto gb = [&](const char* what, double bytes) {
    report.rows.push_back(summarise(name + what, "GB", {bytes / kGb}));
  };
  std::vector<double> read;
  for (double bytes : point.read_bytes) read.push_back(bytes / kGb);
  report.rows.push_back(summarise(name + ".read_gb_a_pass", "GB", std::move(read)));
  report.rows.push_back(summarise(name + ".waited_for_disk", "ratio", point.waited));
  gb(".planned_gb_a_pass", point.bytes.planned);
  gb(".least_gb_a_pass", point.bytes.least);
  gb(".peak_gb", point.peak_bytes);
  gb(".window_gb", point.bytes.window);
  gb(".kv_gb", point.bytes.kv);
  gb(".scratch_gb", point.bytes.scratch);
  gb(".other_gb", point.bytes.other);
  gb(".fixed_gb", point.bytes.fixed);
  for (size_t i = first; i < report.rows.size() && point.dropped > 0; ++i) {
    report.rows[i].dropped = point.dropped;
    report.rows[i].note = std::to_string(point.dropped) + " windows dropped: the disk's probes did not agree";
    if (point.disturbed > 0)
      report.rows[i].note += ", " + std::to_string(point.disturbed) + " counted all the same: unreliable";
  }
  report.targets.push_back({name + ".of_bound", ">=", 0.90, report.rows[first + 1].value});
  report.targets.push_back({name + ".read_of_plan", "<=", 1.02, median(point.read_bytes) / point.bytes.planned});
  report.targets.push_back({name + ".peak_of_budget", "<=", 1.0, point.peak_bytes / kGb / budget_gb});
}

}  // namespace

Status bench_offload(const BenchOptions& given, LogSink& log, BenchReport& report) {
  if (given.together > 0) return bench_together(given, log, report);
  if (given.resident_pairs > 0) return bench_resident_pairs(given, log, report);
  BenchOptions options = given;
  size_for_offload(options, kStepTokens, kContextTokens);
  const int batch = options.batches.front();
  std::string packed, label;
  double compute_tok_s = 0;
  {
    Rig rig;
    TRY(open_rig(options, 1, log, rig));
    TRY_ASSIGN(packed, packed_file_of(rig, options, log));
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
  }
  for (const double budget : options.budgets_gb) {
    for (const std::string& name : options.policies) {
      options.host.read_ahead = name != "sync";
      TRY_ASSIGN(options.host.residency.policy, parse_residency_policy(name == "sync" ? "balanced" : name));
      set_budget(options, budget);
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
