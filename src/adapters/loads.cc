// SPDX-License-Identifier: Apache-2.0
#include "adapters/loads.h"

#include <algorithm>
#include <utility>

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

void AdapterLoads::want(AdapterEntry& entry) {
  if (entry.stage != AdapterStage::kIdle) return;
  entries_.touch(entry);
  entry.stage = AdapterStage::kQueued;
  active_.push_back(&entry);
  entries_.count_change();
}

void AdapterLoads::want_ahead(AdapterEntry& entry) {
  CHECK(!loading());
  if (entry.version != nullptr || entry.failed) return;
  want(entry);
  entry.ahead = true;
}

// The load is over, one way or the other.
void AdapterLoads::finish(AdapterEntry& entry) {
  const AdapterSourceId replaced = entry.replaces;
  settle(entry);
  std::erase(active_, &entry);
  entries_.count_change();
  bring_back(replaced);
}

void AdapterLoads::settle(AdapterEntry& entry) {
  entries_.touch(entry);
  entry.stage = AdapterStage::kIdle;
  entry.reload = entry.ahead = false;
  entry.replaces = {};
  entry.without_room_since_ns = INT64_MAX;
  CHECK(entry.job == 0 && entry.arriving == nullptr);
}

// What was to be replaced, where it gave its room to a load that came to nothing.
void AdapterLoads::bring_back(AdapterSourceId source) {
  AdapterEntry* const entry = entries_.find(source);
  if (entry != nullptr && entry->version == nullptr && (entry->pinned || entry->waiting > 0)) want(*entry);
}

bool AdapterLoads::leave(AdapterEntry& entry, uint64_t ticket) {
  std::erase(active_, &entry);
  if (entry.job == 0) return false;
  Job& job = jobs_.at(entry.job);
  if (entry.arriving != nullptr) versions_.retire(*std::exchange(entry.arriving, nullptr), {});
  const bool answers = entry.version == nullptr && job.read;
  if (answers) job.unload_tickets.push_back(ticket);
  job.entry = nullptr;
  entry.job = 0;
  entry.granted_bytes = 0;
  return answers;
}

void AdapterLoads::fail_outstanding(const Error& error) {
  for (auto& [id, job] : jobs_) {
    for (const uint64_t ticket : job.unload_tickets) replies_.put(ticket, error);
    job.unload_tickets.clear();
  }
}

void AdapterLoads::pump() {
  cache_.end_reserve();
  cache_.recount();
  const auto given_up = std::erase_if(active_, [this](AdapterEntry* entry) {
    if (!is_given_up(*entry)) return false;
    settle(*entry);
    return true;
  });
  if (given_up > 0) entries_.count_change();
  std::sort(active_.begin(), active_.end(),
            [](const AdapterEntry* a, const AdapterEntry* b) { return a->goes_before(*b); });
  turn_ = active_;
  int64_t spare = INT64_MAX;  // what the loads that found no room leave to those behind them
  for (AdapterEntry* entry : turn_) {
    if (is_begun(*entry)) continue;  // also one that was asked for when it began, and is ahead again
    if (!has_turn(*entry)) return;
    if (is_ahead(*entry)) {
      advance_ahead(*entry);
    } else if (entry->stage == AdapterStage::kQueued) {
      if (start_job(*entry, false, Grant())) entry->stage = AdapterStage::kStamping;
    } else if (entry->stage == AdapterStage::kWaitingForRoom && cache_.room_to_ask(*entry) <= spare) {
      if (const auto taken = advance_room(*entry)) {
        spare -= *taken;
      } else {
        entry->without_room_since_ns = std::min(entry->without_room_since_ns, clock_.now_ns());
        spare = std::min(spare, cache_.spare_beside(*entry, active_));
      }
    }
  }
}

// Nobody waits any more for what was not begun yet; or it was to be loaded ahead, and
// now there are others.
bool AdapterLoads::is_given_up(const AdapterEntry& entry) const {
  return !is_begun(entry) && entry.order() == UINT64_MAX && (!entry.ahead || active_.size() > 1);
}

bool AdapterLoads::has_turn(const AdapterEntry& entry) const {
  return is_ahead(entry) ? jobs_ahead_ == 0 : static_cast<int32_t>(jobs_.size()) - jobs_ahead_ < options_.loads_max;
}

// It is the only one that is not begun. Where it cannot go on now it is given up.
void AdapterLoads::advance_ahead(AdapterEntry& entry) {
  bool begun = false;
  if (entry.stage == AdapterStage::kQueued) {
    begun = start_job(entry, false, Grant());
    if (begun) entry.stage = AdapterStage::kStamping;
  } else if (const int64_t limit = cache_.limit_bytes(entry); entry.least_bytes <= limit) {
    CHECK(entry.stage == AdapterStage::kWaitingForRoom);
    auto grant = cache_.make_room_ahead(entry, std::min(entry.ask_bytes, limit));
    begun = grant && start_job(entry, true, std::move(*grant));
    if (begun) entry.stage = AdapterStage::kReading;
  }
  if (!begun) finish(entry);
}

void AdapterLoads::tell_of_unshared() {
  if (std::exchange(told_of_unshared_, true)) return;
  log_.log(LogLevel::kWarning, std::to_string(kSharedVersionsMost) +
                                   " adapters are in memory that helper processes may read, which is the most: "
                                   "requests for those loaded beside them are computed without helpers. Lower "
                                   "--host-adapter-memory to keep fewer. This is said once.");
}

bool AdapterLoads::start_job(AdapterEntry& entry, bool read, Grant grant) {
  CHECK(entry.job == 0 && has_turn(entry));
  CHECK(read || grant.bytes() == 0);
  LoadJob load{.id = next_job_, .path = entry.spec.path, .read = read};
  load.options.strict = options_.strict;
  load.options.int8 = options_.int8;
  load.options.shared = options_.shared && versions_.all().size() < kSharedVersionsMost;
  if (read && options_.shared && !load.options.shared) tell_of_unshared();
  load.options.bytes_max = grant.bytes();
  load.options.expected_digest = entry.expected_digest();
  if (read) load.version = versions_.new_id();
  load.early = read && options_.early;
  const AdapterVersionId version = load.version;
  if (!start_load_(std::move(load))) return false;
  Job& job = jobs_[next_job_];
  job.entry = &entry;
  job.source = entry.spec.id;
  job.read = read;
  job.ahead = is_ahead(entry);
  jobs_ahead_ += job.ahead ? 1 : 0;
  job.grant = std::move(grant);
  cache_.count_loading(job.grant.bytes());
  entry.granted_bytes = job.grant.bytes();
  job.version = version;
  job.begin_ns = clock_.now_ns();
  entry.job = next_job_++;
  entries_.count_change();
  return true;
}

void AdapterLoads::on_begun(LoadBegun&& begun) {
  Job& job = jobs_.at(begun.id);
  CHECK(job.read);
  if (job.entry == nullptr) return;  // dropped meanwhile
  AdapterEntry& entry = *job.entry;
  const Adapter& adapter = *begun.arriving.adapter;
  if (entry.arriving != nullptr || !admissible(job, adapter).ok()) return;  // the load ends with that
  cache_.count_loading(adapter.bytes - job.grant.bytes());
  job.grant.shrink_to(adapter.bytes);
  entry.granted_bytes = adapter.bytes;
  entry.arriving = &versions_.add_arriving(entry, entry.spec.label, std::move(begun.arriving));
  entry.arriving->foreseen = entry.ahead;
  entries_.touch(entry);
  entries_.tell(entry.spec.id);
  entries_.count_change();
}

void AdapterLoads::on_done(LoadDone&& done) {
  const auto found = jobs_.find(done.id);
  CHECK(found != jobs_.end());
  Job job = std::move(found->second);
  jobs_.erase(found);
  jobs_ahead_ -= job.ahead ? 1 : 0;
  cache_.count_loading(-job.grant.bytes());
  entries_.count_change();
  if (job.entry == nullptr) return end_of_dropped(job, done);
  AdapterEntry& entry = *job.entry;
  CHECK(entry.job == done.id && entry.stage == (job.read ? AdapterStage::kReading : AdapterStage::kStamping));
  entry.job = 0;
  entry.granted_bytes = 0;
  if (job.read) {
    on_read(entry, job, done);
  } else {
    on_stamp(entry, done.stamp);
  }
}

// Those who have it keep it, whole or not; else what was read goes at once.
void AdapterLoads::end_of_dropped(Job& job, LoadDone& done) {
  AdapterVersion* const kept = job.read ? versions_.find(job.version) : nullptr;
  if (kept == nullptr) {
    const int64_t bytes = done.load.ok() && done.load->adapter ? done.load->adapter->bytes : 0;
    done.load = AdapterLoad{};
    job.grant.release();
    for (const uint64_t ticket : job.unload_tickets) replies_.put(ticket, {}, bytes);
    return;
  }
  entries_.tell(job.source);  // who waits with a claim of it
  kept->unload_tickets = std::move(job.unload_tickets);
  if (done.load.ok() && done.load->adapter == kept->adapter) {
    versions_.complete(*kept, std::move(job.grant));
  } else {
    versions_.fail(*kept, std::move(job.grant));
  }
}

void AdapterLoads::on_stamp(AdapterEntry& entry, const Result<FileStamp>& stamp) {
  if (!stamp.ok()) return fail(entry, stamp.error(), nullptr);
  const int64_t limit = cache_.limit_bytes(entry);
  const bool same_as_failed = entry.failed && entry.failed_stamp_known && entry.failed_stamp == *stamp;
  if (same_as_failed && entry.tickets.empty() && !entry.pinned && limit <= entry.failed_limit_bytes) {
    entry.failed_serial = ++serial_;  // looked at again: still the same file
    entries_.tell(entry.spec.id);
    return finish(entry);
  }
  entries_.touch(entry);
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
  entry.stage = AdapterStage::kWaitingForRoom;
}

// The room it has taken to be read; none when it must wait for room that others still
// use. Where it can never have any it has failed, and with that the entry may be gone.
std::optional<int64_t> AdapterLoads::advance_room(AdapterEntry& entry) {
  CHECK(entry.stage == AdapterStage::kWaitingForRoom);
  const int64_t limit = cache_.limit_bytes(entry);
  if (entry.least_bytes > limit) {
    entry.failed_limit_bytes = limit;
    const FileStamp stamp = entry.failed_stamp;
    fail(entry, not_fitting((entry.size_known ? "" : "at least ") + format_bytes(entry.least_bytes), limit), &stamp);
    return 0;
  }
  auto grant = cache_.make_room(entry, cache_.room_to_ask(entry));
  if (!grant) return std::nullopt;
  const int64_t bytes = grant->bytes();
  if (!start_job(entry, true, std::move(*grant))) return 0;
  entry.stage = AdapterStage::kReading;
  entry.without_room_since_ns = INT64_MAX;
  return bytes;
}

void AdapterLoads::on_read(AdapterEntry& entry, Job& job, LoadDone& done) {
  const FileStamp* stamp = done.stamp.ok() ? &*done.stamp : nullptr;
  const bool read = done.stamp.ok() && done.load.ok() && done.load->adapter != nullptr;
  const Status status = read ? admissible(job, *done.load->adapter) : Status();
  if (read && status.ok()) return install(entry, job, std::move(done.load->adapter));
  const int64_t granted_bytes = job.grant.bytes();
  give_up_arriving(entry, job);
  if (!done.stamp.ok()) return fail(entry, done.stamp.error(), nullptr);
  if (!done.load.ok()) {
    const bool lasts = is_the_files_own(done.load.error().code);
    return fail(entry, std::move(done.load).error(), lasts ? stamp : nullptr);
  }
  if (!read) return ask_again(entry, done.load->bytes_needed, granted_bytes);
  done.load = AdapterLoad{};
  fail(entry, status.error(), stamp);
}

// Its load comes to nothing: those who have it pinned keep it, and what it takes.
void AdapterLoads::give_up_arriving(AdapterEntry& entry, Job& job) {
  if (entry.arriving == nullptr) return;
  entries_.touch(entry);
  versions_.fail(*std::exchange(entry.arriving, nullptr), std::move(job.grant));
}

// The headers were parsed, and say how much room is needed.
void AdapterLoads::ask_again(AdapterEntry& entry, int64_t bytes_needed, int64_t granted_bytes) {
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
  entry.stage = AdapterStage::kWaitingForRoom;
}

Status AdapterLoads::admissible(const Job& job, const Adapter& adapter) const {
  const AdapterVersion* const arriving = job.entry->arriving;
  const bool kept = adapter.version == job.version && adapter.bytes >= 0 && adapter.bytes <= job.grant.bytes() &&
                    (arriving == nullptr || arriving->adapter.get() == &adapter);
  if (!kept) return broken_promise();
  return check_rank(adapter.rank_max, options_.rank_max > 0 ? options_.rank_max : kMaxLoraRank);
}

void AdapterLoads::install(AdapterEntry& entry, Job& job, std::shared_ptr<const Adapter> adapter) {
  if (entry.version != nullptr) versions_.retire(*entries_.take_version(entry), {});
  AdapterVersion* version = std::exchange(entry.arriving, nullptr);
  if (version != nullptr) {
    versions_.complete(*version, std::move(job.grant));
  } else {
    version = &versions_.add(entry, entry.spec.label, std::move(adapter), std::move(job.grant));
    version->foreseen = entry.ahead;
  }
  entries_.set_version(entry, *version);
  entry.failed = entry.forget_on_failure = false;
  const Adapter& loaded = *entry.version->adapter;
  ++loads_;
  load_bytes_ += loaded.bytes;
  loads_ahead_ += entry.ahead ? 1 : 0;
  entry.load_s = static_cast<double>(clock_.now_ns() - job.begin_ns) * 1e-9;
  entry.keep_score.reset();
  entry.left.clear();
  cache_.learn_load(loaded.bytes, entry.load_s);
  log_.event(
      LogLevel::kInfo, "adapter loaded",
      {{"adapter", entry.spec.label}, {"bytes", loaded.bytes}, {"version", digest_hex(loaded.digest).substr(0, 12)}});
  for (const std::string& doubt : loaded.doubts)
    log_.event(LogLevel::kWarning, "adapter in doubt", {{"adapter", entry.spec.label}}, doubt);
  if (AdapterEntry* const replaced = entries_.find(entry.replaces); replaced != nullptr) {
    entry.uses += replaced->uses;
    entry.recent_uses.add(replaced->recent_uses, clock_.now_ns());
    foresight_.hand_over(replaced->spec.id, entry.spec.id, clock_.now_ns());
    if (replaced->pinned) entries_.set_pinned(entry, true);
    entries_.set_pinned(*replaced, false);
  }
  entries_.tell(entry.spec.id);
  finish(entry);
  replies_.put_all(entry, {});
}

// `stamp`: what the file looked like; null when even that is unknown, so that every later
// request looks again.
void AdapterLoads::fail(AdapterEntry& entry, Error error, const FileStamp* stamp) {
  error = not_loaded(std::move(error), entry.spec.label);
  log_.event(LogLevel::kWarning, "adapter not loaded", {{"adapter", entry.spec.label}}, error.message);
  ++failures_;
  entries_.tell(entry.spec.id);
  const bool reload = entry.reload;
  finish(entry);
  replies_.put_all(entry, error);
  if (reload) return bring_back(entry.spec.id);  // the version in use stays
  entries_.set_pinned(entry, false);
  if (entry.forget_on_failure) return entries_.forget(entry);
  remember(entry, std::move(error), stamp);
}

void AdapterLoads::remember(AdapterEntry& entry, Error error, const FileStamp* stamp) {
  entries_.touch(entry);
  entry.failed = true;
  entry.error = std::move(error);
  entry.failed_stamp_known = stamp != nullptr;
  if (stamp != nullptr) entry.failed_stamp = *stamp;
  entry.failed_serial = ++serial_;
}

void AdapterLoads::checked(const HeaderCheck& check) {
  AdapterEntry* const entry = entries_.find(check.source.id);
  if (entry == nullptr || entry->spec.path != check.source.path) return;
  // A load tells more.
  if (entry->version != nullptr || entry->stage != AdapterStage::kIdle) return;
  const FileStamp* const stamp = check.stamp ? &*check.stamp : nullptr;
  const bool looked_at =
      entry->failed && entry->failed_stamp_known && stamp != nullptr && entry->failed_stamp == *stamp;
  if (looked_at || (check.status.ok() && !entry->failed)) return;
  entries_.count_change();
  if (check.status.ok()) {
    entries_.touch(*entry);
    entry->failed = false;
    return;
  }
  entry->failed_limit_bytes = INT64_MAX;
  remember(*entry, not_loaded(check.status.error(), entry->spec.label), stamp);
}

bool AdapterLoads::is_impatient() const {
  const int64_t patient_since_ns = clock_.now_ns() - kRoomPatienceNs;
  return std::any_of(active_.begin(), active_.end(),
                     [&](const AdapterEntry* entry) { return entry->without_room_since_ns <= patient_since_ns; });
}

void AdapterLoads::check() const {
  size_t begun = 0;
  for (const AdapterEntry* entry : active_) {
    CHECK(std::count(active_.begin(), active_.end(), entry) == 1);
    CHECK(entry->stage != AdapterStage::kIdle);
    const bool reads = entry->stage == AdapterStage::kReading;
    CHECK((reads || entry->stage == AdapterStage::kStamping) == (entry->job != 0));
    CHECK(entry->granted_bytes == 0 || reads);
    CHECK(entry->arriving == nullptr || (reads && options_.early));
    if (entry->job == 0) continue;
    ++begun;
    const Job& job = jobs_.at(entry->job);
    CHECK(job.entry == entry && job.read == reads && job.grant.bytes() == entry->granted_bytes);
    CHECK(entry->arriving == nullptr || (entry->arriving->adapter->version == job.version &&
                                         entry->arriving->adapter->bytes == entry->granted_bytes));
  }
  int64_t sum_bytes = 0;
  int32_t ahead = 0;
  for (const auto& [id, job] : jobs_) {
    sum_bytes += job.grant.bytes();
    ahead += job.ahead ? 1 : 0;
  }
  CHECK(sum_bytes == cache_.loading_bytes());
  CHECK(ahead == jobs_ahead_ && ahead <= 1);
  CHECK(begun <= jobs_.size() && static_cast<int32_t>(jobs_.size()) - ahead <= options_.loads_max);
}

}  // namespace loralei
