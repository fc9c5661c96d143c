// SPDX-License-Identifier: Apache-2.0
// How one version of an adapter is named: "name@3" is the version 3 of "name". What ends
// in '@' and digits is such a name and no other.
//
// Thread: pure functions. Ownership: views of what they are given. Failure: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace loralei {

struct VersionName {
  std::string_view name;
  int64_t number = 0;  // 0: written as no version is ("name@03"), or larger than any
};

inline std::optional<VersionName> parse_version_name(std::string_view text) {
  constexpr size_t kDigitsMost = 18;
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos || at + 1 == text.size()) return std::nullopt;
  const std::string_view digits = text.substr(at + 1);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  VersionName found{text.substr(0, at)};
  if (digits.front() == '0' || digits.size() > kDigitsMost) return found;
  for (const char digit : digits) found.number = found.number * 10 + (digit - '0');
  return found;
}

inline std::string version_name(std::string_view name, int64_t number) {
  return std::string(name) + "@" + std::to_string(number);
}

}  // namespace loralei
