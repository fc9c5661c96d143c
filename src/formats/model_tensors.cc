// SPDX-License-Identifier: Apache-2.0
#include "formats/model_tensors.h"

#include <algorithm>
#include <unordered_map>

#include "formats/words.h"

namespace loralei {

namespace {

bool harmless(const std::string& name) {
  constexpr std::string_view kSuffix = "rotary_emb.inv_freq";
  return name.size() >= kSuffix.size() && std::string_view(name).substr(name.size() - kSuffix.size()) == kSuffix;
}

void add_experts(const ModelConfig& config, int layer, std::vector<ExpectedTensor>& list) {
  const ExpertConfig& experts = config.experts;
  const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.";
  list.push_back({prefix + "gate.weight", {experts.count, config.hidden}});
  if (experts.biased) {
    list.push_back({prefix + "gate.bias", {experts.count}});
    for (int part = 0; part < kExpertMatrixCount; ++part) {
      const int out = part + 1 == kExpertMatrixCount ? config.hidden : experts.width;
      list.push_back({prefix + "experts." + kExpertMatrices[part] + ".bias", {int64_t{experts.count} * out}});
    }
  }
  if (experts.shared_width > 0) list.push_back({prefix + "shared_expert_gate.weight", {1, config.hidden}});
  for (int expert = 0; expert < experts.count; ++expert) {
    for (int part = 0; part < kExpertMatrixCount; ++part) {
      const bool down = part + 1 == kExpertMatrixCount;
      list.push_back({expert_module(layer, expert, part) + ".weight",
                      {down ? config.hidden : experts.width, down ? experts.width : config.hidden}});
    }
  }
}

void add_linear(const ModelConfig& config, int layer, std::vector<ExpectedTensor>& list) {
  const LinearConfig& linear = config.linear;
  const std::string prefix = "model.layers." + std::to_string(layer) + ".linear_attn.";
  list.push_back({prefix + "in_proj_qkv.weight", {linear.channels(), config.hidden}});
  list.push_back({prefix + "in_proj_z.weight", {linear.value_width(), config.hidden}});
  list.push_back({prefix + "in_proj_b.weight", {linear.v_heads, config.hidden}});
  list.push_back({prefix + "in_proj_a.weight", {linear.v_heads, config.hidden}});
  list.push_back({prefix + "out_proj.weight", {config.hidden, linear.value_width()}});
  list.push_back({prefix + "conv1d.weight", {linear.channels(), 1, linear.kernel}});
  list.push_back({prefix + "A_log", {linear.v_heads}});
  list.push_back({prefix + "dt_bias", {linear.v_heads}});
  list.push_back({prefix + "norm.weight", {linear.value_dim}});
}

void add_attention(const ModelConfig& config, int layer, std::vector<ExpectedTensor>& list) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  const int64_t hidden = config.hidden, q = int64_t{config.heads} * config.head_dim,
                kv = int64_t{config.kv_heads} * config.head_dim;
  const auto linear = [&](const char* name, int64_t out, int64_t in, bool bias) {
    list.push_back({prefix + name + ".weight", {out, in}});
    if (bias) list.push_back({prefix + name + ".bias", {out}});
  };
  linear("q_proj", config.attention_gate ? 2 * q : q, hidden, config.qkv_bias);
  linear("k_proj", kv, hidden, config.qkv_bias);
  linear("v_proj", kv, hidden, config.qkv_bias);
  linear("o_proj", hidden, q, config.o_bias);
  if (config.sinks) list.push_back({prefix + "sinks.weight", {config.heads}});
}

void add_layer(const ModelConfig& config, int layer, std::vector<ExpectedTensor>& list) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  if (is_linear(config, layer)) {
    add_linear(config, layer, list);
  } else {
    add_attention(config, layer, list);
  }
  for (const size_t module : {4, 5, 6}) {
    const char* const name = layer_matrix(config, layer, module);
    if (name == nullptr) continue;
    const bool down = module == 6;
    const int64_t out = down ? config.hidden : config.ffn, in = down ? config.ffn : config.hidden;
    list.push_back({prefix + name + ".weight", {out, in}});
    if (config.mlp_bias) list.push_back({prefix + name + ".bias", {out}});
  }
  if (has_experts(config, layer)) add_experts(config, layer, list);
  for (size_t norm = 0; norm < kLayerNorms; ++norm) {
    if (!has_norm(config, static_cast<LayerNorm>(norm), layer)) continue;
    const int width = norm_width(config, static_cast<LayerNorm>(norm));
    const std::string name = prefix + std::string(config.norm_names[norm]);
    list.push_back({name + ".weight", {width}});
    if (config.centred_norms) list.push_back({name + ".bias", {width}});
  }
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> list;
  list.push_back({"model.embed_tokens.weight", {config.vocab, config.hidden}});
  for (int layer = 0; layer < config.layers; ++layer) add_layer(config, layer, list);
  list.push_back({"model.norm.weight", {config.hidden}});
  if (config.centred_norms) list.push_back({"model.norm.bias", {config.hidden}});
  if (!config.tied_head) list.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  return list;
}

bool is_held_as_f32(std::string_view name) {
  constexpr std::string_view kEnds[] = {".mlp.gate.weight", ".mlp.shared_expert_gate.weight",
                                        ".linear_attn.in_proj_b.weight", ".linear_attn.in_proj_a.weight"};
  return std::any_of(std::begin(kEnds), std::end(kEnds), [name](std::string_view end) { return name.ends_with(end); });
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (const int64_t dim : shape) parts.push_back(std::to_string(dim));
  return "[" + join(parts) + "]";
}

Status check_tensors(const ModelConfig& config, const std::vector<ForeignTensor>& foreign, TensorIndex& index,
                     std::vector<std::string>& notes, const std::string& place) {
  std::unordered_map<std::string, std::vector<int64_t>> wanted;
  for (ExpectedTensor& tensor : expected_tensors(config))
    wanted.emplace(std::move(tensor.name), std::move(tensor.shape));
  for (const ForeignTensor& tensor : foreign) {
    if (harmless(tensor.name)) continue;
    return unsupported(place + ": tensor \"" + tensor.name + "\" is stored as " + tensor.dtype +
                       ", which cannot be computed with; F32, F16 and BF16 can");
  }
  TensorIndex kept;
  kept.files = index.files;
  kept.stamps = index.stamps;
  int leftovers = 0;
  for (TensorInfo& tensor : index.tensors) {
    const auto it = wanted.find(tensor.name);
    if (it == wanted.end()) {
      if (harmless(tensor.name)) {
        ++leftovers;
        continue;
      }
      if (tensor.name == "lm_head.weight") {
        notes.push_back(
            "The file holds lm_head.weight, but the config ties the head to the embedding; it is not used.");
        continue;
      }
      return corrupt(place + ": holds tensor \"" + tensor.name + "\" " + shape_text(tensor.shape) +
                     ", which a model with this config does not have (do config and weights belong together?)");
    }
    if (tensor.shape != it->second) {
      return corrupt(place + ": tensor \"" + tensor.name + "\" has shape " + shape_text(tensor.shape) +
                     ", but the config needs " + shape_text(it->second));
    }
    wanted.erase(it);
    kept.by_name.emplace(tensor.name, kept.tensors.size());
    kept.tensors.push_back(std::move(tensor));
  }
  if (!wanted.empty()) {
    std::vector<std::string> missing;
    for (const auto& [name, shape] : wanted) missing.push_back(name);
    std::sort(missing.begin(), missing.end());
    const size_t count = missing.size();
    missing.resize(std::min<size_t>(count, 3));
    return corrupt(place + ": lacks " + std::to_string(count) + " of the tensors its config asks for (" +
                   join(missing) + (count > 3 ? ", ...)" : ")"));
  }
  if (leftovers > 0)
    notes.push_back("Ignored " + std::to_string(leftovers) + " rotary_emb.inv_freq tensors: they are computed.");
  index = std::move(kept);
  return {};
}

}  // namespace loralei
