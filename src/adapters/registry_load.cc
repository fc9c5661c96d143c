// SPDX-License-Identifier: Apache-2.0
// The life of a load: queued -> stamp looked at -> room granted -> read -> installed or failed.
#include <algorithm>
#include <set>
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

// What the file says or lacks stays so while its stamp does; what the system refused may go well the next time.
bool is_the_files_own(ErrorCode code) {
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kTooLarge || code == ErrorCode::kCorrupt ||
         code == ErrorCode::kUnsupported;
}

Error broken_promise() { return internal_error("the adapter's loader broke its promise; please report this"); }

}  // namespace

void AdapterRegistry::want_load(Entry& entry) {
  if (entry.stage != Stage::kIdle) return;
  entry.stage = Stage::kQueued;
  active_.push_back(&entry);
  ++generation_;
}

// The answer to a command about one path while another is loaded.
Error AdapterRegistry::other_load(const Entry& entry) {
  return {ErrorCode::kUnavailable,
          "adapter \"" + entry.name + "\" is being loaded from " + entry.load_path + "; try again when that has ended"};
}

// The load is over, one way or the other.
void AdapterRegistry::finish(Entry& entry) {
  entry.stage = Stage::kIdle;
  entry.reload = false;
  entry.without_room_since_ns = INT64_MAX;
  entry.job = 0;
  std::erase(active_, &entry);
  ++generation_;
}

void AdapterRegistry::orphan_job(Entry& entry) {
  if (entry.job == 0) return;
  jobs_[entry.job].entry = nullptr;
  entry.job = 0;
}

void AdapterRegistry::pump() {
  reservations_.clear();
  // Nobody waits any more for what was not begun yet.
  for (size_t index = active_.size(); index-- > 0;) {
    Entry& entry = *active_[index];
    const bool begun = entry.stage == Stage::kStamping || entry.stage == Stage::kReading;
    if (!begun && order_of(entry) == UINT64_MAX) finish(entry);
  }
  std::sort(active_.begin(), active_.end(), [](const Entry* a, const Entry* b) { return goes_before(*a, *b); });
  const std::vector<Entry*> turn = active_;
  int64_t spare = INT64_MAX;  // what the loads that found no room leave to those behind them
  for (Entry* entry : turn) {
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
  LoadJob load{.id = next_job_, .path = entry.load_path, .read = read};
  load.options.strict = options_.strict;
  load.options.int8 = options_.int8;
  load.options.bytes_max = grant.bytes();
  if (read) load.version = AdapterVersionId{next_version_};
  const AdapterVersionId version = load.version;
  if (!start_load_(std::move(load))) return false;
  Job& job = jobs_[next_job_];
  job.entry = &entry;
  job.read = read;
  job.grant = std::move(grant);
  job.version = version;
  entry.job = next_job_++;
  if (read) ++next_version_;
  ++generation_;
  return true;
}

void AdapterRegistry::on_load_done(LoadDone&& done) {
  const auto found = jobs_.find(done.id);
  CHECK(found != jobs_.end());
  Job job = std::move(found->second);
  jobs_.erase(found);
  ++generation_;
  if (job.entry == nullptr) {  // unloaded meanwhile
    const int64_t bytes = done.load.ok() && done.load->adapter ? done.load->adapter->bytes : 0;
    done.load = AdapterLoad{};
    job.grant.release();
    for (const uint64_t ticket : job.unload_tickets) reply(ticket, {}, bytes);
    return;
  }
  Entry& entry = *job.entry;
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
    return finish(entry);
  }
  entry.failed = false;
  entry.failed_stamp = *stamp;
  entry.failed_limit_bytes = INT64_MAX;
  // Tensors are kept in their file's number format, in a wider one, or as int8, for which f32 takes a little over a
  // quarter: a safe lower bound of what they need.
  entry.least_bytes = stamp->size_bytes / 4;
  entry.ask_bytes = options_.int8 ? entry.least_bytes : stamp->size_bytes + kSlackBytes;
  entry.size_known = false;
  entry.stage = Stage::kWaitingForRoom;
}

template <typename Stays>
int64_t AdapterRegistry::room_beside(Stays stays) const {
  int64_t room = ledger_.available_bytes(MemoryUse::kAdapters) + bytes();
  for (const auto& [id, version] : versions_)
    if (version->owner != nullptr && stays(*version->owner)) room -= version->grant.bytes();
  return std::max<int64_t>(0, room);
}

// Most bytes this load could ever be granted.
int64_t AdapterRegistry::limit_bytes(const Entry& entry) const {
  return room_beside([&](const Entry& other) { return &other != &entry && other.pinned; });
}

// Members of one request are in memory together.
bool AdapterRegistry::stays_beside(const Entry& entry, const Entry& other) {
  return &other != &entry && (other.pinned || (other.wanted == entry.wanted && entry.wanted != UINT64_MAX));
}

int64_t AdapterRegistry::room_for(const Entry& entry) const {
  return room_beside([&](const Entry& other) { return stays_beside(entry, other); });
}

// Beside the others of its request it is looked at in the room they leave: then its size is known, and whether they
// fit together.
int64_t AdapterRegistry::room_to_ask(const Entry& entry) const {
  return entry.size_known ? entry.ask_bytes : std::min(entry.ask_bytes, room_for(entry));
}

// Younger users may come one after the other without end; everybody else goes some time.
bool AdapterRegistry::keeps_from(const Entry& entry, const AdapterVersion& version) {
  return version.owner != nullptr && version.pins > 0 && version.youngest_order > order_of(entry) &&
         !stays_beside(entry, *version.owner);
}

int64_t AdapterRegistry::spare_beside(const Entry& entry) const {
  int64_t spare = room_for(entry) - room_to_ask(entry);
  for (const auto& [id, version] : versions_)
    if (keeps_from(entry, *version)) spare -= version->grant.bytes();
  for (const auto& [id, job] : jobs_)
    if (job.entry != nullptr && goes_before(entry, *job.entry)) spare -= job.grant.bytes();
  return spare;
}

// A member of a sum finds room alone, and maybe not with the others: that is no failure of its own.
Status AdapterRegistry::fit_together(std::span<const std::string> names) const {
  std::set<const Entry*> members;
  std::string list;
  int64_t bytes = 0;
  for (const std::string& name : names) {
    const Entry& entry = *entries_.at(name);
    if (!members.insert(&entry).second) continue;
    list += (list.empty() ? "\"" : ", \"") + name + "\"";
    const bool looked_at = entry.stage == Stage::kWaitingForRoom || entry.stage == Stage::kReading;
    const int64_t needed = entry.version != nullptr ? entry.version->grant.bytes() : looked_at ? entry.least_bytes : 0;
    if (entry.version == nullptr && needed > limit_bytes(entry)) return {};  // fails by itself
    bytes += needed;
  }
  const int64_t room = room_beside([&](const Entry& other) { return other.pinned && members.count(&other) == 0; });
  if (bytes <= room) return {};
  return too_large("the adapters " + list + " need at least " + format_bytes(bytes) +
                   " of memory together, but adapters can have at most " + format_bytes(room) +
                   " beside those that are pinned; give adapters more memory (--adapter-memory) or add up fewer");
}

template <typename MayGo>
bool AdapterRegistry::evict(const std::string& reason, MayGo may_go) {
  std::vector<EvictionCandidate> candidates;
  for (const auto& [id, version] : versions_) {
    if (version->pins > 0 || !may_go(*version->owner)) continue;
    candidates.push_back({version->adapter->version, version->grant.bytes(), version->last_use_ns, version->owner->uses,
                          version->owner->wanted});
  }
  if (candidates.empty()) return false;
  const EvictionCandidate& chosen = candidates[options_.eviction(candidates, clock_.now_ns())];
  Entry& victim = *versions_.at(chosen.version.value)->owner;
  log_.log(LogLevel::kInfo, "adapter \"" + victim.name + "\" leaves memory " + reason);
  destroy(std::exchange(victim.version, nullptr));
  ++counters_.evictions;
  return true;
}

template <typename MayGo>
int64_t AdapterRegistry::evictable_bytes(MayGo may_go) const {
  int64_t sum = 0;
  for (const auto& [id, version] : versions_)
    if (version->pins == 0 && may_go(*version->owner)) sum += version->grant.bytes();
  return sum;
}

// Nobody leaves in vain: only where that gives all of the room.
std::optional<Grant> AdapterRegistry::make_room(const Entry& entry, int64_t bytes) {
  const auto may_go = [&](const Entry& other) {
    return &other == &entry || (!other.pinned && other.wanted > order_of(entry));
  };
  if (ledger_.available_bytes(MemoryUse::kAdapters) + evictable_bytes(may_go) < bytes) return std::nullopt;
  auto grant = ledger_.try_grant(MemoryUse::kAdapters, bytes);
  while (!grant && evict("to make room for \"" + entry.name + "\"", may_go))
    grant = ledger_.try_grant(MemoryUse::kAdapters, bytes);
  return grant;
}

int64_t AdapterRegistry::idle_bytes() const {
  return evictable_bytes([](const Entry& entry) { return !entry.pinned; });
}

void AdapterRegistry::evict_idle(int64_t bytes) {
  const auto idle = [](const Entry& entry) { return !entry.pinned; };
  while (ledger_.used_bytes(MemoryUse::kAdapters) > bytes && evict("for want of memory", idle)) {
  }
}

// The room it has taken to be read; none when it must wait for room that others still use. Where it can never have any
// it has failed, and with that the entry may be gone.
std::optional<int64_t> AdapterRegistry::advance_room(Entry& entry) {
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
                 entry.load_path + " needs more memory now than when it was looked at; load it again when it is "
                                   "complete"},
                nullptr);
  }
  entry.size_known = true;
  entry.least_bytes = entry.ask_bytes = bytes_needed;
  entry.stage = Stage::kWaitingForRoom;
}

Status AdapterRegistry::admissible(const Job& job, const Adapter& adapter) const {
  if (adapter.version != job.version || adapter.bytes < 0 || adapter.bytes > job.grant.bytes()) return broken_promise();
  const int rank_max = options_.rank_max > 0 ? options_.rank_max : kMaxLoraRank;
  if (adapter.rank_max > rank_max) {
    return too_large("it has rank " + std::to_string(adapter.rank_max) + ", but at most " + std::to_string(rank_max) +
                     " is allowed here");
  }
  return {};
}

void AdapterRegistry::install(Entry& entry, Job& job, std::shared_ptr<const Adapter> adapter) {
  auto version = std::make_unique<AdapterVersion>();
  version->adapter = std::move(adapter);
  version->grant = std::move(job.grant);
  version->grant.shrink_to(version->adapter->bytes);
  version->last_use_ns = clock_.now_ns();
  if (entry.version != nullptr) retire(std::exchange(entry.version, nullptr), {});
  version->owner = &entry;
  entry.version = version.get();
  entry.path = entry.load_path;
  entry.texts = entry.load_texts;
  entry.failed = entry.forget_on_failure = false;
  ++counters_.loads;
  log_.log(LogLevel::kInfo, "adapter \"" + entry.name + "\" loaded: " + format_bytes(version->adapter->bytes) +
                                ", version " + digest_hex(version->adapter->digest).substr(0, 12));
  versions_.emplace(version->adapter->version.value, std::move(version));
  finish(entry);
  reply_all(entry, {});
}

// `stamp`: what the file looked like; null when even that is unknown, so that every later request looks again.
void AdapterRegistry::fail(Entry& entry, Error error, const FileStamp* stamp) {
  error = std::move(error).with_context("adapter \"" + entry.name + "\" was not loaded");
  log_.log(LogLevel::kWarning, error.message);
  ++counters_.failures;
  const bool replacement = entry.reload || entry.load_path != entry.path;
  finish(entry);
  entry.load_path = entry.path;
  entry.load_texts = entry.texts;
  reply_all(entry, error);
  if (replacement) {  // the version in use stays, and comes back where it was not there or gave its room
    if (entry.version == nullptr && (entry.pinned || entry.waiting > 0)) want_load(entry);
    return;
  }
  entry.pinned = false;
  if (entry.forget_on_failure) {
    std::erase(wanted_, &entry);
    entries_.erase(std::string(entry.name));
    return;
  }
  entry.failed = true;
  entry.error = std::move(error);
  entry.failed_stamp_known = stamp != nullptr;
  if (stamp != nullptr) entry.failed_stamp = *stamp;
  entry.failed_serial = ++serial_;
}

}  // namespace loralei
