// SPDX-License-Identifier: Apache-2.0
// The command line: one table of options per group makes --help, the config file and the
// documentation. Each group fills the plain options of one room; nothing else reads them.
// One thread, at start.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/device_choice.h"
#include "engine/engine_host.h"

namespace loralei {

// Byte sizes as users type them.
struct EngineFlags {
  EngineHostOptions host;
  std::string quant;
  std::string activations = "auto";
  std::string device = "auto";
  std::string kv_dtype;
  std::optional<MemorySharing> memory_sharing;  // none: by whether a budget is stated
  std::optional<KvSharing> kv_sharing;          // none: by `profile`
  std::string profile = "server";
  std::string memory_budget, kv_cache_memory, adapter_memory, host_adapter_memory, request_memory, kv_dir_size;
  std::string residency = "balanced";
  std::string speculate = "auto";
  std::string prefetch_window;
  std::string stream_shrink = "auto";
  std::string adapter_quant;
  std::string dtype = "auto";
  bool no_prefix_cache = false;
  std::optional<double> step_time_ms;
  GpuFlags gpu;
  std::optional<double> gpu_memory_utilization;  // as given; else GpuFlags' own
};

// MODEL and everything about the engine: memory, lengths, threads. Accepts the field's
// names (vLLM's, llama.cpp's) where they mean the same.
enum class ModelOption { kRequired, kOptional };
void add_engine_options(CLI::App& command, EngineFlags& flags, ModelOption model = ModelOption::kRequired);
// Checks and converts what was typed. A sentence names the flag.
Result<EngineHostOptions> finish_engine_options(const EngineFlags& flags);

// How many connections a server should take: as stated, or, with 0, every request that
// may run or wait and as many more as others need to be told that the queue is full,
// or that the server lives.
int64_t connections_wanted(int stated, const EngineOptions& engine);
// As many of them as `descriptors` open files leave room for; `note` says so where that
// is fewer. What is refused and what adapters' loads open never come out of one pot:
// where there are few, half of them are for files, and an eighth is for refusals.
struct Connections {
  int count = 0;
  int refusals = 0;
  std::string note;
};
inline constexpr int kRefusals = 64;          // told that there is no connection, not closed yet
inline constexpr int kFileDescriptors = 128;  // the model's and adapters' files, the process's own
inline constexpr int kOtherDescriptors = kRefusals + kFileDescriptors;
Connections connections_possible(int64_t wanted, int64_t descriptors);

// Why a command failed, on standard error.
void print_error(const char* command, const Error& error);
// What a size option says ("2GiB"): nothing where it was not given, refused where it is
// no size or none at all.
Status parse_size(const std::string& flag, const std::string& text, int64_t& bytes);
// --quant q8_0|q4_0: the formats that are made on load.
Status parse_weight_quant(const std::string& text, std::optional<DType>& quantise);
// --adapter-cache, --adapter-cache-weights and --adapter-prefetch.
void add_adapter_keeping_options(CLI::App& command, AdapterKeeping& keeping, const std::string& group = {});
// --cold-start and --assist-helpers.
void add_cold_start_options(CLI::App& command, EngineOptions& engine, const std::string& group = {});
CLI::Option* add_memory_sharing_option(CLI::App& command, std::optional<MemorySharing>& sharing);
CLI::Option* add_kv_eviction_option(CLI::App& command, KvEviction& eviction);
CLI::Option* add_kv_sharing_option(CLI::App& command, std::optional<KvSharing>& sharing);
CLI::Option* add_kv_delta_option(CLI::App& command, KvDelta& delta);
CLI::Option* add_kv_utility_option(CLI::App& command, KvUtility& utility);
// --schedule-policy, --predict-length and --fairness.
CLI::Option* add_schedule_policy_option(CLI::App& command, SchedulePolicy& policy);
CLI::Option* add_predict_length_option(CLI::App& command, LengthPrediction& prediction);
CLI::Option* add_fairness_option(CLI::App& command, Fairness& fairness);
// --stream-shrink auto|on|off, to be read with parse_stream_shrink.
CLI::Option* add_stream_shrink_option(CLI::App& command, std::string& stream_shrink);
// --cache-dir: where a packed model goes that cannot lie beside its source.
void add_cache_dir_option(CLI::App& command, std::string& cache_dir);
std::string default_cache_dir();
// --config: a TOML file whose keys are this command's options by their long names,
// without sections. What stands on the command line counts; a file that cannot be read
// and a key that is no option are refused.
CLI::Option* add_config_option(CLI::App& command);

// The variables LORALEI_MEMORY_BUDGET and the like stand for the options of the command
// and of those below it; the command line comes first, then they, then --config. `notes`
// gets a sentence for each LORALEI_ variable that is no option of any command: what is
// set for another one is no mistake.
void add_environment(CLI::App& command);
void note_unknown_variables(const CLI::App& command, std::vector<std::string>& notes);
// --help shows these options alone, --help-all the others, too.
void show_first(CLI::App& command, std::vector<std::string> names);
// Options of the commands, by their long names.
std::vector<std::string> option_names(const CLI::App& command);

// `notes`: about words that change nothing (command_words.h); outlive the command.
void add_serve_command(CLI::App& app, int& exit_code, const std::vector<std::string>& notes);
void add_run_command(CLI::App& app, int& exit_code, const std::vector<std::string>& notes);
void add_chat_command(CLI::App& app, int& exit_code);  // behind `serve`, whose options it takes
void add_inspect_command(CLI::App& app, int& exit_code);
void add_pack_command(CLI::App& app, int& exit_code);
void add_pull_command(CLI::App& app, int& exit_code);
void add_list_command(CLI::App& app, int& exit_code);
void add_pages_commands(CLI::App& app, int& exit_code);  // behind all others, which they describe
void add_calibrate_kv_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_profile_command(CLI::App& app, int& exit_code);
void add_workload_command(CLI::App& app, int& exit_code);
void add_simulate_command(CLI::App& app, int& exit_code);
void add_report_command(CLI::App& app, int& exit_code);
void add_route_command(CLI::App& app, int& exit_code);

}  // namespace loralei
