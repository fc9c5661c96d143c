// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <utility>

namespace loralei {
namespace {

class MemoryCatalogue final : public Catalogue {
 public:
  AdapterSourceId new_source() override {
    std::lock_guard lock(mutex_);
    return {++last_source_};
  }

  Status add(CatalogueEntry entry) override {
    std::lock_guard lock(mutex_);
    if (entry.name.empty()) return invalid_argument("an adapter needs a name");
    const auto known = places_.find(entry.name);
    if (known != places_.end()) {
      const CatalogueEntry& old = entries_.at(known->second);
      if (old.path == entry.path) return {};
      return invalid_argument("an adapter named '" + entry.name + "' is registered already, from " + old.path +
                              "; unload it first, choose another name, or load in place");
    }
    if (entries_.size() >= kMaxAdapters)
      return too_large("more than " + std::to_string(kMaxAdapters) + " adapters are not kept");
    places_.emplace(entry.name, ++last_place_);
    entries_.emplace(last_place_, std::move(entry));
    return {};
  }

  std::optional<CatalogueEntry> replace(CatalogueEntry entry) override {
    std::lock_guard lock(mutex_);
    const auto known = places_.find(entry.name);
    if (known == places_.end()) return std::nullopt;
    CatalogueEntry& place = entries_.at(known->second);
    entry.created_s = place.created_s;
    return std::exchange(place, std::move(entry));
  }

  bool remove(std::string_view name) override {
    std::unique_lock lock(mutex_);
    const auto known = places_.find(name);
    if (known == places_.end()) return false;
    const auto node = entries_.extract(known->second);  // its keep goes without the lock
    places_.erase(known);
    lock.unlock();
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
  uint64_t last_source_ = 0, last_place_ = 0;
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
