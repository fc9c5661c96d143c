// SPDX-License-Identifier: Apache-2.0
// bench prefix: MobiLoRA's evaluation (section 4). What the owner of a phone asks is
// asked of this server with no prefix cache, with one of each adapter's own (the least
// recently used goes), and with prefixes that rest encoded and leave by what applications
// do.
#include "bench/prefix.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace loralei {
namespace {

constexpr PrefixMode kModes[] = {
    {.name = "none", .prefix_cache = false},
    {.name = "lru"},
    {.name = "bounded", .sharing = KvSharing::kBounded, .eviction = KvEviction::kUtility, .context = true}};
// Figure 7; without either it is lru.
constexpr PrefixMode kAblations[] = {{.name = "no_context", .sharing = KvSharing::kBounded},
                                     {.name = "no_delta", .eviction = KvEviction::kUtility, .context = true}};

// A setup with a task, at the scale asked for.
struct Case {
  PrefixSetup setup;
  PrefixTask task = PrefixTask::kConversation;
  bool memory_binds() const { return setup.kv_tokens < 8192; }
  bool ablated() const { return setup.name == std::string_view("S1") && task == PrefixTask::kConversation; }
  std::string name() const {
    std::string text = setup.name;
    text.front() = 's';
    return text + "." + kPrefixTaskNames[static_cast<size_t>(task)];
  }
};

std::vector<Case> chosen_cases(const PrefixBenchOptions& options) {
  const auto is_asked = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<Case> cases;
  for (const PrefixSetup& setup : kPrefixSetups) {
    for (size_t task = 0; task < kPrefixTaskNames.size(); ++task) {
      if (is_asked(options.setups, setup.name) && is_asked(options.tasks, kPrefixTaskNames[task]))
        cases.push_back({setup, static_cast<PrefixTask>(task)});
    }
  }
  return cases;
}

void add_targets(const Case& one, const std::string& prefix, const PrefixModes& modes, BenchReport& report) {
  const auto ratio = [&](const char* mode, const char* other) {
    report.rows.push_back(summarise(prefix + mode + ".to_" + other, "ratio", prefix_ratios(modes, mode, other)));
    return report.rows.back();
  };
  constexpr double kWhereItBinds = 0.80, kElsewhere = 1.02, kToNone = 0.65;
  const BenchRow to_lru = ratio("bounded", "lru");
  char note[96];
  std::snprintf(note, sizeof note, "a cache that nothing leaves computes %.2f of the tokens of lru",
                prefix_least_ratio(modes, "lru"));
  report.rows.back().note = note;
  report.targets.push_back({to_lru.name, "<=", one.memory_binds() ? kWhereItBinds : kElsewhere, to_lru.value});
  const BenchRow to_none = ratio("bounded", "none");
  report.targets.push_back({to_none.name, "<=", kToNone, to_none.value});
  if (!one.ablated()) return;
  ratio("no_context", "bounded");
  ratio("no_delta", "bounded");
  ratio("lru", "bounded");
}

// How much of the pool was in use, and whether ever too much.
void add_memory(const Case& one, const std::string& prefix, const PrefixModes& modes, BenchReport& report) {
  for (const PrefixFigures& figures : modes) {
    if (figures.mode.name != std::string_view("bounded")) continue;
    double most = 0;
    for (const MemorySample& sample : figures.trace->samples())
      most = std::max(most, 1 - static_cast<double>(sample.free()) / static_cast<double>(sample.total));
    report.rows.push_back(summarise(prefix + "bounded.pool_used_most", "ratio", {most}));
    report.plots.push_back(memory_plot("KV by use, " + one.name() + ", bounded", *figures.trace));
  }
}

Status measure_case(const BenchOptions& options, const Case& one, const AppChances& chances, PrefixBench& bench,
                    std::string& csv, BenchReport& report) {
  const PrefixBenchOptions& asked = options.prefix;
  const int32_t kv_tokens = scaled_length(one.setup.kv_tokens, asked.scale);
  bench.run.kv_blocks = kv_tokens / kKvBlockTokens;
  bench.run.tokens_max = scaled_length(one.setup.prompt_max + kPrefixAnswerMost, asked.scale);
  PrefixModes modes = prefix_modes(kModes);
  if (one.ablated()) {
    for (const PrefixFigures& more : prefix_modes(kAblations)) modes.push_back(more);
  }
  const auto requests = [&](uint64_t number) {
    return prefix_requests(chances, {.setup = one.setup,
                                     .task = one.task,
                                     .scale = asked.scale,
                                     .requests = static_cast<size_t>(asked.requests),
                                     .seed = number});
  };
  QuietRounds rounds(options.rounds, options.foreign_max);
  TRY(measure_prefix(options, bench, requests, modes, rounds));
  const size_t first_row = report.rows.size();
  const std::string prefix = "prefix." + bench.label + "." + one.name() + ".";
  add_prefix_rows(prefix, modes, report);
  add_targets(one, prefix, modes, report);
  add_memory(one, prefix, modes, report);
  add_budget_target(prefix, modes, report);
  rounds.describe(report, first_row);
  for (const PrefixFigures& figures : modes) csv += memory_csv(one.name() + "." + figures.mode.name, *figures.trace);
  return {};
}

}  // namespace

Status bench_prefix(const BenchOptions& options, LogSink& log, BenchReport& report) {
  const PrefixBenchOptions& asked = options.prefix;
  if (!asked.agents.empty()) return bench_prefix_agents(options, log, report);
  AppChances chances = AppChances::drawn(1);
  if (!asked.app_usage.empty()) {
    TRY_ASSIGN(chances, AppChances::read(asked.app_usage));
  }
  const std::vector<Case> cases = chosen_cases(asked);
  int adapters = 0;
  for (const Case& one : cases) adapters = std::max(adapters, one.setup.adapters);
  TRY_ASSIGN(PrefixBench bench, open_prefix_bench(options, adapters, log));
  char line[200];
  std::snprintf(line, sizeof line, "lengths and KV at %g of Table 1: its 2 GB are %d tokens, %s here", asked.scale,
                scaled_length(4096, asked.scale),
                format_bytes(scaled_length(4096, asked.scale) / kKvBlockTokens * bench.run.block_bytes).c_str());
  log.log(LogLevel::kInfo, line);
  std::string csv = memory_csv_head();
  for (const Case& one : cases) {
    log.log(LogLevel::kInfo, one.name());
    TRY(measure_case(options, one, chances, bench, csv, report));
  }
  return asked.memory_trace.empty() ? Status() : write_text_file(asked.memory_trace, csv);
}

}  // namespace loralei
