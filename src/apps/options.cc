// SPDX-License-Identifier: Apache-2.0
#include "apps/options.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "apps/version.h"
#include "base/limits.h"
#include "base/printable.h"
#include "base/units.h"
#include "formats/base_model.h"
#include "parallel/process_group.h"
#include "sys/cpu.h"
#include "sys/env.h"
#include "sys/hub_folder.h"

namespace loralei {
namespace {

// The parser's own set_config() reads the outermost command's file only.
void read_config(CLI::App& command, const std::string& path) {
  CLI::ConfigTOML toml;
  for (const CLI::ConfigItem& item : toml.from_file(path)) {
    CLI::Option* const option = item.parents.empty() ? command.get_option_no_throw("--" + item.name) : nullptr;
    if (option == nullptr) {
      const std::string what = item.parents.empty() ? item.name : "[" + item.parents.front() + "]";
      throw CLI::ConfigError("--config " + path + ": '" + what + "' is no option of " + command.get_name() +
                                 "; keys are its options' long names, without sections",
                             CLI::ExitCodes::ConfigError);
    }
    if (!option->empty()) continue;
    if (option->get_expected_max() == 0) {
      option->add_result(option->get_flag_value(item.name, toml.to_flag(item)));
    } else {
      option->add_result(item.inputs);
    }
    option->run_callback();
  }
}

constexpr const char* kVariableBegin = "LORALEI_";

std::string variable_of(const std::string& option) {
  std::string name = kVariableBegin;
  for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// --dtype asks for a format that the file must have: weights are never converted to
// another of floats.
Status check_dtype(const std::string& asked, const std::string& model_path, std::vector<std::string>& notes) {
  static const std::map<std::string, DType> kNames = {
      {"half", DType::kF16},      {"float16", DType::kF16}, {"fp16", DType::kF16},  {"f16", DType::kF16},
      {"bfloat16", DType::kBF16}, {"bf16", DType::kBF16},   {"float", DType::kF32}, {"float32", DType::kF32},
      {"fp32", DType::kF32},      {"f32", DType::kF32}};
  if (asked.empty() || asked == "auto") return {};
  const auto wanted = kNames.find(asked);
  if (wanted == kNames.end())
    return invalid_argument("--dtype is auto, float16, bfloat16 or float32, not '" + asked + "'.");
  TRY_ASSIGN(const BaseModelFile file, open_base_model(model_path));
  std::map<DType, int64_t> bytes;
  for (const TensorInfo& tensor : file.index.tensors) bytes[tensor.dtype] += tensor.bytes;
  const auto most = std::max_element(bytes.begin(), bytes.end(), [](auto& a, auto& b) { return a.second < b.second; });
  if (most != bytes.end() && most->first == wanted->second) {
    notes.push_back("--dtype " + asked + " changes nothing here: the model's file holds " +
                    std::string(dtype_info(most->first).name) + ", and weights keep their file's format.");
    return {};
  }
  return invalid_argument("--dtype " + asked + " cannot be had: the model's file holds " +
                          (most == bytes.end() ? "nothing" : std::string(dtype_info(most->first).name)) +
                          ", and weights keep their file's format. Leave --dtype out; --quant q8_0 or q4_0 makes them "
                          "smaller.");
}

// What --help shows are the options named first.
class FirstOptions final : public CLI::Formatter {
 public:
  explicit FirstOptions(std::vector<std::string> names) : names_(std::move(names)) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    all_ = app->get_option_no_throw("--help-all") == nullptr || app->count("--help-all") > 0;
    return CLI::Formatter::make_help(app, std::move(name), mode);
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    if (!all_ && !is_positional) {
      std::erase_if(options, [this](const CLI::Option* option) {
        const auto& longs = option->get_lnames();
        return std::none_of(longs.begin(), longs.end(), [this](const std::string& one) {
          return std::find(names_.begin(), names_.end(), one) != names_.end();
        });
      });
      if (options.empty()) return "";
    }
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
  }
  // One line each: the whole of it is in --help-all.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (all_) return CLI::Formatter::make_option_opts(option);
    return option->get_expected_max() == 0 ? "" : " VALUE";
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string text = CLI::Formatter::make_option_desc(option);
    return all_ ? text : text.substr(0, std::min(text.find("; "), text.find(" (")));
  }

 private:
  const std::vector<std::string> names_;
  mutable bool all_ = false;
};

// Of a command and of those below it.
void collect_variables(const CLI::App& command, std::set<std::string>& names) {
  for (const CLI::Option* option : command.get_options())
    if (!option->get_envname().empty()) names.insert(option->get_envname());
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    collect_variables(*below, names);
}

}  // namespace

void add_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (name != "help" && name != "help-all" && name != "version") option->envname(variable_of(name));
  }
  for (CLI::App* below : command.get_subcommands([](CLI::App*) { return true; })) add_environment(*below);
}

void note_unknown_variables(const CLI::App& command, std::vector<std::string>& notes) {
  const CLI::App* all = &command;
  while (all->get_parent() != nullptr) all = all->get_parent();
  // These are no options, or those of loralei-epp alone, which is another program.
  std::set<std::string> known = {"LORALEI_ISA", "LORALEI_FALLBACKS", "LORALEI_MAX_BODIES", "LORALEI_MAX_STREAMS",
                                 "LORALEI_METRICS_PORT"};
  collect_variables(*all, known);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string name(text.substr(0, text.find('=')));
    if (name.starts_with(kVariableBegin) && !known.contains(name))
      notes.push_back("The variable " + name + " is no option of " + command.get_name() + " and changes nothing.");
  }
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

void show_first(CLI::App& command, std::vector<std::string> names) {
  const auto formatter = std::make_shared<FirstOptions>(std::move(names));
  formatter->column_width(command.get_formatter()->get_column_width());
  command.formatter(formatter);
  command.set_help_all_flag("--help-all", "all options");
}

void print_error(const char* command, const Error& error) {
  std::fprintf(stderr, "loralei %s: %s\n", command, printable(error.message).c_str());
}

Status parse_size(const std::string& flag, const std::string& text, int64_t& bytes) {
  if (text.empty()) return {};
  auto parsed = parse_bytes(text);
  if (!parsed.ok()) return std::move(parsed).error().with_context(flag);
  if (*parsed == 0)
    return invalid_argument(flag + " " + text + " is less than a byte; give a unit (2GiB, 512MiB), or leave it out.");
  bytes = *parsed;
  return {};
}

Status parse_weight_quant(const std::string& text, std::optional<DType>& quantise) {
  if (text.empty()) return {};
  const auto dtype = parse_dtype(text);
  if (!dtype || (*dtype != DType::kQ8_0 && *dtype != DType::kQ4_0)) {
    return invalid_argument("--quant is q8_0 or q4_0, not '" + text +
                            "'; other formats come ready-made as GGUF files.");
  }
  quantise = *dtype;
  return {};
}

CLI::Option* add_config_option(CLI::App& command) {
  return command.add_option_function<std::string>(
      "--config", [&command](const std::string& path) { read_config(command, path); },
      "TOML file with any of these options; the command line comes first");
}

// How long sequences are, how many there may be, and what a step computes of them.
static void add_step_options(CLI::App& command, EngineFlags& flags, const std::string& group) {
  EngineOptions& engine = flags.host.engine;
  command
      .add_option(
          "-c,--max-model-len,--ctx-size", engine.max_model_len,
          "prompt + answer tokens of one sequence (default: the model's; with rope scaling more may be asked for)")
      ->check(CLI::Range(int64_t{0}, kMaxModelLen))
      ->group(group);
  command.add_option("--max-num-seqs,--parallel", engine.max_sequences, "sequences computed together")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096))
      ->group(group);
  command.add_option("--max-queued", engine.max_queued, "waiting requests before 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  command.add_option("--max-num-batched-tokens,-b,--batch-size", engine.step_tokens, "token rows of one step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16))
      ->group(group);
  command
      .add_option("--step-time", flags.step_time_ms,
                  "milliseconds that a step should take at most, by which prompts are cut into parts: who arrives or "
                  "decodes waits for the step under way (default: 100, or more where that would cost prompts over a "
                  "tenth of their speed)")
      ->check(CLI::Range(0.0, 1e6))
      ->group(group);
}

// Who may have how much memory, and what of it stays.
static void add_memory_options(CLI::App& command, EngineFlags& flags, const std::string& group) {
  command
      .add_option("--memory-budget", flags.memory_budget,
                  "bytes of host memory for everything, e.g. 4GiB (default: what is free); weights beyond it are "
                  "streamed from disk (never with a GPU: they pass through host memory whole)")
      ->group(group);
  command
      .add_option(
          "--residency", flags.residency,
          "which weights stay in memory while streaming: balanced, flex, layer-order, attn-first, ffn-first, none")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--prefetch-window", flags.prefetch_window,
                  "bytes of streamed weights on their way (default: 8MiB where every layer streams the same, 64MiB "
                  "where weights are shrunk, else what three layers stream, at most 128MiB)")
      ->group(group);
  add_stream_shrink_option(command, flags.stream_shrink)->group(group);
  command
      .add_option("--kv-cache-memory", flags.kv_cache_memory, "bytes for the KV cache (with a --device: of its memory)")
      ->group(group);
  command
      .add_option("--adapter-memory", flags.adapter_memory,
                  "bytes for loaded adapters (with a --device: for their copies in its memory)")
      ->group(group);
  add_memory_sharing_option(command, flags.memory_sharing)
      ->default_str("joint with --memory-budget, else fixed")
      ->group(group);
  add_kv_eviction_option(command, flags.host.engine.kv_eviction)->group(group);
  add_kv_utility_option(command, flags.host.engine.kv_utility)->group(group);
  add_kv_sharing_option(command, flags.kv_sharing)->group(group);
  add_kv_delta_option(command, flags.host.engine.kv_delta)->group(group);
  command
      .add_option("--kv-dir", flags.host.engine.kv_dir,
                  "folder in which prefixes are kept as well, below what memory holds, and found again after a restart")
      ->group(group);
  command
      .add_option("--kv-dir-size", flags.kv_dir_size, "bytes that the files of --kv-dir may take; the oldest go first")
      ->default_str("4GiB")
      ->group(group);
  command
      .add_option("--profile", flags.profile,
                  "what is left open: server, or edge (a machine that does other things as well: --memory-budget of a "
                  "quarter of its memory and --kv-sharing bounded)")
      ->capture_default_str()
      ->check(CLI::IsMember({"server", "edge"}))
      ->group(group);
  add_adapter_keeping_options(command, flags.host.engine.adapter_keeping, group);
  add_cold_start_options(command, flags.host.engine, group);
  add_schedule_policy_option(command, flags.host.engine.scheduling.policy)->group(group);
  add_predict_length_option(command, flags.host.engine.scheduling.prediction)->group(group);
  add_fairness_option(command, flags.host.engine.scheduling.fairness)->group(group);
  command
      .add_option("--request-memory", flags.request_memory,
                  "bytes reserved for requests and answers on their way (default: a part of the budget in 64, 12MiB to "
                  "256MiB); more is used where it is free")
      ->group(group);
  command
      .add_option(
          "--host-adapter-memory", flags.host_adapter_memory,
          "with a --device: bytes of host memory for loaded adapters, the tier behind the device's (default: as "
          "many as there, within a quarter and three quarters of what is left)")
      ->group(group);
}

// Which adapters are taken, and how they lie in memory.
static void add_adapter_options(CLI::App& command, EngineFlags& flags, const std::string& group) {
  EngineOptions& engine = flags.host.engine;
  command
      .add_option("--adapter-quant", flags.adapter_quant,
                  "int8: keep loaded adapters' low-rank factors in a byte a number (default: as their files hold them)")
      ->group(group);
  command.add_option("--adapter-strict", engine.adapter_strict, "refuse adapters that ask for what is not applied")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-lora-rank", engine.adapter_rank_max, "refuse adapters of a higher rank (default: no limit)")
      ->check(CLI::Range(0, 4096))
      ->group(group);
}

static void add_core_options(CLI::App& command, EngineFlags& flags, const std::string& group) {
  command.add_option("-t,--threads", flags.host.threads, "worker threads (default: the cores of this process)")
      ->check(CLI::Range(0, 1024))
      ->group(group);
  command
      .add_option(
          "--tensor-parallel", flags.host.tensor_parallel,
          "ranks that compute the model together, each with its part of the weights and its share of --threads; "
          "with 1 (default) the cores share every product instead")
      ->check(CLI::Range(1, 64))
      ->group(group);
}

void add_engine_options(CLI::App& command, EngineFlags& flags, ModelOption model) {
  const std::string group = "Model and engine";
  CLI::Option* path =
      command.add_option("model,-m,--model", flags.host.model_path, "Hugging Face directory or GGUF file")
          ->group(group);
  if (model == ModelOption::kRequired) path->required();
  command.add_option("--quant,--quantization", flags.quant, "re-encode weights on load: q8_0 or q4_0")->group(group);
  command
      .add_option(
          "--activations", flags.activations,
          "how layer inputs meet weights: auto (rounded to int8 for quantised weights, to bf16 for bf16 ones where "
          "the processor multiplies those), int8 (the first alone), or f32 (as they are, slow)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "int8", "f32"}))
      ->group(group);
  command
      .add_option("--device", flags.device,
                  "where steps are computed: cpu, cuda:N (see --enforce-eager), or auto "
                  "(cpu for now); for tests and sizing without a GPU emulated:GB_S[,US]: the cores, with adapters "
                  "copied to a memory of their own over a link of so many GB/s and microseconds a copy")
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--enforce-eager", flags.gpu.enforce_eager,
                "steps on a GPU are launched kernel by kernel instead of as recorded graphs")
      ->group(group);
  command
      .add_flag(
          "--batch-invariant", flags.gpu.batch_invariant,
          "a row's numbers never depend on the rows beside it nor on what was cached: always so on the CPU; a GPU "
          "then computes every step as it does small ones, which is slower for prompts and many sequences")
      ->group(group);
  command
      .add_option("--gpu-memory-utilization", flags.gpu_memory_utilization,
                  "share of a GPU's memory that this server may use, above 0 and at most 1 (default: 0.9), and never "
                  "more than is free on it at start; of an emulated device the share of this machine's free memory "
                  "(default: 0.5)")
      ->group(group);
  command
      .add_option("--dtype", flags.dtype,
                  "auto, or the format of the model's file (float16, bfloat16, float32): weights keep it")
      ->group(group);
  add_core_options(command, flags, group);
  add_step_options(command, flags, group);
  add_memory_options(command, flags, group);
  command
      .add_option("--kv-cache-dtype", flags.kv_dtype,
                  "f32, f16, bf16, int8 or fp8 (e4m3; both with one scale a vector; default: f32 for f32 models, else "
                  "f16)")
      ->group(group);
  command
      .add_flag("--no-prefix-cache,--no-enable-prefix-caching", flags.no_prefix_cache,
                "do not keep KV for later requests")
      ->group(group);
  command
      .add_option(
          "--speculate", flags.speculate,
          "guess tokens ahead from what the text said before, for the same text in fewer steps: lookup (always), "
          "off, auto (while weights are streamed)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "off", "lookup"}))
      ->group(group);
  add_adapter_options(command, flags, group);
}

int64_t connections_wanted(int stated, const EngineOptions& engine) {
  constexpr int64_t kMore = 256;
  return stated > 0 ? stated : int64_t{engine.max_sequences} + engine.max_queued + kMore;
}

Connections connections_possible(int64_t wanted, int64_t descriptors) {
  const int64_t files = std::min<int64_t>(kFileDescriptors, descriptors / 2);
  const int64_t refusals = std::clamp<int64_t>(descriptors / 8, 1, kRefusals);
  const int64_t room = std::max<int64_t>(descriptors - files - refusals, 1);
  if (wanted <= room) return {static_cast<int>(wanted), static_cast<int>(refusals), ""};
  return {static_cast<int>(room), static_cast<int>(refusals),
          "At most " + std::to_string(room) + " connections are taken, not " + std::to_string(wanted) +
              ": the system lets this process have " + std::to_string(descriptors) +
              " files open. Raise its hard limit (ulimit -Hn), or give --max-connections or a smaller --max-queued."};
}

CLI::Option* add_memory_sharing_option(CLI::App& command, std::optional<MemorySharing>& sharing) {
  return command
      .add_option("--memory-sharing", sharing,
                  "what is left beside weights: fixed (the KV cache and adapters keep the shares that they have at "
                  "start) or joint (those are floors, and whoever saves more time with it has the rest)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, MemorySharing>{{"fixed", MemorySharing::kFixed}, {"joint", MemorySharing::kJoint}}));
}
CLI::Option* add_kv_eviction_option(CLI::App& command, KvEviction& eviction) {
  return command
      .add_option("--kv-eviction", eviction,
                  "which prefix leaves first: lru (the one used longest ago), density (the one that is expected to "
                  "save the least time of computing prompts) or utility (by the applications that use it, its last use "
                  "and its length; see --kv-eviction-weights)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, KvEviction>{
          {"lru", KvEviction::kLru}, {"density", KvEviction::kDensity}, {"utility", KvEviction::kUtility}}))
      ->default_str("density");
}
CLI::Option* add_kv_utility_option(CLI::App& command, KvUtility& utility) {
  return command
      .add_option_function<std::vector<double>>(
          "--kv-eviction-weights",
          [&utility](const std::vector<double>& weights) {
            utility = {weights[0], weights[1], weights[2]};
          },
          "of its applications' states, its last use and its length, for --kv-eviction utility")
      ->expected(3)
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1e6))
      ->default_str("0.5,0.4,0.1");
}
CLI::Option* add_kv_sharing_option(CLI::App& command, std::optional<KvSharing>& sharing) {
  return command
      .add_option("--kv-sharing", sharing,
                  "how prefixes that nobody uses now are kept: exact (as they were computed), lossless (encoded, bit "
                  "for bit: with --kv-cache-dtype int8 or fp8), bounded (encoded within steps of each channel's "
                  "scale, as differences from the base model's where these are kept: several times as many fit) or "
                  "borrow (and adapters compute prompts from the layer on up to which calibrate-kv found that they may "
                  "read the base model's)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, KvSharing>{{"exact", KvSharing::kExact},
                                                                           {"lossless", KvSharing::kLossless},
                                                                           {"bounded", KvSharing::kBounded},
                                                                           {"borrow", KvSharing::kBorrow}}))
      ->default_str("exact");
}

CLI::Option* add_kv_delta_option(CLI::App& command, KvDelta& delta) {
  return command
      .add_option("--kv-delta", delta,
                  "how differences from the base model's are told where --kv-sharing bounded or borrow encodes a float "
                  "cache: steps (within steps of each channel's scale) or paper (the absolute bounds of MobiLoRA, to "
                  "compare with)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, KvDelta>{{"steps", KvDelta::kSteps}, {"paper", KvDelta::kPaper}}))
      ->default_str("steps");
}

// What `edge` says of what was not stated.
void apply_profile(const EngineFlags& flags, EngineOptions& engine) {
  constexpr int64_t kEdgePart = 4;  // of the machine's memory
  const bool edge = flags.profile == "edge";
  engine.kv_sharing = flags.kv_sharing.value_or(edge ? KvSharing::kBounded : KvSharing::kExact);
  if (edge && engine.memory_budget_bytes == 0) engine.memory_budget_bytes = total_memory_bytes() / kEdgePart;
}

CLI::Option* add_schedule_policy_option(CLI::App& command, SchedulePolicy& policy) {
  return command
      .add_option(
          "--schedule-policy,--scheduling-policy", policy,
          "who is computed next: fifo (in order of arrival; also fcfs, lpm), sjf (the shortest by prediction, those "
          "that wait long rise), wrs (queues by size, each with its part of the server) or priority (by the number "
          "that requests bring, the lower first)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, SchedulePolicy>{{"fifo", SchedulePolicy::kFifo},
                                                                                {"sjf", SchedulePolicy::kSjf},
                                                                                {"wrs", SchedulePolicy::kWrs},
                                                                                {"fcfs", SchedulePolicy::kFifo},
                                                                                {"priority", SchedulePolicy::kPriority},
                                                                                {"lpm", SchedulePolicy::kFifo}}))
      ->default_str("fifo");
}
CLI::Option* add_predict_length_option(CLI::App& command, LengthPrediction& prediction) {
  return command
      .add_option("--predict-length", prediction,
                  "for sjf and wrs, how long an answer will be: history (as those of its adapter and of prompts as "
                  "long), learned (and as the words of its prompt say) or max-tokens (as long as its request allows)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LengthPrediction>{{"history", LengthPrediction::kHistory},
                                                  {"learned", LengthPrediction::kLearned},
                                                  {"max-tokens", LengthPrediction::kMaxTokens}}))
      ->default_str("history");
}
CLI::Option* add_fairness_option(CLI::App& command, Fairness& fairness) {
  return command
      .add_option("--fairness", fairness,
                  "between API keys (of a workload: apps): none, or vtc (in each queue the key that has had the fewest "
                  "tokens so far is asked first, a token of an answer counting as two of a prompt)")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, Fairness>{{"none", Fairness::kNone}, {"vtc", Fairness::kVtc}}))
      ->default_str("none");
}
CLI::Option* add_stream_shrink_option(CLI::App& command, std::string& stream_shrink) {
  return command
      .add_option("--stream-shrink", stream_shrink,
                  "store bf16 and f16 weights without loss in less space for streaming: on, off, or auto (where this "
                  "machine decodes twice as fast as its disk reads)")
      ->capture_default_str();
}
void add_cache_dir_option(CLI::App& command, std::string& cache_dir) {
  command
      .add_option("--cache-dir", cache_dir,
                  "folder for packed models that cannot lie beside their source (default: " + default_cache_dir() + ")")
      ->group("Model and engine");
}
std::string default_cache_dir() {
  if (const auto cache = env_string("XDG_CACHE_HOME"); cache && !cache->empty()) return *cache + "/loralei";
  return env_string("HOME").value_or(".") + "/.cache/loralei";
}

// A limit that no request states is all that the model allows.
void note_limits_as_lengths(const SchedulingOptions& scheduling, std::vector<std::string>& notes) {
  if (scheduling.policy != SchedulePolicy::kWrs || scheduling.prediction != LengthPrediction::kMaxTokens) return;
  notes.push_back(
      "--predict-length max-tokens takes requests without max_tokens for as long as --max-model-len allows, and few of "
      "those fill the queues of --schedule-policy wrs; where clients state no limits, choose history or learned.");
}

// Whoever states a budget means it to be used. Where none is stated, others on the
// machine want what prefixes would fill.
static Result<MemorySharing> memory_sharing_of(const EngineFlags& flags, int64_t budget_bytes) {
  if (flags.memory_sharing == MemorySharing::kJoint && started_processes() > 1) {
    return unsupported(
        "Ranks that are processes have each a KV cache and shares of memory of their own: leave --memory-sharing joint "
        "out, or take threads (the same --tensor-parallel without mpirun).");
  }
  return flags.memory_sharing.value_or(budget_bytes == 0 ? MemorySharing::kFixed : MemorySharing::kJoint);
}

Result<EngineHostOptions> finish_engine_options(const EngineFlags& flags) {
  EngineHostOptions options = flags.host;
  options.isa = env_string("LORALEI_ISA").value_or("");
  options.build = std::string(version_string()) + "-" + commit_string();
  options.engine.prefix_cache = !flags.no_prefix_cache;
  options.engine.step_time_ns = static_cast<int64_t>(flags.step_time_ms.value_or(0) * 1e6);
  if (flags.speculate == "off") options.engine.speculate = Speculation::kOff;
  if (flags.speculate == "lookup") options.engine.speculate = Speculation::kLookup;
  if (flags.activations == "int8") options.activations = Activations::kInt8;
  if (flags.activations == "f32") options.activations = Activations::kF32;
  TRY(parse_size("--memory-budget", flags.memory_budget, options.engine.memory_budget_bytes));
  apply_profile(flags, options.engine);
  TRY_ASSIGN(options.engine.memory_sharing, memory_sharing_of(flags, options.engine.memory_budget_bytes));
  TRY(parse_size("--prefetch-window", flags.prefetch_window, options.residency.window_bytes));
  TRY_ASSIGN(options.residency.policy, parse_residency_policy(flags.residency));
  GpuFlags gpu = flags.gpu;
  gpu.memory_utilization = flags.gpu_memory_utilization;
  if (const double share = gpu.memory_utilization.value_or(1); !(share > 0 && share <= 1))
    return invalid_argument(
        "--gpu-memory-utilization is a share of the GPU's memory, above 0 and at most 1, like 0.9.");
  TRY_ASSIGN(options.device, choose_device(flags.device, gpu));
  if (flags.gpu_memory_utilization && !options.device) {
    options.notes.push_back(
        "--gpu-memory-utilization says nothing here: the cores compute (--device cuda:N would use a GPU); host memory "
        "is limited with --memory-budget.");
  }
  if (flags.gpu.enforce_eager && !is_gpu(flags.device))
    options.notes.push_back("--enforce-eager says nothing here: the cores compute, and nothing is recorded for them.");
  note_limits_as_lengths(options.engine.scheduling, options.notes);
  TRY_ASSIGN(options.stream_shrink, parse_stream_shrink(flags.stream_shrink));
  if (options.cache_dir.empty()) options.cache_dir = default_cache_dir();
  TRY(parse_size("--kv-cache-memory", flags.kv_cache_memory, options.engine.kv_cache_bytes));
  TRY(parse_size("--kv-dir-size", flags.kv_dir_size, options.engine.kv_dir_bytes));
  TRY(parse_size("--adapter-memory", flags.adapter_memory, options.engine.adapter_bytes));
  TRY(parse_size("--request-memory", flags.request_memory, options.engine.request_bytes));
  TRY(parse_size("--host-adapter-memory", flags.host_adapter_memory, options.engine.host_adapter_bytes));
  if (options.engine.host_adapter_bytes > 0 && !options.device) {
    options.notes.push_back(
        "--host-adapter-memory says nothing here: the cores compute, and adapters have host memory alone "
        "(--adapter-memory).");
  }
  TRY(parse_weight_quant(flags.quant, options.quantise));
  TRY_ASSIGN(const std::optional<HubFolder> hub, find_hub_folder(PosixFileSystem(), options.model_path));
  if (hub) options.model_path = hub->path;
  TRY(check_dtype(flags.dtype, options.model_path, options.notes));
  if (!flags.adapter_quant.empty() && flags.adapter_quant != "none") {
    if (flags.adapter_quant != "int8") {
      return invalid_argument("--adapter-quant is int8 or none, not '" + flags.adapter_quant +
                              "'; none keeps adapters as their files hold them.");
    }
    options.engine.adapter_int8 = true;
  }
  if (!flags.kv_dtype.empty() && flags.kv_dtype != "auto") {
    const auto dtype = parse_dtype(flags.kv_dtype == "float16"    ? "f16"
                                   : flags.kv_dtype == "bfloat16" ? "bf16"
                                   : flags.kv_dtype == "fp8_e4m3" ? "fp8"
                                                                  : flags.kv_dtype);
    if (!dtype || is_quantised(*dtype))
      return invalid_argument("--kv-cache-dtype is f32, f16, bf16, int8 or fp8, not '" + flags.kv_dtype + "'.");
    options.engine.kv_dtype = *dtype;
  }
  return options;
}

}  // namespace loralei
