// SPDX-License-Identifier: Apache-2.0
// From the tensor names of adapter files to modules of the base model.
//
// Pure functions, any thread. Names are those PEFT writes, "base_model.model." + module +
// part; repeated or missing "base_model.", "model." and "language_model." (of models that
// read images, too) prefixes are tolerated, and so is
// the adapter's name that a part has in a model's own state ("lora_A.default.weight").
// unembed_tokens is what Tinker calls lm_head. Nothing here judges whether a tensor is
// wanted: unknown ones are answered as kUnknown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_config.h"
#include "ops/args.h"

namespace loralei {

// What a module is in the model.
enum class Site : uint8_t {
  kLinear,
  kQkv,
  kGateUp,
  kHead,
  kEmbed,
  kFinalNorm,
  kLayerNorm,
  // Of layers with experts (expert_map.h).
  kRouter,
  kSharedGate,
  kExpertMatrix,
  kExpertStack,
  kUnknown
};

struct ModuleRef {
  Site site = Site::kUnknown;
  int layer = -1;                      // -1 outside the layers
  Module module = Module::kQ;          // kLinear, kHead, kEmbed
  std::string key;                     // canonical: "model.layers.3.self_attn.q_proj", "lm_head"
  bool unembed = false;                // the head, named unembed_tokens
  LayerNorm norm = LayerNorm::kInput;  // kLayerNorm
  int expert = -1, expert_part = 0;    // kExpertMatrix: whose, and gate, up or down
};

// What a tensor is of its module.
enum class Part : uint8_t {
  kLoraA,
  kLoraB,
  kLoraBBias,
  kEmbedA,
  kEmbedB,
  kWeight,
  kBaseWeight,
  kBias,
  kTokens,
  kSavedCopy,  // modules_to_save.weight: what kWeight says once more
  kOriginal,   // original_module.weight: what the base had when the module was saved
  kUnknown
};

struct TensorRef {
  ModuleRef module;
  Part part = Part::kUnknown;
  std::string adapter;  // "default" of "lora_A.default.weight"; mostly empty
};

// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" -> layer 0's q_proj,
// kLoraA. Layers beyond the config are unknown.
TensorRef parse_peft_name(std::string_view name, const ModelConfig& config);
// "model.layers.3.self_attn.q_proj", with prefixes tolerated.
ModuleRef parse_module(std::string_view path, const ModelConfig& config);

// All modules of a base that LoRA can be put on: the linear ones of each layer, their
// fused forms, head and embedding.
std::vector<ModuleRef> lora_modules(const ModelConfig& config);
// All modules that can be saved whole: norms, head, embedding.
std::vector<ModuleRef> savable_modules(const ModelConfig& config);

// The last part of the key: "q_proj".
std::string module_name(const ModuleRef& module);

struct ModuleShape {
  int out = 0, in = 0;
};
// Of a linear module of a layer; of kLmHead and kEmbed any layer does.
ModuleShape linear_shape(const ModelConfig& config, int layer, Module module);
// The linear modules that a fused one (or a plain one) stands for, in the
// order of its rows.
std::vector<Module> parts_of(const ModuleRef& module);

}  // namespace loralei
