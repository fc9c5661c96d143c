// SPDX-License-Identifier: Apache-2.0
// What families with experts say of them, in config.json and in GGUF files: functions for
// the entries of families.cc.
//
// Pure functions, any thread. Failure: counts that cannot be, and what is not computed
// here, are refused with a sentence.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/json_util.h"
#include "formats/model_config.h"

namespace loralei {

Status mixtral_config(const Json& root, ModelConfig& config, const std::string& path);
Status qwen2_moe_config(const Json& root, ModelConfig& config, const std::string& path);
Status qwen3_moe_config(const Json& root, ModelConfig& config, const std::string& path);
Status gpt_oss_config(const Json& root, ModelConfig& config, const std::string& path);

// And linear attention (linear_families.h); every layer has experts.
Status qwen3_5_moe_config(const Json& root, ModelConfig& config, const std::string& path);

// Of a llama file with experts, which is then one of Mixtral; of another nothing.
Status mixtral_gguf(const GgufFile& file, ModelConfig& config);
Status qwen2_moe_gguf(const GgufFile& file, ModelConfig& config);
Status qwen3_moe_gguf(const GgufFile& file, ModelConfig& config);
Status qwen3_5_moe_gguf(const GgufFile& file, ModelConfig& config);
Status gpt_oss_gguf(const GgufFile& file, ModelConfig& config);

}  // namespace loralei
