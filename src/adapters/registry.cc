// SPDX-License-Identifier: Apache-2.0
// Sources, commands, pins and status. The life of a load is in registry_load.cc.
#include "adapters/registry.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace loralei {

AdapterRegistry::AdapterRegistry(Ledger& ledger, const Clock& clock, LogSink& log, RegistryOptions options,
                                 std::function<bool(LoadJob&&)> start_load)
    : ledger_(ledger),
      clock_(clock),
      log_(log),
      options_(options),
      start_load_(std::move(start_load)),
      versions_(clock, {.used =
                            [this](Entry* owner) {
                              ++generation_;
                              if (owner != nullptr) touch(*owner);
                            },
                        .leaving = [this](const AdapterVersion& version) { on_leaving(version); }}) {}

AdapterRegistry::Entry* AdapterRegistry::find(AdapterSourceId source) {
  const auto found = entries_.find(source);
  return found == entries_.end() ? nullptr : found->second.get();
}

Result<AdapterRegistry::Entry*> AdapterRegistry::add_entry(const AdapterSourceSpec& source) {
  if (source.id.value == 0 || source.label.empty() || source.path.empty())
    return invalid_argument("an adapter needs a name and a path");
  if (static_cast<int32_t>(entries_.size()) >= options_.sources_max) {
    return too_large("no more than " + std::to_string(options_.sources_max) +
                     " adapters can be registered; unload some first");
  }
  auto entry = std::make_unique<Entry>();
  entry->spec = source;
  Entry* result = entry.get();
  entries_.emplace(source.id, std::move(entry));
  touch(*result);
  ++generation_;
  return result;
}

std::string AdapterRegistry::label(AdapterSourceId source) const {
  const auto found = entries_.find(source);
  return found == entries_.end() ? std::string() : found->second->spec.label;
}

// --- commands

namespace {

Error not_registered() { return not_found("this adapter is not registered, or not any more"); }
Error has_other_files(const AdapterSourceSpec& known) {
  return invalid_argument("adapter \"" + known.label + "\" is registered from " + known.path +
                          "; other files are another source");
}

}  // namespace

void AdapterRegistry::add(uint64_t ticket, const AdapterSourceSpec& source) {
  if (Entry* const entry = find(source.id); entry != nullptr) {
    if (entry->spec.path != source.path) return reply(ticket, has_other_files(entry->spec));
    entry->forget_on_failure = false;  // it is wanted for its own sake now
    return reply(ticket, {});
  }
  const auto added = add_entry(source);
  reply(ticket, added.ok() ? Status() : Status(added.error()));
}

void AdapterRegistry::load(uint64_t ticket, const AdapterSourceSpec& source, bool reload, AdapterSourceId replaces) {
  Entry* entry = find(source.id);
  if (entry == nullptr) {
    if (source.path.empty()) return reply(ticket, not_registered());
    auto added = add_entry(source);
    if (!added.ok()) return reply(ticket, added.error());
    entry = *added;
    entry->forget_on_failure = true;
  }
  if (!source.path.empty() && entry->spec.path != source.path) return reply(ticket, has_other_files(entry->spec));
  if (entry->stage == Stage::kIdle) {
    if (!reload && entry->version != nullptr) {
      return reply(ticket, invalid_argument("adapter \"" + entry->spec.label +
                                            "\" is already loaded; ask to replace it in place, or unload it first"));
    }
    entry->reload = entry->version != nullptr;
    if (!entry->reload && replaces != source.id) entry->replaces = replaces;
  }
  entry->tickets.push_back(ticket);
  want_load(*entry);
}

void AdapterRegistry::drop(uint64_t ticket, AdapterSourceId source) {
  const auto found = entries_.find(source);
  if (found == entries_.end()) return reply(ticket, not_registered());
  Entry& entry = *found->second;
  reply_all(entry, Error{ErrorCode::kCancelled, "adapter \"" + entry.spec.label +
                                                    "\" was unloaded before it was ready; load it again if it is "
                                                    "wanted"});
  const bool reading = entry.job != 0 && jobs_[entry.job].read;
  if (entry.version == nullptr && reading) jobs_[entry.job].unload_tickets.push_back(ticket);
  if (entry.version == nullptr && !reading) reply(ticket, {});
  orphan_job(entry);
  if (entry.version != nullptr) versions_.retire(*take_version(entry), {ticket});
  std::erase(active_, &entry);
  std::erase(wanted_, &entry);
  news_.push_back(source);
  const AdapterSourceId replaced = entry.replaces;
  forget(found);
  bring_back(replaced);
  ++generation_;
}

void AdapterRegistry::pin(uint64_t ticket, AdapterSourceId source) {
  Entry* entry = find(source);
  if (entry == nullptr) return reply(ticket, not_registered());
  set_pinned(*entry, true);
  ++generation_;
  if (entry->version != nullptr) return reply(ticket, {}, 0, digest_hex(entry->version->adapter->digest));
  entry->tickets.push_back(ticket);
  want_load(*entry);
}

void AdapterRegistry::unpin(uint64_t ticket, AdapterSourceId source) {
  Entry* entry = find(source);
  if (entry == nullptr) return reply(ticket, not_registered());
  set_pinned(*entry, false);
  ++generation_;
  reply(ticket, {});
}

// --- requests

void AdapterRegistry::reserve() {
  reservations_.clear();
  census_.counted = false;
  const int64_t patient_since_ns = clock_.now_ns() - kRoomPatienceNs;
  for (const Entry* entry : active_) {
    if (entry->without_room_since_ns <= patient_since_ns)
      reservations_.push_back({entry, order_of(*entry), spare_beside(*entry)});
  }
}

void AdapterRegistry::begin_round() {
  reserve();
  for (Entry* entry : wanted_) {
    touch(*entry);
    entry->wanted = UINT64_MAX;
    entry->waiting = 0;
  }
  wanted_.clear();
}

AdapterVersion* AdapterRegistry::claimed(const AdapterNeeds& needs, size_t index) {
  if (needs.claims.empty()) return nullptr;
  return versions_.find(needs.claims[index].version());
}

// Fills found_. An outcome where that is decided: a source is unknown, or a load has
// failed.
std::optional<AcquireOutcome> AdapterRegistry::find_versions(const AdapterNeeds& needs, uint64_t since, Error& error) {
  found_.clear();
  for (size_t index = 0; index < needs.sources.size(); ++index) {
    found_.push_back(claimed(needs, index));
    if (found_.back() != nullptr) continue;
    const Entry* entry = find(needs.sources[index]);
    if (entry == nullptr) {
      error = not_registered();
      return AcquireOutcome::kFailed;
    }
    found_.back() = entry->version;
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
    Entry* const entry = version != nullptr ? version->owner : find(needs.sources[index]);
    if (entry == nullptr) continue;  // replaced or dropped: nothing is loaded for it
    if (entry->waiting++ == 0) wanted_.push_back(entry);
    touch(*entry);
    entry->wanted = std::min(entry->wanted, order);
    if (entry->version == nullptr) want_load(*entry);
  }
}

void AdapterRegistry::want(const AdapterNeeds& needs, uint64_t order) { wait_for(needs, order); }

AcquireOutcome AdapterRegistry::look(const AdapterNeeds& needs, uint64_t order, uint64_t since,
                                     std::vector<const Adapter*>& adapters, Error& error) {
  adapters.clear();
  if (const auto decided = find_versions(needs, since, error)) return *decided;
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
                                        std::vector<AdapterPin>& pins, Error& error) {
  if (const auto decided = find_versions(needs, since, error)) return *decided;
  const bool ready = std::count(found_.begin(), found_.end(), nullptr) == 0 && leaves_reserved_room(found_, order);
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
    if (version->owner != nullptr) version->owner->uses += needs.again ? 0 : 1;
    pins.push_back(versions_.pin(*version, order));
  }
  return AcquireOutcome::kReady;
}

// Loads that have lost their patience find room beside younger users of these as well;
// the users are counted then.
bool AdapterRegistry::leaves_reserved_room(std::span<AdapterVersion* const> versions, uint64_t order) {
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
        if (!named_before && !keeps_from(*reservation.entry, version)) more += version.grant.bytes();
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

// --- versions

int64_t AdapterRegistry::version_bytes(const Entry& entry) {
  return entry.version != nullptr ? entry.version->grant.bytes() : 0;
}

void AdapterRegistry::touch(AdapterSourceId source) {
  if (Entry* const entry = find(source); entry != nullptr) touch(*entry);
}

void AdapterRegistry::touch(Entry& entry) {
  if (!std::exchange(entry.changed, true)) changed_.push_back(&entry);
}

void AdapterRegistry::forget(Entries::iterator entry) {
  if (entry->second->changed) std::erase(changed_, entry->second.get());
  gone_.push_back(entry->first);
  entries_.erase(entry);
}

void AdapterRegistry::set_pinned(Entry& entry, bool pinned) {
  touch(entry);
  pinned_bytes_ -= pinned_bytes(entry);
  entry.pinned = pinned;
  pinned_bytes_ += pinned_bytes(entry);
}

AdapterVersion* AdapterRegistry::take_version(Entry& entry) {
  touch(entry);
  pinned_bytes_ -= pinned_bytes(entry);
  return std::exchange(entry.version, nullptr);
}

void AdapterRegistry::take_news(std::vector<AdapterSourceId>& sources) {
  sources.insert(sources.end(), news_.begin(), news_.end());
  news_.clear();
}

void AdapterRegistry::on_leaving(const AdapterVersion& version) {
  if (options_.dropped) options_.dropped(version.adapter->version);
  for (const uint64_t ticket : version.unload_tickets) reply(ticket, {}, version.grant.bytes());
  ++generation_;
}

// --- replies and status

void AdapterRegistry::reply(uint64_t ticket, Status status, int64_t bytes_freed, std::string version) {
  replies_.push_back({ticket, std::move(status), bytes_freed, std::move(version)});
}

void AdapterRegistry::reply_all(Entry& entry, const Status& status) {
  const std::string version = status.ok() ? digest_hex(entry.version->adapter->digest) : std::string();
  for (const uint64_t ticket : entry.tickets) reply(ticket, status, 0, version);
  entry.tickets.clear();
}

void AdapterRegistry::take_replies(std::vector<RegistryReply>& replies) {
  replies.insert(replies.end(), std::make_move_iterator(replies_.begin()), std::make_move_iterator(replies_.end()));
  replies_.clear();
}

void AdapterRegistry::fail_outstanding(const Error& error) {
  for (const auto& [source, entry] : entries_) reply_all(*entry, error);
  const auto fail_tickets = [&](std::vector<uint64_t>& tickets) {
    for (const uint64_t ticket : tickets) reply(ticket, error);
    tickets.clear();
  };
  for (const auto& [id, version] : versions_.all()) fail_tickets(version->unload_tickets);
  for (auto& [id, job] : jobs_) fail_tickets(job.unload_tickets);
}

RegistryView AdapterRegistry::view_of(const Entry& entry) {
  RegistryView view{.source = &entry.spec, .waiting = entry.waiting, .uses = entry.uses, .pinned = entry.pinned};
  if (entry.version != nullptr) {
    view.state = AdapterState::kResident;
    view.adapter = entry.version->adapter.get();
    view.bytes = entry.version->grant.bytes();
    view.users = entry.version->pins;
  } else if (entry.stage != Stage::kIdle) {
    view.state = AdapterState::kLoading;
  } else if (entry.failed) {
    view.state = AdapterState::kFailed;
    view.error = &entry.error;
  }
  return view;
}

void AdapterRegistry::for_each(const std::function<void(const RegistryView&)>& visit) const {
  for (const auto& [source, entry] : entries_) visit(view_of(*entry));
}

void AdapterRegistry::take_changes(const std::function<void(const RegistryView&)>& visit,
                                   std::vector<AdapterSourceId>& gone) {
  gone.insert(gone.end(), gone_.begin(), gone_.end());
  gone_.clear();
  for (Entry* entry : changed_) {
    entry->changed = false;
    visit(view_of(*entry));
  }
  changed_.clear();
}

void AdapterRegistry::check() const {
  size_t current = 0, reading = 0;
  int64_t pinned_sum_bytes = 0, loading_sum_bytes = 0;
  for (const auto& [source, entry] : entries_) {
    CHECK(entry->spec.id == source);
    CHECK(entry->changed == (std::count(changed_.begin(), changed_.end(), entry.get()) == 1));
    CHECK((entry->stage != Stage::kIdle) == (std::count(active_.begin(), active_.end(), entry.get()) == 1));
    CHECK((entry->stage == Stage::kStamping || entry->stage == Stage::kReading) == (entry->job != 0));
    CHECK(entry->tickets.empty() || entry->stage != Stage::kIdle);
    const bool is_replaced = std::any_of(active_.begin(), active_.end(),
                                         [id = source](const Entry* other) { return other->replaces == id; });
    CHECK(!entry->pinned || entry->version != nullptr || entry->stage != Stage::kIdle || is_replaced);
    if (entry->job != 0) {
      CHECK(jobs_.at(entry->job).entry == entry.get());
      ++reading;
    }
    if (entry->version == nullptr) continue;
    ++current;
    pinned_sum_bytes += pinned_bytes(*entry);
    CHECK(entry->version->owner == entry.get());
    CHECK(versions_.find(entry->version->adapter->version) == entry->version);
  }
  versions_.check();
  const auto retired = std::count_if(versions_.all().begin(), versions_.all().end(),
                                     [](const auto& one) { return one.second->retired(); });
  CHECK(current + static_cast<size_t>(retired) == versions_.all().size());
  for (const auto& [id, job] : jobs_) loading_sum_bytes += job.grant.bytes();
  CHECK(jobs_.size() <= static_cast<size_t>(options_.loads_max) && reading <= jobs_.size());
  CHECK(loading_bytes_ == loading_sum_bytes && pinned_bytes_ == pinned_sum_bytes);
  CHECK(bytes() <= ledger_.used_bytes(MemoryUse::kAdapters));
}

}  // namespace loralei
