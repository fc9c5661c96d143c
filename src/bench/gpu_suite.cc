// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_suite.h"

#include <filesystem>

#include "bench/generate.h"

namespace loralei {
namespace {

constexpr double kForeignMax = 1e6;  // the cores' other work hardly shows in the steps of a GPU: no round is dropped

BenchOptions options_of(const GpuSuiteOptions& suite, bool batch_invariant = false) {
  BenchOptions options;
  options.shape = suite.shape;
  options.cache_dir = suite.cache_dir;
  options.targets = "qkv";
  options.rank = suite.rank;
  options.adapters = 0;
  options.batches = {suite.adapters};
  options.prompts = {suite.context};
  options.new_tokens = suite.new_tokens;
  options.rounds = suite.rounds;
  options.tax_pairs = 0;
  options.foreign_max = kForeignMax;
  options.host.device = suite.device(batch_invariant);
  options.host.threads = suite.threads;
  options.host.engine.speculate = Speculation::kOff;
  options.host.engine.adapter_rank_max = suite.rank;
  options.host.engine.memory_budget_bytes = suite.memory_budget_bytes;
  return options;
}

// Rows whose name ends so: the target of their value, or of their fraction.
void add_target(BenchReport& report, const std::string& ending, const char* op, double target) {
  for (const BenchRow& row : report.rows) {
    if (!row.name.ends_with(ending)) continue;
    if (row.fraction()) {
      report.targets.push_back({row.name + " / bound", op, target, *row.fraction()});
    } else {
      report.targets.push_back({row.name, op, target, row.value});
    }
  }
}

Status run_decode(const GpuSuiteOptions& suite, LogSink& log, BenchReport& report) {
  BenchOptions options = options_of(suite);
  options.batches = suite.batches;
  options.context = suite.context;
  TRY(bench_decode(options, log, report));
  for (const char* few : {".b1.tok_s", ".b8.tok_s"}) add_target(report, few, ">=", 0.80);
  for (const char* many : {".b32.tok_s", ".b128.tok_s"}) add_target(report, many, ">=", 0.70);
  return {};
}

BenchOptions prefill_options(const GpuSuiteOptions& suite, bool batch_invariant = false) {
  BenchOptions options = options_of(suite, batch_invariant);
  options.batches = {1};
  options.prompts = {suite.prompt};
  options.host.engine.step_tokens = suite.prompt;
  return options;
}

Status run_prefill(const GpuSuiteOptions& suite, LogSink& log, BenchReport& report) {
  TRY(bench_prefill(prefill_options(suite), log, report));
  add_target(report, ".tok_s", ">=", 0.65);
  return {};
}

Status run_mixed(const GpuSuiteOptions& suite, LogSink& log, BenchReport& report) {
  BenchOptions options = options_of(suite);
  options.adapters = suite.adapters;
  options.rounds = suite.pairs;
  TRY(bench_mixed(options, log, report));
  add_target(report, ".lora_tax", "<=", 1.10);
  return {};
}

constexpr int kLoading = 32;  // adapters' bytes that loads ask for while they are under way

// A generated adapter's bytes; what memory adds to them is alignment.
Result<int64_t> adapter_bytes(const GpuSuiteOptions& suite) {
  TRY_ASSIGN(const std::string path, generated_adapter(suite.cache_dir, suite.shape, "qkv", suite.rank, 0));
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path + "/adapter_model.safetensors", error));
  if (error) return io_error("Cannot look at '" + path + "': " + error.message() + ".");
  return bytes + bytes / 64;
}

// Host memory holds all of them.
Result<BenchOptions> population_options(const GpuSuiteOptions& suite) {
  BenchOptions options = options_of(suite);
  options.populations = {suite.few, suite.many};
  TRY_ASSIGN(const int64_t each, adapter_bytes(suite));
  options.host.engine.host_adapter_bytes = (suite.many + kLoading) * each;
  return options;
}

Status run_flatness(const GpuSuiteOptions& suite, LogSink& log, BenchReport& report) {
  TRY_ASSIGN(const BenchOptions options, population_options(suite));
  return bench_flatness(options, log, report);
}

Status run_overflow(const GpuSuiteOptions& suite, LogSink& log, BenchReport& report) {
  TRY_ASSIGN(BenchOptions options, population_options(suite));
  TRY_ASSIGN(const int64_t each, adapter_bytes(suite));
  options.host.engine.adapter_bytes = suite.resident * each;
  return bench_flatness(options, log, report);
}

// The same two figures with and without; the rows with it are named ".invariant".
Status run_invariant(const GpuSuiteOptions& suite, LogSink& log, BenchReport& report) {
  BenchReport reports[2];
  for (const bool batch_invariant : {false, true}) {
    BenchReport& each = reports[batch_invariant ? 1 : 0];
    BenchOptions decode = options_of(suite, batch_invariant);
    decode.batches = {suite.batches[1]};
    decode.context = suite.context;
    TRY(bench_decode(decode, log, each));
    TRY(bench_prefill(prefill_options(suite, batch_invariant), log, each));
  }
  for (size_t i = 0; i < reports[0].rows.size(); ++i) {
    const BenchRow& plain = reports[0].rows[i];
    BenchRow invariant = reports[1].rows[i];
    if (!plain.name.ends_with(".tok_s")) continue;  // ceilings
    report.rows.push_back(plain);
    invariant.name += ".invariant";
    report.rows.push_back(invariant);
    report.rows.push_back(summarise(plain.name + ".invariant_ratio", "ratio", {invariant.value / plain.value}));
  }
  return {};
}

struct Part {
  const char* name;
  Status (*run)(const GpuSuiteOptions&, LogSink&, BenchReport&);
};
constexpr Part kParts[] = {{"decode", run_decode},     {"prefill", run_prefill},   {"mixed", run_mixed},
                           {"flatness", run_flatness}, {"overflow", run_overflow}, {"invariant", run_invariant}};

}  // namespace

std::vector<std::string> gpu_parts() {
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  return names;
}

Status make_gpu_files(const GpuSuiteOptions& suite, LogSink& log) {
  BenchOptions options = options_of(suite);
  options.adapters = suite.adapters;
  TRY(bench_generate(options, false, log));
  return {};
}

Status run_gpu_part(const GpuSuiteOptions& suite, const std::string& part, LogSink& log, BenchReport& report) {
  for (const Part& each : kParts) {
    if (part == each.name) return each.run(suite, log, report);
  }
  std::string names;
  for (const std::string& name : gpu_parts()) names += (names.empty() ? "" : ", ") + name;
  return invalid_argument("The GPU benchmark has no part '" + part + "'; choose of " + names + ".");
}

}  // namespace loralei
