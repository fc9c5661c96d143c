// SPDX-License-Identifier: Apache-2.0
#include "formats/linear_families.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "formats/family.h"
#include "formats/hf_keys.h"

namespace loralei {
namespace {

Result<int> number(const Json& root, const char* key, int64_t high, int64_t fallback, const std::string& path) {
  TRY_ASSIGN(const auto value, json_int(root, key, 1, high, path));
  return static_cast<int>(value.value_or(fallback));
}

// "layer_types", or every so many layers one with attention.
Status read_layers(const Json& root, ModelConfig& config, const std::string& path) {
  const auto layers = static_cast<size_t>(config.layers);
  TRY_ASSIGN(const int period, number(root, "full_attention_interval", kMaxLayers, 4, path));
  const Json* const types = json_find(root, "layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != layers)) {
    return corrupt(path + ": \"layer_types\" must be a list with one entry for each of the " +
                   std::to_string(config.layers) + " layers");
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    bool linear = (static_cast<int64_t>(layer) + 1) % period != 0;
    if (types != nullptr) {
      const Json& type = (*types)[layer];
      linear = type == "linear_attention";
      if (!linear && type != "full_attention")
        return refused_value(path, "layer_types", type, "known are full_attention and linear_attention");
    }
    config.linear.layers.push_back(linear ? 1 : 0);
  }
  if (kv_layers(config) == config.layers) config.linear.layers.clear();
  return {};
}

}  // namespace

Status qwen3_5_config(const Json& root, ModelConfig& config, const std::string& path) {
  config.norm_plus_one = true;
  config.attention_gate = true;
  TRY_ASSIGN(const auto gate, json_bool(root, "attn_output_gate", path));
  if (!gate.value_or(true))
    return refused_value(path, "attn_output_gate", root["attn_output_gate"], "this class always has gates");
  TRY(read_layers(root, config, path));
  LinearConfig& linear = config.linear;
  TRY_ASSIGN(linear.k_heads, number(root, "linear_num_key_heads", INT32_MAX, 16, path));
  TRY_ASSIGN(linear.v_heads, number(root, "linear_num_value_heads", INT32_MAX, 32, path));
  TRY_ASSIGN(linear.key_dim, number(root, "linear_key_head_dim", INT32_MAX, 128, path));
  TRY_ASSIGN(linear.value_dim, number(root, "linear_value_head_dim", INT32_MAX, 128, path));
  TRY_ASSIGN(linear.kernel, number(root, "linear_conv_kernel_dim", INT32_MAX, 4, path));
  if (!has_linear(config)) linear = {};
  return {};
}

namespace {

Result<int> need(const GgufFile& file, const ModelConfig& config, const char* name, int64_t high) {
  TRY_ASSIGN(const auto value, file.integer(gguf_key(config, name), 1, high));
  if (!value) return corrupt(file.path + ": lacks " + gguf_key(config, name));
  return static_cast<int>(*value);
}

// Entries for all layers of the file, or every so many layers one with attention.
Status read_gguf_layers(const GgufFile& file, size_t in_file, ModelConfig& config) {
  const std::string list_key = gguf_key(config, "attention.recurrent_layers");
  TRY_ASSIGN(const auto stated, file.integer(gguf_key(config, "full_attention_interval"), 1, kMaxLayers));
  const GgufValue* const list = file.find(list_key);
  const bool is_list = list != nullptr && (list->type == GgufType::kBoolArray || list->type == GgufType::kIntArray);
  if (list != nullptr && (!is_list || list->numbers.size() != in_file)) {
    return corrupt(file.path + ": " + list_key + " must have one entry for each of the " + std::to_string(in_file) +
                   " layers");
  }
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    const bool periodic = (static_cast<int64_t>(layer) + 1) % stated.value_or(4) != 0;
    config.linear.layers.push_back((list != nullptr ? list->numbers[layer] != 0 : periodic) ? 1 : 0);
  }
  if (kv_layers(config) == config.layers) config.linear.layers.clear();
  return {};
}

// "blk.3." taken off the name; -1: it has none such.
int take_layer(std::string_view& name) {
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) return -1;
  const std::string_view number = name.substr(kBlock.size());
  int layer = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), layer);
  const auto digits = static_cast<size_t>(end - number.data());
  const bool padded = digits > 1 && number[0] == '0';
  if (error != std::errc() || layer < 0 || padded || digits >= number.size() || number[digits] != '.') return -1;
  name = number.substr(digits + 1);
  return layer;
}

struct Name {
  std::string_view gguf, ours;
};
constexpr Name kLinearNames[] = {{"attn_qkv.weight", "in_proj_qkv.weight"},
                                 {"attn_gate.weight", "in_proj_z.weight"},
                                 {"ssm_beta.weight", "in_proj_b.weight"},
                                 {"ssm_alpha.weight", "in_proj_a.weight"},
                                 {"ssm_out.weight", "out_proj.weight"},
                                 {"ssm_conv1d.weight", "conv1d.weight"},
                                 {"ssm_a", "A_log"},
                                 {"ssm_dt.bias", "dt_bias"},
                                 {"ssm_norm.weight", "norm.weight"}};

}  // namespace

Status qwen3_5_gguf(const GgufFile& file, ModelConfig& config) {
  config.norm_plus_one = true;
  config.attention_gate = true;
  TRY_ASSIGN(const auto drafts, file.integer(gguf_key(config, "nextn_predict_layers"), 0, config.layers - 1));
  const auto in_file = static_cast<size_t>(config.layers);
  config.layers -= static_cast<int>(drafts.value_or(0));
  config.sliding.resize(static_cast<size_t>(config.layers));
  LinearConfig& linear = config.linear;
  TRY(read_gguf_layers(file, in_file, config));
  if (!has_linear(config)) return {};
  TRY_ASSIGN(linear.k_heads, need(file, config, "ssm.group_count", kLinearHeadsMax));
  TRY_ASSIGN(linear.v_heads, need(file, config, "ssm.time_step_rank", kLinearHeadsMax));
  TRY_ASSIGN(linear.key_dim, need(file, config, "ssm.state_size", kLinearHeadDimMax));
  TRY_ASSIGN(linear.kernel, need(file, config, "ssm.conv_kernel", INT32_MAX));
  TRY_ASSIGN(const int inner, need(file, config, "ssm.inner_size", kMaxDim));
  if (inner % linear.v_heads != 0) {
    return corrupt(file.path + ": " + gguf_key(config, "ssm.inner_size") + " " + std::to_string(inner) +
                   " is not a multiple of the " + std::to_string(linear.v_heads) + " value heads");
  }
  linear.value_dim = inner / linear.v_heads;
  linear.tiled = linear.v_heads > linear.k_heads;
  linear.negative_decay = true;
  return {};
}

bool is_gguf_draft(const GgufFile& file, const ModelConfig& config, std::string_view name) {
  const auto drafts = file.integer(gguf_key(config, "nextn_predict_layers"), 0, kMaxLayers);
  const int layer = take_layer(name);
  return has_linear(config) && drafts.ok() && layer >= config.layers && layer - config.layers < drafts->value_or(0);
}

std::string linear_name(std::string_view gguf_name, const ModelConfig& config) {
  const int layer = take_layer(gguf_name);
  if (layer < 0 || layer >= config.layers || !is_linear(config, layer)) return "";
  for (const Name& name : kLinearNames) {
    if (gguf_name == name.gguf)
      return "model.layers." + std::to_string(layer) + ".linear_attn." + std::string(name.ours);
  }
  return "";
}

Status check_linear(const ModelConfig& config, const std::string& path) {
  if (!has_linear(config)) return {};
  const LinearConfig& linear = config.linear;
  CHECK(linear.layers.size() == static_cast<size_t>(config.layers));
  const auto in_range = [](int value, int high) { return value >= 1 && value <= high; };
  if (!in_range(linear.k_heads, kLinearHeadsMax) || !in_range(linear.v_heads, kLinearHeadsMax) ||
      !in_range(linear.key_dim, kLinearHeadDimMax) || !in_range(linear.value_dim, kLinearHeadDimMax)) {
    return corrupt(path + ": a size of its linear attention is outside what is possible (" +
                   std::to_string(linear.k_heads) + " key heads of " + std::to_string(linear.key_dim) + ", " +
                   std::to_string(linear.v_heads) + " value heads of " + std::to_string(linear.value_dim) + "; up to " +
                   std::to_string(kLinearHeadsMax) + " heads of " + std::to_string(kLinearHeadDimMax) + " are)");
  }
  if (linear.v_heads % linear.k_heads != 0) {
    return corrupt(path + ": the " + std::to_string(linear.v_heads) +
                   " value heads of its linear attention are not a multiple of the " + std::to_string(linear.k_heads) +
                   " key heads");
  }
  if (linear.kernel < 2 || linear.kernel > kLinearKernelMax) {
    return unsupported(path + ": a convolution over " + std::to_string(linear.kernel) +
                       " tokens is not supported; over 2 to " + std::to_string(kLinearKernelMax) + " it is");
  }
  if (int64_t{linear.v_heads} * linear.key_dim * linear.value_dim > kLinearStateMax)
    return corrupt(path + ": the state of a layer of its linear attention is larger than what is possible");
  if (kv_layers(config) == 0)
    return unsupported(path + ": a model without any layer of full attention is not supported");
  if (config.activation != Activation::kSilu)
    return unsupported(path + ": linear attention with another activation than silu is not supported");
  return {};
}

void drop_draft_tensors(TensorIndex& index, std::vector<ForeignTensor>& foreign, std::vector<std::string>& notes) {
  const auto is_draft = [](const auto& tensor) { return tensor.name.starts_with("mtp."); };
  const size_t dropped = std::erase_if(index.tensors, is_draft) + std::erase_if(foreign, is_draft);
  if (dropped == 0) return;
  index.by_name.clear();
  for (size_t i = 0; i < index.tensors.size(); ++i) index.by_name.emplace(index.tensors[i].name, i);
  notes.push_back("Ignored " + std::to_string(dropped) + " tensors of layers that guess tokens ahead (mtp).");
}

}  // namespace loralei
