// SPDX-License-Identifier: Apache-2.0
#include "support/made_files.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/prng.h"
#include "model/layer_program.h"

namespace loralei::test {

using nlohmann::json;

TempFolder::TempFolder() {
  path_ = (std::filesystem::temp_directory_path() / "loralei-test-XXXXXX").string();
  CHECK(::mkdtemp(path_.data()) != nullptr);
}

TempFolder::~TempFolder() {
  std::error_code ignored;  // a folder left behind in /tmp fails no test
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  CHECK(file.good());
}

void write_safetensors(const std::string& path, const std::vector<MadeTensor>& tensors) {
  json header = json::object();
  size_t offset = 0;
  for (const MadeTensor& tensor : tensors) {
    const size_t end = offset + tensor.values.size() * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes += text;
  for (const MadeTensor& tensor : tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
  }
  write_file(path, bytes);
}

namespace {

const std::map<std::string, Module> kTargets = {
    {"q_proj", Module::kQ},       {"k_proj", Module::kK},   {"v_proj", Module::kV},      {"o_proj", Module::kO},
    {"gate_proj", Module::kGate}, {"up_proj", Module::kUp}, {"down_proj", Module::kDown}};

// A layer of linear attention has two modules in the place of v_proj.
std::vector<Module> modules_of(const ModelConfig& model, int layer, const std::string& target) {
  const Module module = kTargets.at(target);
  if (module == Module::kV && is_linear(model, layer)) return {module, Module::kDecay};
  return {module};
}

}  // namespace

std::vector<MadeTensor> adapter_tensors(const ModelConfig& model, const MadeAdapter& adapter) {
  Prng random(adapter.seed);
  std::vector<MadeTensor> tensors;
  const auto add = [&](const std::string& name, int rows, int cols) {
    MadeTensor& tensor = tensors.emplace_back();
    tensor.name = name;
    tensor.shape = {rows, cols};
    for (int i = 0; i < rows * cols; ++i) {
      tensor.values.push_back(adapter.deviation * static_cast<float>(2 * random.uniform() - 1));
    }
  };
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const std::string& target : adapter.targets) {
      for (const Module module : modules_of(model, layer, target)) {
        const std::string name = "base_model.model.model.layers." + std::to_string(layer) + "." +
                                 layer_matrix(model, layer, static_cast<size_t>(module));
        add(name + ".lora_A.weight", adapter.rank, module_in(model, layer, module));
        add(name + ".lora_B.weight", module_out(model, layer, module), adapter.rank);
      }
    }
  }
  return tensors;
}

std::string write_adapter(const std::string& path, const MadeAdapter& adapter, const std::vector<MadeTensor>& tensors) {
  std::filesystem::create_directories(path);
  const json config = {{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"},         {"base_model_name_or_path", "made"},
                       {"r", adapter.rank},   {"lora_alpha", adapter.alpha},      {"lora_dropout", 0.0},
                       {"bias", "none"},      {"target_modules", adapter.targets}};
  write_file(path + "/adapter_config.json", config.dump(2));
  write_safetensors(path + "/adapter_model.safetensors", tensors);
  return path;
}

std::string write_adapter(const std::string& path, const ModelConfig& model, const MadeAdapter& adapter) {
  MadeAdapter made = adapter;
  if (model.experts.count > 0)  // of its MLPs some layers have none
    std::erase_if(made.targets, [](const std::string& target) { return target.size() > std::string("q_proj").size(); });
  const std::vector<MadeTensor> tensors = adapter_tensors(model, made);
  std::set<std::string> names;
  for (const std::string& target : made.targets) {
    for (int layer = 0; layer < model.layers; ++layer) {
      for (const Module module : modules_of(model, layer, target))
        names.insert(std::strchr(layer_matrix(model, layer, static_cast<size_t>(module)), '.') + 1);
    }
  }
  made.targets.assign(names.begin(), names.end());
  return write_adapter(path, made, tensors);
}

std::string write_wide_adapter(const std::string& path, const ModelConfig& model, int more_tokens) {
  const int vocab = model.vocab + more_tokens, rank = 3;
  MadeAdapter adapter{.rank = rank, .deviation = 0.2f, .seed = 9, .targets = {"q_proj"}};
  std::vector<MadeTensor> tensors = adapter_tensors(model, adapter);
  Prng random(adapter.seed);
  const auto add = [&](const std::string& name, int rows, int cols, float larger = 1) {
    MadeTensor& tensor = tensors.emplace_back();
    tensor.name = "base_model.model." + name;
    tensor.shape = {rows, cols};
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < cols; ++i) {
        const float size = 0.25f * (row < model.vocab ? 1 : larger);
        tensor.values.push_back(size * static_cast<float>(2 * random.uniform() - 1));
      }
    }
  };
  add("model.embed_tokens.weight", vocab, model.hidden);
  add("lm_head.base_layer.weight", vocab, model.hidden, 3);
  add("lm_head.lora_A.weight", rank, model.hidden);
  add("lm_head.lora_B.weight", vocab, rank);
  adapter.targets.push_back("lm_head");
  return write_adapter(path, adapter, tensors);
}

void write_small_model(const std::string& path, const SmallModel& shape) {
  constexpr int kHeadDim = 64;
  const nlohmann::json config = {
      {"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"},    {"hidden_size", shape.hidden},
      {"intermediate_size", shape.ffn},        {"num_hidden_layers", 1},   {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads}, {"head_dim", kHeadDim},     {"vocab_size", shape.vocab},
      {"max_position_embeddings", 256},        {"rms_norm_eps", 1e-5},     {"rope_theta", 10000.0},
      {"tie_word_embeddings", false},          {"torch_dtype", "float32"}, {"hidden_act", "silu"}};
  write_file(path + "/config.json", config.dump());
  Prng random(7);
  std::vector<MadeTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> sizes, float middle, float spread) {
    MadeTensor& tensor = tensors.emplace_back();
    tensor.name = name;
    tensor.shape = sizes;
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    for (int64_t i = 0; i < count; ++i)
      tensor.values.push_back(middle + spread * static_cast<float>(2 * random.uniform() - 1));
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {shape.vocab, shape.hidden}, 0, 1);
  add("lm_head.weight", {shape.vocab, shape.hidden}, 0, 0.3f);
  add("model.norm.weight", {shape.hidden}, 1, 0.1f);
  add(layer + "input_layernorm.weight", {shape.hidden}, 1, 0.1f);
  add(layer + "post_attention_layernorm.weight", {shape.hidden}, 1, 0.1f);
  add(layer + "self_attn.q_proj.weight", {shape.heads * kHeadDim, shape.hidden}, 0, 0.2f);
  add(layer + "self_attn.k_proj.weight", {shape.kv_heads * kHeadDim, shape.hidden}, 0, 0.2f);
  add(layer + "self_attn.v_proj.weight", {shape.kv_heads * kHeadDim, shape.hidden}, 0, 0.2f);
  add(layer + "self_attn.o_proj.weight", {shape.hidden, shape.heads * kHeadDim}, 0, 0.2f);
  add(layer + "mlp.gate_proj.weight", {shape.ffn, shape.hidden}, 0, 0.2f);
  add(layer + "mlp.up_proj.weight", {shape.ffn, shape.hidden}, 0, 0.2f);
  add(layer + "mlp.down_proj.weight", {shape.hidden, shape.ffn}, 0, 0.2f);
  write_safetensors(path + "/model.safetensors", tensors);
}

}  // namespace loralei::test
