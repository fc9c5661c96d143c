// SPDX-License-Identifier: Apache-2.0
#include "formats/expert_tensors.h"

#include <memory>
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

// mlp.router.weight -> mlp.gate.weight, self_attn.sinks -> self_attn.sinks.weight
void rename_in_turn(std::string& name) {
  if (name.ends_with(".self_attn.sinks")) name += ".weight";
  replace(name, ".mlp.router.", ".mlp.gate.");
}

// Of a tensor that holds a matrix or a bias of every expert, or two of them.
struct Stack {
  size_t block = 0;  // where ".mlp.experts." begins in the name; 0: it is none
  int first = 0, count = 1;
  bool bias = false;
  bool crossed = false;  // inputs before outputs, and parts in turn
};

bool take_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

Stack stack_of(const std::string& name, bool in_turn) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  Stack stack{.block = name.find(kExperts)};
  if (stack.block == std::string::npos) return {};
  std::string_view rest = std::string_view(name).substr(stack.block + kExperts.size());
  const bool bias_in_turn = in_turn && take_end(rest, "_bias");
  stack.bias = bias_in_turn || (in_turn && take_end(rest, ".bias"));
  stack.crossed = !take_end(rest, ".weight") && in_turn && !stack.bias;
  if (rest == "gate_up_proj") {
    if (stack.bias && !bias_in_turn) return {};  // no file has it
    stack.count = 2;
    return stack;
  }
  for (; stack.first < kExpertMatrixCount; ++stack.first) {
    if (rest == kExpertMatrices[stack.first]) return stack;
  }
  return {};
}

std::vector<int64_t> shape_of(const ModelConfig& config, const Stack& stack) {
  const bool down = stack.first + 1 == kExpertMatrixCount;
  const int64_t count = config.experts.count, out = int64_t{down ? config.hidden : config.experts.width} * stack.count;
  const int64_t in = down ? config.experts.width : config.hidden;
  if (stack.bias) return {count, out};
  return stack.crossed ? std::vector<int64_t>{count, in, out} : std::vector<int64_t>{count, out, in};
}

// The part of a stack that is a tensor of its own: of expert `expert`, or of a bias that
// of all.
TensorInfo part_of(const TensorInfo& tensor, const Stack& stack, const ModelConfig& config, int expert, int part) {
  const std::vector<int64_t> shape = shape_of(config, stack);
  const int64_t each = tensor.bytes / (stack.bias ? 1 : config.experts.count);
  TensorInfo own = tensor;
  own.name = tensor.name.substr(0, stack.block) + ".mlp.experts." + (stack.bias ? "" : std::to_string(expert) + ".") +
             kExpertMatrices[stack.first + part] + (stack.bias ? ".bias" : ".weight");
  own.bytes = each / stack.count;
  own.offset = tensor.offset + expert * each;
  if (stack.bias) {
    own.shape = {shape[0] * shape[1] / stack.count};
  } else if (stack.crossed) {
    own.shape = {shape[2] / stack.count, shape[1]};
  } else {
    own.shape = {shape[1] / stack.count, shape[2]};
    own.offset += part * own.bytes;
  }
  if (stack.crossed || (stack.bias && stack.count > 1)) {
    StoredForm form{.kind = StoredKind::kCrossed, .row_step = stack.count, .row_first = part};
    form.rows = own.shape[0];
    form.quants = {own.file, own.offset};
    own.stored = std::make_shared<const StoredForm>(form);
  }
  return own;
}

// As `experts` matrices, or twice as many; a bias stays one vector, or is two.
Status split(const ModelConfig& config, const TensorInfo& tensor, const Stack& stack, std::vector<TensorInfo>& into,
             const std::string& place) {
  const std::vector<int64_t> wanted = shape_of(config, stack);
  if (tensor.shape != wanted) {
    return corrupt(place + ": tensor \"" + tensor.name + "\" has shape " + shape_text(tensor.shape) +
                   ", but the config needs " + shape_text(wanted));
  }
  if (stack.crossed && is_quantised(tensor.dtype)) {
    return unsupported(place + ": tensor \"" + tensor.name +
                       "\" holds quantised inputs before outputs, which cannot "
                       "be read; use the original weights or a GGUF file");
  }
  for (int expert = 0; expert < (stack.bias ? 1 : config.experts.count); ++expert) {
    for (int part = 0; part < stack.count; ++part) into.push_back(part_of(tensor, stack, config, expert, part));
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
    if (config.experts.in_turn) rename_in_turn(tensor.name);
    if (tensor.name.ends_with(".mlp.shared_expert_gate.weight") && tensor.shape.size() == 1)
      tensor.shape.insert(tensor.shape.begin(), 1);
    if (const Stack stack = stack_of(tensor.name, config.experts.in_turn); stack.block > 0) {
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
