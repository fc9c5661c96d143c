// SPDX-License-Identifier: Apache-2.0
// What Gemma, Gemma 2 and Gemma 3 differ in, for their entries in families.cc: norms by
// 1 + w, a scaled embedding, GELU; since Gemma 2 norms on both sides of a block, caps,
// windows in turn and a stated scale of scores; in Gemma 3 norms of queries and keys.
//
// Pure functions, any thread. Failure: as Family::read_config and read_gguf.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/json_util.h"
#include "formats/model_config.h"

namespace loralei {

Status gemma_config(const Json& root, ModelConfig& config, const std::string& path);
Status gemma2_config(const Json& root, ModelConfig& config, const std::string& path);
Status gemma3_config(const Json& root, ModelConfig& config, const std::string& path);
Status gemma_gguf(const GgufFile& file, ModelConfig& config);
Status gemma2_gguf(const GgufFile& file, ModelConfig& config);
Status gemma3_gguf(const GgufFile& file, ModelConfig& config);

}  // namespace loralei
