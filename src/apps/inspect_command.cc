// SPDX-License-Identifier: Apache-2.0
// loralei inspect PATH [--base MODEL]: what a model or adapter holds; with --base, whether and how the adapter applies.
#include <cstdio>
#include <map>
#include <memory>

#include "adapters/adapter.h"
#include "apps/options.h"
#include "base/limits.h"
#include "base/units.h"
#include "formats/base_model.h"
#include "formats/peft_config.h"
#include "formats/safetensors.h"
#include "sys/file.h"
#include "weights/tensor_reader.h"

namespace loralei {
namespace {

void line(const char* name, const std::string& value) { std::printf("%-18s %s\n", name, value.c_str()); }

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

std::string rope_text(const ModelConfig& config) {
  static constexpr const char* kKinds[] = {"none", "linear", "llama3", "yarn", "dynamic"};
  std::string text = "theta " + std::to_string(static_cast<int64_t>(config.rope_theta)) + ", scaling " +
                     kKinds[static_cast<int>(config.rope_scaling.kind)];
  if (config.rope_scaling.kind != RopeScalingKind::kNone) text += " by " + std::to_string(config.rope_scaling.factor);
  return text;
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
    line(("  " + std::string(dtype_info(dtype).name)).c_str(),
         std::to_string(sum.first) + ", " + format_bytes(sum.second));
  }
}

void show_model(const BaseModelFile& file) {
  const ModelConfig& config = file.config;
  line("model", file.path);
  line("kind", file.is_gguf ? "GGUF file" : "Hugging Face directory");
  line("architecture", config.architecture);
  line("layers", std::to_string(config.layers));
  line("hidden / ffn", std::to_string(config.hidden) + " / " + std::to_string(config.ffn));
  line("heads", std::to_string(config.heads) + ", KV " + std::to_string(config.kv_heads) + ", of " +
                    std::to_string(config.head_dim));
  line("vocabulary", std::to_string(config.vocab) + (config.tied_head ? ", head tied to the embedding" : ""));
  line("positions", std::to_string(config.max_position));
  line("rope", rope_text(config));
  line("end of sequence", joined(config.eos));
  show_tensors(file.index.tensors);
  for (const std::string& note : file.notes) line("note", note);
}

Status show_peft_folder(const std::string& path) {
  const PosixFileSystem files;
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
  TRY_ASSIGN(const SafetensorsHeader header, read_safetensors(files, join_path(path, "adapter_model.safetensors")));
  show_tensors(header.tensors);
  for (const std::string& note : config.notes) line("note", note);
  for (const std::string& refusal : config.refused) line("not applied", refusal);
  std::printf("Give --base MODEL to see whether and how it applies.\n");
  return {};
}

// Biases of the base, read one by one as an adapter asks for them.
struct BiasReader {
  const BaseModelFile& file;
  TensorReader reader;
  std::map<std::string, std::vector<float>> read;

  const float* get(int layer, Module module) {
    static constexpr const char* kPaths[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                             "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                             "mlp.down_proj"};
    if (static_cast<int>(module) >= kLayerModules) return nullptr;
    const std::string name = "model.layers." + std::to_string(layer) + "." + kPaths[static_cast<int>(module)] + ".bias";
    const TensorInfo* info = file.index.find(name);
    if (info == nullptr || info->shape.size() != 1) return nullptr;
    std::vector<float>& values = read[name];
    if (!values.empty()) return values.data();
    values.resize(static_cast<size_t>(info->shape[0]));
    const bool permuted = reader.permuted_heads(name) > 0;
    TensorTarget target;
    target.permuted_heads = reader.permuted_heads(name);
    target.rows = permuted ? info->shape[0] : 1;
    target.cols = permuted ? 1 : info->shape[0];
    target.source_row_bytes = row_bytes(info->dtype, target.cols);
    std::vector<std::byte> buffer;
    const bool done =
        reader.read_rows(*info, target, 0, target.rows, reinterpret_cast<std::byte*>(values.data()), buffer).ok();
    return done ? values.data() : nullptr;
  }
};

Status show_applied(const std::string& path, const std::string& base_path) {
  TRY_ASSIGN(const BaseModelFile file, open_base_model(base_path));
  TRY_ASSIGN(TensorReader reader, TensorReader::open(file));
  BiasReader biases{file, std::move(reader), {}};
  AdapterBase base;
  base.config = file.config;
  base.bias_context = &biases;
  base.bias = [](const void* context, int layer, Module module) {
    return static_cast<BiasReader*>(const_cast<void*>(context))->get(layer, module);
  };
  AdapterLoadOptions options;
  options.strict = false;
  TRY_ASSIGN(const std::shared_ptr<const Adapter> adapter, load_adapter(path, base, options, AdapterVersionId{1}));
  line("adapter", path);
  line("base", base_path);
  line("version", digest_hex(adapter->digest));
  line("highest rank", std::to_string(adapter->rank_max));
  line("in memory", format_bytes(adapter->bytes));
  for (const auto& [module, count] : adapter->modules) line(("  " + module).c_str(), "on " + std::to_string(count));
  if (adapter->vocab != file.config.vocab) line("vocabulary", std::to_string(adapter->vocab));
  for (const std::string& entry : adapter->report) line("report", entry);
  options.strict = true;
  const auto strict = load_adapter(path, base, options, AdapterVersionId{1});
  line("applies", strict.ok() ? "yes, completely" : "only with --adapter-strict=false: " + strict.error().message);
  return {};
}

Status inspect(const std::string& path, const std::string& base) {
  if (!base.empty()) return show_applied(path, base);
  const PosixFileSystem files;
  if (files.exists(join_path(path, "adapter_config.json"))) return show_peft_folder(path);
  TRY_ASSIGN(const BaseModelFile file, open_base_model(path));
  show_model(file);
  return {};
}

}  // namespace

void add_inspect_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("inspect", "What a model or adapter holds, and whether an adapter applies to a base.");
  auto path = std::make_shared<std::string>();
  auto base = std::make_shared<std::string>();
  command->add_option("path", *path, "Hugging Face directory, GGUF file or adapter")->required();
  command->add_option("--base", *base, "the model the adapter is to be applied to");
  command->callback([path, base, &exit_code] {
    const Status status = inspect(*path, *base);
    if (status.ok()) return;
    std::fprintf(stderr, "loralei inspect: %s\n", status.error().message.c_str());
    exit_code = 1;
  });
}

}  // namespace loralei
