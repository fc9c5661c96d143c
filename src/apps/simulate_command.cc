// SPDX-License-Identifier: Apache-2.0
// loralei simulate: a workload on a profile, under virtual time.
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "apps/options.h"
#include "apps/report_output.h"
#include "apps/simulation.h"
#include "apps/version.h"
#include "cost/step_log.h"

namespace loralei {
namespace {

struct SimulateFlags {
  std::string profile, workload, memory_budget, kv_cache_memory, adapter_memory, host_adapter_memory, step_log, faults,
      predict_length = "history";
  double step_time_ms = 0, slo_first_ms = 0, slo_token_ms = 0;
  std::optional<MemorySharing> memory_sharing;
  bool no_prefix_cache = false;
  ReportFlags output;
  sim::SimulationOptions options;
};

Status parse_prediction(const std::string& text, sim::SimulationOptions& options) {
  if (text == "history") return {};
  for (const LengthPrediction prediction : {LengthPrediction::kLearned, LengthPrediction::kMaxTokens}) {
    if (text != kLengthPredictionNames[static_cast<size_t>(prediction)]) continue;
    options.replica.engine.scheduling.prediction = prediction;
    return {};
  }
  if (text == "oracle") {
    options.lengths_known = 1;
    return {};
  }
  double share = -1;
  if (text.starts_with("noisy:") && CLI::detail::lexical_cast(text.substr(6), share) && share >= 0 && share <= 1) {
    options.lengths_known = share;
    return {};
  }
  return invalid_argument(
      "--predict-length is history, learned, max-tokens, oracle or noisy:P with P from 0 to 1, not \"" + text + "\"");
}

// SEED or SEED:KIND,...
Status parse_faults(const std::string& text, sim::SimulationOptions& options) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  uint64_t seed = 0;
  if (!CLI::detail::lexical_cast(text.substr(0, colon), seed))
    return invalid_argument("--faults is a seed, or a seed and what goes wrong (7:replicas,etcd), not \"" + text +
                            "\"");
  options.faults = seed;
  if (colon == std::string::npos) return {};
  sim::FaultKinds& kinds = options.fault_kinds = {false, false, false, false};
  for (const std::string& kind : CLI::detail::split(text.substr(colon + 1), ',')) {
    bool* const known = kind == "engine"     ? &kinds.engine
                        : kind == "replicas" ? &kinds.replicas
                        : kind == "etcd"     ? &kinds.etcd
                        : kind == "cuts"     ? &kinds.cuts
                                             : nullptr;
    if (known == nullptr)
      return invalid_argument("--faults knows engine, replicas, etcd and cuts, not \"" + kind + "\"");
    *known = true;
  }
  const bool of_fleet = kinds.replicas || kinds.etcd || kinds.cuts;
  if (of_fleet && !options.etcd) return invalid_argument("--faults SEED:replicas, etcd and cuts need --etcd");
  return {};
}

Status finish_options(SimulateFlags& flags) {
  EngineOptions& engine = flags.options.replica.engine;
  engine.prefix_cache = !flags.no_prefix_cache;
  engine.step_time_ns = static_cast<int64_t>(flags.step_time_ms * 1e6);
  engine.memory_sharing = flags.memory_sharing.value_or(MemorySharing::kFixed);
  TRY(parse_size("--memory-budget", flags.memory_budget, engine.memory_budget_bytes));
  TRY(parse_size("--kv-cache-memory", flags.kv_cache_memory, engine.kv_cache_bytes));
  TRY(parse_size("--adapter-memory", flags.adapter_memory, engine.adapter_bytes));
  TRY(parse_size("--host-adapter-memory", flags.host_adapter_memory, engine.host_adapter_bytes));
  TRY(parse_faults(flags.faults, flags.options));
  return parse_prediction(flags.predict_length, flags.options);
}

ServedObjectives objectives_of(const SimulateFlags& flags) {
  ServedObjectives objectives;
  if (flags.slo_first_ms > 0) objectives.first_s = flags.slo_first_ms * 1e-3;
  if (flags.slo_token_ms > 0) objectives.token_s = flags.slo_token_ms * 1e-3;
  return objectives;
}

std::map<std::string, RoutePolicy> route_policies() {
  std::map<std::string, RoutePolicy> policies;
  for (size_t i = 0; i < kRoutePolicyNames.size(); ++i) policies[kRoutePolicyNames[i]] = static_cast<RoutePolicy>(i);
  return policies;
}

Status run_simulation(SimulateFlags& flags, BenchReport& report) {
  TRY(finish_options(flags));
  TRY_ASSIGN(const Profile profile, find_profile(flags.profile));
  TRY_ASSIGN(const Workload workload, read_workload(flags.workload));
  if (workload.empty()) return invalid_argument("the workload " + flags.workload + " has no request");
  std::unique_ptr<StepLog> step_log;
  if (!flags.step_log.empty()) {
    if (flags.options.replicas > 1) return invalid_argument("--step-log is for one replica");
    TRY_ASSIGN(step_log, StepLog::create(flags.step_log));
    flags.options.replica.on_step = [&step_log](const StepRecord& record) {
      step_log->add(record);
      if (record.step % 1024 == 0) step_log->flush(60'000);  // all of it, however fast time goes here
    };
  }
  const ServedObjectives objectives = objectives_of(flags);
  RouteObjectives& routed = flags.options.router.objectives;
  routed.first_token_s = objectives.first_s.value_or(routed.first_token_s);
  routed.token_s = objectives.token_s.value_or(routed.token_s);
  const auto begin = std::chrono::steady_clock::now();
  if (flags.output.any()) flags.options.samples = kSimulationSamples;
  TRY_ASSIGN(const sim::SimulatedRun run, sim::simulate(workload, profile, flags.options));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  add_simulation("simulate.", workload, run, objectives, report);
  // What differs from run to run goes elsewhere than what does not.
  std::fprintf(stderr, "%zu requests and %llu events in %.2f s\n", workload.size(),
               static_cast<unsigned long long>(run.events), took.count());
  return {};
}

int simulate_command(SimulateFlags& flags, const CLI::App& command) {
  BenchReport report;
  report.scenario = "simulate";
  report.version = std::string(version_string()) + " " + commit_string();
  report.args = stated_options(command);
  Status status = run_simulation(flags, report);
  if (status.ok()) {
    std::fputs(report_table(report).c_str(), stdout);
    status = write_report_json(flags.output, report);
  }
  say_where(report);  // which the JSON leaves out: it is the same wherever the simulation runs
  if (status.ok()) status = write_report_page(flags.output, report);
  if (status.ok()) return 0;
  print_error("simulate", status.error());
  return 1;
}

void add_machine_options(CLI::App& command, SimulateFlags& flags) {
  EngineOptions& engine = flags.options.replica.engine;
  command.add_option("--max-model-len", engine.max_model_len, "prompt and output tokens (default: the profile's)")
      ->check(CLI::Range(int64_t{0}, kMaxModelLen));
  command.add_option("--max-num-seqs", engine.max_sequences, "sequences computed together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--max-num-batched-tokens", engine.step_tokens, "token rows of one step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--step-time", flags.step_time_ms, "milliseconds of a step, as of serve (default: its own rule)")
      ->check(CLI::Range(0.0, 1e6));
  command.add_option("--kv-cache-memory", flags.kv_cache_memory, "bytes (default: the profile's)");
  command.add_option("--adapter-memory", flags.adapter_memory, "bytes where steps use them (default: the profile's)");
  command.add_option("--memory-budget", flags.memory_budget,
                     "with --memory-sharing joint: bytes for both together (default: their sum)");
  add_memory_sharing_option(command, flags.memory_sharing)->default_str("fixed");
  add_kv_eviction_option(command, engine.kv_eviction);
  add_kv_utility_option(command, engine.kv_utility);
  command.add_option("--host-adapter-memory", flags.host_adapter_memory,
                     "beside a device: bytes in host memory (default: the profile's)");
  add_adapter_keeping_options(command, engine.adapter_keeping);
  add_cold_start_options(command, engine);
  add_schedule_policy_option(command, engine.scheduling.policy);
  add_fairness_option(command, engine.scheduling.fairness);
  command
      .add_option("--predict-length", flags.predict_length,
                  "as of serve: history, learned or max-tokens; or what no server can know: oracle (the true length), "
                  "or noisy:P (that of a part P of the requests, some other's of the rest)")
      ->capture_default_str();
  command.add_flag("--adapters-in-memory", flags.options.replica.adapters_in_memory,
                   "adapters are in host memory before the first request (default: a first use reads the disk)");
  command.add_flag("--no-prefix-cache", flags.no_prefix_cache, "never reuse a prompt's beginning");
}

}  // namespace

void add_simulate_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Run a workload under virtual time: this server's own scheduling on another machine's speed.");
  auto flags = std::make_shared<SimulateFlags>();
  command
      ->add_option("--profile", flags->profile,
                   "the machine: a file of loralei profile, or one of " + CLI::detail::join(device_names(), ", "))
      ->required();
  command->add_option("--workload", flags->workload, "the requests: a file of loralei workload")->required();
  command->add_option("--replicas", flags->options.replicas, "so many servers")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--route", flags->options.router.policy, "which replica gets a request")
      ->transform(CLI::CheckedTransformer(route_policies()))
      ->default_str(kRoutePolicyNames[static_cast<size_t>(flags->options.router.policy)]);
  command->add_flag_callback(
      "--placement", [flags] { flags->options.router.placement.emplace(); },
      "replicas are asked to have in memory what is asked for much, packed by rank");
  command->add_option("--rank", flags->options.rank, "of adapters whose rank the workload does not say")
      ->check(CLI::Range(1, kMaxLoraRank))
      ->capture_default_str();
  command
      ->add_option("--routers", flags->options.routers, "so many in front of them; each gets every so-many-th request")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_flag("--etcd", flags->options.etcd, "servers and routers find each other through a simulated etcd");
  command->add_option("--faults", flags->faults,
                      "SEED: loads fail or take long, clients leave, memory changes, adapters come and go; with --etcd "
                      "servers die and come back, etcd is away, and some are cut off from it. SEED:KIND,...: only "
                      "engine, replicas, etcd, cuts");
  command->add_option("--slo-ttft", flags->slo_first_ms, "milliseconds to the first token: how many meet it")
      ->check(CLI::Range(0.0, 1e9));
  command
      ->add_option("--slo-tpot", flags->slo_token_ms,
                   "milliseconds of a request for each token of its answer: how many meet it")
      ->check(CLI::Range(0.0, 1e9));
  add_machine_options(*command, *flags);
  command->add_option("--step-log", flags->step_log, "file that gets a line for every step, of one replica");
  add_report_options(*command, flags->output);
  command->callback([flags, command, &exit_code] { exit_code = simulate_command(*flags, *command); });
}

}  // namespace loralei
