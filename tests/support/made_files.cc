// SPDX-License-Identifier: Apache-2.0
#include "support/made_files.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/prng.h"

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

std::vector<MadeTensor> adapter_tensors(const ModelConfig& model, const MadeAdapter& adapter) {
  const int q = model.heads * model.head_dim, kv = model.kv_heads * model.head_dim;
  const std::map<std::string, std::pair<int, int>> shapes = {// module -> in, out
                                                             {"q_proj", {model.hidden, q}},
                                                             {"k_proj", {model.hidden, kv}},
                                                             {"v_proj", {model.hidden, kv}},
                                                             {"o_proj", {q, model.hidden}},
                                                             {"gate_proj", {model.hidden, model.ffn}},
                                                             {"up_proj", {model.hidden, model.ffn}},
                                                             {"down_proj", {model.ffn, model.hidden}}};
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
      const bool attention = target[0] == 'q' || target[0] == 'k' || target[0] == 'v' || target[0] == 'o';
      const std::string name =
          "base_model.model.model.layers." + std::to_string(layer) + (attention ? ".self_attn." : ".mlp.") + target;
      const auto [in, out] = shapes.at(target);
      add(name + ".lora_A.weight", adapter.rank, in);
      add(name + ".lora_B.weight", out, adapter.rank);
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
  return write_adapter(path, made, adapter_tensors(model, made));
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
