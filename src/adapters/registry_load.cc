// SPDX-License-Identifier: Apache-2.0
// The life of a load: queued -> stamp looked at -> room granted -> read -> installed or
// failed.
#include <algorithm>
#include <utility>

#include "adapters/registry.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/units.h"

namespace loralei {
namespace {

constexpr int64_t kSlackBytes = 64 * kKiB;  // tables and names beside the tensors

Error not_fitting(const std::string& bytes, int64_t limit_bytes) {
  return too_large("it needs " + bytes + " of memory, but adapters can have at most " + format_bytes(limit_bytes) +
                   " beside those that are pinned; give adapters more memory (--adapter-memory)");
}

Error broken_promise() { return internal_error("the adapter's loader broke its promise; please report this"); }

}  // namespace

void AdapterRegistry::want_load(Entry& entry) {
  if (entry.stage != Stage::kIdle) return;
  touch(entry);
  entry.stage = Stage::kQueued;
  active_.push_back(&entry);
  ++generation_;
}

const AdapterRegistry::Entry& AdapterRegistry::replaced_by(const Entry& entry) const {
  if (entry.replaces.value == 0) return entry;
  const auto found = entries_.find(entry.replaces);
  return found == entries_.end() ? entry : *found->second;
}

// The load is over, one way or the other.
void AdapterRegistry::finish(Entry& entry) {
  const AdapterSourceId replaced = entry.replaces;
  settle(entry);
  std::erase(active_, &entry);
  ++generation_;
  bring_back(replaced);
}

void AdapterRegistry::settle(Entry& entry) {
  touch(entry);
  entry.stage = Stage::kIdle;
  entry.reload = false;
  entry.replaces = {};
  entry.without_room_since_ns = INT64_MAX;
  CHECK(entry.job == 0);
}

// What was to be replaced, where it gave its room to a load that came to nothing.
void AdapterRegistry::bring_back(AdapterSourceId source) {
  Entry* const entry = find(source);
  if (entry != nullptr && entry->version == nullptr && (entry->pinned || entry->waiting > 0)) want_load(*entry);
}

void AdapterRegistry::orphan_job(Entry& entry) {
  if (entry.job == 0) return;
  jobs_[entry.job].entry = nullptr;
  entry.job = 0;
}

void AdapterRegistry::pump() {
  reservations_.clear();
  census_.counted = false;
  const auto given_up = std::erase_if(active_, [this](Entry* entry) {
    const bool begun = entry->stage == Stage::kStamping || entry->stage == Stage::kReading;
    if (begun || order_of(*entry) != UINT64_MAX) return false;
    settle(*entry);  // nobody waits any more for what was not begun yet
    return true;
  });
  generation_ += given_up;
  std::sort(active_.begin(), active_.end(), [](const Entry* a, const Entry* b) { return goes_before(*a, *b); });
  turn_ = active_;
  int64_t spare = INT64_MAX;  // what the loads that found no room leave to those behind them
  for (Entry* entry : turn_) {
    if (static_cast<int32_t>(jobs_.size()) >= options_.loads_max) return;
    if (entry->stage == Stage::kQueued) {
      if (start_job(*entry, false, Grant())) entry->stage = Stage::kStamping;
    } else if (entry->stage == Stage::kWaitingForRoom && room_to_ask(*entry) <= spare) {
      if (const auto taken = advance_room(*entry)) {
        spare -= *taken;
      } else {
        entry->without_room_since_ns = std::min(entry->without_room_since_ns, clock_.now_ns());
        spare = std::min(spare, spare_beside(*entry));
      }
    }
  }
}

bool AdapterRegistry::start_job(Entry& entry, bool read, Grant grant) {
  CHECK(entry.job == 0 && jobs_.size() < static_cast<size_t>(options_.loads_max));
  CHECK(read || grant.bytes() == 0);
  LoadJob load{.id = next_job_, .path = entry.spec.path, .read = read};
  load.options.strict = options_.strict;
  load.options.int8 = options_.int8;
  load.options.bytes_max = grant.bytes();
  if (read) load.version = versions_.new_id();
  const AdapterVersionId version = load.version;
  if (!start_load_(std::move(load))) return false;
  Job& job = jobs_[next_job_];
  job.entry = &entry;
  job.read = read;
  job.grant = std::move(grant);
  loading_bytes_ += job.grant.bytes();
  job.version = version;
  entry.job = next_job_++;
  ++generation_;
  return true;
}

void AdapterRegistry::on_load_done(LoadDone&& done) {
  const auto found = jobs_.find(done.id);
  CHECK(found != jobs_.end());
  Job job = std::move(found->second);
  jobs_.erase(found);
  loading_bytes_ -= job.grant.bytes();
  ++generation_;
  if (job.entry == nullptr) {  // unloaded meanwhile
    const int64_t bytes = done.load.ok() && done.load->adapter ? done.load->adapter->bytes : 0;
    done.load = AdapterLoad{};
    job.grant.release();
    for (const uint64_t ticket : job.unload_tickets) reply(ticket, {}, bytes);
    return;
  }
  Entry& entry = *job.entry;
  CHECK(entry.job == done.id && entry.stage == (job.read ? Stage::kReading : Stage::kStamping));
  entry.job = 0;
  if (job.read) {
    on_read(entry, job, done);
  } else {
    on_stamp(entry, done.stamp);
  }
}

void AdapterRegistry::on_stamp(Entry& entry, const Result<FileStamp>& stamp) {
  if (!stamp.ok()) return fail(entry, stamp.error(), nullptr);
  const int64_t limit = limit_bytes(entry);
  const bool same_as_failed = entry.failed && entry.failed_stamp_known && entry.failed_stamp == *stamp;
  if (same_as_failed && entry.tickets.empty() && !entry.pinned && limit <= entry.failed_limit_bytes) {
    entry.failed_serial = ++serial_;  // looked at again: still the same file
    news_.push_back(entry.spec.id);
    return finish(entry);
  }
  touch(entry);
  entry.failed = false;
  entry.failed_stamp = *stamp;
  entry.failed_limit_bytes = INT64_MAX;
  // Tensors are kept in their file's number format, in a wider one, as f32 where it holds
  // f64, or as int8, for which f64 takes a little over an eighth; and of a saved module
  // PEFT may write three matrices of which one is used: a safe lower bound of what they
  // need.
  entry.least_bytes = stamp->size_bytes / (options_.int8 ? 8 : 6);
  entry.ask_bytes = options_.int8 ? stamp->size_bytes / 4 : stamp->size_bytes + kSlackBytes;
  entry.size_known = false;
  entry.stage = Stage::kWaitingForRoom;
}

// Everything adapters have or could ever have, but for those that stay. What is lent now
// comes back: it can be waited for.
int64_t AdapterRegistry::room_beside(int64_t staying_bytes) const {
  return std::max<int64_t>(0, ledger_.available_after_loans_bytes(MemoryUse::kAdapters) + bytes() - staying_bytes);
}

// Most bytes this load could ever be granted.
int64_t AdapterRegistry::limit_bytes(const Entry& entry) const {
  return room_beside(pinned_bytes_ - pinned_bytes(replaced_by(entry)));
}

AdapterRegistry::Census& AdapterRegistry::census() {
  Census& census = census_;
  if (std::exchange(census.counted, true)) return census;
  census.leaving.clear();
  census.left = 0;
  census.used.clear();
  for (const auto& [id, version] : versions_.all()) {
    if (version->owner == nullptr || version->owner->pinned) continue;
    if (version->pins == 0) {
      census.leaving.push_back({candidate(*version), version.get()});
    } else {
      census.used.push_back({version->youngest_order, version->grant.bytes()});
    }
  }
  std::sort(census.leaving.begin(), census.leaving.end(),
            [&](const Census::Leaver& a, const Census::Leaver& b) { return leaves_before(a.candidate, b.candidate); });
  int64_t bytes = 0;
  for (Census::Leaver& leaver : census.leaving)
    leaver.bytes_before = std::exchange(bytes, bytes + leaver.candidate.bytes);
  std::sort(census.used.begin(), census.used.end(),
            [](const Census::Used& a, const Census::Used& b) { return a.youngest_order < b.youngest_order; });
  for (size_t index = census.used.size(); index-- > 1;)
    census.used[index - 1].bytes_from_here += census.used[index].bytes_from_here;
  census.wanted.clear();
  for (const Entry* entry : wanted_)
    if (entry->version != nullptr && !entry->pinned) census.wanted.push_back(entry);
  std::sort(census.wanted.begin(), census.wanted.end(),
            [](const Entry* a, const Entry* b) { return a->wanted < b->wanted; });
  counters_.versions_looked_at += versions_.all().size() + census.wanted.size();
  return census;
}

std::span<const AdapterRegistry::Entry* const> AdapterRegistry::wanted_with(const Entry& entry) {
  if (entry.wanted == UINT64_MAX) return {};
  const std::vector<const Entry*>& wanted = census().wanted;
  const auto begin = std::partition_point(wanted.begin(), wanted.end(),
                                          [&](const Entry* other) { return other->wanted < entry.wanted; });
  const auto end = std::find_if(begin, wanted.end(), [&](const Entry* other) { return other->wanted != entry.wanted; });
  counters_.versions_looked_at += static_cast<uint64_t>(end - begin);
  return {begin, end};
}

// Members of one request are in memory together.
bool AdapterRegistry::stays_beside(const Entry& entry, const Entry& other) const {
  return &other != &entry && &other != &replaced_by(entry) &&
         (other.pinned || (other.wanted == entry.wanted && entry.wanted != UINT64_MAX));
}

int64_t AdapterRegistry::room_for(const Entry& entry) {
  int64_t staying_bytes = pinned_bytes_ - pinned_bytes(replaced_by(entry));
  for (const Entry* other : wanted_with(entry)) staying_bytes += other != &entry ? version_bytes(*other) : 0;
  return room_beside(staying_bytes);
}

// Beside the others of its request it is looked at in the room they leave: then its size
// is known, and whether they fit together.
int64_t AdapterRegistry::room_to_ask(const Entry& entry) {
  return entry.size_known ? entry.ask_bytes : std::min(entry.ask_bytes, room_for(entry));
}

// Younger users may come one after the other without end; everybody else goes some time.
bool AdapterRegistry::keeps_from(const Entry& entry, const AdapterVersion& version) const {
  return version.owner != nullptr && version.pins > 0 && version.youngest_order > order_of(entry) &&
         !stays_beside(entry, *version.owner);
}

int64_t AdapterRegistry::spare_beside(const Entry& entry) {
  int64_t spare = room_for(entry) - room_to_ask(entry);
  const std::vector<Census::Used>& used = census().used;
  const auto younger = std::partition_point(
      used.begin(), used.end(), [&](const Census::Used& one) { return one.youngest_order <= order_of(entry); });
  if (younger != used.end()) spare -= younger->bytes_from_here;
  // The others of its request stay beside it and keep nothing from it; what it replaces
  // itself does, even if pinned.
  const auto kept = [&](const Entry& other) {
    const AdapterVersion* version = other.version;
    return version != nullptr && version->pins > 0 && version->youngest_order > order_of(entry) ? version_bytes(other)
                                                                                                : 0;
  };
  for (const Entry* other : wanted_with(entry)) spare += other != &entry ? kept(*other) : 0;
  if (const Entry& replaced = replaced_by(entry); replaced.pinned) spare -= kept(replaced);
  for (const auto& [id, job] : jobs_)
    if (job.entry != nullptr && goes_before(entry, *job.entry)) spare -= job.grant.bytes();
  return spare;
}

// A member of a sum finds room alone, and maybe not with the others: that is no failure
// of its own.
Status AdapterRegistry::fit_together(const AdapterNeeds& needs) {
  int64_t bytes = 0, pinned = 0;
  std::string list;
  for (size_t index = 0; index < needs.sources.size(); ++index) {
    const auto here = needs.sources.begin() + static_cast<int64_t>(index);
    if (std::find(needs.sources.begin(), here, *here) != here) continue;
    const Entry* const entry = find(*here);
    const AdapterVersion* const version = claimed(needs, index);
    list += (list.empty() ? "\"" : ", \"") + (entry != nullptr ? entry->spec.label : version->label) + "\"";
    if (entry == nullptr) continue;  // dropped: its claimed version is in memory
    const bool looked_at = entry->stage == Stage::kWaitingForRoom || entry->stage == Stage::kReading;
    const int64_t needed = entry->version != nullptr ? version_bytes(*entry) : looked_at ? entry->least_bytes : 0;
    if (entry->version == nullptr && needed > limit_bytes(*entry)) return {};  // fails by itself
    bytes += needed;
    pinned += pinned_bytes(*entry);
  }
  const int64_t room = room_beside(pinned_bytes_ - pinned);
  if (bytes <= room) return {};
  return too_large("the adapters " + list + " need at least " + format_bytes(bytes) +
                   " of memory together, but adapters can have at most " + format_bytes(room) +
                   " beside those that are pinned; give adapters more memory (--adapter-memory) or add up fewer");
}

EvictionCandidate AdapterRegistry::candidate(const AdapterVersion& version) const {
  return {version.adapter->version, version.grant.bytes(), version.last_use_ns, version.owner->wanted};
}

// How many of census().leaving, from the first on, may leave for a load of this order.
size_t AdapterRegistry::may_leave(uint64_t order) {
  const std::vector<Census::Leaver>& leaving = census().leaving;
  const auto end = std::partition_point(leaving.begin(), leaving.end(),
                                        [&](const Census::Leaver& leaver) { return leaver.candidate.wanted > order; });
  return static_cast<size_t>(end - leaving.begin());
}

// A pinned version goes for its own replacement alone.
bool AdapterRegistry::gives_its_pinned(const Entry& replaced) {
  return replaced.pinned && replaced.version != nullptr && replaced.version->pins == 0;
}

int64_t AdapterRegistry::evictable_bytes(const Entry& entry) {
  const std::vector<Census::Leaver>& leaving = census().leaving;
  const Entry& replaced = replaced_by(entry);
  const int64_t own = gives_its_pinned(replaced) ? version_bytes(replaced) : 0;
  const size_t left = census().left, end = may_leave(order_of(entry));
  if (end <= left) return own;
  return own + leaving[end - 1].bytes_before + leaving[end - 1].candidate.bytes - leaving[left].bytes_before;
}

AdapterVersion* AdapterRegistry::next_to_leave(const Entry& entry) {
  Census& versions = census();
  AdapterVersion* next = versions.left < may_leave(order_of(entry)) ? versions.leaving[versions.left].version : nullptr;
  const Entry& replaced = replaced_by(entry);
  if (!gives_its_pinned(replaced)) return next;
  if (next == nullptr || leaves_before(candidate(*replaced.version), candidate(*next))) next = replaced.version;
  return next;
}

void AdapterRegistry::evict(AdapterVersion* version, const std::string& reason) {
  CHECK(version->owner != nullptr && version->owner->version == version);
  Entry& owner = *version->owner;
  ++counters_.versions_looked_at;
  if (!owner.pinned) ++census_.left;
  log_.event(LogLevel::kInfo, "adapter leaves memory", {{"adapter", owner.spec.label}}, reason);
  versions_.evict(*take_version(owner));
  ++counters_.evictions;
}

// Nobody leaves in vain: only where that gives all of the room.
std::optional<Grant> AdapterRegistry::make_room(const Entry& entry, int64_t bytes) {
  if (ledger_.available_bytes(MemoryUse::kAdapters) + evictable_bytes(entry) < bytes) return std::nullopt;
  auto grant = ledger_.try_grant(MemoryUse::kAdapters, bytes);
  while (!grant) {
    AdapterVersion* const version = next_to_leave(entry);
    if (version == nullptr) break;
    evict(version, "to make room for \"" + entry.spec.label + "\"");
    grant = ledger_.try_grant(MemoryUse::kAdapters, bytes);
  }
  return grant;
}

int64_t AdapterRegistry::idle_bytes() const {
  int64_t sum = 0;
  for (const auto& [id, version] : versions_.all())
    if (version->pins == 0 && version->owner != nullptr && !version->owner->pinned) sum += version->grant.bytes();
  return sum;
}

void AdapterRegistry::evict_idle(int64_t bytes) {
  if (ledger_.used_bytes(MemoryUse::kAdapters) <= bytes) return;
  census_.counted = false;
  const Census& versions = census();
  while (ledger_.used_bytes(MemoryUse::kAdapters) > bytes && versions.left < versions.leaving.size())
    evict(versions.leaving[versions.left].version, "for want of memory");
}

// The room it has taken to be read; none when it must wait for room that others still
// use. Where it can never have any it has failed, and with that the entry may be gone.
std::optional<int64_t> AdapterRegistry::advance_room(Entry& entry) {
  CHECK(entry.stage == Stage::kWaitingForRoom);
  const int64_t limit = limit_bytes(entry);
  if (entry.least_bytes > limit) {
    entry.failed_limit_bytes = limit;
    const FileStamp stamp = entry.failed_stamp;
    fail(entry, not_fitting((entry.size_known ? "" : "at least ") + format_bytes(entry.least_bytes), limit), &stamp);
    return 0;
  }
  auto grant = make_room(entry, room_to_ask(entry));
  if (!grant) return std::nullopt;
  const int64_t bytes = grant->bytes();
  if (!start_job(entry, true, std::move(*grant))) return 0;
  entry.stage = Stage::kReading;
  entry.without_room_since_ns = INT64_MAX;
  return bytes;
}

void AdapterRegistry::on_read(Entry& entry, Job& job, LoadDone& done) {
  const FileStamp* stamp = done.stamp.ok() ? &*done.stamp : nullptr;
  if (!done.stamp.ok()) return fail(entry, done.stamp.error(), nullptr);
  if (!done.load.ok()) {
    const bool lasts = is_the_files_own(done.load.error().code);
    return fail(entry, std::move(done.load).error(), lasts ? stamp : nullptr);
  }
  if (done.load->adapter == nullptr) return ask_again(entry, done.load->bytes_needed, job.grant.bytes());
  const Status status = admissible(job, *done.load->adapter);
  if (status.ok()) return install(entry, job, std::move(done.load->adapter));
  done.load = AdapterLoad{};
  fail(entry, status.error(), stamp);
}

// The headers were parsed, and say how much room is needed.
void AdapterRegistry::ask_again(Entry& entry, int64_t bytes_needed, int64_t granted_bytes) {
  if (bytes_needed <= granted_bytes) return fail(entry, broken_promise(), nullptr);
  if (entry.size_known) {
    return fail(entry,
                {ErrorCode::kUnavailable,
                 entry.spec.path + " needs more memory now than when it was looked at; load it again when it is "
                                   "complete"},
                nullptr);
  }
  entry.size_known = true;
  entry.least_bytes = entry.ask_bytes = bytes_needed;
  entry.stage = Stage::kWaitingForRoom;
}

Status AdapterRegistry::admissible(const Job& job, const Adapter& adapter) const {
  if (adapter.version != job.version || adapter.bytes < 0 || adapter.bytes > job.grant.bytes()) return broken_promise();
  return check_rank(adapter.rank_max, options_.rank_max > 0 ? options_.rank_max : kMaxLoraRank);
}

void AdapterRegistry::install(Entry& entry, Job& job, std::shared_ptr<const Adapter> adapter) {
  if (entry.version != nullptr) versions_.retire(*take_version(entry), {});
  touch(entry);
  entry.version = &versions_.add(entry, entry.spec.label, std::move(adapter), std::move(job.grant));
  pinned_bytes_ += pinned_bytes(entry);
  entry.failed = entry.forget_on_failure = false;
  ++counters_.loads;
  const Adapter& loaded = *entry.version->adapter;
  log_.event(
      LogLevel::kInfo, "adapter loaded",
      {{"adapter", entry.spec.label}, {"bytes", loaded.bytes}, {"version", digest_hex(loaded.digest).substr(0, 12)}});
  for (const std::string& doubt : loaded.doubts)
    log_.event(LogLevel::kWarning, "adapter in doubt", {{"adapter", entry.spec.label}}, doubt);
  if (Entry* const replaced = find(entry.replaces); replaced != nullptr) {
    entry.uses += replaced->uses;
    if (replaced->pinned) set_pinned(entry, true);
    set_pinned(*replaced, false);
  }
  news_.push_back(entry.spec.id);
  finish(entry);
  reply_all(entry, {});
}

// `stamp`: what the file looked like; null when even that is unknown, so that every later
// request looks again.
void AdapterRegistry::fail(Entry& entry, Error error, const FileStamp* stamp) {
  error = not_loaded(std::move(error), entry.spec.label);
  log_.event(LogLevel::kWarning, "adapter not loaded", {{"adapter", entry.spec.label}}, error.message);
  ++counters_.failures;
  news_.push_back(entry.spec.id);
  const bool reload = entry.reload;
  finish(entry);
  reply_all(entry, error);
  if (reload) return bring_back(entry.spec.id);  // the version in use stays
  set_pinned(entry, false);
  if (entry.forget_on_failure) {
    std::erase(wanted_, &entry);
    forget(entries_.find(entry.spec.id));
    return;
  }
  remember(entry, std::move(error), stamp);
}

void AdapterRegistry::remember(Entry& entry, Error error, const FileStamp* stamp) {
  touch(entry);
  entry.failed = true;
  entry.error = std::move(error);
  entry.failed_stamp_known = stamp != nullptr;
  if (stamp != nullptr) entry.failed_stamp = *stamp;
  entry.failed_serial = ++serial_;
}

void AdapterRegistry::checked(const HeaderCheck& check) {
  Entry* const entry = find(check.source.id);
  if (entry == nullptr || entry->spec.path != check.source.path) return;
  // A load tells more.
  if (entry->version != nullptr || entry->stage != Stage::kIdle) return;
  const FileStamp* const stamp = check.stamp ? &*check.stamp : nullptr;
  const bool looked_at =
      entry->failed && entry->failed_stamp_known && stamp != nullptr && entry->failed_stamp == *stamp;
  if (looked_at || (check.status.ok() && !entry->failed)) return;
  ++generation_;
  if (check.status.ok()) {
    touch(*entry);
    entry->failed = false;
    return;
  }
  entry->failed_limit_bytes = INT64_MAX;
  remember(*entry, not_loaded(check.status.error(), entry->spec.label), stamp);
}

}  // namespace loralei
