// SPDX-License-Identifier: Apache-2.0
// The page of metrics.cc as OpenMetrics has it.
#include <set>
#include <string>
#include <string_view>

#include "serve/metrics.h"

namespace loralei {
namespace {

constexpr std::string_view kTotal = "_total", kHelp = "# HELP ", kType = "# TYPE ";

// Those of families that are no counters.
std::set<std::string_view> other_families(std::string_view page) {
  std::set<std::string_view> names;
  for (size_t at = page.find(kType); at != std::string_view::npos; at = page.find(kType, at + 1)) {
    const std::string_view line = page.substr(at + kType.size(), page.find('\n', at) - at - kType.size());
    if (!line.ends_with(" counter")) names.insert(line.substr(0, line.find(' ')));
  }
  return names;
}

}  // namespace

std::string as_openmetrics(std::string_view page) {
  const std::set<std::string_view> others = other_families(page);
  std::string out;
  out.reserve(page.size() + 64);
  std::string help;  // of the family whose type comes next
  while (!page.empty()) {
    const size_t end = std::min(page.find('\n'), page.size());
    const std::string_view line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (line.starts_with(kHelp)) {
      help = line.substr(kHelp.size());
      continue;
    }
    if (!line.starts_with(kType)) {
      out.append(line) += '\n';
      continue;
    }
    const std::string_view rest = line.substr(kType.size());
    const size_t space = rest.find(' ');
    std::string_view name = rest.substr(0, space), type = rest.substr(std::min(space + 1, rest.size()));
    if (type == "counter") {
      const std::string_view family = name.substr(0, name.size() - std::min(name.size(), kTotal.size()));
      if (name.ends_with(kTotal) && others.count(family) == 0)
        name = family;
      else
        type = "unknown";
    }
    if (type == "untyped") type = "unknown";
    const std::string text = help.substr(std::min(help.find(' '), help.size()));
    out.append(kHelp).append(name).append(text) += '\n';
    out.append(kType).append(name).append(" ").append(type) += '\n';
  }
  return out += "# EOF\n";
}

}  // namespace loralei
