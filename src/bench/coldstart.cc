// SPDX-License-Identifier: Apache-2.0
// bench coldstart: CaraServe's evaluation (section 7.2). Requests come as a Poisson
// process, each for another adapter, which is not on the device; or for adapters as
// popular as a trace's functions. Every way to start them is asked the same, beside
// `cached`, where all adapters are there.
#include "bench/coldstart.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "bench/coldstart_figures.h"
#include "bench/coldstart_run.h"
#include "bench/generate.h"
#include "bench/rig.h"
#include "sys/process.h"
#include "workload/generate.h"

namespace loralei {
namespace {

constexpr int kFiles = 4;             // different generated adapters
constexpr size_t kAdaptersMost = 64;  // where each request has another: one is asked again when it has long left
constexpr int kTogether = 16;         // requests that run at once
constexpr int kPromptMost = 512, kAnswerMost = 128;
constexpr double kRunS = 60;  // of one way, where --requests says nothing
constexpr int kRequestsLeast = 10, kRequestsMost = 1000;
constexpr int kBacklog = 24;                      // requests by which capacity is measured
constexpr size_t kWarmRequests = 4;               // of the round that does not count
constexpr double kLinksShown[] = {4, 8, 16, 32};  // GB/s
constexpr double kFastGbS = 1000;                 // where the link does not matter

// What of a rank's adapters the links and loads are made from.
struct Sizes {
  int64_t adapter_bytes = 0;
  int32_t prompt_tokens = 1;  // the median
  double prefill_s = 0;       // of such a prompt, alone
  double capacity = 0;        // requests a second that `cached` completes
  double copy_s(double gb_s) const { return static_cast<double>(adapter_bytes) * 1e-9 / gb_s; }
  double gb_s(double copy_s) const { return static_cast<double>(adapter_bytes) * 1e-9 / copy_s; }
};

struct NamedLink {
  std::string name;
  double gb_s = 0;
};

struct Bench {
  const BenchOptions& options;
  LogSink& log;
  BenchReport& report;
  std::string label;
  ColdServerOptions server = {};
  Sizes sizes = {};
};

std::string number_name(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// Helpers are processes of this one's.
CpuUse use_with_helpers() {
  CpuUse use = cpu_use_now();
  use.own_s += ended_children_cpu_s();
  return use;
}

Result<Workload> requests_of(const Bench& bench, double per_s, int64_t count, const std::string& adapters,
                             uint64_t seed) {
  TRY_ASSIGN(Workload workload, make_workload({.arrivals = "poisson:" + number_name(per_s),
                                               .lengths = bench.options.cold_start.lengths,
                                               .adapters = adapters,
                                               .count = count,
                                               .prompt_max = kPromptMost,
                                               .output_max = kAnswerMost,
                                               .seed = seed}));
  for (size_t i = 0; i < workload.size() && adapters == "none"; ++i)
    workload[i].adapter = "coldstart-" + std::to_string(i % kAdaptersMost);
  return workload;
}

int32_t median_prompt(const Workload& workload) {
  std::vector<double> tokens;
  for (const WorkloadRequest& request : workload) tokens.push_back(request.prompt_tokens);
  return static_cast<int32_t>(median(std::move(tokens)));
}

// Prompts alone, then a backlog, with all adapters there.
Status size_up(Bench& bench) {
  constexpr int kSample = 1000;  // of lengths
  TRY_ASSIGN(const Workload sample, requests_of(bench, 1, kSample, "none", 1));
  bench.sizes.prompt_tokens = bench.server.prompt_tokens = median_prompt(sample);
  Workload backlog(sample.begin(), sample.begin() + kBacklog);
  for (WorkloadRequest& request : backlog) request.at_ns = 0;
  ColdServerOptions options = bench.server;
  options.adapters = adapters_of(backlog);
  options.link = {.bytes_per_s = kFastGbS * 1e9};
  TRY_ASSIGN(const auto server, ColdServer::start(options, ColdStart::kCached, bench.log));
  bench.sizes.adapter_bytes = server->adapter_bytes();
  TRY_ASSIGN(bench.sizes.prefill_s, server->first_token_s(bench.sizes.prompt_tokens));
  TRY_ASSIGN(const ColdRun run, server->replay(backlog));
  bench.sizes.capacity = kBacklog / run.seconds;
  return {};
}

void add_sizes(const std::string& prefix, const Bench& bench) {
  const Sizes& sizes = bench.sizes;
  const auto row = [&](const std::string& name, const char* unit, double value) {
    bench.report.rows.push_back(summarise(prefix + name, unit, {value}));
  };
  row("adapter_mb", "MB", static_cast<double>(sizes.adapter_bytes) * 1e-6);
  row("prefill_ms", "ms", sizes.prefill_s * 1e3);
  bench.report.rows.back().note = "of " + std::to_string(sizes.prompt_tokens) + " tokens, the median prompt";
  row("capacity", "1/s", sizes.capacity);
  for (const double gb_s : kLinksShown) {
    row("link" + number_name(gb_s) + ".copy_to_prefill", "ratio", sizes.copy_s(gb_s) / sizes.prefill_s);
    bench.report.rows.back().note = "an adapter's copy at " + number_name(gb_s) + " GB/s";
  }
}

// The paper's A10 copies an adapter in about the time of a prefill.
std::vector<NamedLink> links_of(const Bench& bench) {
  const ColdStartBenchOptions& asked = bench.options.cold_start;
  std::vector<NamedLink> links;
  for (const double gb_s : asked.links_gb_s) links.push_back({"link" + number_name(gb_s), gb_s});
  const std::vector<double> paper = {1};
  const bool none = asked.links_gb_s.empty() && asked.link_ratios.empty();
  for (const double ratio : none ? paper : asked.link_ratios)
    links.push_back({"x" + number_name(ratio), bench.sizes.gb_s(ratio * bench.sizes.prefill_s)});
  return links;
}

std::vector<ColdWay> ways_of(const BenchOptions& options) {
  std::vector<ColdWay> ways = {{.way = ColdStart::kCached}};
  for (const ColdStart way : options.cold_start.ways) {
    const auto is_there = [&](const ColdWay& one) { return one.way == way; };
    if (std::none_of(ways.begin(), ways.end(), is_there)) ways.push_back({.way = way});
  }
  return ways;
}

// One link and load: all ways in turn, in rounds until enough of them were quiet.
Status measure_cell(Bench& bench, const std::string& name, const NamedLink& link, double per_s,
                    const std::string& adapters) {
  char line[200];
  std::snprintf(line, sizeof line, "%s%s at %.3g GB/s: a copy takes %.3g times the prefill of the median prompt",
                name.c_str(), link.name.c_str(), link.gb_s, bench.sizes.copy_s(link.gb_s) / bench.sizes.prefill_s);
  bench.log.log(LogLevel::kInfo, line);
  const int asked = bench.options.cold_start.requests;
  const int64_t count =
      asked > 0 ? asked : std::clamp(static_cast<int>(std::lround(kRunS * per_s)), kRequestsLeast, kRequestsMost);
  std::vector<ColdWay> ways = ways_of(bench.options);
  NullLogSink no_log;  // each way is a start
  QuietRounds rounds(bench.options.rounds, bench.options.foreign_max, use_with_helpers);
  while (rounds.next()) {
    const auto seed = static_cast<uint64_t>(rounds.number()) + 1;
    TRY_ASSIGN(Workload workload, requests_of(bench, per_s, count, adapters, seed));
    if (rounds.number() == 0) workload.resize(std::min(workload.size(), kWarmRequests));
    ColdServerOptions options = bench.server;
    options.adapters = adapters_of(workload);
    options.link.bytes_per_s = link.gb_s * 1e9;
    options.seed = seed;
    std::vector<ColdRun> runs(ways.size());
    for (size_t turn = 0; turn < ways.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(rounds.number())) % ways.size();
      TRY_ASSIGN(const auto server, ColdServer::start(options, ways[at].way, no_log));
      TRY_ASSIGN(runs[at], server->replay(workload));
    }
    if (!rounds.keep()) continue;
    for (size_t i = 0; i < ways.size(); ++i) {
      ways[i].rounds.push_back(cold_figures(workload, runs[i].served));
      ways[i].starts.push_back(runs[i].starts);
      ways[i].first_ms.clear();
      for (size_t request = 0; request < workload.size(); ++request)
        ways[i].first_ms.push_back(static_cast<double>(runs[i].served[request].first_ns - workload[request].at_ns) *
                                   1e-6);
    }
  }
  const size_t first_row = bench.report.rows.size();
  add_cold_rows(name, ways, bench.report);
  rounds.describe(bench.report, first_row);
  return {};
}

Status measure_loads(Bench& bench, const std::string& prefix) {
  for (const NamedLink& link : links_of(bench)) {
    for (const double load : bench.options.cold_start.loads) {
      const std::string name = prefix + link.name + ".load" + number_name(load) + ".";
      TRY(measure_cell(bench, name, link, load * bench.sizes.capacity, "none"));
    }
  }
  return {};
}

// The more adapters a server has, the more is asked of it; the largest population is
// asked for as often as the highest load says. The device has room for --fit of them.
Status measure_popularity(Bench& bench, const std::string& prefix) {
  const BenchOptions& options = bench.options;
  const double most = *std::max_element(options.populations.begin(), options.populations.end());
  const double load = *std::max_element(options.cold_start.loads.begin(), options.cold_start.loads.end());
  // Half of one more: copies have boundaries of pages.
  bench.server.fit_bytes = bench.sizes.adapter_bytes * options.fit + bench.sizes.adapter_bytes / 2;
  for (const NamedLink& link : links_of(bench)) {
    for (const int population : options.populations) {
      const std::string name = prefix + link.name + ".functions" + std::to_string(population) + ".";
      const std::string adapters = "functions:" + std::to_string(population) + ":" + options.cold_start.popularity;
      TRY(measure_cell(bench, name, link, load * bench.sizes.capacity * population / most, adapters));
    }
  }
  return {};
}

Status check_options(const BenchOptions& options) {
  if (options.cold_start.plain && options.cold_start.unused)
    return invalid_argument("--plain and --unused are measurements of their own: state one of them.");
  if (options.cold_start.unused && options.tax_pairs < 1)
    return invalid_argument("--unused compares pairs: state --tax-pairs of 1 or more.");
  if (options.host.device)
    return invalid_argument(
        "bench coldstart compares on the cores as a device behind links of its own: leave --device "
        "out, and state --link or --link-ratio.");
  return {};
}

}  // namespace

Result<std::vector<std::string>> cold_adapter_files(const BenchOptions& options, int rank) {
  if (!options.adapter_paths.empty()) return options.adapter_paths;
  if (options.shape.empty())
    return invalid_argument("bench coldstart needs adapters for a model of your own: --adapter PATH, given often.");
  std::vector<std::string> paths;
  for (int number = 0; number < kFiles; ++number) {
    TRY_ASSIGN(std::string path, generated_adapter(options.cache_dir, options.shape, options.targets, rank, number));
    paths.push_back(std::move(path));
  }
  return paths;
}

std::string rank_name(const BenchOptions& options, int rank) {
  if (rank == 0) return ".own";
  return ".r" + std::to_string(rank) + (options.targets == "all" ? "" : "." + options.targets);
}

Status bench_coldstart(const BenchOptions& options, LogSink& log, BenchReport& report) {
  TRY(check_options(options));
  if (options.cold_start.plain) return bench_coldstart_plain(options, log, report);
  if (options.cold_start.unused) return bench_coldstart_unused(options, log, report);
  Bench bench{options, log, report, {}};
  bench.server.host = options.host;
  TRY_ASSIGN(bench.label, choose_model_file(options, log, bench.server.host));
  bench.server.host.engine.max_sequences = kTogether;
  bench.server.host.engine.max_model_len = kPromptMost + kAnswerMost;
  const std::vector<int> own = {0};
  for (const int rank : options.adapter_paths.empty() ? options.cold_start.ranks : own) {
    TRY_ASSIGN(bench.server.files, cold_adapter_files(options, rank));
    bench.server.fit_bytes = 0;
    const std::string prefix = "coldstart." + bench.label + rank_name(options, rank) + ".";
    TRY(size_up(bench));
    add_sizes(prefix, bench);
    TRY(options.cold_start.popularity.empty() ? measure_loads(bench, prefix) : measure_popularity(bench, prefix));
  }
  return {};
}

}  // namespace loralei
