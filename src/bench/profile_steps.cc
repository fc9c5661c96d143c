// SPDX-License-Identifier: Apache-2.0
// loralei profile MODEL: what this machine takes for the model's steps and for its
// adapters. Requests run closed, in cells of how many are together, how long their
// prompts are, and whether they use adapters; every step is recorded. Each cell runs for
// the fit and, beside that and with other prompts, for its judgement: what a machine can
// do changes within minutes, and is no error of the fit. All cells run twice so, in
// another order.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "base/prng.h"
#include "bench/engine_client.h"
#include "bench/generate.h"
#include "bench/rig.h"
#include "cost/profile.h"
#include "cost/step_log.h"
#include "engine/layer_assist.h"
#include "model/layer_program.h"

namespace loralei {
namespace {

constexpr int kRanks[] = {8, 16, 32, 64};  // of generated adapters, two of each
constexpr int kFilesPerRank = 2;
constexpr int kNewTokensMost = 32, kShortPrompt = 16, kMediumPrompt = 256;
constexpr int kLoadsEach = 3;
constexpr double kR2 = 0.96, kMeanError = 0.08;  // targets, on steps that the fit has not seen

struct Cell {
  int together = 1;
  int prompt_most = kShortPrompt;
  bool adapters = false;
};

// Takes the records from the engine's thread.
class Recorder {
 public:
  void add(const StepRecord& record) {
    const std::lock_guard lock(mutex_);
    if (record.own_ns() > 0) samples_.push_back({record.features, static_cast<double>(record.own_ns()) * 1e-9});
  }
  std::vector<StepSample> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(samples_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<StepSample> samples_;
};

// Between 1 and `most`, small ones likelier: every power of two as likely as the next.
int spread(int most, Prng& random) {
  return std::clamp(static_cast<int>(std::exp(random.uniform() * std::log(most + 1.0))), 1, most);
}

// As many requests as the cell says, one after the other, for so long.
Status run_cell(const Cell& cell, std::span<const AdapterSourceSpec> adapters, double seconds, int tokens_most,
                Prng& random, EngineClient& client) {
  TRY(client.keep_asking(cell.together, seconds, [&]() -> Status {
    const int new_tokens = spread(kNewTokensMost, random);
    const int prompt = spread(std::min(cell.prompt_most, tokens_most - new_tokens), random);
    std::optional<AdapterSourceId> adapter;
    if (cell.adapters && random.below(8) != 0) adapter = adapters[random.below(adapters.size())].id;
    TRY(client.ask(prompt, new_tokens, adapter));
    return {};
  }));
  client.cancel_all();
  TRY(client.follow_to_the_end());
  client.forget_ended();
  return {};
}

Result<std::vector<AdapterSourceSpec>> adapter_files(const BenchOptions& options) {
  std::vector<std::string> paths = options.adapter_paths;
  if (paths.empty() && !options.shape.empty()) {
    for (const int rank : kRanks) {
      for (int number = 0; number < kFilesPerRank; ++number) {
        TRY_ASSIGN(std::string path,
                   generated_adapter(options.cache_dir, options.shape, options.targets, rank, number));
        paths.push_back(std::move(path));
      }
    }
  }
  std::vector<AdapterSourceSpec> specs;
  for (const std::string& path : paths)
    specs.push_back({{specs.size() + 1}, "profile-" + std::to_string(specs.size()), path});
  return specs;
}

// Loads every adapter a few times and leaves them loaded.
Status measure_loads(EngineClient& client, std::span<const AdapterSourceSpec> adapters, int32_t loads_at_once,
                     Profile& profile) {
  std::vector<double> gram(4), rhs(2);
  double bytes_sum = 0, ranks_sum = 0;
  for (int round = 0; round < kLoadsEach; ++round) {
    for (const AdapterSourceSpec& adapter : adapters) {
      if (round > 0) {
        TRY_ASSIGN([[maybe_unused]] const double dropped_s, client.command(AdapterAction::kDrop, adapter));
      }
      TRY_ASSIGN(const double seconds, client.command(AdapterAction::kLoad, adapter));
      const AdapterStatus status = client.status(adapter.id);
      if (round == 0) continue;  // its pages came from the disk, perhaps
      const std::array<double, 2> columns = {1 / seconds, static_cast<double>(status.bytes) / seconds};
      for (size_t i = 0; i < 2; ++i) {
        rhs[i] += columns[i];
        for (size_t j = 0; j < 2; ++j) gram[i * 2 + j] += columns[i] * columns[j];
      }
      bytes_sum += static_cast<double>(status.bytes);
      ranks_sum += status.rank;
    }
  }
  const std::vector<double> cost = solve_nonnegative(gram, rhs);
  profile.disk =
      TransferCost{.seconds = cost[0], .bytes_per_second = cost[1] > 0 ? 1 / cost[1] : 1e12, .at_once = loads_at_once};
  profile.model.adapter_bytes_per_rank = ranks_sum > 0 ? static_cast<int64_t>(bytes_sum / ranks_sum) : 0;
  return {};
}

std::vector<Cell> cells_of(const BenchOptions& options, bool with_adapters, int tokens_most) {
  std::vector<Cell> cells;
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  for (int together = 1;; together = std::min(2 * together, most)) {
    for (const int prompt : {kShortPrompt, kMediumPrompt, tokens_most}) {
      cells.push_back({together, prompt, false});
      if (with_adapters) cells.push_back({together, prompt, true});
    }
    if (together == most) return cells;
  }
}

struct Steps {
  std::vector<StepSample> learned, held_out;
};

// All cells once, in an order drawn from the seed.
Status run_round(std::vector<Cell> cells, std::span<const AdapterSourceSpec> adapters, double cell_s, uint64_t seed,
                 int tokens_most, EngineClient& client, Recorder& recorder, LogSink& log, Steps& steps) {
  Prng random(seed);
  for (size_t i = cells.size(); i > 1; --i) std::swap(cells[i - 1], cells[random.below(i)]);
  auto progress = progress_lines(log, "round " + std::to_string(seed) + " of 2:");
  for (size_t i = 0; i < cells.size(); ++i) {
    for (const bool first : {true, false}) {
      recorder.take();
      TRY(run_cell(cells[i], adapters, cell_s, tokens_most, random, client));
      const std::vector<StepSample> taken = recorder.take();
      std::vector<StepSample>& to = first == (seed % 2 == 1) ? steps.learned : steps.held_out;
      to.insert(to.end(), taken.begin(), taken.end());
    }
    progress(static_cast<int64_t>(i + 1), static_cast<int64_t>(cells.size()));
  }
  return {};
}

// What one core computes of adapters that are on their way to a device: of all modules,
// for simulations, by the rate at a usual rank.
AssistCost measure_assist(const Rig& rig) {
  constexpr int32_t kUsualRank = 16;
  const ModelConfig& config = rig.host->file().config;
  const int32_t hidden = config.hidden;
  const AssistRates rates = AssistRates::measure(**select_op_table(rig.host->isa()), hidden);
  AssistCost cost{.message_seconds = LayerAssist::kMessageS * static_cast<double>(kAssistGroups.size()),
                  .hidden = hidden};
  for (int index = 0; index < kLayerModules; ++index) {
    const auto module = static_cast<Module>(index);
    if (module_out(config, 0, module) == 0) continue;
    cost.row_seconds_per_rank +=
        rates.row_s({.rank = kUsualRank, .in = module_in(config, 0, module), .out = module_out(config, 0, module)}) /
        kUsualRank;
  }
  for (const int32_t rank : AssistRates::kRanks) cost.points.push_back({rank, rates.rows_per_s(hidden, rank)});
  return cost;
}

void describe_machine(const Rig& rig, Profile& profile) {
  const EngineStats stats = rig.host->engine().stats();
  profile.name = rig.label;
  profile.source = "measured by loralei profile";
  profile.model.name = rig.label;
  profile.model.max_tokens = rig.host->file().config.max_position;
  profile.model.kv_bytes_per_token = static_cast<int64_t>(rig.kv_bytes_token);
  const bool on_device = !stats.device.empty();
  const MemoryShares& shares = on_device ? stats.device_memory : stats;
  profile.memory.kv_bytes = stats.kv_blocks_total * kKvBlockTokens * profile.model.kv_bytes_per_token;
  profile.memory.adapter_bytes = shares.adapter_bytes_max;
  profile.memory.host_adapter_bytes = on_device ? stats.adapter_bytes_max : 0;
  if (on_device && stats.adapter_upload_s > 0 && stats.adapter_upload_bytes > 0) {
    profile.link =
        TransferCost{.bytes_per_second = static_cast<double>(stats.adapter_upload_bytes) / stats.adapter_upload_s};
  }
  profile.assist = measure_assist(rig);
}

void add_rows(const Rig& rig, const FitQuality& fit, std::optional<double> noise, BenchReport& report) {
  const std::string prefix = "profile." + rig.label + ".";
  const auto row = [&](const char* name, const char* unit, double value) {
    report.rows.push_back({.name = prefix + name, .unit = unit, .value = value, .min = value, .max = value});
    report.rows.back().samples = static_cast<int>(fit.steps);
  };
  row("r2", "ratio", fit.r2);
  report.targets.push_back({report.rows.back().name, ">=", kR2, fit.r2});
  row("mean_error", "ratio", fit.mean_error);
  report.targets.push_back({report.rows.back().name, "<=", kMeanError, fit.mean_error});
  row("p90_error", "ratio", fit.p90_error);
  row("mean_bias", "ratio", fit.mean_bias);
  if (noise) {
    row("noise", "ratio", *noise);
    report.rows.back().note = "between steps that are alike, mostly small ones: what of the error is the machine's";
  }
}

}  // namespace

Status bench_profile(const BenchOptions& options, LogSink& log, BenchReport& report, Profile& profile) {
  TRY_ASSIGN(const std::vector<AdapterSourceSpec> adapters, adapter_files(options));
  Recorder recorder;
  BenchOptions recorded = options;
  std::unique_ptr<StepLog> step_log;
  if (!options.step_log.empty()) {
    TRY_ASSIGN(step_log, StepLog::create(options.step_log));
  }
  recorded.host.on_step = [&recorder, &step_log](const StepRecord& record) {
    recorder.add(record);
    if (step_log != nullptr) step_log->add(record);
  };
  recorded.host.engine.prefix_cache = false;
  recorded.bounded_steps = true;  // as in a server
  recorded.new_tokens = kNewTokensMost;
  const int prompt_most = *std::max_element(options.prompts.begin(), options.prompts.end());
  Rig rig;
  TRY(open_rig(recorded, prompt_most, log, rig));
  const int tokens_most = static_cast<int>(rig.host->engine().max_model_len());
  EngineClient client(rig.host->engine(), rig.clock, rig.vocab, 1);
  if (!adapters.empty())
    TRY(measure_loads(client, adapters, std::max(1, options.host.engine.adapter_load_threads), profile));
  const std::vector<Cell> cells = cells_of(options, !adapters.empty(), prompt_most);
  const double cell_s = options.minutes * 60 / (4.0 * static_cast<double>(cells.size()));
  Steps steps;
  for (const uint64_t round : {1, 2})
    TRY(run_round(cells, adapters, cell_s, round, tokens_most, client, recorder, log, steps));
  TRY_ASSIGN(profile.step, fit_steps(steps.learned));
  profile.fit = judge_fit(profile.step, steps.held_out);
  describe_machine(rig, profile);
  add_rows(rig, *profile.fit, noise_of(steps.held_out), report);
  return {};
}

}  // namespace loralei
