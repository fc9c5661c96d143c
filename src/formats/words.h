// SPDX-License-Identifier: Apache-2.0
// Joining words for messages. Pure, any thread.
#pragma once

#include <string>
#include <vector>

namespace loralei {

// "a, b, c".
inline std::string join(const std::vector<std::string>& parts, const char* separator = ", ") {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

}  // namespace loralei
