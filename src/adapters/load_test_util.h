// SPDX-License-Identifier: Apache-2.0
// What the tests of loading share: adapter files made in memory, and the pairs
// that must come out.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "formats/json_util.h"
#include "sys/memory_file_system.h"
#include "tensor/codec.h"

namespace loralei {

struct Matrix {
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::string dtype = "F32";
  float at(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * shape[1] + col)]; }
};

// Values that every plain format holds exactly and that tell places apart.
inline Matrix matrix(std::vector<int64_t> shape, float start, const char* dtype = "F32") {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  Matrix made{std::move(shape), {}, dtype};
  for (int64_t i = 0; i < count; ++i) made.values.push_back(start + 0.25f * static_cast<float>(i));
  return made;
}

inline std::string bytes_of(const Matrix& source) {
  std::string bytes;
  for (const float value : source.values) {
    if (source.dtype == "F32") {
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    } else if (source.dtype == "F64") {
      const double wide = value;
      bytes.append(reinterpret_cast<const char*>(&wide), 8);
    } else {
      const uint16_t bits = source.dtype == "F16" ? f32_to_f16(value) : f32_to_bf16(value);
      bytes.append(reinterpret_cast<const char*>(&bits), 2);
    }
  }
  return bytes;
}

using Tensors = std::map<std::string, Matrix>;

inline std::string safetensors(const Tensors& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, source] : tensors) {
    const std::string bytes = bytes_of(source);
    header[name] = {
        {"dtype", source.dtype}, {"shape", source.shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  const std::string text = header.dump();
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return file + text + data;
}

inline const std::string kLayer = "base_model.model.model.layers.";
inline const std::string kQ0 = kLayer + "0.self_attn.q_proj.";

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    base.config = {.architecture = "llama",
                   .hidden = 8,
                   .layers = 2,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 4,
                   .ffn = 12,
                   .vocab = 6};
    config = {{"peft_type", "LORA"},
              {"r", 2},
              {"lora_alpha", 6},
              {"target_modules", {"q_proj"}},
              {"layers_to_transform", {0}}};
    tensors[kQ0 + "lora_A.weight"] = matrix({2, 8}, 1);
    tensors[kQ0 + "lora_B.weight"] = matrix({8, 2}, 10);
  }
  Result<AdapterLoad> load(AdapterLoadOptions options = {}) {
    files.put("/a/adapter_config.json", config.dump());
    files.put("/a/adapter_model.safetensors", safetensors(tensors));
    return load_adapter(files, "/a", base, options, AdapterVersionId{7});
  }
  std::shared_ptr<const Adapter> good() {
    auto adapter = load();
    EXPECT_TRUE(adapter.ok()) << (adapter.ok() ? "" : adapter.error().message);
    return adapter.ok() ? adapter->adapter : std::make_shared<Adapter>();
  }
  std::string error() {
    auto adapter = load();
    EXPECT_FALSE(adapter.ok());
    return adapter.ok() ? "" : adapter.error().message;
  }
  // The message holds all the words.
  void expect_error(const std::vector<std::string>& words) {
    const std::string message = error();
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "\"" << message << "\" lacks " << word;
  }
  void full_bias(Module module) { biases_[module] = std::vector<float>(12, 10.0f); }
  void give_biases() {
    base.bias_context = this;
    base.bias = [](const void* context, int, Module module) -> const float* {
      const auto& biases = static_cast<const LoadTest*>(context)->biases_;
      const auto it = biases.find(module);
      return it == biases.end() ? nullptr : it->second.data();
    };
  }

  MemoryFileSystem files;
  AdapterBase base;
  Json config;
  Tensors tensors;
  std::map<Module, std::vector<float>> biases_;
};

inline float number(const std::byte* data, DType dtype, int64_t index) {
  float value = 0;
  decode_row(dtype, data + index * row_bytes(dtype, 1), &value, 1);
  return value;
}

inline void expect_pair(const LoraPair& pair, const Matrix& a, const Matrix& b, int64_t b_row = 0) {
  ASSERT_GT(pair.rank, 0);
  ASSERT_EQ(pair.in, a.shape[1]);
  for (int64_t r = 0; r < pair.rank; ++r) {
    for (int64_t i = 0; i < pair.in; ++i) EXPECT_EQ(number(pair.a, pair.dtype, r * pair.in + i), a.at(r, i));
    for (int64_t o = 0; o < pair.out; ++o)
      EXPECT_EQ(number(pair.b_t, pair.dtype, r * pair.out + o), b.at(b_row + o, r));
  }
}

}  // namespace loralei
