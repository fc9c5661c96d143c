// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace loralei {

Result<int64_t> parse_bytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  const Error bad = invalid_argument("'" + copy + "' is not a size; write for example 512MiB, 2GiB or 1.5GB.");
  if (end == copy.c_str() || !std::isfinite(number) || number < 0) return Error(bad);
  std::string unit(end);
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  double factor = 1;
  if (!unit.empty() && unit != "B" && unit != "b") {
    static constexpr std::string_view kLetters = "kmgt";
    const auto power = kLetters.find(static_cast<char>(unit[0] | 0x20));
    if (power == std::string_view::npos) return Error(bad);
    const std::string_view rest = std::string_view(unit).substr(1);
    const bool decimal = rest == "B" || rest == "b";
    if (!rest.empty() && !decimal && rest != "iB" && rest != "ib" && rest != "i") return Error(bad);
    factor = std::pow(decimal ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (bytes > static_cast<double>(kMaxStatedBytes))
    return invalid_argument("'" + copy + "' is more than any machine has; the most is 1024TiB.");
  return static_cast<int64_t>(bytes);
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, unit == 0 ? "%.0f %s" : value < 10 ? "%.2f %s" : "%.1f %s", value, kUnits[unit]);
  return buffer;
}

}  // namespace loralei
