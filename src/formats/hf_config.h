// SPDX-License-Identifier: Apache-2.0
// Reads a Hugging Face config.json into a ModelConfig, and generation_config.json into
// sampling defaults.
//
// Pure functions over text, any thread. Every key falls into one of four groups (tables
// in hf_keys.cc): applied; harmless for inference; one that changes the mathematics
// and is refused by name unless it has its neutral value; unknown, which becomes a note.
// Defaults of absent keys are those of the architecture's class in transformers.
// Failure: corrupt (wrong type or range, with the key), unsupported (the key and value,
// or the list of architectures that work).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/base_model.h"
#include "formats/quant_config.h"

namespace loralei {

struct HfConfig {
  ModelConfig config;
  QuantConfig quant;
  std::vector<std::string> notes;
};

// `path` is for messages.
Result<HfConfig> parse_hf_config(std::string_view json, const std::string& path);

struct GenerationConfig {
  GenerationDefaults defaults;
  std::vector<TokenId> eos;
};
Result<GenerationConfig> parse_generation_config(std::string_view json, const std::string& path, int vocab);

// The checks that hold for a ModelConfig from any format: counts within limits, heads
// divisible, head_dim even, sliding filled.
Status check_model_config(const ModelConfig& config, const std::string& path);

}  // namespace loralei
