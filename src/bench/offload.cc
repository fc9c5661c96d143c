// SPDX-License-Identifier: Apache-2.0
// bench offload: a model under byte budgets it does not fit, beside the bound of
// FlexInfer's eq. 4:
//
//   1 / max(1 / compute, least_bytes / disk)
//   least_bytes = touched - (budget - fixed)
//   fixed       = KV + activations + process
//                 + min(window, 128 MiB, three layers' streamed bytes)
//
// compute is that of the same build with everything resident. least_bytes is what any
// plan must read for a token at least (times what shrinking leaves of it).
//
// The disk is probed with the streamer's own block size and depth before and after each
// window of time; a window counts when its probes agree. Beside it the disk is probed
// with every byte looked at once (weights/disk_probe.h says why that may be slower);
// what the bound would be with it has rows of its own. Every part of `fixed` has a row of
// its own, so that locking less is no way out.
//
// Besides the policies, "none" streams every layer whole, "sync" is the balanced
// plan read when it is waited for, and POLICY@SIZE has a stream window of that size.
// The policies under one budget are open together and take turns, a window of time each:
// the disk changes within minutes, and what is compared must have seen the same minutes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/clock.h"
#include "base/units.h"
#include "bench/offload_bound.h"
#include "bench/probes.h"
#include "bench/rig.h"
#include "bench/scenarios.h"
#include "sys/cpu.h"
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

// A policy under one budget, its model, and its windows of time that counted.
struct Contestant {
  std::string name;      // as given: "balanced", "sync", "flex@16MiB"
  BenchOptions options;  // what it stands for
  std::unique_ptr<Rig> rig;
  double held_bytes = 0;  // that the process grew by for it
  // A window each; "looked": with the rate at which the disk gives bytes
  // that are read once.
  std::vector<double> tok_s, bound, disk, looked_bound, looked_disk, read_bytes, waited;
  std::map<int, double> tok_s_in_turn;  // dropped windows too
  OffloadBytes bytes;
  double peak_bytes = 0;
  double rate = 0;  // passes a second, as seen last
  int dropped = 0, disturbed = 0;
  std::string failed;  // why it takes no more turns

  bool wants_turn(int rounds) const { return failed.empty() && std::ssize(tok_s) < rounds; }
};

// "POLICY" or "POLICY@WINDOW".
Result<Contestant> make_contestant(const BenchOptions& options, const std::string& name) {
  Contestant one{.name = name, .options = options};
  const size_t at = name.find('@');
  const std::string policy = name.substr(0, at);
  if (at != std::string::npos) {
    TRY_ASSIGN(one.options.host.residency.window_bytes, parse_bytes(name.substr(at + 1)));
  }
  one.options.host.read_ahead = policy != "sync";
  TRY_ASSIGN(one.options.host.residency.policy, parse_residency_policy(policy == "sync" ? "balanced" : policy));
  return one;
}

// Opens its model and takes a first look: warms up, checks every tile, and tells
// how many tokens fill a window. What the process holds for other contestants is no
// part of its budget.
Status open_contestant(Contestant& one, double budget_gb, double others_bytes, LogSink& log) {
  TRY_ASSIGN(const ProcessMemory before, process_memory());
  set_budget(one.options, budget_gb + others_bytes / kGb);
  one.rig = std::make_unique<Rig>();
  TRY(open_rig(one.options, 1, log, *one.rig));
  one.bytes = offload_bytes(*one.rig, others_bytes);
  const int batch = one.options.batches.front();
  TRY_ASSIGN(const BatchTimes first, one.rig->runner->run(offload_spec(one.options, *one.rig, batch, 4)));
  one.rate = std::max(0.05, first.decode_tok_s() / batch);
  TRY_ASSIGN(const ProcessMemory after, process_memory());
  one.held_bytes = static_cast<double>(after.rss_bytes - before.rss_bytes);
  return {};
}

// One window of time. `others_bytes`: what the process holds for the contestants
// that wait.
Status measure_window(Contestant& one, const std::string& packed, double compute_tok_s, int turn, double others_bytes) {
  const BenchOptions& options = one.options;
  const Rig& rig = *one.rig;
  const WeightStore& weights = rig.host->weights();
  const int batch = options.batches.front();
  const int most = kContextTokens - 2;
  // The first token of a run only starts its clock.
  const auto tokens_for = [&](double left_s) {
    return std::clamp(static_cast<int>(std::ceil(one.rate * left_s)) + 1, 3, most);
  };
  TRY_ASSIGN(const double before, probe_round_gb_s(packed, turn));
  TRY_ASSIGN(const double looked_before, probe_round_gb_s(packed, turn, ProbedBlocks::kLookedAt));
  TRY_ASSIGN(const ProcessMemory memory_before, process_memory());
  reset_peak_memory();
  const StreamerTotals begun = weights.stream_totals();
  double seconds = 0, made = 0;
  while (seconds < options.window_s) {
    BatchSpec spec = offload_spec(options, rig, batch, tokens_for(options.window_s - seconds));
    spec.seed = static_cast<uint64_t>(turn) * 1000 + static_cast<uint64_t>(made) + 2;
    TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
    seconds += static_cast<double>(times.decode_ns) * 1e-9;
    made += static_cast<double>(times.decode_tokens);
  }
  const StreamerTotals ended = weights.stream_totals();
  TRY_ASSIGN(const ProcessMemory memory, process_memory());
  one.peak_bytes = std::max(one.peak_bytes, static_cast<double>(memory.rss_peak_bytes) - others_bytes);
  one.held_bytes += static_cast<double>(memory.rss_bytes - memory_before.rss_bytes);
  TRY_ASSIGN(const double looked_after, probe_round_gb_s(packed, turn + 5, ProbedBlocks::kLookedAt));
  TRY_ASSIGN(const double after, probe_round_gb_s(packed, turn + 5));
  one.rate = made / seconds / batch;
  one.tok_s_in_turn[turn] = made / seconds;
  const bool agree = std::fabs(before - after) <= kProbesAgree * std::max(before, after);
  if (!agree && one.dropped < kTriesPerWindow * options.rounds) {
    ++one.dropped;
    return {};
  }
  one.disturbed += agree ? 0 : 1;
  one.tok_s.push_back(made / seconds);
  one.disk.push_back((before + after) / 2);
  one.looked_disk.push_back((looked_before + looked_after) / 2);
  const auto bound = [&](double gb_s) {
    return batch / std::max(batch / compute_tok_s, one.bytes.least / (gb_s * kGb));
  };
  one.bound.push_back(bound(one.disk.back()));
  one.looked_bound.push_back(bound(one.looked_disk.back()));
  const auto passes = static_cast<double>(std::max<int64_t>(1, ended.passes - begun.passes));
  one.waited.push_back(static_cast<double>(ended.waited_ns - begun.waited_ns) * 1e-9 / seconds);
  one.read_bytes.push_back(static_cast<double>(ended.read_bytes - begun.read_bytes) / passes);
  return {};
}

// What a turn gave: "turn 3: balanced 1.24 tok/s (2 windows count), ...".
std::string turn_line(const std::vector<Contestant>& contestants, int turn) {
  std::string line = "turn " + std::to_string(turn + 1) + ":";
  for (const Contestant& one : contestants) {
    const auto rate = one.tok_s_in_turn.find(turn);
    if (rate == one.tok_s_in_turn.end()) continue;
    char text[96];
    std::snprintf(text, sizeof text, " %.2f tok/s (%d windows count),", rate->second,
                  static_cast<int>(one.tok_s.size()));
    line += " " + one.name + text;
  }
  line.pop_back();
  return line;
}

// Opens all, then windows in turn until each has its rounds or no turn may begin any
// more; who begins a turn alternates.
void take_turns(std::vector<Contestant>& contestants, double budget_gb, const std::string& packed, double compute_tok_s,
                LogSink& log) {
  const size_t count = contestants.size();
  const auto held_by_others = [&](const Contestant& self) {
    double bytes = 0;
    for (const Contestant& one : contestants) bytes += &one == &self ? 0 : one.held_bytes;
    return bytes;
  };
  for (Contestant& one : contestants) {
    if (Status status = open_contestant(one, budget_gb, held_by_others(one), log); !status.ok())
      one.failed = status.error().message;
  }
  const double minutes = contestants.front().options.budget_minutes;
  const double end_s = SteadyClock().now_s() + 60 * (minutes > 0 ? minutes : 1e9);
  bool anyone = true;
  for (int turn = 0; anyone && SteadyClock().now_s() < end_s; ++turn) {
    anyone = false;
    for (size_t i = 0; i < count; ++i) {
      Contestant& one = contestants[(i + static_cast<size_t>(turn)) % count];
      if (!one.wants_turn(one.options.rounds)) continue;
      anyone = true;
      Status status = measure_window(one, packed, compute_tok_s, turn, held_by_others(one));
      if (!status.ok()) one.failed = status.error().message;
    }
    if (anyone) log.log(LogLevel::kInfo, turn_line(contestants, turn));
  }
}

// How much faster `one` was than `other` in the turns that both took.
std::vector<double> ratios_by_turn(const Contestant& one, const Contestant& other) {
  std::vector<double> ratios;
  for (const auto& [turn, tok_s] : one.tok_s_in_turn) {
    const auto same = other.tok_s_in_turn.find(turn);
    if (same != other.tok_s_in_turn.end()) ratios.push_back(tok_s / same->second);
  }
  return ratios;
}

void add_rows(const Contestant& point, const std::string& name, double budget_gb, BenchReport& report) {
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
  report.rows.push_back(summarise(name + ".of_bound_looked_at", "ratio", fractions(point.looked_bound)));
  report.rows.push_back(summarise(name + ".disk_gb_s", "GB/s", point.disk));
  report.rows.push_back(summarise(name + ".disk_looked_at_gb_s", "GB/s", point.looked_disk));
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
  std::string note;
  if (point.dropped > 0) note = std::to_string(point.dropped) + " windows dropped: the disk's probes did not agree";
  if (point.disturbed > 0) note += ", " + std::to_string(point.disturbed) + " counted all the same: unreliable";
  if (point.wants_turn(point.options.rounds))
    note += std::string(note.empty() ? "" : "; ") + "ended early: --budget-minutes";
  for (size_t i = first; i < report.rows.size(); ++i) {
    report.rows[i].dropped = point.dropped;
    report.rows[i].note = note;
  }
  report.targets.push_back({name + ".of_bound", ">=", 0.90, report.rows[first + 1].value});
  report.targets.push_back({name + ".read_of_plan", "<=", 1.02, median(point.read_bytes) / point.bytes.planned});
  report.targets.push_back({name + ".peak_of_budget", "<=", 1.0, point.peak_bytes / kGb / budget_gb});
}

}  // namespace

Status bench_offload(const BenchOptions& given, LogSink& log, BenchReport& report) {
  if (given.host.device)
    return invalid_argument("bench offload measures weights that are streamed, which no GPU does; leave out --device.");
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
    std::vector<Contestant> contestants;
    for (const std::string& name : options.policies) {
      TRY_ASSIGN(Contestant one, make_contestant(options, name));
      contestants.push_back(std::move(one));
    }
    if (budget * kGb * static_cast<double>(contestants.size()) > 0.9 * static_cast<double>(total_memory_bytes())) {
      return too_large("The policies of one budget are open together, and " + std::to_string(contestants.size()) +
                       " of " + budget_name(budget) + " do not fit this machine's memory; name fewer at a time.");
    }
    log.log(LogLevel::kInfo, "budget " + budget_name(budget) + ": " + std::to_string(contestants.size()) +
                                 " policies in turn, " + std::to_string(options.rounds) + " windows each");
    take_turns(contestants, budget, packed, compute_tok_s, log);
    for (const Contestant& one : contestants) {
      const std::string row = "offload." + label + "." + budget_name(budget) + "." + one.name;
      if (!one.failed.empty()) {
        log.log(LogLevel::kWarning, row + ": " + one.failed);
        continue;
      }
      if (one.tok_s.empty()) {
        log.log(LogLevel::kWarning, row + ": in none of " + std::to_string(one.dropped) +
                                        " windows did the disk's probes agree; give it more --budget-minutes.");
      } else {
        add_rows(one, row, budget, report);
      }
      const Contestant& ours = contestants.front();
      if (std::vector<double> ratios = ratios_by_turn(ours, one); &one != &ours && !ratios.empty())
        report.rows.push_back(summarise(row + "." + ours.name + "_against_it", "ratio", std::move(ratios)));
    }
  }
  return {};
}

}  // namespace loralei
