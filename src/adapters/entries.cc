// SPDX-License-Identifier: Apache-2.0
#include "adapters/entries.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {

AdapterEntry* AdapterEntries::find(AdapterSourceId source) const {
  const auto found = entries_.find(source);
  return found == entries_.end() ? nullptr : found->second.get();
}

Result<AdapterEntry*> AdapterEntries::add(const AdapterSourceSpec& source) {
  if (source.id.value == 0 || source.label.empty() || source.path.empty())
    return invalid_argument("an adapter needs a name and a path");
  if (static_cast<int32_t>(entries_.size()) >= sources_max_) {
    return too_large("no more than " + std::to_string(sources_max_) + " adapters can be registered; unload some first");
  }
  auto entry = std::make_unique<AdapterEntry>();
  entry->spec = source;
  const auto [added, is_new] = entries_.emplace(source.id, std::move(entry));
  CHECK(is_new);
  touch(*added->second);
  count_change();
  return added->second.get();
}

void AdapterEntries::forget(AdapterEntry& entry) {
  CHECK(entry.version == nullptr && entry.arriving == nullptr && entry.job == 0 && entry.tickets.empty());
  if (entry.changed) std::erase(changed_, &entry);
  shown_idle_bytes_ -= entry.shown_idle_bytes;
  std::erase(wanted_, &entry);
  const AdapterSourceId source = entry.spec.id;
  gone_.push_back(source);
  CHECK(entries_.erase(source) == 1);
}

const AdapterEntry& AdapterEntries::replaced_by(const AdapterEntry& entry) const {
  if (entry.replaces.value == 0) return entry;
  const AdapterEntry* const replaced = find(entry.replaces);
  return replaced == nullptr ? entry : *replaced;
}

void AdapterEntries::set_version(AdapterEntry& entry, AdapterVersion& version) {
  CHECK(entry.version == nullptr && version.owner == &entry);
  touch(entry);
  entry.version = &version;
  entry.last_digest = version.adapter->digest;
  pinned_bytes_ += entry.pinned_bytes();
}

AdapterVersion* AdapterEntries::take_version(AdapterEntry& entry) {
  CHECK(entry.version != nullptr);
  touch(entry);
  pinned_bytes_ -= entry.pinned_bytes();
  return std::exchange(entry.version, nullptr);
}

void AdapterEntries::set_pinned(AdapterEntry& entry, bool pinned) {
  touch(entry);
  pinned_bytes_ -= entry.pinned_bytes();
  entry.pinned = pinned;
  pinned_bytes_ += entry.pinned_bytes();
}

void AdapterEntries::unwant(AdapterEntry& entry) {
  if (entry.waiting == 0) return;
  touch(entry);
  std::erase(wanted_, &entry);
  entry.wanted = UINT64_MAX;
  entry.waiting = 0;
}

int64_t AdapterEntries::idle_bytes() const {
  int64_t sum = shown_idle_bytes_;
  for (const AdapterEntry* entry : changed_) sum += entry->idle_bytes() - entry->shown_idle_bytes;
  return sum;
}

void AdapterEntries::begin_round() {
  for (AdapterEntry* entry : wanted_) {
    touch(*entry);
    entry->wanted = UINT64_MAX;
    entry->waiting = 0;
  }
  wanted_.clear();
}

void AdapterEntries::want(AdapterEntry& entry, uint64_t order) {
  if (entry.waiting++ == 0) wanted_.push_back(&entry);
  touch(entry);
  entry.wanted = std::min(entry.wanted, order);
}

void AdapterEntries::touch(AdapterEntry& entry) {
  if (!std::exchange(entry.changed, true)) changed_.push_back(&entry);
}

void AdapterEntries::tell(AdapterSourceId source) { news_.push_back(source); }

void AdapterEntries::take_news(std::vector<AdapterSourceId>& sources) {
  sources.insert(sources.end(), news_.begin(), news_.end());
  news_.clear();
}

RegistryView AdapterEntries::view_of(const AdapterEntry& entry) {
  RegistryView view{.source = &entry.spec,
                    .users = entry.users(),
                    .waiting = entry.waiting,
                    .uses = entry.uses,
                    .recent_uses = &entry.recent_uses,
                    .load_s = entry.load_s,
                    .keep_score = entry.keep_score,
                    .left = &entry.left,
                    .pinned = entry.pinned};
  if (entry.version != nullptr) {
    view.state = AdapterState::kResident;
    view.adapter = entry.version->adapter.get();
    view.bytes = entry.version_bytes();
  } else if (entry.stage != AdapterStage::kIdle) {
    view.state = AdapterState::kLoading;
  } else if (entry.failed) {
    view.state = AdapterState::kFailed;
    view.error = &entry.error;
  }
  return view;
}

void AdapterEntries::for_each(const std::function<void(AdapterEntry&)>& visit) const {
  for (const auto& [source, entry] : entries_) visit(*entry);
}

void AdapterEntries::take_changes(const std::function<void(AdapterSourceId)>& gone,
                                  const std::function<void(const RegistryView&)>& changed) {
  for (const AdapterSourceId source : gone_) gone(source);
  gone_.clear();
  for (AdapterEntry* entry : changed_) {
    entry->changed = false;
    shown_idle_bytes_ += entry->idle_bytes() - std::exchange(entry->shown_idle_bytes, entry->idle_bytes());
    changed(view_of(*entry));
  }
  changed_.clear();
}

void AdapterEntries::check() const {
  int64_t pinned_sum_bytes = 0, idle_sum_bytes = 0;
  for (const auto& [source, entry] : entries_) {
    CHECK(entry->spec.id == source);
    CHECK(entry->changed == (std::count(changed_.begin(), changed_.end(), entry.get()) == 1));
    CHECK((entry->waiting > 0) == (std::count(wanted_.begin(), wanted_.end(), entry.get()) == 1));
    CHECK((entry->waiting > 0) == (entry->wanted != UINT64_MAX));
    CHECK(entry->version == nullptr || (entry->version->owner == entry.get() && entry->version->whole()));
    CHECK(entry->arriving == nullptr || (entry->arriving->owner == entry.get() && !entry->arriving->whole()));
    CHECK(entry->arriving == nullptr || entry->stage == AdapterStage::kReading);
    pinned_sum_bytes += entry->pinned_bytes();
    idle_sum_bytes += entry->idle_bytes();
  }
  CHECK(pinned_bytes_ == pinned_sum_bytes);
  CHECK(idle_bytes() == idle_sum_bytes);
}

}  // namespace loralei
