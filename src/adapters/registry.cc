// SPDX-License-Identifier: Apache-2.0
#include "adapters/registry.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace loralei {

AdapterRegistry::AdapterRegistry(Ledger& ledger, const Clock& clock, LogSink& log, RegistryOptions options,
                                 std::function<bool(LoadJob&&)> start_load)
    : ledger_(ledger),
      clock_(clock),
      options_(std::move(options)),
      entries_(options_.sources_max),
      versions_(clock, {.used =
                            [this](AdapterEntry* owner) {
                              entries_.count_change();
                              if (owner != nullptr) entries_.touch(*owner);
                            },
                        .leaving = [this](const AdapterVersion& version) { on_leaving(version); }}),
      cache_(ledger, clock, log, options_.keep, foresight_, entries_, versions_, options_.beside),
      loads_(clock, log, options_, std::move(start_load), entries_, versions_, cache_, foresight_, replies_) {}

std::string AdapterRegistry::label(AdapterSourceId source) const {
  const AdapterEntry* const entry = entries_.find(source);
  return entry == nullptr ? std::string() : entry->spec.label;
}

int64_t AdapterRegistry::bytes_of(AdapterSourceId source) const {
  const AdapterEntry* const entry = entries_.find(source);
  return entry == nullptr ? 0 : entry->version_bytes();
}

bool AdapterRegistry::is_arriving(AdapterSourceId source) const {
  const AdapterEntry* const entry = entries_.find(source);
  return entry != nullptr && entry->arriving != nullptr;
}

const Digest* AdapterRegistry::last_digest(AdapterSourceId source) const {
  const AdapterEntry* const entry = entries_.find(source);
  return entry == nullptr || !entry->last_digest ? nullptr : &*entry->last_digest;
}

// --- commands

namespace {

Error not_registered() { return not_found("this adapter is not registered, or not any more"); }
Error has_other_files(const AdapterSourceSpec& known) {
  return invalid_argument("adapter \"" + known.label + "\" is registered from " + known.path +
                          "; other files are another source");
}

}  // namespace

void AdapterRegistry::add(uint64_t ticket, const AdapterSourceSpec& source, bool pinned) {
  if (AdapterEntry* const entry = entries_.find(source.id); entry != nullptr) {
    if (entry->spec.path != source.path) return replies_.put(ticket, has_other_files(entry->spec));
    entry->forget_on_failure = false;  // it is wanted for its own sake now
  } else if (const auto added = entries_.add(source); !added.ok()) {
    return replies_.put(ticket, added.error());
  }
  if (pinned) return pin(ticket, source.id);
  replies_.put(ticket, {});
}

void AdapterRegistry::load(uint64_t ticket, const AdapterSourceSpec& source, bool reload, AdapterSourceId replaces) {
  AdapterEntry* entry = entries_.find(source.id);
  if (entry == nullptr) {
    if (source.path.empty()) return replies_.put(ticket, not_registered());
    auto added = entries_.add(source);
    if (!added.ok()) return replies_.put(ticket, added.error());
    entry = *added;
    entry->forget_on_failure = true;
  }
  if (!source.path.empty() && entry->spec.path != source.path)
    return replies_.put(ticket, has_other_files(entry->spec));
  if (entry->stage == AdapterStage::kIdle) {
    if (!reload && entry->version != nullptr) {
      return replies_.put(ticket,
                          invalid_argument("adapter \"" + entry->spec.label +
                                           "\" is already loaded; ask to replace it in place, or unload it first"));
    }
    entry->reload = entry->version != nullptr;
    if (!entry->reload && replaces != source.id) entry->replaces = replaces;
  }
  entry->tickets.push_back(ticket);
  loads_.want(*entry);
}

void AdapterRegistry::drop(uint64_t ticket, AdapterSourceId source) {
  AdapterEntry* const dropped = entries_.find(source);
  if (dropped == nullptr) return replies_.put(ticket, not_registered());
  AdapterEntry& entry = *dropped;
  replies_.put_all(entry,
                   Error{ErrorCode::kCancelled, "adapter \"" + entry.spec.label +
                                                    "\" was unloaded before it was ready; load it again if it is "
                                                    "wanted"});
  const bool answered_later = loads_.leave(entry, ticket);
  if (entry.version != nullptr) {
    versions_.retire(*entries_.take_version(entry), {ticket});
  } else if (!answered_later) {
    replies_.put(ticket, {});
  }
  entries_.tell(source);
  const AdapterSourceId replaced = entry.replaces;
  entries_.forget(entry);
  loads_.bring_back(replaced);
  entries_.count_change();
}

void AdapterRegistry::pin(uint64_t ticket, AdapterSourceId source) {
  AdapterEntry* entry = entries_.find(source);
  if (entry == nullptr) return replies_.put(ticket, not_registered());
  entries_.set_pinned(*entry, true);
  entries_.count_change();
  if (entry->version != nullptr) return replies_.put(ticket, {}, 0, digest_hex(entry->version->adapter->digest));
  entry->tickets.push_back(ticket);
  loads_.want(*entry);
}

void AdapterRegistry::unpin(uint64_t ticket, AdapterSourceId source) {
  AdapterEntry* entry = entries_.find(source);
  if (entry == nullptr) return replies_.put(ticket, not_registered());
  entries_.set_pinned(*entry, false);
  entries_.count_change();
  replies_.put(ticket, {});
}

// --- requests

void AdapterRegistry::begin_round() {
  reserve();
  entries_.begin_round();
}

AdapterVersion* AdapterRegistry::claimed(const AdapterNeeds& needs, size_t index) const {
  if (needs.claims.empty()) return nullptr;
  AdapterVersion* const version = versions_.find(needs.claims[index].version());
  return version != nullptr && !version->failed ? version : nullptr;
}

// Fills found_. An outcome where that is decided: a source is unknown, or a load has
// failed.
std::optional<AcquireOutcome> AdapterRegistry::find_versions(const AdapterNeeds& needs, uint64_t since, bool early,
                                                             Error& error) {
  found_.clear();
  for (size_t index = 0; index < needs.sources.size(); ++index) {
    if (AdapterVersion* const version = claimed(needs, index); version != nullptr) {
      found_.push_back(early || version->whole() ? version : nullptr);
      continue;
    }
    const AdapterEntry* entry = entries_.find(needs.sources[index]);
    if (entry == nullptr) {
      error = not_registered();
      return AcquireOutcome::kFailed;
    }
    found_.push_back(entry->version == nullptr && early ? entry->arriving : entry->version);
    if (entry->version == nullptr && entry->failed && entry->failed_serial > since) {
      error = entry->error;
      return AcquireOutcome::kFailed;
    }
  }
  return std::nullopt;
}

// Marks the sources as wanted, and starts loading those that are not in memory.
void AdapterRegistry::wait_for(const AdapterNeeds& needs, uint64_t order) {
  for (size_t index = 0; index < needs.sources.size(); ++index) {
    const AdapterVersion* const version = claimed(needs, index);
    AdapterEntry* const entry = version != nullptr ? version->owner : entries_.find(needs.sources[index]);
    if (entry == nullptr) continue;  // replaced or dropped: nothing is loaded for it
    entries_.want(*entry, order);
    if (entry->version == nullptr) loads_.want(*entry);
  }
}

AcquireOutcome AdapterRegistry::look(const AdapterNeeds& needs, uint64_t order, uint64_t since,
                                     std::vector<const Adapter*>& adapters, Error& error, bool early) {
  adapters.clear();
  if (const auto decided = find_versions(needs, since, early, error)) return *decided;
  if (std::count(found_.begin(), found_.end(), nullptr) == 0) {
    for (const AdapterVersion* version : found_) adapters.push_back(version->adapter.get());
    return AcquireOutcome::kReady;
  }
  if (needs.sources.size() > 1) {
    if (const Status fits = fit_together(needs); !fits.ok()) {
      error = fits.error();
      return AcquireOutcome::kFailed;
    }
  }
  wait_for(needs, order);
  return AcquireOutcome::kWaiting;
}

AcquireOutcome AdapterRegistry::acquire(const AdapterNeeds& needs, uint64_t order, uint64_t since,
                                        std::vector<AdapterPin>& pins, Error& error, bool early) {
  if (const auto decided = find_versions(needs, since, early, error)) return *decided;
  const bool ready =
      std::count(found_.begin(), found_.end(), nullptr) == 0 && cache_.leaves_reserved_room(found_, order);
  if (!ready && needs.sources.size() > 1) {
    if (const Status fits = fit_together(needs); !fits.ok()) {
      error = fits.error();
      return AcquireOutcome::kFailed;
    }
  }
  if (!ready) {
    wait_for(needs, order);
    return AcquireOutcome::kWaiting;
  }
  for (AdapterVersion* version : found_) {
    if (version->owner != nullptr && !needs.again) {
      ++version->owner->uses;
      version->owner->recent_uses.add(clock_.now_ns());
    }
    loads_ahead_used_ += std::exchange(version->foreseen, false) ? 1 : 0;
    pins.push_back(versions_.pin(*version, order));
  }
  return AcquireOutcome::kReady;
}

bool AdapterRegistry::is_starved() const {
  if (!loads_.waits_for_room()) return false;
  if (options_.beside != nullptr && options_.beside->most_bytes() > options_.beside->idle_bytes()) return false;
  const int64_t room_bytes = ledger_.available_bytes(MemoryUse::kAdapters);
  if (ledger_.available_after_loans_bytes(MemoryUse::kAdapters) > room_bytes) return false;  // it comes back
  const auto used = [](const auto& one) { return one.second->pins > 0; };
  return std::none_of(versions_.all().begin(), versions_.all().end(), used);
}

void AdapterRegistry::unwant(AdapterSourceId source) {
  AdapterEntry* const entry = entries_.find(source);
  if (entry != nullptr && entry->version != nullptr && entry->stage == AdapterStage::kIdle) entries_.unwant(*entry);
}

double AdapterRegistry::missing_load_s(const std::array<uint8_t, 32>& digest) const {
  if (versions_.has(digest) || loads_.loads() == 0) return 0;
  return cache_.load_s(loads_.load_bytes() / static_cast<int64_t>(loads_.loads()));
}

const AdapterArriving* AdapterRegistry::arriving(AdapterVersionId version) const {
  const AdapterVersion* const found = versions_.find(version);
  return found != nullptr && found->arriving ? &*found->arriving : nullptr;
}

bool AdapterRegistry::is_retired(AdapterVersionId version) const {
  const AdapterVersion* const found = versions_.find(version);
  return found != nullptr && found->retired();
}

void AdapterRegistry::asked(std::span<const AdapterSourceId> sources) {
  if (!options_.foresees) return;
  for (const AdapterSourceId source : sources) {
    foresight_.asked(source, clock_.now_ns());
    if (!knows(source)) foresight_.forget(source);
  }
}

void AdapterRegistry::answered(std::span<const AdapterSourceId> sources) {
  if (!options_.foresees) return;
  for (const AdapterSourceId source : sources) foresight_.ended(source, clock_.now_ns());
}

void AdapterRegistry::foresee() {
  while (!loads_.loading()) {
    const auto source = foresight_.take_due(clock_.now_ns());
    if (!source) return;
    if (AdapterEntry* const entry = entries_.find(*source); entry != nullptr) loads_.want_ahead(*entry);
  }
}

CacheItem AdapterRegistry::item_of(AdapterVersionId version) const {
  const AdapterVersion* const found = versions_.find(version);
  CHECK(found != nullptr);
  return cache_.item_of(*found);
}

// A member of a sum finds room alone, and maybe not with the others: that is no failure
// of its own.
Status AdapterRegistry::fit_together(const AdapterNeeds& needs) const {
  int64_t bytes = 0, pinned = 0;
  std::string list;
  for (size_t index = 0; index < needs.sources.size(); ++index) {
    const auto here = needs.sources.begin() + static_cast<int64_t>(index);
    if (std::find(needs.sources.begin(), here, *here) != here) continue;
    const AdapterEntry* const entry = entries_.find(*here);
    const AdapterVersion* const version = claimed(needs, index);
    list += (list.empty() ? "\"" : ", \"") + (entry != nullptr ? entry->spec.label : version->label) + "\"";
    if (entry == nullptr) continue;  // dropped: its claimed version is in memory
    const bool looked_at = entry->stage == AdapterStage::kWaitingForRoom || entry->stage == AdapterStage::kReading;
    const int64_t needed = entry->version != nullptr ? entry->version_bytes() : looked_at ? entry->least_bytes : 0;
    if (entry->version == nullptr && needed > cache_.limit_bytes(*entry)) return {};  // fails by itself
    bytes += needed;
    pinned += entry->pinned_bytes();
  }
  const int64_t room = cache_.room_beside(entries_.pinned_bytes() - pinned);
  if (bytes <= room) return {};
  return too_large("the adapters " + list + " need at least " + format_bytes(bytes) +
                   " of memory together, but adapters can have at most " + format_bytes(room) +
                   " beside those that are pinned; give adapters more memory (--adapter-memory) or add up fewer");
}

// --- status

void AdapterRegistry::on_leaving(const AdapterVersion& version) {
  if (options_.dropped) options_.dropped(version.adapter->version);
  for (const uint64_t ticket : version.unload_tickets) replies_.put(ticket, {}, version.grant.bytes());
  entries_.count_change();
}

void AdapterRegistry::fail_outstanding(const Error& error) {
  entries_.for_each([&](AdapterEntry& entry) { replies_.put_all(entry, error); });
  for (const auto& [id, version] : versions_.all()) {
    for (const uint64_t ticket : version->unload_tickets) replies_.put(ticket, error);
    version->unload_tickets.clear();
  }
  loads_.fail_outstanding(error);
}

void AdapterRegistry::let_go_unused(AdapterSourceId source) {
  AdapterEntry* const entry = entries_.find(source);
  if (entry != nullptr && entry->version != nullptr && !entry->pinned && entry->version->pins == 0)
    cache_.let_go(entry->version);
}

void AdapterRegistry::touch(AdapterVersionId version) {
  const AdapterVersion* const found = versions_.find(version);
  if (found != nullptr && !found->retired()) entries_.touch(*found->owner);
}

void AdapterRegistry::touch(AdapterSourceId source) {
  if (AdapterEntry* const entry = entries_.find(source); entry != nullptr) entries_.touch(*entry);
}

RegistryCounters AdapterRegistry::counters() const {
  return {.loads = loads_.loads(),
          .failures = loads_.failures(),
          .evictions = cache_.evictions(),
          .load_bytes = loads_.load_bytes(),
          .versions_looked_at = cache_.versions_looked_at(),
          .loads_ahead = loads_.loads_ahead(),
          .loads_ahead_used = loads_ahead_used_};
}

void AdapterRegistry::take_changes(const std::function<void(AdapterSourceId)>& gone,
                                   const std::function<void(const RegistryView&)>& changed) {
  entries_.take_changes(
      [&](AdapterSourceId source) {
        foresight_.forget(source);
        gone(source);
      },
      changed);
}

void AdapterRegistry::for_each(const std::function<void(const RegistryView&)>& visit) const {
  entries_.for_each([&](const AdapterEntry& entry) { visit(AdapterEntries::view_of(entry)); });
}

void AdapterRegistry::check() const {
  entries_.check();
  versions_.check();
  loads_.check();
  foresight_.check();
  size_t current = 0, arriving = 0;
  const std::span<AdapterEntry* const> active = loads_.active();
  entries_.for_each([&](const AdapterEntry& entry) {
    const bool is_loaded = std::count(active.begin(), active.end(), &entry) == 1;
    CHECK((entry.stage != AdapterStage::kIdle) == is_loaded);
    CHECK(entry.tickets.empty() || is_loaded);
    const bool is_replaced = std::any_of(active.begin(), active.end(),
                                         [&](const AdapterEntry* other) { return other->replaces == entry.spec.id; });
    CHECK(!entry.pinned || entry.version != nullptr || is_loaded || is_replaced);
    if (entry.arriving != nullptr) {
      ++arriving;
      CHECK(versions_.find(entry.arriving->adapter->version) == entry.arriving);
    }
    if (entry.version == nullptr) return;
    ++current;
    CHECK(versions_.find(entry.version->adapter->version) == entry.version);
  });
  const auto retired = std::count_if(versions_.all().begin(), versions_.all().end(),
                                     [](const auto& one) { return one.second->retired(); });
  CHECK(current + arriving + static_cast<size_t>(retired) == versions_.all().size());
  CHECK(bytes() <= ledger_.used_bytes(MemoryUse::kAdapters));
}

}  // namespace loralei
