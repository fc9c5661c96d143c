// SPDX-License-Identifier: Apache-2.0
// loralei bench SCENARIO: flags to options, report to screen and files.
#include <cstdio>
#include <functional>
#include <map>
#include <memory>

#include "apps/answers_file.h"
#include "apps/console_log.h"
#include "apps/options.h"
#include "apps/report_output.h"
#include "apps/simulation.h"
#include "apps/text_loading.h"
#include "apps/version.h"
#include "base/units.h"
#include "bench/scenarios.h"
#include "bench/server.h"
#include "bench/trace.h"
#include "cost/profile.h"
#include "sys/env.h"

namespace loralei {
namespace {

// The measurement itself could not be made (docs/benchmarks.md).
constexpr int kExitNotMeasured = 3;

struct BenchFlags {
  std::string scenario;
  BenchOptions options;
  ServerBenchOptions server;
  TraceBenchOptions trace;
  std::string answers, tokenizer;  // lengths
  double slo_first_ms = 0, slo_token_ms = 0;
  std::string simulate;  // trace: a profile
  std::string prefix_text;
  EngineFlags engine;
  bool gguf_adapters = false;
  ReportFlags output;
  std::string profile, shown;  // profile: the file to write; shown: a device to print
};

// Models that the scenario loads; machine and server need none.
Status choose_model(BenchFlags& flags) {
  const char* const shape = flags.scenario == "prefix" ? "llama-tiny" : "llama-1b";
  if (flags.options.shape.empty() && flags.engine.host.model_path.empty()) flags.options.shape = shape;
  if (flags.options.shape.empty()) return {};
  // Of a generated model --quant is the format it is made in; one's own model is
  // re-encoded on load.
  if (!flags.engine.host.model_path.empty()) return invalid_argument("Name a model or a --shape, not both.");
  if (!flags.engine.quant.empty()) flags.options.quant = flags.engine.quant;
  flags.engine.quant.clear();
  return {};
}

Status print_generated(const BenchFlags& flags, LogSink& log) {
  if (flags.options.shape.empty()) return invalid_argument("bench generate makes models of a --shape.");
  TRY_ASSIGN(const std::vector<std::string> paths, bench_generate(flags.options, flags.gguf_adapters, log));
  for (const std::string& path : paths) std::printf("%s\n", path.c_str());
  return {};
}

// The workload under virtual time, on the server's memory where no other is stated.
Status simulate_trace(const BenchFlags& flags, const TraceBenchOptions& options, BenchReport& report) {
  TRY_ASSIGN(const Profile profile, find_profile(flags.simulate));
  TRY_ASSIGN(const Workload workload, read_workload(options.workload));
  TRY_ASSIGN(const EngineHostOptions host, finish_engine_options(flags.engine));
  TRY_ASSIGN(const ServedMemory memory, ask_memory(options.url));
  sim::SimulationOptions simulation{.rank = flags.options.rank, .samples = kSimulationSamples};
  EngineOptions& engine = simulation.replica.engine = host.engine;
  const auto otherwise = [](int64_t& bytes, int64_t served) { bytes = bytes > 0 ? bytes : served; };
  otherwise(engine.kv_cache_bytes, memory.kv_bytes);
  otherwise(engine.adapter_bytes, memory.adapter_bytes);
  otherwise(engine.host_adapter_bytes, memory.host_adapter_bytes);
  TRY_ASSIGN(const sim::SimulatedRun run, sim::simulate(workload, profile, simulation));
  add_simulation("trace.", workload, run, options.objectives, report);
  return {};
}

Status run_trace_bench(const BenchFlags& flags, LogSink& log, BenchReport& report) {
  TraceBenchOptions options = flags.trace;
  options.url = flags.server.url;
  options.adapters = flags.options.adapter_paths;
  if (flags.slo_first_ms > 0) options.objectives.first_s = flags.slo_first_ms * 1e-3;
  if (flags.slo_token_ms > 0) options.objectives.token_s = flags.slo_token_ms * 1e-3;
  BenchReport simulated;  // first: what is wrong with it is told before the live run
  if (!flags.simulate.empty()) TRY(simulate_trace(flags, options, simulated));
  TRY(bench_trace(options, log, report));
  if (!flags.simulate.empty()) compare_with_simulated(simulated, report);
  return {};
}

Status make_profile(const BenchFlags& flags, LogSink& log, BenchReport& report) {
  Profile profile;
  TRY(bench_profile(flags.options, log, report, profile));
  if (!flags.profile.empty()) return write_text_file(flags.profile, profile_text(profile));
  std::fputs(profile_text(profile).c_str(), stdout);
  return {};
}

// Texts are cut from a file, in the model's own tokens.
Status run_prefix_bench(BenchFlags& flags, LogSink& log, BenchReport& report) {
  constexpr int64_t kTextBytesMost = int64_t{1} << 26;
  if (!flags.prefix_text.empty()) {
    if (!flags.options.shape.empty()) return invalid_argument("--text is for a --model with a tokenizer of its own.");
    TRY_ASSIGN(const BaseModelFile file, open_base_model(flags.options.host.model_path));
    TRY_ASSIGN(const std::shared_ptr<const TextModel> model,
               load_text_model(file, nullptr, flags.options.host.model_path));
    TRY_ASSIGN(const std::string text, PosixFileSystem().read_all(flags.prefix_text, kTextBytesMost));
    TRY_ASSIGN(flags.options.prefix.text, model->encode_text(text, false));
    if (flags.options.prefix.text.empty()) return invalid_argument("--text " + flags.prefix_text + " holds no text.");
  }
  return bench_prefix(flags.options, log, report);
}

Status run_scenario(BenchFlags& flags, LogSink& log, BenchReport& report) {
  if (flags.options.cache_dir.empty()) flags.options.cache_dir = default_cache_dir();
  flags.server.requests = flags.options.batches.front();
  flags.server.adapters = flags.options.adapters;
  flags.server.prompt_tokens = flags.options.prompts.front();
  flags.server.new_tokens = flags.options.new_tokens;
  flags.server.rounds = flags.options.rounds;
  if (flags.scenario == "server") return bench_server(flags.server, log, report);
  if (flags.scenario == "trace") return run_trace_bench(flags, log, report);
  if (flags.scenario == "lengths") {
    TRY_ASSIGN(const std::vector<AnsweredPrompt> answers, read_answers(flags.answers, flags.tokenizer));
    return bench_lengths(answers, report);
  }
  TRY(choose_model(flags));
  if (flags.scenario == "generate") return print_generated(flags, log);
  flags.engine.host.cache_dir = flags.options.cache_dir;
  TRY_ASSIGN(flags.options.host, finish_engine_options(flags.engine));
  flags.options.bounded_steps = flags.engine.step_time_ms.has_value();
  if (flags.scenario == "kv-codec") return bench_kv_codec(flags.options, log, report);
  if (flags.scenario == "machine") return bench_machine(flags.options, log, report);
  if (flags.scenario == "offload") return bench_offload(flags.options, log, report);
  if (flags.scenario == "decode") return bench_decode(flags.options, log, report);
  if (flags.scenario == "prefill") return bench_prefill(flags.options, log, report);
  if (flags.scenario == "blocking") return bench_blocking(flags.options, log, report);
  if (flags.scenario == "overflow") return bench_overflow(flags.options, log, report);
  if (flags.scenario == "profile") return make_profile(flags, log, report);
  if (flags.scenario == "prefix") return run_prefix_bench(flags, log, report);
  if (flags.scenario == "coldstart") return bench_coldstart(flags.options, log, report);
  if (flags.scenario == "flatness") return bench_flatness(flags.options, log, report);
  return bench_mixed(flags.options, log, report);
}

// A bench's own options say how many sequences there are and how long; a trace does not.
Status check_lengths(const BenchFlags& flags, const CLI::App& command) {
  for (const char* name : {"--max-num-seqs", "--max-model-len"}) {
    const CLI::Option* const option = command.get_option_no_throw(name);
    if (option != nullptr && option->count() > 0 && (flags.scenario != "trace" || flags.simulate.empty()))
      return invalid_argument(std::string(name) + " is for bench trace with --simulate; leave it out.");
  }
  return {};
}

// bench coldstart measures every way.
Status check_ways(const BenchFlags& flags, const CLI::App& command) {
  const CLI::Option* const way = command.get_option_no_throw("--cold-start");
  if (flags.scenario != "coldstart" || way == nullptr || way->count() == 0) return {};
  return invalid_argument(
      "bench coldstart compares the ways of --cold-start; name those that it is to measure with "
      "--ways, and leave --cold-start out.");
}

// Each round of prefix and coldstart starts an engine for every mode or way. CaraServe's
// adapters are of q, k and v; helpers have the cores that the engine leaves.
void own_defaults(BenchFlags& flags, const CLI::App& command) {
  constexpr int kPrefixRounds = 2, kColdRounds = 3, kColdFit = 32;
  const auto stated = [&](const char* name) {
    const CLI::Option* const option = command.get_option_no_throw(name);
    return option != nullptr && option->count() > 0;
  };
  if (flags.scenario == "prefix" && !stated("--rounds")) flags.options.rounds = kPrefixRounds;
  if (flags.scenario != "coldstart") return;
  if (!stated("--rounds")) flags.options.rounds = kColdRounds;
  if (!stated("--targets")) flags.options.targets = "qkv";
  if (!stated("--threads") && !flags.options.cold_start.plain) flags.engine.host.threads = 1;
  if (!stated("--population")) flags.options.populations = {128, 256, 512};
  if (!stated("--fit")) flags.options.fit = kColdFit;
  if (stated("--requests")) flags.options.cold_start.requests = flags.options.prefix.requests;
}

int run_bench(BenchFlags& flags, const CLI::App& command) {
  ConsoleLog log(ConsoleLog::Options{});
  BenchReport report;
  report.scenario = flags.scenario;
  report.version = std::string(version_string()) + " " + commit_string() + " " + build_string();
  say_where(report);
  report.args = stated_options(command);
  if (flags.scenario == "machine")
    for (const auto& [key, value] : report.machine) log.log(LogLevel::kInfo, key + ": " + value);
  own_defaults(flags, command);
  Status status = check_lengths(flags, command);
  if (status.ok()) status = check_ways(flags, command);
  if (status.ok()) status = run_scenario(flags, log, report);
  if (status.ok()) {
    // A profile that goes to standard output stands there alone.
    const bool profile_there = flags.scenario == "profile" && flags.profile.empty();
    if (!report.rows.empty()) std::fputs(report_table(report).c_str(), profile_there ? stderr : stdout);
    status = write_report_json(flags.output, report);
  }
  if (status.ok()) status = write_report_page(flags.output, report);
  if (status.ok()) return 0;
  print_error("bench", status.error());
  return kExitNotMeasured;
}

void add_offload_options(CLI::App* command, BenchOptions& options) {
  command->add_option("--budgets", options.budgets_gb, "offload: memory budgets in GB (1e9 bytes)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--policy", options.policies,
                   "offload: residency policies, in turn; also none (all streamed), sync (nothing read ahead), and "
                   "POLICY@SIZE (with that window)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--window", options.window_s, "offload, overflow: seconds of one measurement")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command
      ->add_option("--budget-minutes", options.budget_minutes,
                   "offload: no turn begins later under one budget, and the windows there are count; 0: no limit")
      ->check(CLI::Range(0.0, 600.0));
  command->add_option("--together", options.together, "offload: so many requests beside one alone, nothing else")
      ->check(CLI::Range(0, 4096));
  command
      ->add_option("--resident-pairs", options.resident_pairs,
                   "offload: pairs of a model grown from a budget to whole and one loaded whole, nothing else")
      ->check(CLI::Range(0, 10000));
}

void add_adapter_options(CLI::App& command, BenchFlags& flags) {
  BenchOptions& options = flags.options;
  command.add_option("--adapters", options.adapters, "adapters in the batch")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command
      .add_option(
          "--population", options.populations,
          "flatness: so many adapters are loaded and drawn from, each of a list in turn; coldstart: see --popularity")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--fit", options.fit, "overflow, coldstart with --popularity: adapters that memory has room for")
      ->check(CLI::Range(1, 16384))
      ->capture_default_str();
  command.add_flag("--gguf-adapters", flags.gguf_adapters, "generate adapters as GGUF files instead of PEFT folders");
  command.add_option("--rank", options.rank, "rank of generated adapters")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command.add_option("--targets", options.targets, "qkv, qkvo or all")
      ->check(CLI::IsMember({"qkv", "qkvo", "all"}))
      ->capture_default_str();
  command
      .add_option("--adapter", options.adapter_paths,
                  "adapters of your own instead of generated ones; trace: names of the server's, in the place of the "
                  "workload's")
      ->allow_extra_args(false);
}

void add_prefix_options(CLI::App& command, BenchFlags& flags) {
  PrefixBenchOptions& options = flags.options.prefix;
  command.add_option("--setups", options.setups, "prefix: rows of MobiLoRA's Table 1")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"S1", "S2", "S3", "S4", "S5"}))
      ->capture_default_str();
  command.add_option("--tasks", options.tasks, "prefix: conversation, writing")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"conversation", "writing"}))
      ->capture_default_str();
  command.add_option("--scale", options.scale, "prefix: of all lengths and of KV's memory")
      ->check(CLI::Range(0.03, 8.0))
      ->capture_default_str();
  command
      .add_option("--requests", options.requests,
                  "prefix, coldstart: of a round (default: 200; coldstart: those of about a minute)")
      ->check(CLI::Range(1, 100'000));
  command.add_option("--think", options.think_s, "prefix: seconds between an answer and the next request, in the mean")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command.add_option("--app-usage", options.app_usage,
                     "prefix: how likely each application follows each, a line of numbers for one (default: made up)");
  command.add_option("--agents", options.agents,
                     "prefix: agents' trajectories, as loralei workload reads them, instead");
  command.add_option("--questions", options.questions, "prefix: of the agents, under way together")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  command.add_option("--text", flags.prefix_text, "prefix: cut texts from this file (default: tokens drawn by chance)");
  command.add_option("--memory-trace", options.memory_trace, "prefix: file that gets memory by use in every step");
}

void add_cold_start_bench_options(CLI::App& command, ColdStartBenchOptions& options) {
  std::map<std::string, ColdStart> ways;
  for (size_t i = 0; i < kColdStartNames.size(); ++i) ways[kColdStartNames[i]] = static_cast<ColdStart>(i);
  command.add_option("--ways", options.ways, "coldstart: ways of --cold-start, beside cached")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(CLI::CheckedTransformer(ways))
      ->default_str("ondemand,layered,assisted,auto");
  command.add_option("--link", options.links_gb_s, "coldstart: links to the device in GB/s, each in turn")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.001, 10000.0));
  command
      .add_option("--link-ratio", options.link_ratios,
                  "coldstart: links over which an adapter's copy takes so many times the prefill of the median prompt "
                  "(default, without --link: 1)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.001, 1000.0));
  command.add_option("--load", options.loads, "coldstart: requests a second, of what cached completes")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0.01, 2.0))
      ->capture_default_str();
  command.add_option("--ranks", options.ranks, "coldstart: ranks of generated adapters, each in turn")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  command.add_option("--lengths", options.lengths, "coldstart: of prompts and answers, as loralei workload reads them")
      ->capture_default_str();
  command.add_option("--popularity", options.popularity,
                     "coldstart: a table of functions and their calls; each of --population adapters is as popular as "
                     "one of them (default: every request has an adapter of its own)");
  command.add_flag("--plain", options.plain,
                   "coldstart: first requests to adapters that lie in files, on the cores, and nothing else");
  command.add_flag(
      "--unused", options.unused,
      "coldstart: what early starts and helpers cost where nothing is cold, in --tax-pairs, and nothing else");
}

// Of scenarios that ask a running server.
void add_server_options(CLI::App& command, BenchFlags& flags) {
  command.add_option("--url", flags.server.url, "server, trace: a running server, http://HOST:PORT");
  command.add_option("--workload", flags.trace.workload, "trace: the requests, a file of loralei workload");
  command.add_option("--slo-ttft", flags.slo_first_ms, "trace: milliseconds to the first token that count as good")
      ->check(CLI::Range(0.0, 1e9));
  command
      .add_option("--slo-tpot", flags.slo_token_ms,
                  "trace: milliseconds of a request for each token of its answer that count as good")
      ->check(CLI::Range(0.0, 1e9));
  command.add_option(
      "--simulate", flags.simulate,
      "trace: a profile of that server's machine; the workload then runs through the simulator, too, and "
      "stands beside (state the server's own --max-num-seqs, --max-model-len, --max-num-batched-tokens, "
      "--step-time, --no-prefix-cache)");
  command.add_option("--answers", flags.answers,
                     "lengths: prompts and their answers, a JSON object with \"prompt\" and \"answer\" a line");
  command.add_option("--tokenizer", flags.tokenizer, "lengths: a folder with tokenizer.json or tokenizer.model");
  command.add_option("--peer-url", flags.server.peer_url, "server: a running llama-server with the same files");
  command.add_option("--label", flags.server.label, "server: the model's name in the rows")->capture_default_str();
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Measure this machine and this program; see docs/benchmarks.md.");
  auto flags = std::make_shared<BenchFlags>();
  BenchOptions& options = flags->options;
  flags->engine.speculate = "off";  // steps are measured, and bounds are those of a token a step
  command
      ->add_option("scenario", flags->scenario,
                   "machine, decode, prefill, mixed, blocking, flatness, overflow, offload, prefix, coldstart, "
                   "kv-codec, server, "
                   "trace, lengths or generate (makes files, prints their paths)")
      ->required()
      ->check(CLI::IsMember({"machine", "decode", "prefill", "mixed", "blocking", "flatness", "overflow", "offload",
                             "prefix", "coldstart", "kv-codec", "server", "trace", "lengths", "generate"}));
  command->add_option(
      "--shape", options.shape,
      "generate a model: llama-1b, llama3-1b, llama-7b, gemma3-1b, phi3-mini, qwen3-30b-a3b or qwen3-30b-a3b-skewed "
      "(docs/benchmarks.md)");
  command->add_option("--cache-dir", options.cache_dir, "where generated files are kept");
  command->add_option("--batch", options.batches, "batch sizes")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--prompt", options.prompts, "prompt tokens; prefill measures each of a list")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--context", options.context, "decode behind so many tokens, computed once and kept")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--gen", options.new_tokens, "generated tokens")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--temperature", options.temperature, "of the generated tokens; 0: the most likely one each time")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-p", options.top_p, "of the generated tokens, with a temperature")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_adapter_options(*command, *flags);
  command->add_option("--rounds", options.rounds, "interleaved rounds; medians are of these (prefix: 2)")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--tax-pairs", options.tax_pairs, "pairs for the base tax; 0: leave it out")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command->add_option("--long", options.long_prompt, "blocking: tokens of the long prompt that others wait behind")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  add_offload_options(command, options);
  command
      ->add_option("--foreign-cpu", options.foreign_max,
                   "cores other processes may use in a round that counts; others are repeated")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  add_prefix_options(*command, *flags);
  add_cold_start_bench_options(*command, options.cold_start);
  add_server_options(*command, *flags);
  add_report_options(*command, flags->output);
  add_engine_options(*command, flags->engine, ModelOption::kOptional);
  add_config_option(*command);
  command->callback([flags, command, &exit_code] { exit_code = run_bench(*flags, *command); });
}

void add_profile_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "profile",
      "Measure what this machine can do at most (memory, arithmetic, disk) or, with a model, what its steps and its "
      "adapters take: a file for loralei simulate.");
  auto flags = std::make_shared<BenchFlags>();
  BenchOptions& options = flags->options;
  flags->scenario = "machine";
  flags->engine.speculate = "off";
  options.rounds = 3;
  options.batches = {32};
  options.prompts = {1024};
  command->add_option("--shape", options.shape, "generate a model instead: llama-1b, llama3-1b, llama-7b, llama-tiny");
  command
      ->add_option("--adapter", options.adapter_paths,
                   "adapters to measure with (default: for a --shape, generated ones of four ranks)")
      ->allow_extra_args(false);
  command->add_option("--targets", options.targets, "of generated adapters: qkv, qkvo or all")
      ->check(CLI::IsMember({"qkv", "qkvo", "all"}))
      ->capture_default_str();
  command->add_option("--together", options.batches, "most requests at once")
      ->expected(1)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--prompt", options.prompts, "longest prompt in tokens")
      ->expected(1)
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  command->add_option("--minutes", options.minutes, "of measuring with a model")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  command->add_option("-o,--output", flags->profile, "the profile's file (default: standard output)");
  command->add_option("--step-log", options.step_log, "file that gets a line for every step of the measurement");
  command->add_option("--show", flags->shown, "print a profile that comes with the program, to start one by hand from")
      ->check(CLI::IsMember(device_names()));
  command->add_option("--rounds", options.rounds, "without a model: medians are of these")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--cache-dir", options.cache_dir, "where generated files are kept");
  add_report_options(*command, flags->output);
  add_engine_options(*command, flags->engine, ModelOption::kOptional);
  for (const char* taken : {"--max-num-seqs", "--max-model-len"}) command->remove_option(command->get_option(taken));
  command->callback([flags, command, &exit_code] {
    if (!flags->shown.empty()) {
      std::fputs(profile_text(*device_profile(flags->shown)).c_str(), stdout);
      return;
    }
    const bool with_model = !flags->options.shape.empty() || !flags->engine.host.model_path.empty();
    if (with_model) flags->scenario = "profile";
    exit_code = run_bench(*flags, *command);
  });
}

}  // namespace loralei
