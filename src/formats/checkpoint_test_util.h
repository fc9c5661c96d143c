// SPDX-License-Identifier: Apache-2.0
// For tests: a golden checkpoint of one safetensors file in memory, to be changed and
// written again.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "formats/json_util.h"

namespace loralei::testing_support {

struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

struct Checkpoint {
  Json config;
  std::map<std::string, StoredTensor> tensors;

  explicit Checkpoint(const std::string& name) {
    const std::string folder = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/" + name + "/";
    config = Json::parse(slurp(folder + "config.json"));
    const std::string file = slurp(folder + "model.safetensors");
    uint64_t head = 0;
    CHECK(file.size() > sizeof head);
    std::memcpy(&head, file.data(), sizeof head);
    const Json header = Json::parse(file.substr(sizeof head, head));
    for (const auto& [key, value] : header.items()) {
      if (key == "__metadata__") continue;
      const size_t begin = value["data_offsets"][0], end = value["data_offsets"][1];
      tensors[key] = {value["dtype"], value["shape"], file.substr(sizeof head + head + begin, end - begin)};
    }
  }
  Json& quant() { return config["quantization_config"]; }
  // Of layer 0's `module`, "self_attn.q_proj.qweight".
  StoredTensor& at(const std::string& name) {
    const auto it = tensors.find("model.layers.0." + name);
    CHECK(it != tensors.end());
    return it->second;
  }
  template <class T>
  void set(const std::string& name, size_t index, T value) {
    StoredTensor& tensor = at(name);
    CHECK((index + 1) * sizeof value <= tensor.bytes.size());
    std::memcpy(tensor.bytes.data() + index * sizeof value, &value, sizeof value);
  }
  std::string file() const {
    Json header = Json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    std::string out;
    for (int i = 0; i < 8; ++i) out += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
    return out + text + data;
  }
  void write(const std::string& folder) const {
    std::ofstream(folder + "/config.json") << config.dump();
    std::ofstream(folder + "/model.safetensors", std::ios::binary) << file();
  }

 private:
  static std::string slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  }
};

}  // namespace loralei::testing_support
