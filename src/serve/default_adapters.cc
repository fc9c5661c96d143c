// SPDX-License-Identifier: Apache-2.0
#include "serve/default_adapters.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/limits.h"

namespace loralei {
namespace {

ApiError refused(std::string message) {
  ApiError error = api_error_of_status(400, std::move(message));
  error.code = "invalid_value";
  return error;
}

ApiError no_such_adapter(const AdapterRef& wanted, size_t count) {
  const std::string which =
      wanted.index >= 0 ? "the id " + std::to_string(wanted.index) : "the name `" + wanted.name.substr(0, 200) + "`";
  if (count == 0) return refused("No adapter has " + which + ": none is registered.");
  return refused("No adapter has " + which + ": the ids go from 0 to " + std::to_string(count - 1) +
                 "; GET /lora-adapters lists them. Nothing was changed.");
}

}  // namespace

Parsed<std::vector<AdapterRef>> DefaultAdapters::set(const std::vector<AdapterRef>& wanted,
                                                     const Catalogue& catalogue) {
  const std::vector<CatalogueEntry> listed = catalogue.list();  // one list, so that places are those of one moment
  std::vector<AdapterRef> adapters;
  std::set<std::pair<std::string, int64_t>> named;  // names and versions
  for (const AdapterRef& one : wanted) {
    const auto place = static_cast<size_t>(std::max<int64_t>(one.index, 0));
    const auto entry = one.index < 0           ? catalogue.find(one.name)
                       : place < listed.size() ? std::optional<CatalogueEntry>(listed[place])
                                               : std::nullopt;
    if (!entry) return no_such_adapter(one, listed.size());
    const std::string& name = one.index < 0 ? one.name : entry->name;
    if (!named.emplace(entry->name, entry->number).second)
      return refused("The adapter `" + name + "` is named twice. Nothing was changed.");
    if (one.scale != 0.0f) adapters.push_back({name, -1, one.scale});
  }
  if (adapters.size() > static_cast<size_t>(kMaxAdaptersPerRequest)) {
    return refused(std::to_string(adapters.size()) + " adapters have a scale other than 0; at most " +
                   std::to_string(kMaxAdaptersPerRequest) + " can be added up. Nothing was changed.");
  }
  const std::lock_guard lock(mutex_);
  adapters_ = adapters;
  return adapters;
}

std::vector<AdapterRef> DefaultAdapters::now() const {
  const std::lock_guard lock(mutex_);
  return adapters_;
}

bool DefaultAdapters::hold(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(adapters_.begin(), adapters_.end(), [&](const AdapterRef& one) { return one.name == name; });
}

}  // namespace loralei
