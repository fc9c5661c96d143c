// SPDX-License-Identifier: Apache-2.0
#include "adapters/cache.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace loralei {

void AdapterCache::recount() { census_.counted = false; }

void AdapterCache::reserve(std::span<AdapterEntry* const> loading) {
  reservations_.clear();
  recount();
  const int64_t patient_since_ns = clock_.now_ns() - kRoomPatienceNs;
  for (const AdapterEntry* entry : loading) {
    if (entry->without_room_since_ns <= patient_since_ns)
      reservations_.push_back({entry, entry->order(), spare_beside(*entry, loading)});
  }
}

// Loads that have lost their patience find room beside younger users of these as well;
// the users are counted then.
bool AdapterCache::leaves_reserved_room(std::span<AdapterVersion* const> versions, uint64_t order) {
  for (const bool take : {false, true}) {
    for (Reservation& reservation : reservations_) {
      if (reservation.order >= order) continue;
      int64_t more = 0;
      bool concerned = false;
      for (size_t index = 0; index < versions.size(); ++index) {
        const AdapterVersion& version = *versions[index];
        // Replaced, or beside it for good: it gives no room either way.
        if (version.owner == nullptr || stays_beside(*reservation.entry, *version.owner)) continue;
        concerned = true;
        const auto here = versions.begin() + static_cast<std::ptrdiff_t>(index);
        const bool named_before = std::find(versions.begin(), here, *here) < here;
        if (!named_before && !keeps_from(*reservation.entry, version)) more += version.adapter->bytes;
      }
      if (take) {
        reservation.spare_bytes -= more;
      } else if (concerned && more > reservation.spare_bytes) {
        return false;
      }
    }
  }
  return true;
}

int64_t AdapterCache::room_beside(int64_t staying_bytes) const {
  const int64_t coming = beside_ != nullptr ? beside_->most_bytes() : 0;
  const int64_t free = ledger_.available_after_loans_bytes(MemoryUse::kAdapters, coming);
  return std::max<int64_t>(0, free + bytes() - staying_bytes);
}

int64_t AdapterCache::limit_bytes(const AdapterEntry& entry) const {
  return room_beside(entries_.pinned_bytes() - entries_.replaced_by(entry).pinned_bytes());
}

AdapterCache::Census& AdapterCache::census() {
  Census& census = census_;
  if (std::exchange(census.counted, true)) return census;
  census.leaving.clear();
  census.bytes_to.clear();
  census.left = 0;
  census.used.clear();
  for (const auto& [id, version] : versions_.all()) {
    if (version->owner == nullptr || version->owner->pinned || !version->whole()) continue;
    if (version->pins == 0) {
      census.leaving.push_back(item_of(*version));
    } else {
      census.used.push_back({version->youngest_order, version->grant.bytes()});
    }
  }
  keep_.sort(census.leaving);
  int64_t bytes = 0;
  for (const CacheItem& item : census.leaving) {
    census.bytes_to.push_back(bytes += item.bytes);
    version_of(item)->owner->keep_score = item.score;
  }
  std::sort(census.used.begin(), census.used.end(),
            [](const Census::Used& a, const Census::Used& b) { return a.youngest_order < b.youngest_order; });
  for (size_t index = census.used.size(); index-- > 1;)
    census.used[index - 1].bytes_from_here += census.used[index].bytes_from_here;
  census.wanted.clear();
  for (const AdapterEntry* entry : entries_.wanted())
    if (entry->version != nullptr && !entry->pinned) census.wanted.push_back(entry);
  std::sort(census.wanted.begin(), census.wanted.end(),
            [](const AdapterEntry* a, const AdapterEntry* b) { return a->wanted < b->wanted; });
  versions_looked_at_ += versions_.all().size() + census.wanted.size();
  return census;
}

std::span<const AdapterEntry* const> AdapterCache::wanted_with(const AdapterEntry& entry) {
  if (entry.wanted == UINT64_MAX) return {};
  const std::vector<const AdapterEntry*>& wanted = census().wanted;
  const auto begin = std::partition_point(wanted.begin(), wanted.end(),
                                          [&](const AdapterEntry* other) { return other->wanted < entry.wanted; });
  const auto end =
      std::find_if(begin, wanted.end(), [&](const AdapterEntry* other) { return other->wanted != entry.wanted; });
  versions_looked_at_ += static_cast<uint64_t>(end - begin);
  return {begin, end};
}

// Members of one request are in memory together.
bool AdapterCache::stays_beside(const AdapterEntry& entry, const AdapterEntry& other) const {
  return &other != &entry && &other != &entries_.replaced_by(entry) &&
         (other.pinned || (other.wanted == entry.wanted && entry.wanted != UINT64_MAX));
}

// Younger users may come one after the other without end; everybody else goes some time.
bool AdapterCache::keeps_from(const AdapterEntry& entry, const AdapterVersion& version) const {
  if (version.owner == nullptr || stays_beside(entry, *version.owner)) return false;
  if (!version.whole() && entry.goes_before(*version.owner)) return true;  // its load does, whoever uses it
  return version.pins > 0 && version.youngest_order > entry.order();
}

int64_t AdapterCache::room_for(const AdapterEntry& entry) {
  int64_t staying_bytes = entries_.pinned_bytes() - entries_.replaced_by(entry).pinned_bytes();
  for (const AdapterEntry* other : wanted_with(entry)) staying_bytes += other != &entry ? other->version_bytes() : 0;
  return room_beside(staying_bytes);
}

int64_t AdapterCache::room_to_ask(const AdapterEntry& entry) {
  return entry.size_known ? entry.ask_bytes : std::min(entry.ask_bytes, room_for(entry));
}

int64_t AdapterCache::spare_beside(const AdapterEntry& entry, std::span<AdapterEntry* const> loading) {
  int64_t spare = room_for(entry) - room_to_ask(entry);
  const std::vector<Census::Used>& used = census().used;
  const auto younger = std::partition_point(
      used.begin(), used.end(), [&](const Census::Used& one) { return one.youngest_order <= entry.order(); });
  if (younger != used.end()) spare -= younger->bytes_from_here;
  // The others of its request stay beside it and keep nothing from it; what it replaces
  // itself does, even if pinned.
  const auto kept = [&](const AdapterEntry& other) {
    const AdapterVersion* version = other.version;
    return version != nullptr && version->pins > 0 && version->youngest_order > entry.order() ? other.version_bytes()
                                                                                              : 0;
  };
  for (const AdapterEntry* other : wanted_with(entry)) spare += other != &entry ? kept(*other) : 0;
  if (const AdapterEntry& replaced = entries_.replaced_by(entry); replaced.pinned) spare -= kept(replaced);
  for (const AdapterEntry* other : loading) {
    const bool keeps = other->arriving != nullptr && keeps_from(entry, *other->arriving);
    if (keeps || entry.goes_before(*other)) spare -= other->granted_bytes;
  }
  return spare;
}

CacheItem AdapterCache::item_of(const AdapterVersion& version) const {
  CacheItem item{.id = version.adapter->version.value,
                 .bytes = version.adapter->bytes,
                 .last_use_ns = version.last_use_ns,
                 .recreate_s = load_times_.predict_s(version.adapter->bytes)};
  if (version.owner != nullptr) weigh(*version.owner, item);
  return item;
}

void AdapterCache::weigh(const AdapterEntry& owner, CacheItem& item) const {
  const int64_t now_ns = clock_.now_ns();
  item.uses_per_s = owner.recent_uses.per_s(now_ns);
  item.expected_per_s = owner.recent_uses.expected_per_s(now_ns, item.last_use_ns);
  item.wanted = owner.wanted;
  item.foreseen = foresight_.foreseen(owner.spec.id, now_ns);
}

// How many of census().leaving, from the first on, may leave for a load of this order.
size_t AdapterCache::may_leave(uint64_t order) {
  const std::vector<CacheItem>& leaving = census().leaving;
  const auto end =
      std::partition_point(leaving.begin(), leaving.end(), [&](const CacheItem& item) { return item.wanted > order; });
  return static_cast<size_t>(end - leaving.begin());
}

// A pinned version goes for its own replacement alone.
bool AdapterCache::gives_its_pinned(const AdapterEntry& replaced) {
  return replaced.pinned && replaced.version != nullptr && replaced.version->pins == 0;
}

int64_t AdapterCache::evictable_bytes(const AdapterEntry& entry) {
  const std::vector<int64_t>& bytes_to = census().bytes_to;
  const AdapterEntry& replaced = entries_.replaced_by(entry);
  const int64_t own = gives_its_pinned(replaced) ? replaced.version_bytes() : 0;
  const size_t left = census().left, end = may_leave(entry.order());
  if (end <= left) return own;
  return own + bytes_to[end - 1] - (left > 0 ? bytes_to[left - 1] : 0);
}

AdapterVersion* AdapterCache::next_to_leave(const AdapterEntry& entry) {
  Census& versions = census();
  AdapterVersion* const next =
      versions.left < may_leave(entry.order()) ? version_of(versions.leaving[versions.left]) : nullptr;
  const AdapterEntry& replaced = entries_.replaced_by(entry);
  if (!gives_its_pinned(replaced)) return next;
  if (next == nullptr) return replaced.version;
  std::array<CacheItem, 2> both{item_of(*next), item_of(*replaced.version)};
  keep_.sort(both);
  return version_of(both.front());
}

AdapterVersion* AdapterCache::version_of(const CacheItem& item) const {
  AdapterVersion* const version = versions_.find(AdapterVersionId{item.id});
  CHECK(version != nullptr);
  return version;
}

void AdapterCache::evict(AdapterVersion* version, const std::string& reason) {
  CHECK(version->owner != nullptr && version->owner->version == version);
  AdapterEntry& owner = *version->owner;
  ++versions_looked_at_;
  if (!owner.pinned) ++census_.left;
  log_.event(LogLevel::kInfo, "adapter leaves memory", {{"adapter", owner.spec.label}}, reason);
  owner.left = reason;
  versions_.evict(*entries_.take_version(owner));
  ++evictions_;
}

// Nobody leaves in vain: only where that gives all of the room.
std::optional<Grant> AdapterCache::make_room(const AdapterEntry& entry, int64_t bytes) {
  const int64_t coming = beside_ != nullptr ? beside_->idle_bytes() : 0;
  if (ledger_.available_bytes(MemoryUse::kAdapters, coming) + evictable_bytes(entry) < bytes) return std::nullopt;
  const std::string reason = "to make room for \"" + entry.spec.label + "\"";
  for (;;) {
    const bool fits = ledger_.available_bytes(MemoryUse::kAdapters) >= bytes;
    if (fits && !takes_what_stays_free(bytes)) {
      if (auto grant = ledger_.try_grant(MemoryUse::kAdapters, bytes)) return grant;
    }
    AdapterVersion* const version = next_to_leave(entry);
    if (beside_gives_first(bytes, version)) {
      beside_->give_up(reason.c_str());
    } else if (version != nullptr && (!fits || beside_ == nullptr || beside_->next())) {
      evict(version, reason);
    } else {
      return ledger_.try_grant(MemoryUse::kAdapters, bytes);
    }
  }
}

// Of the memory that lies between the shelves; where nobody has more than its floor the
// caps keep it free.
bool AdapterCache::takes_what_stays_free(int64_t bytes) const {
  return beside_ != nullptr && beside_->most_bytes() > 0 &&
         ledger_.available_bytes(MemoryUse::kOther) < bytes + beside_->reserve_bytes();
}

// Where adapters have all that they may have, their own go, whatever others are worth.
bool AdapterCache::beside_gives_first(int64_t bytes, const AdapterVersion* own) {
  if (beside_ == nullptr || ledger_.available_bytes(MemoryUse::kAdapters, ledger_.budget_bytes()) < bytes) return false;
  const auto other = beside_->next();
  return other && (own == nullptr || is_worth_less(*other, item_of(*own)));
}

std::optional<CacheItem> AdapterCache::next() {
  recount();
  const Census& versions = census();
  if (versions.leaving.empty()) return std::nullopt;
  return versions.leaving.front();
}

int64_t AdapterCache::give_up(const char* reason) {
  const Census& versions = census();
  CHECK(versions.left < versions.leaving.size());
  const CacheItem item = versions.leaving[versions.left];
  evict(version_of(item), reason);
  return item.bytes;
}

int64_t AdapterCache::room_ahead_bytes() const {
  const int64_t room_bytes = ledger_.available_bytes(MemoryUse::kAdapters);
  if (beside_ == nullptr || beside_->most_bytes() == 0) return room_bytes;
  return std::min(room_bytes, ledger_.available_bytes(MemoryUse::kOther) - beside_->reserve_bytes());
}

// The load's own place among those that may leave is that without an id.
std::optional<Grant> AdapterCache::make_room_ahead(const AdapterEntry& entry, int64_t bytes) {
  CacheItem own{
      .bytes = bytes, .last_use_ns = foresight_.last_use_ns(entry.spec.id), .recreate_s = load_times_.predict_s(bytes)};
  weigh(entry, own);
  std::vector<CacheItem> items{own};
  const Census& versions = census();
  for (size_t index = versions.left; index < versions.leaving.size(); ++index) {
    const CacheItem& item = versions.leaving[index];
    const bool wanted = item.wanted != CacheItem::kUnwanted || foresight_.in_use(version_of(item)->owner->spec.id);
    if (!wanted) items.push_back(item);
  }
  keep_.sort(items);
  int64_t room_bytes = room_ahead_bytes();
  auto end = items.begin();
  for (; end->id != 0 && room_bytes < bytes; ++end) room_bytes += end->bytes;
  if (room_bytes < bytes) return std::nullopt;
  for (auto item = items.begin(); item != end; ++item)
    evict(version_of(*item), "to make room for \"" + entry.spec.label + "\", which is expected soon");
  recount();
  return ledger_.try_grant(MemoryUse::kAdapters, bytes);
}

void AdapterCache::let_go(AdapterVersion* version) {
  CHECK(version->pins == 0 && !version->owner->pinned);
  evict(version, "nobody uses it");
  recount();
}

void AdapterCache::evict_idle(int64_t bytes) {
  if (ledger_.used_bytes(MemoryUse::kAdapters) <= bytes) return;
  recount();
  const Census& versions = census();
  while (ledger_.used_bytes(MemoryUse::kAdapters) > bytes && versions.left < versions.leaving.size())
    evict(version_of(versions.leaving[versions.left]), "for want of memory");
}

}  // namespace loralei
