// SPDX-License-Identifier: Apache-2.0
#include "adapters/peft_map.h"

#include <charconv>
#include <utility>

#include "adapters/expert_map.h"

namespace loralei {

namespace {

struct LayerModule {
  const char* path;
  Site site;
  Module module;
};
constexpr LayerModule kLayerParts[] = {
    {"self_attn.q_proj", Site::kLinear, Module::kQ},
    {"self_attn.k_proj", Site::kLinear, Module::kK},
    {"self_attn.v_proj", Site::kLinear, Module::kV},
    {"self_attn.o_proj", Site::kLinear, Module::kO},
    {"mlp.gate_proj", Site::kLinear, Module::kGate},
    {"mlp.up_proj", Site::kLinear, Module::kUp},
    {"mlp.down_proj", Site::kLinear, Module::kDown},
    {"self_attn.qkv_proj", Site::kQkv, Module::kQ},
    {"mlp.gate_up_proj", Site::kGateUp, Module::kGate},
    {"mlp.c_fc", Site::kLinear, Module::kUp},
    {"mlp.c_proj", Site::kLinear, Module::kDown},
    // Of layers of gated linear attention, in the place of those of self_attn.
    {"linear_attn.in_proj_qkv", Site::kLinear, Module::kQ},
    {"linear_attn.in_proj_z", Site::kLinear, Module::kK},
    {"linear_attn.in_proj_b", Site::kLinear, Module::kV},
    {"linear_attn.in_proj_a", Site::kLinear, Module::kDecay},
    {"linear_attn.out_proj", Site::kLinear, Module::kO},
};
constexpr LayerModule kOuterParts[] = {
    {"lm_head", Site::kHead, Module::kLmHead},
    {"model.embed_tokens", Site::kEmbed, Module::kEmbed},
    {"model.norm", Site::kFinalNorm, Module::kQ},
};

struct Suffix {
  const char* text;
  const char* ending;  // before it an adapter's name may stand; null: none may
  Part part;
};
// Longest first where one ends with another.
constexpr Suffix kSuffixes[] = {
    {".lora_A", ".weight", Part::kLoraA},
    {".lora_B", ".weight", Part::kLoraB},
    {".lora_B", ".bias", Part::kLoraBBias},
    {".lora_embedding_A", "", Part::kEmbedA},
    {".lora_embedding_B", "", Part::kEmbedB},
    {".lora_magnitude_vector", ".weight", Part::kUnknown},
    {".lora_magnitude_vector", "", Part::kUnknown},
    {".token_adapter.trainable_tokens_delta", "", Part::kTokens},
    {".token_adapter.base_layer.weight", nullptr, Part::kBaseWeight},
    {".modules_to_save", ".weight", Part::kSavedCopy},
    {".original_module.weight", nullptr, Part::kOriginal},
    {".base_layer.weight", nullptr, Part::kBaseWeight},
    {".base_layer.bias", nullptr, Part::kBias},
    {".weight", nullptr, Part::kWeight},
    {".bias", nullptr, Part::kBias},
};

bool eat(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool eat_end(std::string_view& text, std::string_view ending) {
  if (!text.ends_with(ending) || text.size() == ending.size()) return false;
  text.remove_suffix(ending.size());
  return true;
}

// Takes the suffix off the name, and the adapter's name inside of it.
bool eat_suffix(std::string_view& name, const Suffix& suffix, std::string& adapter) {
  if (suffix.ending == nullptr) return eat_end(name, suffix.text);
  std::string_view rest = name;
  if (!eat_end(rest, suffix.ending)) return false;
  if (!eat_end(rest, suffix.text)) {
    const size_t dot = rest.rfind('.');
    if (dot == std::string_view::npos || dot + 1 == rest.size()) return false;
    const std::string_view between = rest.substr(dot + 1);
    if (between == "weight" || between == "bias") return false;
    rest.remove_suffix(rest.size() - dot);
    if (!eat_end(rest, suffix.text)) return false;
    adapter = between;
  }
  name = rest;
  return true;
}

// Inside of a layer; empty: it has none such. Of one with experts the MLP is the shared
// expert.
std::string path_of(const ModelConfig& config, int layer, const LayerModule& part) {
  constexpr std::string_view kMlp = "mlp.";
  const std::string path = part.path;
  if (path.starts_with(is_linear(config, layer) ? "self_attn." : "linear_attn.")) return "";
  if (!path.starts_with(kMlp) || !has_experts(config, layer)) return path;
  return config.experts.shared_width > 0 ? "mlp.shared_expert." + path.substr(kMlp.size()) : "";
}

ModuleRef layer_norm(const ModelConfig& config, int layer, LayerNorm norm) {
  ModuleRef module{.site = Site::kLayerNorm, .layer = layer, .norm = norm};
  module.key =
      "model.layers." + std::to_string(layer) + "." + std::string(config.norm_names[static_cast<size_t>(norm)]);
  return module;
}

// Only an MLP without a gate has these names (StarCoder2's).
bool is_ungated_name(std::string_view path) { return path == "mlp.c_fc" || path == "mlp.c_proj"; }

bool has_module(const ModelConfig& config, const LayerModule& part) {
  if (config.gated) return !is_ungated_name(part.path);
  return part.site != Site::kGateUp && (part.site != Site::kLinear || part.module != Module::kGate);
}

}  // namespace

ModuleRef parse_module(std::string_view path, const ModelConfig& config) {
  const std::string_view given = path;
  while (eat(path, "base_model.")) {
  }
  while (eat(path, "model.") || eat(path, "language_model.")) {
  }
  ModuleRef unknown{.key = std::string(given)};
  if (eat(path, "layers.")) {
    int layer = -1;
    const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), layer);
    if (error != std::errc() || layer < 0 || layer >= config.layers ||
        (path.size() > 1 && path[0] == '0' && path[1] != '.'))
      return unknown;
    path.remove_prefix(static_cast<size_t>(end - path.data()));
    if (!eat(path, ".")) return unknown;
    if (has_experts(config, layer)) {
      ModuleRef module = parse_expert_module(path, config, layer);
      if (module.site != Site::kUnknown) return module;
    }
    for (const LayerModule& part : kLayerParts) {
      const std::string own = path_of(config, layer, part);
      if (own.empty() || path != own || !has_module(config, part)) continue;
      return {part.site, layer, part.module, "model.layers." + std::to_string(layer) + "." + own};
    }
    for (size_t norm = 0; norm < kLayerNorms; ++norm) {
      const std::string_view name = config.norm_names[norm];
      if (has_norm(config, static_cast<LayerNorm>(norm), layer) && path == name)
        return layer_norm(config, layer, static_cast<LayerNorm>(norm));
    }
    return unknown;
  }
  for (const LayerModule& part : kOuterParts) {
    std::string_view name = part.path;
    eat(name, "model.");
    if (path == name) return {part.site, -1, part.module, part.path};
  }
  if (path == "unembed_tokens") return {Site::kHead, -1, Module::kLmHead, "lm_head", true};
  return unknown;
}

TensorRef parse_peft_name(std::string_view name, const ModelConfig& config) {
  for (const Suffix& suffix : kSuffixes) {
    std::string_view module = name;
    std::string adapter;
    if (!eat_suffix(module, suffix, adapter)) continue;
    TensorRef tensor{parse_module(module, config), suffix.part, std::move(adapter)};
    if (tensor.module.site == Site::kUnknown) tensor.part = Part::kUnknown;
    return tensor;
  }
  return {{.key = std::string(name)}, Part::kUnknown, ""};
}

std::vector<ModuleRef> lora_modules(const ModelConfig& config) {
  std::vector<ModuleRef> modules;
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const LayerModule& part : kLayerParts) {
      if (!has_module(config, part)) continue;
      const std::string path = path_of(config, layer, part);
      if (path.empty()) continue;
      modules.push_back({part.site, layer, part.module, "model.layers." + std::to_string(layer) + "." + path});
    }
  }
  for (ModuleRef& module : expert_modules(config)) modules.push_back(std::move(module));
  modules.push_back({Site::kHead, -1, Module::kLmHead, "lm_head"});
  modules.push_back({Site::kEmbed, -1, Module::kEmbed, "model.embed_tokens"});
  return modules;
}

std::vector<ModuleRef> savable_modules(const ModelConfig& config) {
  std::vector<ModuleRef> modules;
  for (int layer = 0; layer < config.layers; ++layer) {
    for (size_t norm = 0; norm < kLayerNorms; ++norm) {
      if (!has_norm(config, static_cast<LayerNorm>(norm), layer)) continue;
      modules.push_back(layer_norm(config, layer, static_cast<LayerNorm>(norm)));
    }
  }
  for (const LayerModule& part : kOuterParts) modules.push_back({part.site, -1, part.module, part.path});
  return modules;
}

std::string module_name(const ModuleRef& module) {
  const size_t dot = module.key.rfind('.');
  return dot == std::string::npos ? module.key : module.key.substr(dot + 1);
}

ModuleShape linear_shape(const ModelConfig& config, int layer, Module module) {
  const LinearConfig& linear = config.linear;
  const bool is_of_linear = layer >= 0 && is_linear(config, layer);
  const int q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  switch (module) {
    case Module::kQ:
      if (is_of_linear) return {linear.channels(), config.hidden};
      return {config.attention_gate ? 2 * q : q, config.hidden};
    case Module::kK:
      return {is_of_linear ? linear.value_width() : kv, config.hidden};
    case Module::kV:
      return {is_of_linear ? linear.v_heads : kv, config.hidden};
    case Module::kDecay:
      return {is_of_linear ? linear.v_heads : 0, config.hidden};
    case Module::kO:
      return {config.hidden, is_of_linear ? linear.value_width() : q};
    case Module::kGate:
    case Module::kUp:
      return {config.ffn, config.hidden};
    case Module::kDown:
      return {config.hidden, config.ffn};
    case Module::kLmHead:
      return {config.vocab, config.hidden};
    case Module::kEmbed:
      return {config.hidden, config.vocab};
  }
  return {};
}

std::vector<Module> parts_of(const ModuleRef& module) {
  switch (module.site) {
    case Site::kQkv:
      return {Module::kQ, Module::kK, Module::kV};
    case Site::kGateUp:
      return {Module::kGate, Module::kUp};
    default:
      return {module.module};
  }
}

}  // namespace loralei
