// SPDX-License-Identifier: Apache-2.0
#include "formats/fused_tensors.h"

#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/model_tensors.h"

namespace loralei {
namespace {

struct PartRows {
  std::string_view name;
  int64_t rows = 0;
};

struct Fused {
  std::string_view name;
  std::vector<PartRows> parts;  // in the order of their rows
};

std::array<Fused, 2> fused_of(const ModelConfig& config) {
  const int64_t q = int64_t{config.heads} * config.head_dim, kv = int64_t{config.kv_heads} * config.head_dim;
  return {Fused{"self_attn.qkv_proj", {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}}},
          Fused{"mlp.gate_up_proj", {{"mlp.gate_proj", config.ffn}, {"mlp.up_proj", config.ffn}}}};
}

// The module's place in "model.layers.3.self_attn.qkv_proj.weight"; npos: it is none of
// this module.
size_t module_at(std::string_view tensor, std::string_view module) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string_view::npos || dot < module.size() + 1) return std::string_view::npos;
  const size_t begin = dot - module.size();
  return tensor[begin - 1] == '.' && tensor.substr(begin, module.size()) == module ? begin : std::string_view::npos;
}

void add(TensorInfo tensor, TensorIndex& index) {
  index.by_name.emplace(tensor.name, index.tensors.size());
  index.tensors.push_back(std::move(tensor));
}

Status split(const TensorInfo& tensor, size_t at, const Fused& fused, const std::string& place, TensorIndex& index) {
  int64_t rows = 0;
  for (const PartRows& part : fused.parts) rows += part.rows;
  if (tensor.shape.empty() || tensor.shape[0] != rows) {
    return corrupt(place + ": tensor \"" + tensor.name + "\" has shape " + shape_text(tensor.shape) +
                   ", but the config needs " + std::to_string(rows) + " rows");
  }
  const int64_t row_bytes = tensor.bytes / rows;
  constexpr int64_t kStoredRows = 16;
  int64_t row = 0;
  for (const PartRows& part : fused.parts) {
    TensorInfo one = tensor;
    one.name.replace(at, fused.name.size(), part.name);
    if (index.find(one.name) != nullptr)
      return corrupt(place + ": holds tensor \"" + one.name + "\" twice, once inside of \"" + tensor.name + "\"");
    one.shape[0] = part.rows;
    one.bytes = part.rows * row_bytes;
    if (tensor.stored == nullptr) {
      one.offset += row * row_bytes;
    } else {
      if (part.rows % kStoredRows != 0) {
        return unsupported(place + ": the quantised matrix \"" + tensor.name + "\" holds " + std::to_string(part.rows) +
                           " rows of " + std::string(part.name) + ", which is no multiple of " +
                           std::to_string(kStoredRows) + "; use the original weights or a GGUF file");
      }
      StoredForm form = *tensor.stored;
      form.row_begin += row;
      one.stored = std::make_shared<const StoredForm>(form);
    }
    add(std::move(one), index);
    row += part.rows;
  }
  return {};
}

constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {{"mlp.c_fc", "mlp.up_proj"},
                                                                      {"mlp.c_proj", "mlp.down_proj"}};

}  // namespace

Status take_canonical_names(TensorIndex& index, const std::string& place) {
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    TensorInfo& tensor = index.tensors[i];
    for (const auto& [stored, canonical] : kRenamed) {
      const size_t at = module_at(tensor.name, stored);
      if (at == std::string_view::npos) continue;
      std::string name = tensor.name;
      name.replace(at, stored.size(), canonical);
      if (!index.by_name.emplace(name, i).second)
        return corrupt(place + ": holds tensor \"" + name + "\" twice, once as \"" + tensor.name + "\"");
      index.by_name.erase(tensor.name);
      tensor.name = std::move(name);
      break;
    }
  }
  return {};
}

std::vector<ExpectedTensor> fused_matrices(const ModelConfig& config) {
  std::vector<ExpectedTensor> matrices;
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const Fused& fused : fused_of(config)) {
      int64_t rows = 0;
      for (const PartRows& part : fused.parts) rows += part.rows;
      matrices.push_back(
          {"model.layers." + std::to_string(layer) + "." + std::string(fused.name) + ".weight", {rows, config.hidden}});
    }
  }
  return matrices;
}

Status split_fused_tensors(const ModelConfig& config, TensorIndex& index, const std::string& place) {
  const std::array<Fused, 2> all = fused_of(config);
  const auto place_of = [&](const TensorInfo& tensor) -> std::pair<const Fused*, size_t> {
    for (const Fused& fused : all) {
      const size_t at = module_at(tensor.name, fused.name);
      if (at != std::string_view::npos) return {&fused, at};
    }
    return {nullptr, 0};
  };
  TensorIndex whole;
  whole.files = index.files;
  whole.stamps = index.stamps;
  for (const TensorInfo& tensor : index.tensors) {
    if (place_of(tensor).first == nullptr) add(tensor, whole);
  }
  for (const TensorInfo& tensor : index.tensors) {
    const auto [fused, at] = place_of(tensor);
    if (fused != nullptr) TRY(split(tensor, at, *fused, place, whole));
  }
  index = std::move(whole);
  return {};
}

}  // namespace loralei
