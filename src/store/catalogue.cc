// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

namespace loralei {
namespace {

class MemoryCatalogue final : public Catalogue {
 public:
  uint64_t new_generation() override {
    std::lock_guard lock(mutex_);
    return ++generation_;
  }

  Status add(CatalogueEntry entry, bool replace) override {
    std::lock_guard lock(mutex_);
    if (entry.name.empty()) return invalid_argument("an adapter needs a name");
    const auto known = places_.find(entry.name);
    if (known != places_.end()) {
      CatalogueEntry& old = entries_.at(known->second);
      if (!replace && old.path == entry.path) return {};
      if (!replace) {
        return invalid_argument("an adapter named '" + entry.name + "' is registered already, from " + old.path +
                                "; unload it first, choose another name, or load in place");
      }
      entry.created_s = old.created_s;
      if (entry.generation == 0) entry.generation = ++generation_;
      old = std::move(entry);
      return {};
    }
    if (entries_.size() >= kMaxAdapters)
      return too_large("more than " + std::to_string(kMaxAdapters) + " adapters are not kept");
    if (entry.generation == 0) entry.generation = ++generation_;
    places_.emplace(entry.name, ++last_place_);
    entries_.emplace(last_place_, std::move(entry));
    return {};
  }

  bool remove(std::string_view name) override {
    std::lock_guard lock(mutex_);
    const auto known = places_.find(name);
    if (known == places_.end()) return false;
    entries_.erase(known->second);
    places_.erase(known);
    return true;
  }

  std::optional<CatalogueEntry> find(std::string_view name) const override {
    std::lock_guard lock(mutex_);
    const auto known = places_.find(name);
    if (known == places_.end()) return std::nullopt;
    return entries_.at(known->second);
  }

  std::optional<CatalogueEntry> at(size_t place) const override {
    std::lock_guard lock(mutex_);
    if (place >= entries_.size()) return std::nullopt;
    return std::next(entries_.begin(), static_cast<std::ptrdiff_t>(place))->second;
  }

  std::vector<CatalogueEntry> list() const override {
    std::lock_guard lock(mutex_);
    std::vector<CatalogueEntry> all;
    all.reserve(entries_.size());
    for (const auto& [order, entry] : entries_) all.push_back(entry);
    return all;
  }

  size_t size() const override {
    std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  mutable std::mutex mutex_;
  uint64_t generation_ = 0, last_place_ = 0;
  std::map<std::string, uint64_t, std::less<>> places_;  // name -> its key in entries_
  std::map<uint64_t, CatalogueEntry> entries_;           // by order of registration
};

}  // namespace

const char* adapter_origin_name(AdapterOrigin origin) {
  switch (origin) {
    case AdapterOrigin::kCommandLine:
      return "command_line";
    case AdapterOrigin::kDirectory:
      return "directory";
    case AdapterOrigin::kHttp:
      return "http";
  }
  return "unknown";
}

std::unique_ptr<Catalogue> make_memory_catalogue() { return std::make_unique<MemoryCatalogue>(); }

}  // namespace loralei
