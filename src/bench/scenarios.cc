// SPDX-License-Identifier: Apache-2.0
#include "bench/scenarios.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/generate.h"
#include "bench/rig.h"

namespace loralei {
namespace {

constexpr double kNs = 1e-9;

// What of the steps between two looks went neither into products nor attention nor LoRA
// nor waiting for the disk or other ranks.
double rest_share(const EngineStats& before, const EngineStats& after) {
  const double step_s = after.step_s - before.step_s;
  const double large_s = (after.products_s - before.products_s) + (after.attention_s - before.attention_s) +
                         (after.lora_s - before.lora_s) + (after.disk_s - before.disk_s) +
                         (after.collective_s - before.collective_s);
  return step_s > 0 ? (step_s - large_s) / step_s : 0;
}

// Of the steps between two looks: the part that went into collectives with other ranks,
// and what these sent for each row.
struct Collectives {
  std::vector<double> share, row_bytes;

  void add(const EngineStats& before, const EngineStats& after) {
    const double step_s = after.step_s - before.step_s;
    const auto rows = static_cast<double>(after.rows - before.rows);
    share.push_back(step_s > 0 ? (after.collective_s - before.collective_s) / step_s : 0);
    row_bytes.push_back(rows > 0 ? static_cast<double>(after.collective_bytes - before.collective_bytes) / rows : 0);
  }
  void report_to(const std::string& prefix, BenchReport& report) const {
    report.rows.push_back(summarise(prefix + ".collective_share", "ratio", share));
    report.rows.push_back(summarise(prefix + ".collective_bytes", "B/row", row_bytes));
  }
};

// The same of weights that come from disk: bytes for each row, the part of the time that
// steps waited for them, and what of the experts that rows chose was in memory.
struct Reads {
  std::vector<double> row_mb, share, found;

  void add(const EngineStats& before, const EngineStats& after) {
    const double step_s = after.step_s - before.step_s;
    const auto rows = static_cast<double>(after.rows - before.rows);
    const auto hits = static_cast<double>(after.expert_hits - before.expert_hits);
    const double uses = hits + static_cast<double>(after.expert_misses - before.expert_misses);
    row_mb.push_back(rows > 0 ? static_cast<double>(after.disk_read_bytes - before.disk_read_bytes) / rows * 1e-6 : 0);
    share.push_back(step_s > 0 ? (after.disk_s - before.disk_s) / step_s : 0);
    found.push_back(uses > 0 ? hits / uses : 1);
  }
  void report_to(const std::string& prefix, BenchReport& report) const {
    report.rows.push_back(summarise(prefix + ".disk_mb", "MB/row", row_mb));
    report.rows.push_back(summarise(prefix + ".disk_share", "ratio", share));
    report.rows.push_back(summarise(prefix + ".experts_found", "ratio", found));
  }
};

}  // namespace

Result<std::vector<std::string>> bench_generate(const BenchOptions& options, bool gguf_adapters, LogSink& log) {
  std::vector<std::string> paths;
  TRY_ASSIGN(std::string model,
             generated_model(options.cache_dir, options.shape, options.quant, progress_lines(log, "making the model")));
  paths.push_back(std::move(model));
  for (int i = 0; i < options.adapters; ++i) {
    TRY_ASSIGN(std::string path, generated_adapter(options.cache_dir, options.shape, options.targets, options.rank, i,
                                                   gguf_adapters ? AdapterFormat::kGguf : AdapterFormat::kPeft));
    paths.push_back(std::move(path));
  }
  return paths;
}

Status bench_decode(const BenchOptions& options, LogSink& log, BenchReport& report) {
  Rig rig;
  const int prompt_tokens = options.context > 0 ? options.context : options.prompts.front();
  TRY(open_rig(options, prompt_tokens, log, rig));
  std::vector<std::vector<double>> rates(options.batches.size()), rests(options.batches.size());
  std::vector<Collectives> collectives(options.batches.size());
  std::vector<Reads> reads(options.batches.size());
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    std::vector<double> rate, rest;
    std::vector<std::pair<EngineStats, EngineStats>> looks;
    for (const int batch : options.batches) {
      BatchSpec spec = batch_spec(options, rig, batch);
      spec.prompt_tokens = prompt_tokens;
      spec.seed = static_cast<uint64_t>(rounds.number());
      // A long context is computed once, in the warm-up, and found in the prefix
      // cache afterwards.
      spec.same_prompts = options.context > 0;
      const EngineStats before = rig.host->engine().stats();
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      rate.push_back(times.decode_tok_s());
      looks.emplace_back(before, rig.host->engine().stats());
      rest.push_back(rest_share(before, looks.back().second));
    }
    const bool counts = rounds.keep();
    for (size_t i = 0; counts && i < rate.size(); ++i) {
      rates[i].push_back(rate[i]);
      rests[i].push_back(rest[i]);
      collectives[i].add(looks[i].first, looks[i].second);
      reads[i].add(looks[i].first, looks[i].second);
    }
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  const size_t first_row = report.rows.size();
  const std::string prefix = "decode." + rig.label +
                             (options.context > 0 ? ".c" + std::to_string(options.context) : "") +
                             (options.temperature > 0 ? ".sampled" : "") + ".b";
  for (size_t i = 0; i < options.batches.size(); ++i) {
    const int rows = options.batches[i];
    BenchRow row = summarise(prefix + std::to_string(rows) + ".tok_s", "tok/s", rates[i]);
    row.bound = rows / decode_bound_s(rig, options, prompt_tokens, rows);
    report.rows.push_back(row);
    if (!rig.device_rates)  // whose steps are not split
      report.rows.push_back(summarise(prefix + std::to_string(rows) + ".rest_share", "ratio", rests[i]));
    if (options.host.tensor_parallel > 1) collectives[i].report_to(prefix + std::to_string(rows), report);
    if (rig.expert_bytes > 0) reads[i].report_to(prefix + std::to_string(rows), report);
  }
  rounds.describe(report, first_row);
  return {};
}

Status bench_prefill(const BenchOptions& options, LogSink& log, BenchReport& report) {
  Rig rig;
  BenchOptions prefill = options;
  prefill.new_tokens = 1;
  TRY(open_rig(prefill, *std::max_element(options.prompts.begin(), options.prompts.end()), log, rig));
  std::vector<std::vector<double>> rates(options.prompts.size());
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    std::vector<double> rate;
    for (const int prompt : options.prompts) {
      BatchSpec spec = batch_spec(prefill, rig, 1);
      spec.prompt_tokens = prompt;
      spec.seed = static_cast<uint64_t>(rounds.number());
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      rate.push_back(prompt / (static_cast<double>(times.first_token_ns[0]) * kNs));
    }
    const bool counts = rounds.keep();
    for (size_t i = 0; counts && i < rate.size(); ++i) rates[i].push_back(rate[i]);
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  const size_t first_row = report.rows.size();
  for (size_t i = 0; i < options.prompts.size(); ++i) {
    const int prompt = options.prompts[i];
    BenchRow row = summarise("prefill." + rig.label + ".p" + std::to_string(prompt) + ".tok_s", "tok/s", rates[i]);
    row.bound = prefill_bound_tok_s(rig, prompt);
    report.rows.push_back(row);
  }
  rounds.describe(report, first_row);
  return {};
}

namespace {

Status unload(Rig& rig, const BenchAdapters& adapters) {
  for (const std::string& name : adapters.names) TRY(rig.runner->unload(name));
  return {};
}

// What a step with adapters takes of one without, in turn.
BenchRow lora_tax(const BenchOptions& options, const Rig& rig, double adapter_bytes, const std::string& prefix,
                  const std::vector<double>& taxes) {
  BenchRow row = summarise(prefix + ".lora_tax", "ratio", taxes);
  const int rows = options.adapters, prompt = options.prompts.front();
  char note[64];
  std::snprintf(
      note, sizeof note, "; the bounds alone %.4f",
      decode_bound_s(rig, options, prompt, rows, rows * adapter_bytes) / decode_bound_s(rig, options, prompt, rows));
  row.note = interval_note(median_interval(taxes)) + note;
  return row;
}

// The same base-only batch with the adapters resident and with none registered, in pairs.
Status measure_base_tax(const BenchOptions& options, Rig& rig, const BenchAdapters& adapters, const std::string& prefix,
                        BenchReport& report) {
  std::vector<double> ratios;
  QuietRounds pairs(options.tax_pairs, options.foreign_max);
  while (pairs.next()) {
    const int pair = pairs.number();
    double step_s[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const int loaded = (pair + turn) % 2;  // who goes first alternates
      if (loaded != 0) TRY(rig.runner->load(adapters.names, adapters.paths));
      BatchSpec spec = batch_spec(options, rig, options.adapters);
      spec.new_tokens = std::max(8, options.new_tokens / 4);
      spec.seed = static_cast<uint64_t>(1000 + pair);
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      step_s[loaded] = 1.0 / times.decode_tok_s();
      if (loaded == 0) continue;
      TRY(unload(rig, adapters));
    }
    if (pairs.keep()) ratios.push_back(step_s[1] / step_s[0]);
  }
  const Interval interval = median_interval(ratios);
  BenchRow row = summarise(prefix + ".base_tax", "ratio", ratios);
  row.note = interval_note(interval);
  if (interval.high > 1.02 && interval.low < 1.02) row.note += ", not resolved at this noise";
  report.rows.push_back(row);
  pairs.describe(report, report.rows.size() - 1);
  report.targets.push_back({row.name + " (upper end of the interval)", "<=", 1.02, interval.high});
  return {};
}

}  // namespace

Status bench_mixed(const BenchOptions& options, LogSink& log, BenchReport& report) {
  if (options.adapters < 1) return invalid_argument("bench mixed needs --adapters of 1 or more.");
  Rig rig;
  TRY(open_rig(options, options.prompts.front(), log, rig));
  const int count = options.adapters;
  TRY_ASSIGN(const BenchAdapters adapters, load_adapters(options, count, count, rig));
  enum { kBase, kOne, kMany, kWays };
  std::vector<double> rates[kWays], ratios, taxes;
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    const int round = rounds.number();
    double rate[kWays] = {};
    for (int turn = 0; turn < kWays; ++turn) {
      const int way = (turn + round) % kWays;
      BatchSpec spec = batch_spec(options, rig, count);
      spec.seed = static_cast<uint64_t>(round);
      if (way == kOne) spec.adapters = {adapters.names[0]};
      if (way == kMany) spec.adapters = adapters.names;
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      rate[way] = times.decode_tok_s();
    }
    if (rounds.keep()) {
      for (int way = 0; way < kWays; ++way) rates[way].push_back(rate[way]);
      ratios.push_back(rate[kMany] / rate[kOne]);
      taxes.push_back(rate[kBase] / rate[kMany]);
    }
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  const size_t first_row = report.rows.size();
  const std::string prefix =
      "mixed." + rig.label + (options.targets == "all" ? "" : "." + options.targets) + ".n" + std::to_string(count);
  report.rows.push_back(summarise(prefix + ".base_tok_s", "tok/s", rates[kBase]));
  report.rows.push_back(summarise(prefix + ".one_tok_s", "tok/s", rates[kOne]));
  report.rows.push_back(summarise(prefix + ".tok_s", "tok/s", rates[kMany]));
  const double step_s = count / summarise("", "", rates[kBase]).value;
  const double adapter_s = adapters.bytes_each / (rig.read_gb_s * 1e9);
  BenchRow ratio = summarise(prefix + ".ratio", "ratio", ratios);
  ratio.bound = (step_s + adapter_s) / (step_s + count * adapter_s);
  report.rows.push_back(ratio);
  report.rows.push_back(lora_tax(options, rig, adapters.bytes_each, prefix, taxes));
  rounds.describe(report, first_row);
  report.targets.push_back({ratio.name + " / bound", ">=", 0.93, *ratio.fraction()});
  if (options.tax_pairs > 0) {
    TRY(unload(rig, adapters));
    TRY(measure_base_tax(options, rig, adapters, prefix, report));
  }
  return {};
}

}  // namespace loralei
