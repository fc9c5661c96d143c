// SPDX-License-Identifier: Apache-2.0
// bench flatness: does the number of adapters matter? Batches whose requests
// draw their adapters uniformly from the first N that are loaded, for each N of
// --population in turn.
#include <algorithm>
#include <set>

#include "base/prng.h"
#include "bench/rig.h"
#include "sys/cpu.h"

namespace loralei {
namespace {

constexpr int kFiles = 32;  // different generated adapters
constexpr int kLoadThreadsMax = 16;

// What was measured of one population, by round.
struct Population {
  int count = 0;
  std::vector<double> tok_s, wall_tok_s, first_token_ms, distinct, uploaded_bytes, ratios, wall_ratios;
};

struct Round {
  double tok_s = 0, wall_tok_s = 0, first_token_ms = 0, distinct = 0, uploaded_bytes = 0;
};

Result<Round> run_round(const BenchOptions& options, const BenchAdapters& adapters, int count, uint64_t seed,
                        Rig& rig) {
  BatchSpec spec = batch_spec(options, rig, options.batches.front());
  spec.seed = seed;
  Prng random(seed);
  for (int i = 0; i < spec.sequences; ++i)
    spec.adapters.push_back(adapters.names[static_cast<size_t>(random.below(static_cast<uint64_t>(count)))]);
  const int64_t uploaded = rig.host->engine().stats().adapter_upload_bytes;
  TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
  Round round;
  round.tok_s = times.decode_tok_s();
  round.wall_tok_s = 1e9 * spec.sequences * spec.new_tokens / static_cast<double>(times.wall_ns);
  std::vector<double> first_ms;
  for (const int64_t ns : times.first_token_ns) first_ms.push_back(static_cast<double>(ns) * 1e-6);
  round.first_token_ms = median(std::move(first_ms));
  round.distinct = static_cast<double>(std::set(spec.adapters.begin(), spec.adapters.end()).size());
  round.uploaded_bytes = static_cast<double>(rig.host->engine().stats().adapter_upload_bytes - uploaded);
  return round;
}

void keep_round(const Round& round, const Round& first, Population& population) {
  population.tok_s.push_back(round.tok_s);
  population.wall_tok_s.push_back(round.wall_tok_s);
  population.first_token_ms.push_back(round.first_token_ms);
  population.distinct.push_back(round.distinct);
  population.uploaded_bytes.push_back(round.uploaded_bytes);
  population.ratios.push_back(round.tok_s / first.tok_s);
  population.wall_ratios.push_back(round.wall_tok_s / first.wall_tok_s);
}

// Every adapter has been used, so a device holds what it has room for.
Status use_each(const BenchOptions& options, const BenchAdapters& adapters, Rig& rig) {
  const auto batch = static_cast<size_t>(options.batches.front());
  for (size_t begin = 0; begin < adapters.names.size(); begin += batch) {
    const size_t end = std::min(begin + batch, adapters.names.size());
    BatchSpec spec = batch_spec(options, rig, static_cast<int>(end - begin));
    spec.prompt_tokens = 1;
    spec.new_tokens = 1;
    spec.adapters.assign(adapters.names.begin() + static_cast<std::ptrdiff_t>(begin),
                         adapters.names.begin() + static_cast<std::ptrdiff_t>(end));
    TRY(rig.runner->run(spec));
  }
  return {};
}

// Decode steps with adapters in place: their bound counts the bytes of the adapters
// that were drawn.
void add_decode_rows(const BenchOptions& options, const Rig& rig, double adapter_bytes, const Population& first,
                     const Population& population, const std::string& prefix, BenchReport& report) {
  const int rows = options.batches.front();
  const auto bound_s = [&](const Population& of) {
    return decode_bound_s(rig, options, options.prompts.front(), rows, median(of.distinct) * adapter_bytes);
  };
  BenchRow rate = summarise(prefix + ".tok_s", "tok/s", population.tok_s);
  rate.bound = rows / bound_s(population);
  report.rows.push_back(rate);
  report.rows.push_back(summarise(prefix + ".distinct", "", population.distinct));
  if (&population == &first) return;
  BenchRow ratio = summarise(prefix + ".ratio", "ratio", population.ratios);
  ratio.bound = bound_s(first) / bound_s(population);
  report.rows.push_back(ratio);
  report.targets.push_back({ratio.name + " / bound", ">=", 0.95, *ratio.fraction()});
}

// Whole batches, with prompts and what had to be uploaded for them; the link bounds
// those that upload.
void add_wall_rows(const BenchOptions& options, const Rig& rig, const Population& first, const Population& population,
                   const std::string& prefix, BenchReport& report) {
  BenchRow wall = summarise(prefix + ".wall_tok_s", "tok/s", population.wall_tok_s);
  const double upload_s = median(population.uploaded_bytes) / (rig.upload_gb_s * 1e9);
  const double tokens = static_cast<double>(options.batches.front()) * options.new_tokens;
  if (upload_s > 0) wall.bound = tokens / upload_s;
  report.rows.push_back(wall);
  if (&population != &first) {
    BenchRow ratio = summarise(prefix + ".wall_ratio", "ratio", population.wall_ratios);
    const double first_s = tokens / median(first.wall_tok_s);
    if (upload_s > 0) ratio.bound = first_s / std::max(first_s, upload_s);
    report.rows.push_back(ratio);
  }
  report.rows.push_back(summarise(prefix + ".first_token_ms", "ms", population.first_token_ms));
  if (upload_s > 0) {
    std::vector<double> megabytes;
    for (const double bytes : population.uploaded_bytes) megabytes.push_back(bytes * 1e-6);
    report.rows.push_back(summarise(prefix + ".uploaded_mb", "MB", std::move(megabytes)));
  }
}

// Of so many adapters the memory that steps read has room.
int64_t room_for(const Rig& rig, double adapter_bytes) {
  const EngineStats stats = rig.host->engine().stats();
  const MemoryShares& shares = rig.host->device_ledger() != nullptr ? stats.device_memory : stats;
  return static_cast<int64_t>(static_cast<double>(shares.adapter_bytes_max) / adapter_bytes);
}

// "flatness.llama-7b.bf16.qkv.r16"; ".fit200" where not all of the largest
// population have room.
std::string row_prefix(const BenchOptions& options, const Rig& rig, int64_t room, int most) {
  return "flatness." + rig.label + (options.targets == "all" ? "" : "." + options.targets) + ".r" +
         std::to_string(options.rank) + (room < most ? ".fit" + std::to_string(room) : "");
}

// Where adapters come and go a batch's requests begin one after the other, so it has no
// steps with all of them: whole batches count there.
void add_rows(const BenchOptions& options, const Rig& rig, double adapter_bytes,
              const std::vector<Population>& populations, int most, BenchReport& report) {
  const int64_t room = room_for(rig, adapter_bytes);
  const std::string prefix = row_prefix(options, rig, room, most);
  for (const Population& population : populations) {
    const std::string name = prefix + ".n" + std::to_string(population.count);
    if (room >= most) add_decode_rows(options, rig, adapter_bytes, populations[0], population, name, report);
    add_wall_rows(options, rig, populations[0], population, name, report);
  }
  if (const uint64_t evicted = rig.host->engine().stats().adapter_evictions; evicted > 0)
    report.rows.push_back(summarise(prefix + ".left_host_memory", "", {static_cast<double>(evicted)}));
}

}  // namespace

Status bench_flatness(const BenchOptions& options, LogSink& log, BenchReport& report) {
  const int most = *std::max_element(options.populations.begin(), options.populations.end());
  BenchOptions sized = options;
  sized.adapters = 0;  // the batch is --batch's
  sized.host.engine.adapter_load_threads = std::clamp(usable_cpus(), 1, kLoadThreadsMax);
  Rig rig;
  TRY(open_rig(sized, options.prompts.front(), log, rig));
  log.log(LogLevel::kInfo, "loading " + std::to_string(most) + " adapters");
  TRY_ASSIGN(const BenchAdapters adapters, load_adapters(options, most, kFiles, rig));
  TRY(use_each(options, adapters, rig));
  std::vector<Population> populations(options.populations.size());
  for (size_t i = 0; i < populations.size(); ++i) populations[i].count = options.populations[i];
  QuietRounds rounds(options.rounds, options.foreign_max);
  while (rounds.next()) {
    std::vector<Round> measured(populations.size());
    for (size_t turn = 0; turn < populations.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(rounds.number())) % populations.size();
      const uint64_t seed = static_cast<uint64_t>(rounds.number()) * populations.size() + at + 1;
      TRY_ASSIGN(measured[at], run_round(options, adapters, populations[at].count, seed, rig));
    }
    const bool counts = rounds.keep();
    for (size_t i = 0; counts && i < populations.size(); ++i) keep_round(measured[i], measured[0], populations[i]);
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  const size_t first_row = report.rows.size();
  add_rows(options, rig, adapters.bytes_each, populations, most, report);
  rounds.describe(report, first_row);
  return {};
}

}  // namespace loralei
