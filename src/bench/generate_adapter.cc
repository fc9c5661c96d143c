// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/generate.h"
#include "bench/generated_file.h"
#include "bench/report.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

struct AdapterModule {
  const char* peft;  // "self_attn.q_proj"
  const char* gguf;  // "attn_q"
  int out, in;
};

std::vector<AdapterModule> adapter_modules(const ModelConfig& config, const std::string& targets) {
  const int q = config.heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  std::vector<AdapterModule> modules = {{"self_attn.q_proj", "attn_q", q, config.hidden},
                                        {"self_attn.k_proj", "attn_k", kv, config.hidden},
                                        {"self_attn.v_proj", "attn_v", kv, config.hidden}};
  if (targets != "qkv") modules.push_back({"self_attn.o_proj", "attn_output", config.hidden, q});
  if (targets == "all") {
    modules.push_back({"mlp.gate_proj", "ffn_gate", config.ffn, config.hidden});
    modules.push_back({"mlp.up_proj", "ffn_up", config.ffn, config.hidden});
    modules.push_back({"mlp.down_proj", "ffn_down", config.hidden, config.ffn});
  }
  return modules;
}

Status write_peft_adapter(const std::string& folder, const ModelConfig& config, const std::string& targets, int rank,
                          int number) {
  const std::vector<AdapterModule> modules = adapter_modules(config, targets);
  nlohmann::ordered_json settings{{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}, {"r", rank}, {"lora_alpha", rank}};
  settings["target_modules"] = nlohmann::ordered_json::array();
  for (const AdapterModule& module : modules)
    settings["target_modules"].push_back(std::string(std::strchr(module.peft, '.') + 1));
  TRY(write_text_file(folder + "/adapter_config.json", settings.dump(2) + "\n"));

  nlohmann::ordered_json header;
  int64_t offset = 0;
  const auto add = [&](const std::string& name, int rows, int cols) {
    const int64_t end = offset + int64_t{2} * rows * cols;
    header[name] = {{"dtype", "BF16"}, {"shape", {rows, cols}}, {"data_offsets", {offset, end}}};
    offset = end;
  };
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const AdapterModule& module : modules) {
      const std::string prefix = "base_model.model.model.layers." + std::to_string(layer) + "." + module.peft;
      add(prefix + ".lora_A.weight", rank, module.in);
      add(prefix + ".lora_B.weight", module.out, rank);
    }
  }
  std::string head = header.dump();
  head.resize((head.size() + 7) / 8 * 8, ' ');
  Writer out(folder + "/adapter_model.safetensors");
  out.value<uint64_t>(head.size());
  out.bytes(head.data(), head.size());
  std::vector<std::byte> data(static_cast<size_t>(offset));
  WeightSource(1000 + static_cast<uint64_t>(number)).fill(DType::kBF16, data.data(), data.size());
  out.bytes(data.data(), data.size());
  if (!out.close()) return io_error("Writing an adapter to '" + folder + "' failed; is the disk full?");
  return {};
}

// As llama.cpp's convert_lora_to_gguf.py writes it, so that a peer can load the same
// adapter; f16, which its CPU kernels take.
Status write_gguf_adapter(const std::string& path, const ModelConfig& config, const std::string& targets, int rank,
                          int number) {
  GgufMetadata metadata;
  metadata.text("general.architecture", "llama");
  metadata.text("general.type", "adapter");
  metadata.text("general.name", "bench-" + std::to_string(number));
  metadata.u32("general.alignment", kGgufAlignment);
  metadata.text("adapter.type", "lora");
  metadata.f32("adapter.lora.alpha", static_cast<float>(rank));
  std::vector<OutTensor> tensors;
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const AdapterModule& module : adapter_modules(config, targets)) {
      const std::string prefix = "blk." + std::to_string(layer) + "." + module.gguf + ".weight";
      tensors.push_back({prefix + ".lora_a", DType::kF16, rank, module.in});
      tensors.push_back({prefix + ".lora_b", DType::kF16, module.out, rank});
    }
  }
  Writer out(path);
  write_gguf_head(out, metadata, tensors);
  WeightSource source(1000 + static_cast<uint64_t>(number));
  std::vector<std::byte> data;
  for (const OutTensor& tensor : tensors) {
    data.resize(static_cast<size_t>(tensor.bytes()));
    source.fill(tensor.dtype, data.data(), data.size());
    out.bytes(data.data(), data.size());
    out.pad_to(kGgufAlignment);
  }
  if (!out.close()) return io_error("Writing the adapter '" + path + "' failed; is the disk full?");
  return {};
}

}  // namespace

Result<std::string> generated_adapter(const std::string& cache_dir, const std::string& shape,
                                      const std::string& targets, int rank, int number, AdapterFormat format) {
  if (targets != "qkv" && targets != "qkvo" && targets != "all")
    return invalid_argument("--targets is qkv, qkvo or all, not '" + targets + "'.");
  if (rank < 1 || rank > 512) return invalid_argument("--rank must lie between 1 and 512.");
  TRY_ASSIGN(const ModelConfig config, bench_shape(shape));
  if (config.experts.count > 0 && targets == "all")
    return invalid_argument("Adapters on experts are not generated; choose the targets qkv or qkvo.");
  const bool gguf = format == AdapterFormat::kGguf;
  const std::string path = cache_dir + "/" + shape + "-" + targets + "-r" + std::to_string(rank) + "-" +
                           std::to_string(number) + (gguf ? ".gguf" : "");
  return make_once(path, [&](const std::string& unfinished) {
    if (gguf) return write_gguf_adapter(unfinished, config, targets, rank, number);
    std::error_code error;
    fs::create_directories(unfinished, error);
    return write_peft_adapter(unfinished, config, targets, rank, number);
  });
}

}  // namespace loralei
