// SPDX-License-Identifier: Apache-2.0
// bench overflow: what happens when more adapters are asked for than fit into memory?
// Requests run closed and draw their adapters uniformly from 0.5, 1, 2 and 4 times as
// many as have room, in turn.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/prng.h"
#include "bench/engine_client.h"
#include "bench/generate.h"
#include "bench/rig.h"
#include "workload/served.h"

namespace loralei {
namespace {

constexpr double kRatios[] = {0.5, 1, 2, 4};  // of adapters asked for to those that fit
constexpr int kFiles = 32;                    // different generated adapters
constexpr double kWarmShare = 0.25;           // of a window, before it counts: the others' adapters leave

// What was measured of one number of adapters, by round.
struct Overflow {
  int adapters = 0;
  std::vector<double> requests_per_s, tok_s, first_p50_ms, first_p99_ms, hits, load_mb_s;
};

Result<std::vector<AdapterSourceSpec>> adapter_sources(const BenchOptions& options, int count) {
  std::vector<std::string> paths = options.adapter_paths;
  if (paths.empty() && options.shape.empty())
    return invalid_argument("bench overflow needs adapters for a model of your own: --adapter PATH, given often.");
  for (int number = 0; options.adapter_paths.empty() && number < std::min(count, kFiles); ++number) {
    TRY_ASSIGN(std::string path,
               generated_adapter(options.cache_dir, options.shape, options.targets, options.rank, number));
    paths.push_back(std::move(path));
  }
  std::vector<AdapterSourceSpec> sources;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    sources.push_back({{i + 1}, "overflow-" + std::to_string(i), paths[i % paths.size()]});
  return sources;
}

// Bytes in memory of the largest.
Result<int64_t> largest_bytes(const BenchOptions& options, std::span<const AdapterSourceSpec> sources, LogSink& log) {
  Rig rig;
  TRY(open_rig(options, options.prompts.front(), log, rig));
  EngineClient client(rig.host->engine(), rig.clock, rig.vocab, 0);
  int64_t bytes = 0;
  const size_t different = options.adapter_paths.empty() ? 1 : options.adapter_paths.size();
  for (size_t i = 0; i < std::min(different, sources.size()); ++i) {
    TRY(client.command(AdapterAction::kLoad, sources[i]));
    bytes = std::max(bytes, client.status(sources[i].id).bytes);
  }
  return bytes;
}

Status measure(const BenchOptions& options, std::span<const AdapterSourceSpec> sources, uint64_t seed, Rig& rig,
               Overflow& measured) {
  EngineClient client(rig.host->engine(), rig.clock, rig.vocab, seed);
  Prng random(seed);
  std::vector<RequestId> asked;
  const auto run = [&](double seconds) {
    asked.clear();
    return client.keep_asking(options.batches.back(), seconds, [&]() -> Status {
      const AdapterSourceId adapter = sources[random.below(sources.size())].id;
      TRY_ASSIGN(const RequestId id, client.ask(options.prompts.front(), options.new_tokens, adapter));
      asked.push_back(id);
      return {};
    });
  };
  TRY(run(kWarmShare * options.window_s));
  const EngineStats before = rig.host->engine().stats();
  const int64_t begin_ns = rig.clock.now_ns();
  TRY(run(options.window_s));
  const double window_s = static_cast<double>(rig.clock.now_ns() - begin_ns) * 1e-9;
  const EngineStats after = rig.host->engine().stats();
  TRY(client.follow_to_the_end());
  std::vector<double> first_ms;
  for (const RequestId id : asked) first_ms.push_back(client.asked(id).first_token_s() * 1e3);
  if (asked.empty())
    return invalid_argument("no request began within --window " + std::to_string(options.window_s) + " s; state more.");
  const Percentiles first = percentiles_of(std::move(first_ms));
  const auto requests = static_cast<double>(asked.size());
  measured.requests_per_s.push_back(requests / window_s);
  measured.tok_s.push_back(static_cast<double>(after.generated_tokens - before.generated_tokens) / window_s);
  measured.first_p50_ms.push_back(first.p50);
  measured.first_p99_ms.push_back(first.p99);
  measured.hits.push_back(1 -
                          std::min(1.0, static_cast<double>(after.adapter_loads - before.adapter_loads) / requests));
  measured.load_mb_s.push_back(static_cast<double>(after.adapter_load_bytes - before.adapter_load_bytes) * 1e-6 /
                               window_s);
  return {};
}

void add_rows(const std::string& prefix, const std::vector<Overflow>& all, BenchReport& report) {
  for (size_t i = 0; i < all.size(); ++i) {
    char name[32];
    std::snprintf(name, sizeof name, "x%g.", kRatios[i]);
    const auto row = [&](const char* what, const char* unit, const std::vector<double>& values) {
      report.rows.push_back(summarise(prefix + name + what, unit, values));
    };
    const Overflow& one = all[i];
    row("requests_per_s", "1/s", one.requests_per_s);
    row("tok_s", "tok/s", one.tok_s);
    row("first_token_p50_ms", "ms", one.first_p50_ms);
    row("first_token_p99_ms", "ms", one.first_p99_ms);
    row("hits", "ratio", one.hits);
    row("loaded_mb_s", "MB/s", one.load_mb_s);
    std::vector<double> ratios;
    for (size_t round = 0; i > 0 && round < one.tok_s.size(); ++round)
      ratios.push_back(one.tok_s[round] / all[0].tok_s[round]);
    if (!ratios.empty()) row("tok_s_to_x0.5", "ratio", ratios);
  }
}

void append(const Overflow& from, Overflow& to) {
  for (const auto member : {&Overflow::requests_per_s, &Overflow::tok_s, &Overflow::first_p50_ms,
                            &Overflow::first_p99_ms, &Overflow::hits, &Overflow::load_mb_s})
    (to.*member).insert((to.*member).end(), (from.*member).begin(), (from.*member).end());
}

}  // namespace

Status bench_overflow(const BenchOptions& options, LogSink& log, BenchReport& report) {
  constexpr size_t kCount = std::size(kRatios);
  const int most = static_cast<int>(std::ceil(kRatios[kCount - 1] * options.fit));
  TRY_ASSIGN(const std::vector<AdapterSourceSpec> sources, adapter_sources(options, most));
  BenchOptions sized = options;
  sized.bounded_steps = true;
  TRY_ASSIGN(const int64_t bytes_each, largest_bytes(sized, sources, log));
  // Half of one more: while it is read an adapter may need more than it comes to.
  sized.host.engine.adapter_bytes = bytes_each * options.fit + bytes_each / 2;
  Rig rig;
  TRY(open_rig(sized, options.prompts.front(), log, rig));
  {
    EngineClient client(rig.host->engine(), rig.clock, rig.vocab, 0);
    for (const AdapterSourceSpec& source : sources) TRY(client.command(AdapterAction::kAdd, source));
  }
  std::vector<Overflow> all(kCount);
  for (size_t i = 0; i < kCount; ++i) all[i].adapters = std::max(1, static_cast<int>(kRatios[i] * options.fit));
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    std::vector<Overflow> round(kCount);
    for (size_t turn = 0; turn < kCount; ++turn) {
      const size_t at = (turn + static_cast<size_t>(rounds.number())) % kCount;
      const auto seed = static_cast<uint64_t>(rounds.number()) * kCount + at + 1;
      TRY(measure(options, std::span(sources).first(static_cast<size_t>(all[at].adapters)), seed, rig, round[at]));
    }
    if (!rounds.keep()) continue;
    for (size_t i = 0; i < kCount; ++i) append(round[i], all[i]);
  }
  const size_t first_row = report.rows.size();
  add_rows("overflow." + rig.label + ".r" + std::to_string(options.rank) + ".fit" + std::to_string(options.fit) + ".",
           all, report);
  rounds.describe(report, first_row);
  return {};
}

}  // namespace loralei
