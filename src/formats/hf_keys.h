// SPDX-License-Identifier: Apache-2.0
// The keys of a config.json: which are applied, which say nothing about inference, and
// which change what is computed and are refused unless they have their neutral value.
//
// Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "formats/family.h"
#include "formats/json_util.h"

namespace loralei {

// Keys that neither every model nor this family applies: those that matter are refused,
// unknown ones become a note.
Status check_other_keys(const Json& root, const Family& family, const std::string& path,
                        std::vector<std::string>& notes);

// "config.json: "key": value is not supported (why)".
Error refused_value(const std::string& path, const std::string& key, const Json& value, const std::string& why);

}  // namespace loralei
