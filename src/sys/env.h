// SPDX-License-Identifier: Apache-2.0
// The only reader of environment variables. Call at start, before other threads exist
// (the environment is not locked).
#pragma once

#include <optional>
#include <string>

namespace loralei {

std::optional<std::string> env_string(const char* name);  // nullopt when unset; an empty value is a value

}  // namespace loralei
