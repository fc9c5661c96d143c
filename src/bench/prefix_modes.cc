// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "bench/generate.h"
#include "bench/prefix.h"
#include "kv/block_pool.h"
#include "workload/served.h"

namespace loralei {
namespace {

constexpr double kOwnersRequestS = 20;  // from one request to the next, on a phone
constexpr size_t kWarmRequests = 8;     // of the round that does not count

Result<std::vector<std::string>> adapter_files(const BenchOptions& options, int adapters, LogSink& log) {
  if (!options.adapter_paths.empty()) {
    if (std::ssize(options.adapter_paths) < adapters)
      log.log(LogLevel::kWarning, std::to_string(adapters) + " adapters are asked for and --adapter names " +
                                      std::to_string(options.adapter_paths.size()) +
                                      ": the same file again is the same adapter to the cache.");
    return options.adapter_paths;
  }
  if (options.shape.empty())
    return invalid_argument("bench prefix needs adapters for a model of your own: --adapter PATH, given often.");
  std::vector<std::string> paths;
  for (int number = 0; number < adapters; ++number) {
    TRY_ASSIGN(std::string path,
               generated_adapter(options.cache_dir, options.shape, options.targets, options.rank, number));
    paths.push_back(std::move(path));
  }
  return paths;
}

double seconds_a_request(const std::vector<PrefixRun>& runs) {
  double seconds = 0, requests = 0;
  for (const PrefixRun& run : runs) {
    seconds += run.wall_s;
    requests += static_cast<double>(run.first_ms.size());
  }
  return seconds / requests;
}

void add_round(const PrefixRun& run, double findable, PrefixFigures& figures) {
  const auto count = static_cast<double>(run.first_ms.size());
  const Percentiles first = percentiles_of(run.first_ms);
  figures.mean_ms.push_back(std::accumulate(run.first_ms.begin(), run.first_ms.end(), 0.0) / count);
  figures.p50_ms.push_back(first.p50);
  figures.p99_ms.push_back(first.p99);
  const double prompts = std::accumulate(run.prompt_tokens.begin(), run.prompt_tokens.end(), 0.0);
  const double cached = std::accumulate(run.cached_tokens.begin(), run.cached_tokens.end(), 0.0);
  figures.cached.push_back(cached / prompts);
  if (figures.mode.sharing != KvSharing::kExact)
    figures.decoding_ms.push_back(static_cast<double>(run.coded.times.decode_ns) * 1e-6 / count);
  if (figures.mode.prefix_cache) figures.findable.push_back(findable);
  figures.computed_tokens.push_back(prompts - cached);
  if (figures.mode.sharing == KvSharing::kBorrow)
    figures.borrowed_tokens.push_back(std::accumulate(run.borrowed_tokens.begin(), run.borrowed_tokens.end(), 0.0));
}

const PrefixFigures& mode_named(const PrefixModes& modes, std::string_view name) {
  return *std::find_if(modes.begin(), modes.end(), [&](const PrefixFigures& one) { return one.mode.name == name; });
}

}  // namespace

Result<PrefixBench> open_prefix_bench(const BenchOptions& options, int adapters, LogSink& log) {
  PrefixBench bench;
  bench.run.host = options.host;
  TRY_ASSIGN(bench.label, choose_model_file(options, log, bench.run.host));
  TRY_ASSIGN(bench.run.adapters, adapter_files(options, adapters, log));
  bench.run.text = options.prefix.text;
  bench.run.think_s = options.prefix.think_s;
  EngineHostOptions once = bench.run.host;
  once.engine.max_sequences = 1;
  once.engine.max_model_len = kKvBlockTokens;
  TRY_ASSIGN(const auto host, EngineHost::start(once, log, progress_lines(log, "loading")));
  const ModelConfig& config = host->file().config;
  bench.vocab = config.vocab;
  bench.run.block_bytes = kv_block_bytes({kv_layers(config), config.kv_heads, config.head_dim, host->kv_dtype()});
  return bench;
}

PrefixModes prefix_modes(std::span<const PrefixMode> modes) {
  PrefixModes all;
  for (const PrefixMode& mode : modes) all.push_back({.mode = mode});
  return all;
}

Status measure_prefix(const BenchOptions& options, const PrefixBench& bench, const RequestsOfRound& requests,
                      PrefixModes& modes, QuietRounds& rounds) {
  NullLogSink no_log;  // each mode is a start
  PrefixRunOptions run = bench.run;
  while (rounds.next()) {
    const bool warms_up = rounds.number() == 0;
    std::vector<PrefixRequest> asked = requests(modes.front().mean_ms.size() + 1);
    if (warms_up) asked.resize(std::min(asked.size(), kWarmRequests));
    std::vector<PrefixRun> runs(modes.size());
    std::vector<std::shared_ptr<MemoryTrace>> traces;
    for (size_t i = 0; i < modes.size(); ++i) traces.push_back(std::make_shared<MemoryTrace>());
    for (size_t turn = 0; turn < modes.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(rounds.number())) % modes.size();
      TRY_ASSIGN(runs[at], run_prefix(run, modes[at].mode, asked, traces[at].get(), no_log));
    }
    if (warms_up) run.day_s = std::max(1e-6, seconds_a_request(runs) / kOwnersRequestS);
    const bool counts = rounds.keep();
    const double findable = findable_share(asked, bench.texts());
    for (size_t i = 0; i < modes.size(); ++i) {
      PrefixFigures& figures = modes[i];
      figures.steps += std::ssize(traces[i]->samples());
      figures.beyond_budget += samples_beyond(*traces[i], bench.run.kv_blocks * bench.run.block_bytes);
      if (!counts) continue;
      add_round(runs[i], findable, figures);
      figures.trace = std::move(traces[i]);
      if (const KvCoded& coded = runs[i].coded; coded.blobs > 0)
        figures.encoded.push_back(static_cast<double>(coded.bytes) / coded.blobs /
                                  static_cast<double>(bench.run.block_bytes));
    }
  }
  return {};
}

std::vector<double> prefix_ratios(const PrefixModes& modes, std::string_view one, std::string_view other) {
  const std::vector<double>&mine = mode_named(modes, one).mean_ms, &its = mode_named(modes, other).mean_ms;
  std::vector<double> ratios;
  for (size_t round = 0; round < mine.size(); ++round) ratios.push_back(mine[round] / its[round]);
  return ratios;
}

double prefix_least_ratio(const PrefixModes& modes, std::string_view mode) {
  const PrefixFigures& one = mode_named(modes, mode);
  return (1 - median(one.findable)) / (1 - median(one.cached));
}

void add_budget_target(const std::string& prefix, const PrefixModes& modes, BenchReport& report) {
  int64_t steps = 0, beyond = 0;
  for (const PrefixFigures& one : modes) steps += one.steps, beyond += one.beyond_budget;
  report.targets.push_back(
      {prefix + "steps_beyond_budget (of " + std::to_string(steps) + ")", "<=", 0, static_cast<double>(beyond)});
}

void add_prefix_rows(const std::string& prefix, const PrefixModes& modes, BenchReport& report) {
  for (const PrefixFigures& one : modes) {
    const auto row = [&](const char* what, const char* unit, const std::vector<double>& values) {
      if (!values.empty()) report.rows.push_back(summarise(prefix + one.mode.name + what, unit, values));
    };
    row(".first_token_ms", "ms", one.mean_ms);
    row(".first_token_p50_ms", "ms", one.p50_ms);
    row(".first_token_p99_ms", "ms", one.p99_ms);
    row(".cached", "ratio", one.cached);
    if (!one.findable.empty()) report.rows.back().bound = median(one.findable);
    row(".computed_tokens", "tokens", one.computed_tokens);
    row(".borrowed_tokens", "tokens", one.borrowed_tokens);
    row(".decoding_ms", "ms", one.decoding_ms);
    row(".encoded_block", "ratio", one.encoded);
  }
}

}  // namespace loralei
