// SPDX-License-Identifier: Apache-2.0
// AdapterCache: the memory that adapters may have. Which of the versions in memory leave
// for a load, and what a load that finds no room leaves to others.
//
// Thread: the engine's alone. Ownership: borrows sources, versions and ledger; a grant
// that it gives is the caller's, who says with count_loading() what loads hold.
//
// While a load waits for room, younger loads and requests pass it as long as its room
// remains beside what they hold, so that one large adapter does not hold up the rest and
// yet finds its room when all older users have ended. For kRoomPatienceNs younger
// requests use what is in memory even beyond that. Nothing is evicted for a load before
// all of its room can be had. A pinned or used version is never evicted, but for a pinned
// one that nobody uses, by its own replacement. What is arriving is its load, whether
// somebody uses it or not, and is never evicted.
//
// What the versions in memory sum up to is counted once a round for all loads
// (recount()), so that a round costs what there are of both, not their product.
//
// Another shelf may lie beside (the KV cache's): a load takes what is worth least of
// both, and for others this is a shelf itself, of versions that nobody uses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapters/entries.h"
#include "adapters/foresight.h"
#include "adapters/versions.h"
#include "base/clock.h"
#include "base/log.h"
#include "cost/transfer_times.h"
#include "memory/keep_order.h"
#include "memory/ledger.h"
#include "memory/shelf.h"

namespace loralei {

inline constexpr int64_t kRoomPatienceNs = 1'000'000'000;

class AdapterCache final : public Shelf {
 public:
  // `beside`: outlives the cache; null: none.
  AdapterCache(Ledger& ledger, const Clock& clock, LogSink& log, const KeepOrder& keep,
               const AdapterForesight& foresight, AdapterEntries& entries, AdapterVersions& versions, Shelf* beside)
      : ledger_(ledger),
        clock_(clock),
        log_(log),
        keep_(keep),
        foresight_(foresight),
        entries_(entries),
        versions_(versions),
        beside_(beside) {}
  AdapterCache(const AdapterCache&) = delete;
  AdapterCache& operator=(const AdapterCache&) = delete;

  // Versions, users or those who wait are others than before.
  void recount();

  // --- room for a load
  // Everything adapters have or could ever have, but for those that stay. What is lent
  // now comes back: it can be waited for.
  int64_t room_beside(int64_t staying_bytes) const;
  int64_t limit_bytes(const AdapterEntry& entry) const;  // most that this load could ever be granted
  // Beside the others of its request it is looked at in the room they leave: then its
  // size is known, and whether they fit together.
  int64_t room_to_ask(const AdapterEntry& entry);
  // What younger loads and requests may take beside what they hold, so that this load
  // finds its room when all older ones have ended. Negative: they hold too much already.
  int64_t spare_beside(const AdapterEntry& entry, std::span<AdapterEntry* const> loading);
  // Evicts as it takes; none, and nobody was evicted, where that does not give all of it.
  std::optional<Grant> make_room(const AdapterEntry& entry, int64_t bytes);
  // For a load that nobody waits for: evicts only those that would leave before it if it
  // were in memory, and that nobody wants. It takes nothing of the shelf beside, nor of
  // what is to stay free.
  std::optional<Grant> make_room_ahead(const AdapterEntry& entry, int64_t bytes);
  void count_loading(int64_t bytes) { loading_bytes_ += bytes; }  // granted to loads, or back from them

  // --- what loads that have lost their patience leave to younger requests
  void reserve(std::span<AdapterEntry* const> loading);
  void end_reserve() { reservations_.clear(); }
  // Whether a request of this order may use these, and their room with them. Where it
  // may, that is taken.
  bool leaves_reserved_room(std::span<AdapterVersion* const> versions, uint64_t order);

  // --- what keeping a version is worth
  // As KeepOrder wants it: uses and the last one are its source's and its own, and
  // `recreate_s` is what a load of it takes. Nobody wants a retired one.
  CacheItem item_of(const AdapterVersion& version) const;
  void learn_load(int64_t bytes, double seconds) { load_times_.learn(bytes, seconds); }
  double load_s(int64_t bytes) const { return load_times_.predict_s(bytes); }

  // --- another memory budget
  // Of versions that nobody uses and that are not pinned: what could be evicted.
  int64_t idle_bytes() const override { return entries_.idle_bytes(); }
  // Evicts of them, in the order of KeepOrder, until all adapters hold no more than
  // `bytes`, or none is left.
  void evict_idle(int64_t bytes);
  void let_go(AdapterVersion* version);  // one of these
  int64_t most_bytes() const override { return bytes() - entries_.pinned_bytes(); }
  std::optional<CacheItem> next() override;
  int64_t give_up(const char* reason) override;  // behind next()

  int64_t bytes() const { return versions_.bytes() + loading_bytes_; }  // of all versions, and granted to loads
  int64_t loading_bytes() const { return loading_bytes_; }
  uint64_t evictions() const { return evictions_; }
  uint64_t versions_looked_at() const { return versions_looked_at_; }

 private:
  // Of a load that has waited for room longer than kRoomPatienceNs.
  struct Reservation {
    const AdapterEntry* entry = nullptr;
    uint64_t order = 0;
    int64_t spare_bytes = 0;
  };

  // The versions in memory as the loads of a round see them. Counted at the first
  // question of a round, and kept up to date while versions leave.
  struct Census {
    struct Used {
      uint64_t youngest_order = 0;
      int64_t bytes_from_here = 0;  // of those with this order and younger ones
    };
    bool counted = false;
    std::vector<CacheItem> leaving;           // neither pinned nor used, in the order in which they leave
    std::vector<int64_t> bytes_to;            // of each of these and those that leave before it
    size_t left = 0;                          // of these have left
    std::vector<Used> used;                   // not pinned, oldest first
    std::vector<const AdapterEntry*> wanted;  // in memory, not pinned, and wanted in this round: by who wants them
  };

  Census& census();
  // Those in memory that a request wants together with this one; only what is not pinned.
  std::span<const AdapterEntry* const> wanted_with(const AdapterEntry& entry);
  bool stays_beside(const AdapterEntry& entry, const AdapterEntry& other) const;
  bool keeps_from(const AdapterEntry& entry, const AdapterVersion& version) const;
  int64_t room_for(const AdapterEntry& entry);
  static bool gives_its_pinned(const AdapterEntry& replaced);
  size_t may_leave(uint64_t order);
  int64_t evictable_bytes(const AdapterEntry& entry);
  bool beside_gives_first(int64_t bytes, const AdapterVersion* own);
  bool takes_what_stays_free(int64_t bytes) const;
  int64_t room_ahead_bytes() const;  // that a load ahead may have without anybody leaving
  // For this load, of census().leaving or what it replaces; null: there is none.
  AdapterVersion* next_to_leave(const AdapterEntry& entry);
  void weigh(const AdapterEntry& owner, CacheItem& item) const;
  AdapterVersion* version_of(const CacheItem& item) const;
  void evict(AdapterVersion* version, const std::string& reason);

  Ledger& ledger_;
  const Clock& clock_;
  LogSink& log_;
  const KeepOrder keep_;
  const AdapterForesight& foresight_;
  AdapterEntries& entries_;
  AdapterVersions& versions_;
  Shelf* const beside_;
  Census census_;
  std::vector<Reservation> reservations_;
  TransferTimes load_times_;
  int64_t loading_bytes_ = 0;
  uint64_t evictions_ = 0, versions_looked_at_ = 0;
};

}  // namespace loralei
