// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "store/version_name.h"

namespace loralei {
namespace {

constexpr size_t kNumbersKept = 2 * kMaxAdapters;

using Versions = std::vector<CatalogueEntry>;  // of one name, the oldest first

class MemoryCatalogue final : public Catalogue {
 public:
  explicit MemoryCatalogue(int64_t keep_versions) : keep_versions_(static_cast<size_t>(keep_versions)) {
    CHECK(keep_versions >= 1);
  }

  AdapterSourceId new_source() override {
    std::lock_guard lock(mutex_);
    return {++last_source_};
  }

  int64_t new_number(std::string_view name) override {
    std::lock_guard lock(mutex_);
    if (last_numbers_.size() >= kNumbersKept) forget_numbers();
    const auto [last, is_new] = last_numbers_.try_emplace(std::string(name), floor_);
    return ++last->second;
  }

  Status add(CatalogueEntry entry) override {
    std::lock_guard lock(mutex_);
    if (entry.name.empty()) return invalid_argument("an adapter needs a name");
    const auto known = places_.find(entry.name);
    if (known != places_.end()) {
      const CatalogueEntry& old = entries_.at(known->second).back();
      if (old.path == entry.path) return {};
      return invalid_argument("an adapter named '" + entry.name + "' is registered already, from " + old.path +
                              "; unload it first, choose another name, or load in place");
    }
    if (entries_.size() >= kMaxAdapters)
      return too_large("more than " + std::to_string(kMaxAdapters) + " adapters are not kept");
    places_.emplace(entry.name, ++last_place_);
    entries_[last_place_].push_back(std::move(entry));
    return {};
  }

  std::optional<Versions> replace(CatalogueEntry entry) override {
    std::lock_guard lock(mutex_);
    const auto known = places_.find(entry.name);
    if (known == places_.end()) return std::nullopt;
    Versions& versions = entries_.at(known->second);
    Versions left;
    if (entry.number == 0 || versions.back().number == 0) {
      left = std::exchange(versions, {});
      versions.push_back(std::move(entry));
      return left;
    }
    const auto later = [&](const CatalogueEntry& other) { return other.number > entry.number; };
    const auto place = std::find_if(versions.begin(), versions.end(), later);
    versions.insert(place, std::move(entry));
    while (versions.size() > keep_versions_) {
      left.push_back(std::move(versions.front()));
      versions.erase(versions.begin());
    }
    return left;
  }

  Versions remove(std::string_view name) override {
    std::lock_guard lock(mutex_);
    const Found found = look_up(name);
    if (found.versions == nullptr) return {};
    const auto place = places_.find(found.versions->back().name);
    Versions& versions = entries_.at(place->second);
    Versions removed;  // their keeps go without the lock
    if (!found.one || versions.size() == 1) {
      removed = std::move(versions);
      entries_.erase(place->second);
      places_.erase(place);
    } else {
      const auto one = versions.begin() + (found.one - versions.data());
      removed.push_back(std::move(*one));
      versions.erase(one);
    }
    return removed;
  }

  std::optional<CatalogueEntry> find(std::string_view name) const override {
    std::lock_guard lock(mutex_);
    const Found found = look_up(name);
    if (found.versions == nullptr) return std::nullopt;
    return found.one != nullptr ? *found.one : found.versions->back();
  }

  Versions versions(std::string_view name) const override {
    std::lock_guard lock(mutex_);
    const auto known = places_.find(name);
    return known == places_.end() ? Versions() : entries_.at(known->second);
  }

  std::optional<CatalogueEntry> at(size_t place) const override {
    std::lock_guard lock(mutex_);
    if (place >= entries_.size()) return std::nullopt;
    return std::next(entries_.begin(), static_cast<std::ptrdiff_t>(place))->second.back();
  }

  std::vector<CatalogueEntry> list() const override {
    std::lock_guard lock(mutex_);
    std::vector<CatalogueEntry> all;
    all.reserve(entries_.size());
    for (const auto& [order, versions] : entries_) all.push_back(versions.back());
    return all;
  }

  size_t size() const override {
    std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  // Null, null: nothing has that name. one: of a name of one version.
  struct Found {
    const Versions* versions = nullptr;
    const CatalogueEntry* one = nullptr;
  };
  Found look_up(std::string_view name) const {
    if (const auto known = places_.find(name); known != places_.end()) return {&entries_.at(known->second), nullptr};
    const auto wanted = parse_version_name(name);
    if (!wanted || wanted->number == 0) return {};
    const auto known = places_.find(wanted->name);
    if (known == places_.end()) return {};
    const Versions& versions = entries_.at(known->second);
    for (const CatalogueEntry& one : versions)
      if (one.number == wanted->number) return {&versions, &one};
    return {};
  }
  // Of the names that are not there any more: a new one begins behind them all.
  void forget_numbers() {
    std::erase_if(last_numbers_, [this](const auto& one) {
      if (places_.contains(one.first)) return false;
      floor_ = std::max(floor_, one.second);
      return true;
    });
  }

  const size_t keep_versions_;
  mutable std::mutex mutex_;
  uint64_t last_source_ = 0, last_place_ = 0;
  std::map<std::string, uint64_t, std::less<>> places_;  // name -> its key in entries_
  std::map<uint64_t, Versions> entries_;                 // by order of registration; none is empty
  std::map<std::string, int64_t> last_numbers_;          // of new_number()
  int64_t floor_ = 0;                                    // of names that are not in it
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

std::unique_ptr<Catalogue> make_memory_catalogue(int64_t keep_versions) {
  return std::make_unique<MemoryCatalogue>(keep_versions);
}

std::string shown_name(const Catalogue& catalogue, const CatalogueEntry& entry) {
  if (entry.number == 0) return entry.name;
  const auto newest = catalogue.find(entry.name);
  return newest && newest->source == entry.source ? entry.name : version_name(entry.name, entry.number);
}

}  // namespace loralei
