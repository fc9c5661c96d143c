// SPDX-License-Identifier: Apache-2.0
// loralei bench SCENARIO: flags to options, report to screen and files.
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>

#include "apps/console_log.h"
#include "apps/options.h"
#include "apps/version.h"
#include "base/units.h"
#include "bench/scenarios.h"
#include "sys/cpu.h"
#include "sys/env.h"

namespace loralei {
namespace {

// The measurement itself could not be made (docs/benchmarks.md).
constexpr int kExitNotMeasured = 3;

struct BenchFlags {
  std::string scenario;
  BenchOptions options;
  EngineFlags engine;
  std::string json, html;
};

std::string default_cache_dir() {
  if (const auto cache = env_string("XDG_CACHE_HOME"); cache && !cache->empty()) return *cache + "/loralei";
  return env_string("HOME").value_or(".") + "/.cache/loralei";
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Status run_scenario(BenchFlags& flags, LogSink& log, BenchReport& report) {
  if (flags.options.cache_dir.empty()) flags.options.cache_dir = default_cache_dir();
  if (flags.options.shape.empty() && flags.engine.host.model_path.empty()) flags.options.shape = "llama-1b";
  if (!flags.options.shape.empty()) {
    // Of a generated model --quant is the format it is made in; one's own model is re-encoded on load.
    if (!flags.engine.host.model_path.empty()) return invalid_argument("Name a model or a --shape, not both.");
    if (!flags.engine.quant.empty()) flags.options.quant = flags.engine.quant;
    flags.engine.quant.clear();
  }
  TRY_ASSIGN(flags.options.host, finish_engine_options(flags.engine));
  if (flags.scenario == "machine") return bench_machine(flags.options, log, report);
  if (flags.scenario == "decode") return bench_decode(flags.options, log, report);
  if (flags.scenario == "prefill") return bench_prefill(flags.options, log, report);
  return bench_mixed(flags.options, log, report);
}

int run_bench(BenchFlags& flags, const CLI::App& command) {
  ConsoleLog log(ConsoleLog::Options{});
  BenchReport report;
  report.scenario = flags.scenario;
  report.version = std::string(version_string()) + " " + commit_string() + " " + build_string();
  report.time = now_text();
  report.machine = {{"cpu", cpu_model_name()},
                    {"cores", std::to_string(usable_cpus())},
                    {"isa", isa_text(detect_isa())},
                    {"memory", format_bytes(total_memory_bytes())}};
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0) report.args[option->get_name()] = CLI::detail::join(option->results(), ",");
  }
  Status status = run_scenario(flags, log, report);
  if (status.ok()) {
    std::fputs(report_table(report).c_str(), stdout);
    if (!flags.json.empty()) status = write_text_file(flags.json, report_json(report));
  }
  if (status.ok() && !flags.html.empty()) status = write_text_file(flags.html, report_html(report));
  if (status.ok()) return 0;
  std::fprintf(stderr, "loralei bench: %s\n", status.error().message.c_str());
  return kExitNotMeasured;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Measure this machine and this program; see docs/benchmarks.md.");
  auto flags = std::make_shared<BenchFlags>();
  BenchOptions& options = flags->options;
  command->add_option("scenario", flags->scenario, "machine, decode, prefill or mixed")
      ->required()
      ->check(CLI::IsMember({"machine", "decode", "prefill", "mixed"}));
  command->add_option("--shape", options.shape, "generate a model: llama-1b or llama-7b");
  command->add_option("--cache-dir", options.cache_dir, "where generated files are kept");
  command->add_option("--batch", options.batches, "batch sizes")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--prompt", options.prompt_tokens, "prompt tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--gen", options.new_tokens, "generated tokens")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--adapters", options.adapters, "adapters in the batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--rank", options.rank, "rank of generated adapters")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command->add_option("--targets", options.targets, "qkvo or all")
      ->check(CLI::IsMember({"qkvo", "all"}))
      ->capture_default_str();
  command->add_option("--adapter", options.adapter_paths, "adapters of your own instead of generated ones")
      ->allow_extra_args(false);
  command->add_option("--rounds", options.rounds, "interleaved rounds; medians are of these")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--tax-pairs", options.tax_pairs, "pairs for the base tax; 0: leave it out")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command->add_option("--json", flags->json, "write the report as JSON");
  command->add_option("--html", flags->html, "write the report as one HTML page");
  add_engine_options(*command, flags->engine, ModelOption::kOptional);
  command->set_config("--config", "", "TOML file with any of these options");
  command->allow_config_extras(CLI::config_extras_mode::error);
  command->callback([flags, command, &exit_code] { exit_code = run_bench(*flags, *command); });
}

}  // namespace loralei
