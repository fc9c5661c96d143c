// SPDX-License-Identifier: Apache-2.0
// AdapterRegistry: sources, and how they come into memory and leave it (mechanisms §3).
// Names are resolved to sources above; a label is for sentences.
//
//   source ── entry {source | loading | resident | failed} ──> current version
//
// Who keeps which version alive: adapters/versions.h.
//
// Thread: the engine's alone; file work happens through `start_load` and comes back by
// on_load_done(). Ownership: owns the versions; pins and claims must not outlive the
// registry. Invariants (check()): every version is the current one of its source or
// retired; bytes are granted before they are read; at most loads_max jobs are in
// progress; a pinned or used version is never evicted, but for a pinned one that nobody
// uses, by its own replacement; a pinned source that is not in memory is being loaded,
// until that fails.
//
// A cold load goes: look at the stamp -> find room (evict unused versions, wait for users
// to finish, or refuse with the numbers when it can never fit) -> read. The size in
// memory is not known before the file is parsed: room for the file's size is granted
// first (with int8 for the least it can take, which is less than the file), and once more
// for exactly what is needed where the loader says that it is more. A failure that lies
// in the file is remembered with the stamp it was seen at: a later request has the stamp
// looked at again and gets the same answer at once unless it changed; one of the system
// (a read, its memory) ends those who waited, and the next request tries again. An
// explicit load always tries. Adapters that one request adds up and that do not fit
// together fail that request, not each other. While a load waits for room, younger loads
// and requests pass it as long as its room remains beside what they hold, so that one
// large adapter does not hold up the rest and yet finds its room when all older users
// have ended. For kRoomPatienceNs younger requests use what is in memory even beyond
// that. Nothing is evicted for a load before all of its room can be had. What the
// versions in memory sum up to is counted once a round for all loads, so that a round
// costs what there are of both, not their product. A resident version is never swapped
// silently: a changed file is noticed at the next cold load or by load with `reload`. A
// source may be loaded to replace another: that one's version, if nobody uses it, gives
// its room even if it is pinned, and the pin goes over when the load has ended well.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/cache_policy.h"
#include "adapters/load_pool.h"
#include "adapters/source_spec.h"
#include "adapters/versions.h"
#include "base/clock.h"
#include "base/log.h"
#include "memory/ledger.h"

namespace loralei {

// Adapters of one request.
struct AdapterNeeds {
  std::span<const AdapterSourceId> sources;
  std::span<const AdapterClaim> claims;  // beside sources, or empty: versions to be preferred
  bool again = false;                    // it has acquired them before: no further use
};

struct RegistryOptions {
  int32_t loads_max = 2;
  int32_t rank_max = 0;  // 0: the limit of limits.h; larger adapters are refused
  int32_t sources_max = 65536;
  bool strict = true;
  bool int8 = false;                              // AdapterLoadOptions::int8
  std::function<void(AdapterVersionId)> dropped;  // told of every version that leaves memory, just before; may be empty
};

struct RegistryReply {
  uint64_t ticket = 0;
  Status status;
  int64_t bytes_freed = 0;
  std::string version;  // digest
};

enum class AdapterState : uint8_t { kSource, kLoading, kResident, kFailed };

// A view for status displays; pointers are valid until the next call.
struct RegistryView {
  const AdapterSourceSpec* source = nullptr;
  AdapterState state = AdapterState::kSource;
  const Adapter* adapter = nullptr;  // the current version, or null
  int64_t bytes = 0;
  int32_t users = 0, waiting = 0;
  int64_t uses = 0;
  bool pinned = false;
  const Error* error = nullptr;  // kFailed
};

struct RegistryCounters {
  uint64_t loads = 0, failures = 0, evictions = 0;
  uint64_t versions_looked_at = 0;  // in search of room for loads
};

inline constexpr int64_t kRoomPatienceNs = 1'000'000'000;

// How far the load of a source is.
enum class AdapterStage : uint8_t { kIdle, kQueued, kStamping, kWaitingForRoom, kReading };

// A source and what has become of it. Owned by the registry.
struct AdapterEntry {
  AdapterSourceSpec spec;
  AdapterSourceId replaces;  // while it is loaded
  AdapterVersion* version = nullptr;
  AdapterStage stage = AdapterStage::kIdle;
  bool reload = false;             // a replacement is under way; `version` serves meanwhile
  bool forget_on_failure = false;  // the source came with the load command
  bool pinned = false;
  bool failed = false;
  Error error;
  FileStamp failed_stamp;
  bool failed_stamp_known = false;
  int64_t failed_limit_bytes = INT64_MAX;  // too large for this much room; more room is worth another try
  uint64_t failed_serial = 0;
  int64_t least_bytes = 0;  // it surely needs that much
  int64_t ask_bytes = 0;    // room to ask for next
  bool size_known = false;  // both are what the loader said
  int64_t without_room_since_ns = INT64_MAX;
  int64_t uses = 0;
  uint64_t wanted = UINT64_MAX;
  int32_t waiting = 0;
  bool changed = false;  // and listed in changed_
  uint64_t job = 0;
  std::vector<uint64_t> tickets;  // of load and pin commands
};
enum class AcquireOutcome : uint8_t { kReady, kWaiting, kFailed };

class AdapterRegistry {
 public:
  // start_load takes a job or says false (busy; tried again at the next pump()).
  AdapterRegistry(Ledger& ledger, const Clock& clock, LogSink& log, RegistryOptions options,
                  std::function<bool(LoadJob&&)> start_load);
  AdapterRegistry(const AdapterRegistry&) = delete;
  AdapterRegistry& operator=(const AdapterRegistry&) = delete;

  // --- commands; each gets exactly one reply, now or later
  void add(uint64_t ticket, const AdapterSourceSpec& source);
  // Adds it first where it is not known; then it is forgotten if the load fails. reload:
  // even if it is in memory. replaces: another source, or none.
  void load(uint64_t ticket, const AdapterSourceSpec& source, bool reload, AdapterSourceId replaces = {});
  void drop(uint64_t ticket, AdapterSourceId source);
  void pin(uint64_t ticket, AdapterSourceId source);
  void unpin(uint64_t ticket, AdapterSourceId source);

  // --- requests. A round: begin_round(), then look() (or acquire()) for those that wait
  // for adapters and want() for others that wait, from the oldest to the youngest,
  // pump().
  void begin_round();
  // All or nothing: pins for all sources, or kWaiting (loads are under way or will be;
  // nothing is held meanwhile, so that two requests never block each other), or kFailed
  // with the reason. order: the request's arrival, unique. since: serial() when it
  // arrived: an older failure is looked at again.
  AcquireOutcome acquire(const AdapterNeeds& needs, uint64_t order, uint64_t since, std::vector<AdapterPin>& pins,
                         Error& error);
  AcquireOutcome acquire(std::span<const AdapterSourceId> sources, uint64_t order, uint64_t since,
                         std::vector<AdapterPin>& pins, Error& error) {
    return acquire(AdapterNeeds{sources, {}}, order, since, pins, error);
  }
  // The same without pins and without a look at room that others wait for: ready where
  // all are in memory now, whose adapters it then lists (valid until the next call).
  AcquireOutcome look(const AdapterNeeds& needs, uint64_t order, uint64_t since, std::vector<const Adapter*>& adapters,
                      Error& error);
  // Of a request that waits for something else than its adapters: they leave for no
  // younger load.
  void want(const AdapterNeeds& needs, uint64_t order);
  AdapterClaim claim(AdapterVersionId version) { return versions_.claim(version); }
  // Counts anew what loads that have lost their patience leave to younger requests. For
  // acquire() outside of a round.
  void reserve();
  // Sources of which something is new: in memory, failed, replaced, dropped.
  void take_news(std::vector<AdapterSourceId>& sources);
  bool has_news() const { return !news_.empty(); }
  void pump();
  void on_load_done(LoadDone&& done);
  // What somebody has seen who looked at the files before anybody asked for them: a
  // failure stands as if a load had met it (and is counted and logged by nobody here),
  // and one whose files have changed since is over. Nothing where a load has told more,
  // or is under way.
  void checked(const HeaderCheck& check);
  uint64_t serial() const { return serial_; }

  // Replies that became due, in order.
  void take_replies(std::vector<RegistryReply>& replies);
  // Ends every outstanding command with `error` (shutdown).
  void fail_outstanding(const Error& error);

  // --- another memory budget
  // Of versions that nobody uses and that are not pinned: what could be evicted.
  int64_t idle_bytes() const;
  // Evicts of them, in the policy's order, until all adapters hold no more than `bytes`,
  // or none is left.
  void evict_idle(int64_t bytes);

  bool knows(AdapterSourceId source) const { return entries_.count(source) != 0; }
  std::string label(AdapterSourceId source) const;  // empty: it is not known
  bool loading() const { return !active_.empty() || !jobs_.empty(); }
  uint64_t generation() const { return generation_; }  // grows with every change
  RegistryCounters counters() const { return counters_; }
  int64_t bytes() const { return versions_.bytes() + loading_bytes_; }  // of all versions, and granted to loads
  // Those that were changed since the last call, in no order, and those that are gone.
  void take_changes(const std::function<void(const RegistryView&)>& visit, std::vector<AdapterSourceId>& gone);
  void touch(AdapterSourceId source);  // as if something had changed; unknown ones are ignored
  bool has_changes() const { return !changed_.empty() || !gone_.empty(); }
  void for_each(const std::function<void(const RegistryView&)>& visit) const;
  void check() const;

 private:
  using Stage = AdapterStage;
  using Entry = AdapterEntry;
  struct Job {
    Entry* entry = nullptr;  // null: the source was dropped meanwhile
    bool read = false;
    Grant grant;
    AdapterVersionId version;
    std::vector<uint64_t> unload_tickets;
  };

  // Of a round: a load that has waited for room longer than kRoomPatienceNs, and what it
  // leaves to younger requests.
  struct Reservation {
    const Entry* entry = nullptr;
    uint64_t order = 0;
    int64_t spare_bytes = 0;
  };

  // The versions in memory as the loads of a round see them. Counted at the first
  // question of a round, and kept up to date while versions leave.
  struct Census {
    struct Leaver {
      EvictionCandidate candidate;
      AdapterVersion* version = nullptr;
      int64_t bytes_before = 0;  // of those that leave before it
    };
    struct Used {
      uint64_t youngest_order = 0;
      int64_t bytes_from_here = 0;  // of those with this order and younger ones
    };
    bool counted = false;
    std::vector<Leaver> leaving;       // neither pinned nor used, in the order in which they leave
    size_t left = 0;                   // of these have left
    std::vector<Used> used;            // not pinned, oldest first
    std::vector<const Entry*> wanted;  // in memory, not pinned, and wanted in this round: by who wants them
  };

  using Entries = std::map<AdapterSourceId, std::unique_ptr<Entry>>;
  Entry* find(AdapterSourceId source);
  void forget(Entries::iterator entry);
  Result<Entry*> add_entry(const AdapterSourceSpec& source);
  // Whose version its load replaces: another's, or its own.
  const Entry& replaced_by(const Entry& entry) const;
  void want_load(Entry& entry);
  void finish(Entry& entry);
  void settle(Entry& entry);
  void touch(Entry& entry);  // what is shown of it is another
  static RegistryView view_of(const Entry& entry);
  void set_pinned(Entry& entry, bool pinned);
  // The entry's version, no longer its current one.
  AdapterVersion* take_version(Entry& entry);
  static int64_t version_bytes(const Entry& entry);
  static int64_t pinned_bytes(const Entry& entry) { return entry.pinned ? version_bytes(entry) : 0; }
  std::optional<int64_t> advance_room(Entry& entry);
  static uint64_t order_of(const Entry& entry) { return entry.tickets.empty() && !entry.pinned ? entry.wanted : 0; }
  static bool goes_before(const Entry& a, const Entry& b) {
    const uint64_t x = order_of(a), y = order_of(b);
    return x != y ? x < y : a.spec.id < b.spec.id;
  }
  bool start_job(Entry& entry, bool read, Grant grant);
  void on_stamp(Entry& entry, const Result<FileStamp>& stamp);
  void on_read(Entry& entry, Job& job, LoadDone& done);
  void ask_again(Entry& entry, int64_t bytes_needed, int64_t granted_bytes);
  Status admissible(const Job& job, const Adapter& adapter) const;
  void install(Entry& entry, Job& job, std::shared_ptr<const Adapter> adapter);
  void orphan_job(Entry& entry);
  void bring_back(AdapterSourceId source);
  void fail(Entry& entry, Error error, const FileStamp* stamp);
  void remember(Entry& entry, Error error, const FileStamp* stamp);
  Census& census();
  // Those in memory that a request wants together with this one; only what is not pinned.
  std::span<const Entry* const> wanted_with(const Entry& entry);
  EvictionCandidate candidate(const AdapterVersion& version) const;
  static bool gives_its_pinned(const Entry& replaced);
  size_t may_leave(uint64_t order);
  int64_t evictable_bytes(const Entry& entry);
  // For this load, of census().leaving or what it replaces; null: there is none.
  AdapterVersion* next_to_leave(const Entry& entry);
  void evict(AdapterVersion* version, const std::string& reason);
  std::optional<Grant> make_room(const Entry& entry, int64_t bytes);
  int64_t room_beside(int64_t staying_bytes) const;
  int64_t limit_bytes(const Entry& entry) const;
  bool stays_beside(const Entry& entry, const Entry& other) const;
  bool keeps_from(const Entry& entry, const AdapterVersion& version) const;
  int64_t room_for(const Entry& entry);
  int64_t room_to_ask(const Entry& entry);
  // What younger loads and requests may take beside what they hold, so that this load
  // finds its room when all older ones have ended. Negative: they hold too much already.
  int64_t spare_beside(const Entry& entry);
  bool leaves_reserved_room(std::span<AdapterVersion* const> versions, uint64_t order);
  AdapterVersion* claimed(const AdapterNeeds& needs, size_t index);
  std::optional<AcquireOutcome> find_versions(const AdapterNeeds& needs, uint64_t since, Error& error);
  void wait_for(const AdapterNeeds& needs, uint64_t order);
  Status fit_together(const AdapterNeeds& needs);
  void on_leaving(const AdapterVersion& version);
  void reply(uint64_t ticket, Status status, int64_t bytes_freed = 0, std::string version = {});
  void reply_all(Entry& entry, const Status& status);

  Ledger& ledger_;
  const Clock& clock_;
  LogSink& log_;
  const RegistryOptions options_;
  const std::function<bool(LoadJob&&)> start_load_;
  Entries entries_;
  std::unordered_map<uint64_t, Job> jobs_;
  std::vector<Entry*> active_;             // entries that are being loaded
  std::vector<Entry*> wanted_;             // touched in this round
  std::vector<Reservation> reservations_;  // from begin_round() to pump()
  std::vector<Entry*> turn_;               // of pump(): active_ as it began
  Census census_;
  int64_t loading_bytes_ = 0;  // granted to jobs
  int64_t pinned_bytes_ = 0;   // of current versions of pinned sources
  std::vector<RegistryReply> replies_;
  std::vector<AdapterSourceId> news_, gone_;
  std::vector<Entry*> changed_;
  std::vector<AdapterVersion*> found_;  // of find_versions(): beside the sources; null: not in memory
  RegistryCounters counters_;
  uint64_t serial_ = 0, generation_ = 0, next_job_ = 1;
  AdapterVersions versions_;  // the last: what leaves is told to those above
};

}  // namespace loralei
