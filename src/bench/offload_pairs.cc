// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "base/limits.h"
#include "base/units.h"
#include "bench/offload_bound.h"
#include "bench/probes.h"
#include "bench/scenarios.h"
#include "weights/pack.h"
#include "weights/weight_store.h"

namespace loralei {
namespace {

constexpr double kGb = 1e9;
constexpr double kRatioTarget = 6.0;
constexpr double kPairsWithin = 0.03;

Result<double> seconds_of(const BenchOptions& options, const Rig& rig, int requests, int round) {
  BatchSpec spec = batch_spec(options, rig, requests);
  spec.seed = static_cast<uint64_t>(round) + 1;
  TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
  return static_cast<double>(times.wall_ns) * 1e-9;
}

}  // namespace

OffloadBytes offload_bytes(const Rig& rig, double others_bytes) {
  const Ledger& ledger = rig.host->ledger();
  const StreamShape shape = rig.host->weights().stream_shape();
  OffloadBytes bytes;
  bytes.budget = static_cast<double>(ledger.budget_bytes()) - others_bytes;
  bytes.kv = static_cast<double>(ledger.used_bytes(MemoryUse::kKv));
  bytes.scratch = static_cast<double>(ledger.used_bytes(MemoryUse::kScratch));
  bytes.other = static_cast<double>(ledger.used_bytes(MemoryUse::kOther)) - others_bytes;
  bytes.window = static_cast<double>(shape.window_bytes);
  bytes.fixed = bytes.kv + bytes.scratch + bytes.other +
                static_cast<double>(std::min(shape.window_bytes, shape.window_bound_bytes));
  bytes.planned = static_cast<double>(shape.streamed_bytes);
  // Shrunk weights take as much less of the disk as those that are streamed do.
  const double stored = shape.decoded_bytes > 0 ? bytes.planned / static_cast<double>(shape.decoded_bytes) : 1.0;
  bytes.least = std::max(0.0, rig.touched_bytes - (bytes.budget - bytes.fixed)) * stored;
  return bytes;
}

void size_for_offload(BenchOptions& options, int step_tokens, int kv_tokens) {
  options.prompts = {1};
  options.adapters = 0;
  options.batches = {options.batches.front()};
  options.new_tokens = kv_tokens - 17;  // open_rig adds 16 and the prompt
  if (options.host.engine.step_tokens == EngineOptions().step_tokens) options.host.engine.step_tokens = step_tokens;
  options.host.engine.adapter_bytes = std::max<int64_t>(options.host.engine.adapter_bytes, kMiB);
}

void set_budget(BenchOptions& options, double budget_gb) {
  options.host.engine.memory_budget_bytes = static_cast<int64_t>(budget_gb * kGb);
}

Result<std::string> packed_file_of(const Rig& rig, const BenchOptions& options, LogSink& log) {
  if (rig.host->weights().streams())
    return invalid_argument(
        "The resident rate is part of the bound, but the model does not fit this machine's memory.");
  TRY_ASSIGN(const PackedFile file,
             find_or_pack(rig.host->file(), rig.host->weight_options(), options.host.cache_dir, log));
  return file.path;
}

Status bench_together(const BenchOptions& given, LogSink& log, BenchReport& report) {
  BenchOptions options = given;
  const int many = options.together, prompt = options.prompts.front(), passes = options.new_tokens;
  options.batches = {many};
  options.adapters = 0;
  options.host.engine.max_sequences = many;
  options.host.engine.step_tokens = std::max(many, many * prompt);  // all prompts in one pass
  options.host.engine.prefix_cache = false;
  options.host.engine.adapter_bytes = std::max<int64_t>(options.host.engine.adapter_bytes, kMiB);
  std::string packed, label;
  double resident_s[2] = {};
  const int counts[2] = {1, many};
  {
    Rig rig;
    TRY(open_rig(options, prompt, log, rig));
    TRY_ASSIGN(packed, packed_file_of(rig, options, log));
    label = rig.label;
    const int blocks = many * ((prompt + options.new_tokens + 16 + kKvBlockTokens - 1) / kKvBlockTokens);
    options.host.engine.kv_cache_bytes = static_cast<int64_t>(rig.kv_bytes_token * kKvBlockTokens) * blocks;
    for (int which = 0; which < 2; ++which) {
      std::vector<double> seconds;
      for (int round = 0; round <= options.rounds; ++round) {
        TRY_ASSIGN(const double one, seconds_of(options, rig, counts[which], round));
        if (round > 0) seconds.push_back(one);
      }
      resident_s[which] = median(std::move(seconds));
    }
  }
  for (const double budget : options.budgets_gb) {
    set_budget(options, budget);
    Rig rig;
    TRY(open_rig(options, prompt, log, rig));
    const OffloadBytes bytes = offload_bytes(rig);
    std::vector<double> ratios, bounds, rates[2];
    for (int round = 0; round <= options.rounds; ++round) {
      TRY_ASSIGN(const double before, probe_round_gb_s(packed, round));
      double seconds[2] = {};
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (round + turn) % 2;
        TRY_ASSIGN(seconds[which], seconds_of(options, rig, counts[which], round));
      }
      TRY_ASSIGN(const double after, probe_round_gb_s(packed, round + 5));
      if (round == 0) continue;  // warms up
      const double read_s = passes * bytes.least / ((before + after) / 2 * kGb);
      const auto at_least = [&](int which) { return std::max(resident_s[which], read_s); };
      ratios.push_back(many * seconds[0] / seconds[1]);
      bounds.push_back(many * at_least(0) / at_least(1));
      for (int which = 0; which < 2; ++which) rates[which].push_back(counts[which] * passes / seconds[which]);
    }
    char name[32];
    std::snprintf(name, sizeof name, "%.1fgb", budget);
    const std::string row = "offload." + label + "." + name + ".together";
    report.rows.push_back(summarise(row + ".one_tok_s", "tok/s", rates[0]));
    report.rows.push_back(summarise(row + ".n" + std::to_string(many) + "_tok_s", "tok/s", rates[1]));
    BenchRow ratio = summarise(row + ".ratio", "ratio", ratios);
    ratio.bound = median(bounds);
    report.rows.push_back(ratio);
    report.targets.push_back({ratio.name, ">=", kRatioTarget, ratio.value});
  }
  return {};
}

Status bench_resident_pairs(const BenchOptions& given, LogSink& log, BenchReport& report) {
  BenchOptions options = given;
  size_for_offload(options, 32, 128);
  // The streamed one first: a second model would count as memory of its process.
  Rig loaded, grown;
  set_budget(options, options.budgets_gb.front());
  TRY(open_rig(options, 1, log, grown));
  const WeightStore& weights = grown.host->weights();
  if (!weights.streams())
    return invalid_argument("The model fits the first of --budgets; name one that makes it stream before it grows.");
  TRY(grown.runner->set_memory(grown.host->ledger().used_bytes() + weights.whole_bytes() + 64 * kMiB));
  if (weights.streams()) return internal_error("The model still streams after it got memory for everything.");
  options.host.engine.memory_budget_bytes = 0;
  TRY(open_rig(options, 1, log, loaded));
  if (loaded.host->weights().streams())
    return invalid_argument("The model does not fit twice into this machine's memory.");
  std::vector<double> ratios;
  QuietRounds pairs(options.resident_pairs, options.foreign_max);
  while (pairs.next()) {
    double rate[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const int which = (pairs.number() + turn) % 2;  // who goes first alternates
      const Rig& rig = which == 0 ? loaded : grown;
      BatchSpec spec = batch_spec(options, rig, 1);
      spec.prompt_tokens = 1;
      spec.new_tokens = 24;
      spec.seed = static_cast<uint64_t>(pairs.number()) + 1;
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      rate[which] = times.decode_tok_s();
    }
    if (pairs.keep()) ratios.push_back(rate[1] / rate[0]);
  }
  const Interval interval = median_interval(ratios);
  BenchRow row = summarise("offload." + loaded.label + ".grown_to_whole", "ratio", ratios);
  char note[96];
  std::snprintf(note, sizeof note, "95 %% interval of the median %.4f .. %.4f", interval.low, interval.high);
  row.note = note;
  report.rows.push_back(row);
  pairs.describe(report, report.rows.size() - 1);
  report.targets.push_back({row.name + " (lower end of the interval)", ">=", 1 - kPairsWithin, interval.low});
  report.targets.push_back({row.name + " (upper end of the interval)", "<=", 1 + kPairsWithin, interval.high});
  return {};
}

}  // namespace loralei
