// SPDX-License-Identifier: Apache-2.0
// For tests: adapters by short names, one source a name.
#pragma once

#include <functional>
#include <string_view>

#include "adapters/source_spec.h"

namespace loralei::testing_support {

// Up to eight characters sort as their names do.
inline AdapterSourceId source_of(std::string_view name) {
  if (name.size() > 8) return {std::hash<std::string_view>{}(name) | uint64_t{1} << 63};
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = value << 8 | (i < name.size() ? static_cast<uint8_t>(name[i]) : 0u);
  return {value};
}

inline AdapterSourceSpec spec_of(std::string_view name, std::string_view path = "") {
  return {source_of(name), std::string(name), std::string(path)};
}

}  // namespace loralei::testing_support
