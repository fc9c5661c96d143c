// SPDX-License-Identifier: Apache-2.0
#include "apps/foreign_options.h"

#include <unordered_map>

namespace loralei {
namespace {

// visit(part) for what stands between separators.
template <typename Visit>
void for_each_part(std::string_view text, char separator, Visit visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

const std::unordered_map<std::string_view, ForeignOption>& options_by_name() {
  static const auto* const options = [] {
    auto* const made = new std::unordered_map<std::string_view, ForeignOption>();
    for (const ForeignGroup& group : foreign_groups()) {
      for_each_part(group.names, ' ', [&](std::string_view name) {
        const bool takes_value = name.ends_with('=');
        if (takes_value) name.remove_suffix(1);
        made->emplace(name, ForeignOption{&group, takes_value, false});
      });
    }
    return made;
  }();
  return *options;
}

bool accepts(const ForeignGroup& group, const std::string& value) {
  if (group.accepted == ForeignGroup::kNone) return false;
  if (std::string_view(group.accepted) == ForeignGroup::kAny) return true;
  bool found = false;
  for_each_part(group.accepted, '|', [&](std::string_view one) { found |= one == value; });
  return found;
}

}  // namespace

std::optional<ForeignOption> find_foreign_option(std::string_view name) {
  const auto& options = options_by_name();
  if (const auto found = options.find(name); found != options.end()) return found->second;
  constexpr std::string_view kNo = "--no-";
  if (!name.starts_with(kNo)) return std::nullopt;
  const auto flag = options.find("--" + std::string(name.substr(kNo.size())));
  if (flag == options.end() || flag->second.takes_value) return std::nullopt;
  return ForeignOption{flag->second.group, false, true};
}

Result<std::string> judge_foreign_option(const ForeignOption& option, const std::string& name,
                                         const std::string& value) {
  if (option.negated || accepts(*option.group, value))
    return name + " changes nothing here: " + option.group->sentence + ".";
  return invalid_argument(name + (value.empty() ? "" : " " + value) + " cannot be had as asked for; " +
                          option.group->sentence + ".");
}

}  // namespace loralei
