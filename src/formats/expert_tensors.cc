// SPDX-License-Identifier: Apache-2.0
#include "formats/expert_tensors.h"

#include <utility>
#include <vector>

#include "formats/model_tensors.h"

namespace loralei {
namespace {

constexpr std::string_view kBlock = ".mlp.", kMixtralBlock = ".block_sparse_moe.";

bool replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

// block_sparse_moe.experts.3.w1 -> mlp.experts.3.gate_proj
void rename_mixtral(std::string& name) {
  if (!replace(name, kMixtralBlock, kBlock) || name.find(".experts.") == std::string::npos) return;
  replace(name, ".w1.weight", ".gate_proj.weight") || replace(name, ".w3.weight", ".up_proj.weight") ||
      replace(name, ".w2.weight", ".down_proj.weight");
}

// Of a tensor that holds a matrix of every expert, or two of them.
struct Stack {
  size_t block = 0;  // where ".mlp.experts." begins in the name; 0: it is none
  int first = 0, count = 1;
};

Stack stack_of(const std::string& name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return {};
  std::string_view rest = std::string_view(name).substr(at + kExperts.size());
  if (rest.ends_with(".weight")) rest.remove_suffix(std::string_view(".weight").size());
  if (rest == "gate_up_proj") return {at, 0, 2};
  for (int part = 0; part < kExpertMatrixCount; ++part) {
    if (rest == kExpertMatrices[part]) return {at, part, 1};
  }
  return {};
}

// [experts, rows, cols] as `experts` matrices, or twice as many.
Status split(const ModelConfig& config, const TensorInfo& tensor, const Stack& stack, std::vector<TensorInfo>& into,
             const std::string& place) {
  const ExpertConfig& experts = config.experts;
  const int64_t width = int64_t{experts.width} * stack.count;
  const std::vector<int64_t> wanted = stack.first + stack.count == kExpertMatrixCount && stack.count == 1
                                          ? std::vector<int64_t>{experts.count, config.hidden, width}
                                          : std::vector<int64_t>{experts.count, width, config.hidden};
  if (tensor.shape != wanted) {
    return corrupt(place + ": tensor \"" + tensor.name + "\" has shape " + shape_text(tensor.shape) +
                   ", but the config needs " + shape_text(wanted));
  }
  const int64_t each = tensor.bytes / experts.count / stack.count;
  for (int expert = 0; expert < experts.count; ++expert) {
    for (int part = 0; part < stack.count; ++part) {
      TensorInfo own = tensor;
      own.name = tensor.name.substr(0, stack.block) + ".mlp.experts." + std::to_string(expert) + "." +
                 kExpertMatrices[stack.first + part] + ".weight";
      own.shape = {wanted[1] / stack.count, wanted[2]};
      own.offset = tensor.offset + (int64_t{expert} * stack.count + part) * each;
      own.bytes = each;
      into.push_back(std::move(own));
    }
  }
  return {};
}

}  // namespace

Status split_experts(const ModelConfig& config, TensorIndex& index, const std::string& place) {
  if (config.experts.count == 0) return {};
  std::vector<TensorInfo> tensors;
  tensors.reserve(index.tensors.size());
  for (TensorInfo& tensor : index.tensors) {
    if (config.experts.mixtral_names) rename_mixtral(tensor.name);
    if (tensor.name.ends_with(".mlp.shared_expert_gate.weight") && tensor.shape.size() == 1)
      tensor.shape.insert(tensor.shape.begin(), 1);
    if (const Stack stack = stack_of(tensor.name); stack.block > 0) {
      TRY(split(config, tensor, stack, tensors, place));
    } else {
      tensors.push_back(std::move(tensor));
    }
  }
  index.by_name.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!index.by_name.emplace(tensors[i].name, i).second)
      return corrupt(place + ": holds the tensor \"" + tensors[i].name + "\" twice, once under another name");
  }
  index.tensors = std::move(tensors);
  return {};
}

}  // namespace loralei
