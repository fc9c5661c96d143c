// SPDX-License-Identifier: Apache-2.0
// loralei inspect PATH [--base MODEL] [--memory-budget BYTES]: what a model or adapter
// holds; with --base, whether and how the adapter applies; with a budget, what of the
// model is locked and what is streamed.
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "adapters/adapter.h"
#include "apps/console_log.h"
#include "apps/hub_flags.h"
#include "apps/options.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/printable.h"
#include "base/units.h"
#include "bench/probes.h"
#include "engine/engine_host.h"
#include "formats/base_model.h"
#include "formats/foreign_files.h"
#include "formats/gguf.h"
#include "formats/json_util.h"
#include "formats/peft_config.h"
#include "formats/refusals.h"
#include "formats/safetensors.h"
#include "model/linear_state.h"
#include "ops/probe.h"
#include "sys/cpu.h"
#include "sys/file.h"
#include "sys/process.h"
#include "sys/rooted_file_system.h"
#include "weights/read_units.h"
#include "weights/tensor_reader.h"

namespace loralei {
namespace {

struct InspectFlags {
  std::string path, base, memory_budget;
  std::string residency = "balanced";
  int tensor_parallel = 1;
  HubFlags hub;
};

// Much of what is shown is what files say.
void line(const std::string& name, const std::string& value) {
  std::printf("%-18s %s\n", printable(name).c_str(), printable(value).c_str());
}

template <typename List>
std::string joined(const List& list) {
  std::string text;
  for (const auto& item : list) {
    if (!text.empty()) text += ", ";
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, std::string>) {
      text += item;
    } else {
      text += std::to_string(item);
    }
  }
  return text;
}

std::string number_text(double number) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", number);
  return text.data();
}

std::string rope_text(const ModelConfig& config) {
  static constexpr const char* kKinds[] = {"none", "linear", "llama3", "yarn", "dynamic", "longrope"};
  std::string text = "theta " + std::to_string(static_cast<int64_t>(config.rope_theta)) + ", scaling " +
                     kKinds[static_cast<int>(config.rope_scaling.kind)];
  if (config.rope_scaling.kind == RopeScalingKind::kLongRope)
    return text + " beyond " + std::to_string(original_position_of(config)) + " tokens";
  if (config.rope_scaling.kind != RopeScalingKind::kNone) text += " by " + std::to_string(config.rope_scaling.factor);
  return config.sliding_rope ? text + "; with a window: " + rope_text(with_sliding_rope(config)) : text;
}

std::string positions_text(const ModelConfig& config) {
  const std::string text = std::to_string(config.max_position);
  if (config.rope_scaling.kind == RopeScalingKind::kDynamic) return text + ", more with --max-model-len";
  const int64_t reached = positions_reached(config);
  return reached == config.max_position ? text : text + ", up to " + std::to_string(reached) + " with --max-model-len";
}

void show_tensors(const std::vector<TensorInfo>& tensors) {
  std::map<DType, std::pair<int, int64_t>> by_dtype;
  int64_t total = 0;
  for (const TensorInfo& tensor : tensors) {
    ++by_dtype[tensor.dtype].first;
    by_dtype[tensor.dtype].second += tensor.bytes;
    total += tensor.bytes;
  }
  line("tensors", std::to_string(tensors.size()) + ", " + format_bytes(total));
  for (const auto& [dtype, sum] : by_dtype) {
    line("  " + std::string(dtype_info(dtype).name), std::to_string(sum.first) + ", " + format_bytes(sum.second));
  }
}

void show_model(const BaseModelFile& file) {
  const ModelConfig& config = file.config;
  line("model", file.path);
  line("kind", file.is_gguf ? "GGUF file" : "Hugging Face directory");
  line("architecture", config.architecture);
  line("layers", std::to_string(config.layers));
  line("hidden / ffn", std::to_string(config.hidden) + " / " + std::to_string(config.ffn));
  if (has_linear(config)) {
    line("linear attention", "in " + std::to_string(config.layers - kv_layers(config)) + " layers, " +
                                 format_bytes(state_floats(config) * int64_t{sizeof(float)}) +
                                 " of state for each sequence");
  }
  if (config.experts.count > 0) {
    line("experts",
         std::to_string(config.experts.count) + " of " + std::to_string(config.experts.width) + ", " +
             std::to_string(config.experts.used) + " of them for each row" +
             (config.experts.shared_width > 0 ? ", beside one of " + std::to_string(config.experts.shared_width) : ""));
  }
  line("heads", std::to_string(config.heads) + ", KV " + std::to_string(config.kv_heads) + ", of " +
                    std::to_string(config.head_dim));
  line("vocabulary", std::to_string(config.vocab) + (config.tied_head ? ", head tied to the embedding" : ""));
  line("positions", positions_text(config));
  line("rope", rope_text(config));
  line("end of sequence", joined(config.eos));
  if (!file.quantised.empty()) line("quantised", file.quantised);
  show_tensors(file.index.tensors);
  for (const std::string& note : file.notes) line("note", note);
}

Status show_mlx_folder(const FileSystem& files, const std::string& path) {
  const std::string config_path = join_path(path, "adapter_config.json");
  TRY_ASSIGN(const std::string text, files.read_all(config_path, kMaxJsonBytes));
  TRY_ASSIGN(const Json config, parse_json_object(text, config_path, kMaxJsonBytes));
  TRY_ASSIGN(const auto kind, json_string(config, "fine_tune_type", config_path));
  TRY_ASSIGN(const auto model, json_string(config, "model", config_path));
  line("adapter", path);
  line("kind", "of mlx-lm, " + kind.value_or("lora"));
  line("made for", model.value_or("(not stated)"));
  if (const Json* const lora = json_find(config, "lora_parameters")) line("parameters", json_brief(*lora));
  TRY_ASSIGN(const SafetensorsHeader header, read_safetensors(files, join_path(path, "adapters.safetensors")));
  show_tensors(header.tensors);
  std::printf("Give --base MODEL to see whether and how it applies.\n");
  return {};
}

Status show_peft_folder(const FileSystem& files, const std::string& path) {
  if (!files.exists(join_path(path, "adapter_model.safetensors")) &&
      files.exists(join_path(path, "adapters.safetensors")))
    return show_mlx_folder(files, path);
  const std::string config_path = join_path(path, "adapter_config.json");
  TRY_ASSIGN(const std::string text, files.read_all(config_path, kMaxJsonBytes));
  TRY_ASSIGN(const PeftConfig config, parse_peft_config(text, config_path, false));
  line("adapter", path);
  line("made for", config.base_model.empty() ? "(not stated)" : config.base_model);
  line("rank / alpha",
       std::to_string(config.rank) + " / " + std::to_string(config.alpha) + (config.rslora ? ", rank-stabilised" : ""));
  line("targets",
       config.all_linear ? "all linear layers" : config.target_pattern.value_or(joined(config.target_names)));
  if (!config.modules_to_save.empty()) line("saved whole", joined(config.modules_to_save));
  if (!config.alora_invocation.empty()) line("activated by", joined(config.alora_invocation));
  TRY(check_adapter_files(files, path));
  TRY_ASSIGN(const SafetensorsHeader header, read_safetensors(files, join_path(path, "adapter_model.safetensors")));
  show_tensors(header.tensors);
  std::map<std::string, int> others;
  for (const ForeignTensor& tensor : header.foreign) ++others[tensor.dtype];
  for (const auto& [dtype, count] : others) line("  " + dtype, std::to_string(count));
  for (const std::string& note : config.notes) line("note", note);
  for (const std::string& refusal : config.refused) line("not applied", refusal);
  std::printf("Give --base MODEL to see whether and how it applies.\n");
  return {};
}

Status show_gguf_adapter(const GgufFile& gguf) {
  TRY_ASSIGN(const auto architecture, gguf.text("general.architecture"));
  TRY_ASSIGN(const auto alpha, gguf.real("adapter.lora.alpha"));
  line("adapter", gguf.path);
  line("kind", "GGUF file");
  line("architecture", architecture.value_or("(not stated)"));
  if (alpha) line("alpha", std::to_string(*alpha));
  show_tensors(gguf.index.tensors);
  std::printf("Give --base MODEL to see whether and how it applies.\n");
  return {};
}

bool is_pickled_adapter(const FileSystem& files, const std::string& path) {
  return is_pickle_name(path) && files.kind(path) == PathKind::kFile;
}

// The adapter's folder where `path` is it or a file of it.
std::optional<std::string> peft_folder(const FileSystem& files, const std::string& path) {
  std::string folder = files.kind(path) == PathKind::kFile ? parent_path(path) : path;
  if (folder.empty()) folder = ".";
  const bool of_it = folder == path || path.ends_with(".safetensors") || base_name(path) == "adapter_config.json";
  if (of_it && files.exists(join_path(folder, "adapter_config.json"))) return folder;
  return std::nullopt;
}

// Biases of the base, read one by one as an adapter asks for them.
struct BiasReader {
  const BaseModelFile& file;
  TensorReader reader;
  std::map<std::string, std::vector<float>> read;  // empty where it could not be read

  const float* get(int layer, Module module) {
    if (static_cast<size_t>(module) >= kLayerMatrices.size()) return nullptr;
    const std::string name =
        "model.layers." + std::to_string(layer) + "." + kLayerMatrices[static_cast<size_t>(module)] + ".bias";
    const TensorInfo* info = file.index.find(name);
    if (info == nullptr || info->shape.size() != 1) return nullptr;
    const auto [place, is_new] = read.try_emplace(name);
    if (is_new && !read_vector(reader, *info, place->second).ok()) place->second.clear();
    return place->second.empty() ? nullptr : place->second.data();
  }
};

Status show_applied(const FileSystem& files, const std::string& path, const std::string& base_path) {
  TRY_ASSIGN(const BaseModelFile file, open_base_model(base_path));
  TRY_ASSIGN(TensorReader reader, TensorReader::open(file));
  BiasReader biases{file, std::move(reader), {}};
  AdapterBase base;
  base.config = file.config;
  base.names = {base_path};
  if (auto real = files.real_path(base_path); real.ok()) base.names.push_back(*std::move(real));
  base.bias_context = &biases;
  base.bias = [](const void* context, int layer, Module module) {
    return static_cast<BiasReader*>(const_cast<void*>(context))->get(layer, module);
  };
  AdapterLoadOptions options;
  options.strict = false;
  TRY_ASSIGN(const AdapterLoad loaded, load_adapter(files, path, base, options, AdapterVersionId{1}));
  const Adapter* adapter = loaded.adapter.get();
  line("adapter", path);
  line("base", base_path);
  line("version", digest_hex(adapter->digest));
  line("highest rank", std::to_string(adapter->rank_max));
  line("in memory", format_bytes(adapter->bytes));
  for (const auto& [module, count] : adapter->modules) line("  " + module, "on " + std::to_string(count));
  line("norm of change", number_text(adapter->change_norm));
  if (adapter->vocab != file.config.vocab) line("vocabulary", std::to_string(adapter->vocab));
  for (const std::string& entry : adapter->report) line("report", entry);
  options.strict = true;
  const auto strict = load_adapter(files, path, base, options, AdapterVersionId{1});
  line("applies", strict.ok() ? "yes, completely" : "only with --adapter-strict=false");
  return strict.ok() ? Status() : Status(strict.error());
}

// What streaming under this budget would look like on this machine.
Status show_streaming(const InspectFlags& flags) {
  EngineHostOptions options;
  options.model_path = flags.path;
  options.cache_dir = default_cache_dir();
  options.process_bytes = resident_bytes;  // as for a server
  options.tensor_parallel = flags.tensor_parallel;
  TRY(parse_size("--memory-budget", flags.memory_budget, options.engine.memory_budget_bytes));
  TRY_ASSIGN(options.residency.policy, parse_residency_policy(flags.residency));
  TRY_ASSIGN(const StreamForecast forecast, forecast_streaming(options));
  std::printf("%s", forecast.text.c_str());
  const SteadyClock clock;
  ThreadPool pool(std::max(1, usable_cpus()));
  TRY_ASSIGN(const double memory_gb_s, probe_read_gb_s(pool, clock, {}));
  double disk_s = 0;
  if (forecast.streamed_bytes > 0) {
    TRY_ASSIGN(const BaseModelFile file, open_base_model(flags.path));
    TRY_ASSIGN(const double disk_gb_s, probe_round_gb_s(file.index.files.front(), 0));
    std::printf("disk %.2f GB/s, memory %.1f GB/s\n", disk_gb_s, memory_gb_s);
    disk_s = static_cast<double>(forecast.streamed_bytes) / (disk_gb_s * 1e9);
  }
  const double memory_s = static_cast<double>(forecast.touched_bytes) / (memory_gb_s * 1e9);
  std::printf("at most %.2f tokens/s for one sequence, bound by %s\n", 1 / std::max(disk_s, memory_s),
              disk_s > memory_s ? "the disk" : "memory");
  return {};
}

// Why a model is not served: everything that is missing, not only what is met first.
Status show_refused(const FileSystem& files, const std::string& path, const Error& error) {
  if (!files.exists(path)) return error;
  const ModelRefusals refusals = model_refusals(files, path);
  if (refusals.architecture.empty()) return error;
  line("model", path);
  line("architecture", refusals.architecture);
  for (const std::string& sentence : refusals.missing) line("missing", sentence);
  return Error{error.code, "this model is not served: " + std::to_string(refusals.missing.size()) +
                               (refusals.missing.size() == 1 ? " thing is" : " things are") +
                               " missing (see docs/models.md for what is)"};
}

Status inspect(InspectFlags flags) {
  ConsoleLog log(ConsoleLog::Options{});
  TRY(resolve_path(flags.path, HubKind::kAny, flags.hub, log));
  TRY(resolve_path(flags.base, HubKind::kModel, flags.hub, log));
  const PosixFileSystem files;
  if (is_pickled_adapter(files, flags.path)) return check_adapter_files(files, flags.path);
  const auto folder = peft_folder(files, flags.path);
  std::optional<GgufFile> gguf;
  if (!folder && flags.path.ends_with(".gguf") && files.kind(flags.path) == PathKind::kFile) {
    TRY_ASSIGN(gguf, read_gguf(files, flags.path));
    TRY_ASSIGN(const auto type, gguf->text("general.type"));
    if (type != "adapter") gguf.reset();
  }
  if (!flags.memory_budget.empty() && (folder || gguf || !flags.base.empty()))
    return invalid_argument("--memory-budget tells what of a model is streamed; it says nothing about an adapter.");
  RootedFileSystem adapter_files(files);
  adapter_files.add_root(folder.value_or(flags.path));
  if (!flags.base.empty()) return show_applied(adapter_files, folder.value_or(flags.path), flags.base);
  if (folder) return show_peft_folder(adapter_files, *folder);
  if (gguf) return show_gguf_adapter(*gguf);
  if (!flags.memory_budget.empty()) return show_streaming(flags);
  const auto file = open_base_model(flags.path);
  if (!file.ok()) return show_refused(files, flags.path, file.error());
  show_model(*file);
  return {};
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("inspect", "What a model or adapter holds, and whether an adapter applies to a base.");
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("path", flags->path, "Hugging Face directory, GGUF file, adapter, or ORG/NAME on a hub")
      ->required();
  command->add_option("--base", flags->base, "the model the adapter is to be applied to");
  CLI::Option* const budget =
      command->add_option("--memory-budget", flags->memory_budget,
                          "what of the model stays in memory and what is streamed under this many bytes, e.g. 2GiB");
  command
      ->add_option("--residency", flags->residency, "policy: balanced, flex, layer-order, attn-first, ffn-first, none")
      ->capture_default_str()
      ->needs(budget);
  command->add_option("--tensor-parallel", flags->tensor_parallel, "with so many ranks")
      ->check(CLI::Range(1, 64))
      ->needs(budget);
  add_hub_options(*command, flags->hub);
  command->callback([flags, &exit_code] {
    const Status status = inspect(*flags);
    if (status.ok()) return;
    print_error("inspect", status.error());
    exit_code = 1;
  });
}

}  // namespace loralei
