// SPDX-License-Identifier: Apache-2.0
// AdapterRegistry: what the engine asks of adapters, and is asked to do with them
// (mechanisms §3). Names are resolved to sources above; a label is for sentences.
//
//   commands, requests
//     entries   what is known of each source, and what of that is new
//     versions  the loaded versions, and who keeps which alive
//     loads     stamp -> room -> read -> installed or failed
//     cache     who leaves for a load, and what a load without room leaves to others
//     foresight who will be asked for soon
//
// Thread: the engine's alone; file work happens through `start_load` and comes back by
// on_load_begun() and on_load_done(). Ownership: owns all of these; pins and claims must
// not outlive the registry. Invariants (check()): every version is the current one of its
// source, or arriving to become that, or retired; a pinned source that is not in memory
// is being loaded, until that fails.
//
// Adapters that one request adds up and that do not fit together fail that request, not
// each other. A resident version is never swapped silently: a changed file is noticed at
// the next cold load or by load with `reload`, and is an error where the source is one
// version (source_spec.h). A source may be loaded to replace another:
// that one's version, if nobody uses it, gives its room even if it is pinned, and the pin
// goes over when the load has ended well.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/cache.h"
#include "adapters/entries.h"
#include "adapters/foresight.h"
#include "adapters/load_pool.h"
#include "adapters/loads.h"
#include "adapters/replies.h"
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

struct RegistryCounters {
  uint64_t loads = 0, failures = 0, evictions = 0;
  int64_t load_bytes = 0;
  uint64_t versions_looked_at = 0;                 // in search of room for loads
  uint64_t loads_ahead = 0, loads_ahead_used = 0;  // before anybody asked; of these, used before they left
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
  // pinned: as with pin(), whose reply it is then.
  void add(uint64_t ticket, const AdapterSourceSpec& source, bool pinned = false);
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
                         Error& error) {
    return acquire(needs, order, since, pins, error, false);
  }
  AcquireOutcome acquire(std::span<const AdapterSourceId> sources, uint64_t order, uint64_t since,
                         std::vector<AdapterPin>& pins, Error& error) {
    return acquire(AdapterNeeds{sources, {}}, order, since, pins, error);
  }
  // The same without pins and without a look at room that others wait for: ready where
  // all are in memory now, whose adapters it then lists (valid until the next call).
  AcquireOutcome look(const AdapterNeeds& needs, uint64_t order, uint64_t since, std::vector<const Adapter*>& adapters,
                      Error& error) {
    return look(needs, order, since, adapters, error, false);
  }
  // The same for who can begin with the first layers (RegistryOptions::early): what is
  // arriving counts as in memory, where its source has nothing that is whole. Whoever has
  // an arriving version pinned sees by arriving() whether its load has failed; nobody new
  // is given it then, and the next one asks for another load.
  AcquireOutcome acquire_early(const AdapterNeeds& needs, uint64_t order, uint64_t since, std::vector<AdapterPin>& pins,
                               Error& error) {
    return acquire(needs, order, since, pins, error, true);
  }
  AcquireOutcome look_early(const AdapterNeeds& needs, uint64_t order, uint64_t since,
                            std::vector<const Adapter*>& adapters, Error& error) {
    return look(needs, order, since, adapters, error, true);
  }
  // Of a version in memory, until its load has ended well; null: it is whole, or not in
  // memory. Valid until the next on_load_done() or the version's last pin goes.
  const AdapterArriving* arriving(AdapterVersionId version) const;
  bool is_arriving(AdapterSourceId source) const;  // a version of it
  // Of a request that waits for something else than its adapters: they leave for no
  // younger load.
  void want(const AdapterNeeds& needs, uint64_t order) { wait_for(needs, order); }
  // Outside of a round: nobody waits with the source any more. One that is being loaded
  // stays wanted until the next round.
  void unwant(AdapterSourceId source);
  // --- what will be asked for soon (RegistryOptions::foresees)
  // A request has arrived, or has ended.
  void asked(std::span<const AdapterSourceId> sources);
  void answered(std::span<const AdapterSourceId> sources);
  // Begins to load what is expected now and has left memory, where there is no other
  // load; pump() carries it on. There may be something to do at that time, or when a load
  // has ended.
  void foresee();
  int64_t foresees_at_ns() const { return loads_.loading() ? AdapterForesight::kNever : foresight_.next_due_ns(); }

  // What keeping a version is worth; of one in memory.
  CacheItem item_of(AdapterVersionId version) const;
  double load_s(int64_t bytes) const { return cache_.load_s(bytes); }  // that reading takes
  // Of the version that was in memory last; nullptr: none was.
  const Digest* last_digest(AdapterSourceId source) const;
  AdapterClaim claim(AdapterVersionId version) { return versions_.claim(version); }
  // Behind pump(): loads wait for room, nobody uses an adapter, and nothing is lent: the
  // room is what claims keep of versions that were replaced or unloaded, or it will not
  // come.
  bool is_starved() const;
  bool is_retired(AdapterVersionId version) const;
  // Counts anew what loads that have lost their patience leave to younger requests. For
  // acquire() outside of a round.
  void reserve() { cache_.reserve(loads_.active()); }
  // Sources of which something is new: in memory, failed, replaced, dropped.
  void take_news(std::vector<AdapterSourceId>& sources) { entries_.take_news(sources); }
  bool has_news() const { return entries_.has_news(); }
  void pump() { loads_.pump(); }
  void on_load_begun(LoadBegun&& begun) { loads_.on_begun(std::move(begun)); }
  void on_load_done(LoadDone&& done) { loads_.on_done(std::move(done)); }
  void checked(const HeaderCheck& check) { loads_.checked(check); }  // AdapterLoads::checked
  uint64_t serial() const { return loads_.serial(); }

  // Replies that became due, in order.
  void take_replies(std::vector<RegistryReply>& replies) { replies_.take(replies); }
  // Ends every outstanding command with `error` (shutdown).
  void fail_outstanding(const Error& error);

  // --- another memory budget: AdapterCache
  int64_t idle_bytes() const { return cache_.idle_bytes(); }
  Shelf& idle_adapters() { return cache_; }
  // What whoever needs a version with this digest waits for: 0 where one is in memory,
  // else about what a load takes.
  double missing_load_s(const std::array<uint8_t, 32>& digest) const;
  // A load has waited for room longer than kRoomPatienceNs.
  bool is_impatient() const { return loads_.is_impatient(); }
  void evict_idle(int64_t bytes) { cache_.evict_idle(bytes); }
  // Leaves memory, if it is there and nobody uses it and it is not pinned.
  void let_go_unused(AdapterSourceId source);

  bool knows(AdapterSourceId source) const { return entries_.find(source) != nullptr; }
  int64_t bytes_of(AdapterSourceId source) const;   // in memory; 0: it is not
  std::string label(AdapterSourceId source) const;  // empty: it is not known
  bool loading() const { return loads_.loading(); }
  uint64_t generation() const { return entries_.generation(); }  // grows with every change
  const RegistryOptions& options() const { return options_; }
  RegistryCounters counters() const;
  int64_t bytes() const { return cache_.bytes(); }  // of all versions, and granted to loads
  // Since the last call: those that are gone, then those that were changed, in no order.
  void take_changes(const std::function<void(AdapterSourceId)>& gone,
                    const std::function<void(const RegistryView&)>& changed);
  void touch(AdapterVersionId version);  // its source
  void touch(AdapterSourceId source);    // as if something had changed; unknown ones are ignored
  bool has_changes() const { return entries_.has_changes(); }
  void for_each(const std::function<void(const RegistryView&)>& visit) const;
  void check() const;

 private:
  AdapterVersion* claimed(const AdapterNeeds& needs, size_t index) const;
  std::optional<AcquireOutcome> find_versions(const AdapterNeeds& needs, uint64_t since, bool early, Error& error);
  AcquireOutcome acquire(const AdapterNeeds& needs, uint64_t order, uint64_t since, std::vector<AdapterPin>& pins,
                         Error& error, bool early);
  AcquireOutcome look(const AdapterNeeds& needs, uint64_t order, uint64_t since, std::vector<const Adapter*>& adapters,
                      Error& error, bool early);
  void wait_for(const AdapterNeeds& needs, uint64_t order);
  Status fit_together(const AdapterNeeds& needs) const;
  void on_leaving(const AdapterVersion& version);

  Ledger& ledger_;
  const Clock& clock_;
  const RegistryOptions options_;
  RegistryReplies replies_;
  AdapterEntries entries_;
  AdapterVersions versions_;
  AdapterForesight foresight_;
  AdapterCache cache_;
  AdapterLoads loads_;
  uint64_t loads_ahead_used_ = 0;
  std::vector<AdapterVersion*> found_;  // of find_versions(): beside the sources; null: not in memory
};

}  // namespace loralei
