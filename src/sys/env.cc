// SPDX-License-Identifier: Apache-2.0
#include "sys/env.h"

#include <cstdlib>

namespace loralei {

std::optional<std::string> env_string(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace loralei
