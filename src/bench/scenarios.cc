// SPDX-License-Identifier: Apache-2.0
#include "bench/scenarios.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/units.h"
#include "bench/generate.h"
#include "bench/load.h"
#include "bench/probes.h"
#include "ops/probe.h"
#include "sys/cpu.h"

namespace loralei {
namespace {

constexpr double kDiskProbeSeconds = 1.5;
constexpr double kNs = 1e-9;

// A running engine with the batch runner that drives it, and what the bounds need.
struct Rig {
  std::unique_ptr<EngineHost> host;
  std::unique_ptr<ThreadPool> probe_pool;  // the engine's own is asleep while the probes run
  std::unique_ptr<BatchRunner> runner;
  SteadyClock clock;
  std::string label;  // "llama-1b.bf16"
  int vocab = 0;
  int threads = 1;
  double read_gb_s = 0;  // best of the run
  double int8_gop_s = 0;
  double touched_bytes = 0;  // weights read in a decode step
  double kv_bytes_token = 0;
  double matmul_weights = 0;  // numbers in the layers' matrices
  double head_weights = 0;
};

void progress_line(LogSink& log, const char* what, int64_t done, int64_t total, int& last_percent) {
  const int percent = total > 0 ? static_cast<int>(done * 100 / total) : 100;
  if (percent >= last_percent + 20) {
    last_percent = percent;
    log.log(LogLevel::kInfo, std::string(what) + " " + std::to_string(percent) + " %");
  }
}

Status measure_ceilings(Rig& rig) {
  TRY_ASSIGN(const double read_gb_s, probe_read_gb_s(*rig.probe_pool, rig.clock, {}));
  rig.read_gb_s = std::max(rig.read_gb_s, read_gb_s);
  rig.int8_gop_s = std::max(rig.int8_gop_s, probe_int8_gop_s(*rig.probe_pool, rig.clock));
  return {};
}

void count_weights(const BaseModelFile& file, Rig& rig) {
  for (const TensorInfo& tensor : file.index.tensors) {
    if (tensor.shape.size() != 2) continue;
    const double numbers = static_cast<double>(tensor.shape[0]) * static_cast<double>(tensor.shape[1]);
    const bool embed = tensor.name == "model.embed_tokens.weight";
    const bool head = tensor.name == "lm_head.weight" || (embed && file.config.tied_head);
    if (head) rig.head_weights += numbers;
    if (!head && !embed) rig.matmul_weights += numbers;
    if (!embed || file.config.tied_head) rig.touched_bytes += static_cast<double>(tensor.bytes);
  }
  rig.kv_bytes_token = 2.0 * file.config.layers * file.config.kv_heads * file.config.head_dim * 2;  // f16
}

Status open_rig(const BenchOptions& options, LogSink& log, Rig& rig) {
  EngineHostOptions host = options.host;
  if (!options.shape.empty()) {
    int percent = -20;
    TRY_ASSIGN(host.model_path,
               generated_model(options.cache_dir, options.shape, options.quant, [&](int64_t done, int64_t total) {
                 progress_line(log, "making the model", done, total, percent);
               }));
    rig.label = options.shape + "." + options.quant;
  } else {
    rig.label = host.model_path.substr(host.model_path.rfind('/') + 1);
    std::transform(rig.label.begin(), rig.label.end(), rig.label.begin(),
                   [](unsigned char c) { return std::tolower(c); });
  }
  const int batch_most = std::max(options.adapters, *std::max_element(options.batches.begin(), options.batches.end()));
  host.engine.max_sequences = std::max(1, batch_most);
  host.engine.max_model_len = options.prompt_tokens + options.new_tokens + 16;
  int percent = -20;
  TRY_ASSIGN(rig.host, EngineHost::start(host, log, [&](int64_t done, int64_t total) {
               progress_line(log, "loading", done, total, percent);
             }));
  rig.runner = std::make_unique<BatchRunner>(rig.host->engine(), rig.clock);
  rig.vocab = rig.host->file().config.vocab;
  rig.threads = rig.host->threads();
  rig.probe_pool = std::make_unique<ThreadPool>(rig.threads);
  count_weights(rig.host->file(), rig);
  return measure_ceilings(rig);
}

// Names and loads the adapters; answers the bytes of one.
Result<double> load_adapters(const BenchOptions& options, Rig& rig, std::vector<std::string>& names,
                             std::vector<std::string>& paths) {
  for (int i = 0; i < options.adapters; ++i) {
    std::string path;
    if (!options.adapter_paths.empty()) {
      path = options.adapter_paths[static_cast<size_t>(i) % options.adapter_paths.size()];
    } else {
      if (options.shape.empty())
        return invalid_argument(
            "A bench on your own model needs --adapter PATH; adapters are generated only for --shape.");
      TRY_ASSIGN(path, generated_adapter(options.cache_dir, options.shape, options.targets, options.rank, i));
    }
    names.push_back("bench-" + std::to_string(i));
    paths.push_back(path);
    TRY(rig.runner->command(AdapterAction::kLoad, names.back(), path));
  }
  return static_cast<double>(rig.host->engine().stats().adapter_bytes) / options.adapters;
}

BatchSpec batch_spec(const BenchOptions& options, const Rig& rig, int sequences) {
  BatchSpec spec;
  spec.sequences = sequences;
  spec.prompt_tokens = options.prompt_tokens;
  spec.new_tokens = options.new_tokens;
  spec.vocab = rig.vocab;
  return spec;
}

// Seconds a decode step of `rows` rows must take at least: its bytes, or its operations at the int8 rate.
double decode_bound_s(const Rig& rig, const BenchOptions& options, int rows) {
  const double context = options.prompt_tokens + options.new_tokens / 2.0;
  const double bytes_s = (rig.touched_bytes + rows * context * rig.kv_bytes_token) / (rig.read_gb_s * 1e9);
  const double ops_s = 2.0 * (rig.matmul_weights + rig.head_weights) * rows / (rig.int8_gop_s * 1e9);
  return std::max(bytes_s, ops_s);
}

void add_ceilings(const Rig& rig, BenchReport& report) {
  const std::string threads = ".t" + std::to_string(rig.threads);
  report.rows.push_back(summarise("machine.read_gb_s" + threads, "GB/s", {rig.read_gb_s}));
  report.rows.push_back(summarise("machine.int8_gop_s" + threads, "Gop/s", {rig.int8_gop_s}));
}

// Median and a 95 % interval of it by order statistics (binomial, normal approximation).
struct Interval {
  double low, median, high;
};
Interval median_interval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const double count = static_cast<double>(samples.size());
  const double half_width = 0.98 * std::sqrt(count);
  const auto at = [&](double rank) { return samples[static_cast<size_t>(std::clamp(rank, 0.0, count - 1))]; };
  return {at(std::floor((count - 1) / 2 - half_width)), at((count - 1) / 2),
          at(std::ceil((count - 1) / 2 + half_width))};
}

}  // namespace

Status bench_machine(const BenchOptions& options, LogSink& log, BenchReport& report) {
  const SteadyClock clock;
  const int threads_most = options.host.threads > 0 ? options.host.threads : usable_cpus();
  for (int threads = 1; threads <= threads_most; threads *= 2) {
    std::vector<double> read, f32, int8, wake;
    ThreadPool pool(threads);
    for (int round = 0; round < options.rounds; ++round) {
      TRY_ASSIGN(const double read_gb_s, probe_read_gb_s(pool, clock, {}));
      read.push_back(read_gb_s);
      f32.push_back(probe_f32_gflop_s(pool, clock));
      int8.push_back(probe_int8_gop_s(pool, clock));
      wake.push_back(probe_wake_us(pool, clock));
    }
    const std::string suffix = ".t" + std::to_string(threads);
    report.rows.push_back(summarise("machine.read_gb_s" + suffix, "GB/s", read));
    report.rows.push_back(summarise("machine.f32_gflop_s" + suffix, "Gflop/s", f32));
    report.rows.push_back(summarise("machine.int8_gop_s" + suffix, "Gop/s", int8));
    report.rows.push_back(summarise("machine.wake_us" + suffix, "us", wake));
  }
  // The disk is read through a file that is there anyway or made for it.
  TRY_ASSIGN(const std::string path, generated_model(options.cache_dir, "llama-1b", "bf16", nullptr));
  for (const auto& [block, depth] : {std::pair<int64_t, int>{128 * kKiB, 4}, {kMiB, 1}, {kMiB, 4}, {4 * kMiB, 4}}) {
    auto rate = probe_disk_gb_s(path, block, depth, kDiskProbeSeconds);
    if (!rate.ok()) {
      log.log(LogLevel::kWarning, "disk not measured: " + rate.error().message);
      break;
    }
    report.rows.push_back(summarise(
        "machine.disk_gb_s.b" + std::to_string(block / kKiB) + "k.d" + std::to_string(depth), "GB/s", {*rate}));
  }
  return {};
}

Status bench_decode(const BenchOptions& options, LogSink& log, BenchReport& report) {
  Rig rig;
  TRY(open_rig(options, log, rig));
  std::vector<std::vector<double>> rates(options.batches.size());
  for (int round = 0; round <= options.rounds; ++round) {  // the first round warms up
    for (size_t i = 0; i < options.batches.size(); ++i) {
      BatchSpec spec = batch_spec(options, rig, options.batches[i]);
      spec.seed = static_cast<uint64_t>(round);
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      if (round > 0) rates[i].push_back(times.decode_tok_s());
    }
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  for (size_t i = 0; i < options.batches.size(); ++i) {
    const int rows = options.batches[i];
    BenchRow row = summarise("decode." + rig.label + ".b" + std::to_string(rows) + ".tok_s", "tok/s", rates[i]);
    row.bound = rows / decode_bound_s(rig, options, rows);
    report.rows.push_back(row);
  }
  return {};
}

Status bench_prefill(const BenchOptions& options, LogSink& log, BenchReport& report) {
  Rig rig;
  BenchOptions prefill = options;
  prefill.new_tokens = 1;
  TRY(open_rig(prefill, log, rig));
  std::vector<double> rates;
  for (int round = 0; round <= options.rounds; ++round) {
    BatchSpec spec = batch_spec(prefill, rig, 1);
    spec.seed = static_cast<uint64_t>(round);
    TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
    if (round > 0) rates.push_back(options.prompt_tokens / (static_cast<double>(times.first_token_ns[0]) * kNs));
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  BenchRow row =
      summarise("prefill." + rig.label + ".p" + std::to_string(options.prompt_tokens) + ".tok_s", "tok/s", rates);
  row.bound = rig.int8_gop_s * 1e9 * options.prompt_tokens /
              (2.0 * (rig.matmul_weights * options.prompt_tokens + rig.head_weights));
  report.rows.push_back(row);
  return {};
}

namespace {

// The same base-only batch with the adapters resident and with none registered, in pairs.
Status measure_tax(const BenchOptions& options, Rig& rig, const std::vector<std::string>& names,
                   const std::vector<std::string>& paths, const std::string& prefix, BenchReport& report) {
  std::vector<double> ratios;
  for (int pair = 0; pair < options.tax_pairs; ++pair) {
    double step_s[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const int loaded = (pair + turn) % 2;  // who goes first alternates
      for (size_t i = 0; loaded != 0 && i < names.size(); ++i)
        TRY(rig.runner->command(AdapterAction::kLoad, names[i], paths[i]));
      BatchSpec spec = batch_spec(options, rig, options.adapters);
      spec.new_tokens = std::max(8, options.new_tokens / 4);
      spec.seed = static_cast<uint64_t>(1000 + pair);
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      step_s[loaded] = 1.0 / times.decode_tok_s();
      if (loaded == 0) continue;
      for (size_t i = 0; i < names.size(); ++i) TRY(rig.runner->command(AdapterAction::kUnload, names[i], paths[i]));
    }
    ratios.push_back(step_s[1] / step_s[0]);
  }
  const Interval interval = median_interval(ratios);
  BenchRow row = summarise(prefix + ".base_tax", "ratio", ratios);
  char note[96];
  std::snprintf(note, sizeof note, "95 %% interval of the median %.4f .. %.4f", interval.low, interval.high);
  row.note = note;
  if (interval.high > 1.02 && interval.low < 1.02) row.note += ", not resolved at this noise";
  report.rows.push_back(row);
  report.targets.push_back({row.name + " (upper end of the interval)", "<=", 1.02, interval.high});
  return {};
}

}  // namespace

Status bench_mixed(const BenchOptions& options, LogSink& log, BenchReport& report) {
  Rig rig;
  TRY(open_rig(options, log, rig));
  std::vector<std::string> names, paths;
  TRY_ASSIGN(const double adapter_bytes, load_adapters(options, rig, names, paths));
  const int count = options.adapters;
  enum { kBase, kOne, kMany, kWays };
  std::vector<double> rates[kWays], ratios;
  for (int round = 0; round <= options.rounds; ++round) {
    double rate[kWays] = {};
    for (int turn = 0; turn < kWays; ++turn) {
      const int way = (turn + round) % kWays;
      BatchSpec spec = batch_spec(options, rig, count);
      spec.seed = static_cast<uint64_t>(round);
      if (way == kOne) spec.adapters = {names[0]};
      if (way == kMany) spec.adapters = names;
      TRY_ASSIGN(const BatchTimes times, rig.runner->run(spec));
      rate[way] = times.decode_tok_s();
      if (round > 0) rates[way].push_back(rate[way]);
    }
    if (round > 0) ratios.push_back(rate[kMany] / rate[kOne]);
    TRY(measure_ceilings(rig));
  }
  add_ceilings(rig, report);
  const std::string prefix =
      "mixed." + rig.label + (options.targets == "all" ? "" : "." + options.targets) + ".n" + std::to_string(count);
  report.rows.push_back(summarise(prefix + ".base_tok_s", "tok/s", rates[kBase]));
  report.rows.push_back(summarise(prefix + ".one_tok_s", "tok/s", rates[kOne]));
  report.rows.push_back(summarise(prefix + ".tok_s", "tok/s", rates[kMany]));
  const double step_s = count / summarise("", "", rates[kBase]).value;
  const double adapter_s = adapter_bytes / (rig.read_gb_s * 1e9);
  BenchRow ratio = summarise(prefix + ".ratio", "ratio", ratios);
  ratio.bound = (step_s + adapter_s) / (step_s + count * adapter_s);
  report.rows.push_back(ratio);
  report.targets.push_back({ratio.name + " / bound", ">=", 0.93, *ratio.fraction()});
  if (options.tax_pairs > 0) {
    for (size_t i = 0; i < names.size(); ++i) TRY(rig.runner->command(AdapterAction::kUnload, names[i], paths[i]));
    TRY(measure_tax(options, rig, names, paths, prefix, report));
  }
  return {};
}

}  // namespace loralei
