// SPDX-License-Identifier: Apache-2.0
// KvRoom: how much of a memory the KV cache has that it shares with adapters (mechanisms
// §8). Its share at start is a floor, as that of adapters is; what lies between is had by
// whoever gets more out of it:
//
//   | KV floor | KV beyond ......  free  ...... adapters beyond | adapter floor | others
//
//  1. KV grows into what nobody has, an extent at a time, before it evicts a prefix.
//  2. Where nothing is free, and a prefix would have to go, an adapter that nobody uses
//     or waits with goes in its place if that is worth less (is_worth_less).
//  3. Those that run come first: where they or the next in the order of admission find
//     no block, adapters that nobody uses go whatever they are worth; ones that somebody
//     waits with only for those that run.
//  4. As a Shelf it gives extents back, prefixes and all, down to its floor and to
//     what is leased.
//  5. A part of the budget stays free for what cannot ask (requests, the process): KV
//     does not grow into it, and gives back when less than half of it is left.
//  6. While a load has waited for room longer than its patience KV does not grow, and new
//     sequences have no more than the floor. Bound: so the load finds all that lies
//     beyond when those that run now have ended.
//
// Thread: the engine's, between steps. Ownership: borrows everything. Invariants: KV has
// at least its floor; it never grows into the adapters' floor. Not joint: KV keeps the
// blocks it has, and the shelf is empty. Failure: none; what cannot be had is not had.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/result.h"
#include "kv/kv_cache.h"
#include "memory/keep_order.h"
#include "memory/ledger.h"
#include "memory/shelf.h"

namespace loralei {

struct KvRoomParts {
  bool joint = false;
  KvCache* kv = nullptr;
  Ledger* ledger = nullptr;
  const Clock* clock = nullptr;
  int64_t adapter_floor_bytes = 0;
  int32_t reserve_part = 0;  // of the budget one part in so many stays free; 0: nothing
  // KvCache::resize with all leases; only growing can be refused.
  std::function<Status(int32_t blocks)> resize;
  std::function<KvWorth()> worth;
};

class KvRoom final : public Shelf {
 public:
  static constexpr int32_t kExtents = 16;  // of the floor
  static constexpr int64_t kExtentBytesMost = 16 << 20;
  static constexpr int64_t kLookNs = 100'000'000;  // rule 2 is looked at so often

  explicit KvRoom(KvRoomParts parts);

  bool joint() const { return parts_.joint; }
  int32_t floor_blocks() const { return floor_blocks_; }
  int64_t adapter_floor_bytes() const { return parts_.adapter_floor_bytes; }
  // Another budget: KV has so many blocks already.
  void set_floor(int32_t blocks) { floor_blocks_ = blocks; }
  void set_adapter_floor(int64_t bytes) { parts_.adapter_floor_bytes = bytes; }

  // So many of the blocks that are free or evictable are for those that run; told
  // whenever these may be others, before the shelf is asked.
  void keep(int32_t blocks) { kept_blocks_ = blocks; }
  // Before a planning. New blocks that those that run want for it, and the next in the
  // order of admission; both may be had from prefixes, too.
  void fit(int32_t running, int32_t next, Shelf& adapters);
  // Rule 6, and what new sequences may have then.
  void set_closed(bool closed) { closed_ = closed && parts_.joint; }
  int32_t blocks_for_new() const;

  int64_t idle_bytes() const override { return idle_blocks() * block_bytes(); }
  int64_t most_bytes() const override;
  int64_t reserve_bytes() const override;
  std::optional<CacheItem> next() override;
  int64_t give_up(const char* reason) override;
  // For others than adapters (rule 5, a process that grows): that many bytes, or what it
  // can; how many came free.
  int64_t give_back(int64_t bytes);
  void count_adapters_to_others(int64_t bytes) { given_.adapters_to_others += bytes; }
  const GivenBytes& given() const { return given_; }

 private:
  int64_t block_bytes() const { return parts_.kv->block_bytes(); }
  int32_t extent_blocks() const;
  int32_t idle_blocks() const;
  int64_t room_bytes() const;
  void keep_reserve();
  bool take_from(Shelf& adapters, int64_t bytes, int32_t running, int32_t next);

  KvRoomParts parts_;
  int32_t floor_blocks_ = 0;
  int32_t kept_blocks_ = 0;  // for those that run
  bool closed_ = false;
  int64_t look_ns_ = INT64_MIN;  // rule 2, next
  GivenBytes given_;
};

}  // namespace loralei
