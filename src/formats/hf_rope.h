// SPDX-License-Identifier: Apache-2.0
// Rotary embedding in a config.json: "rope_theta", "rope_scaling" (old form) and
// "rope_parameters" (new form). Where a family turns layers with a window by themselves,
// "rope_scaling" is that of the others, and "rope_parameters" has an object for each.
//
// Pure functions, any thread. Keys that a scaling does not know are refused.
#pragma once

#include <string>

#include "base/result.h"
#include "formats/family.h"
#include "formats/json_util.h"
#include "formats/model_config.h"

namespace loralei {

Status read_rope(const Json& root, const Family& family, ModelConfig& config, const std::string& path);

}  // namespace loralei
