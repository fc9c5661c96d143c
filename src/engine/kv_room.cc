// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_room.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {

KvRoom::KvRoom(KvRoomParts parts) : parts_(std::move(parts)), floor_blocks_(parts_.kv->total()) {
  CHECK(!parts_.joint || (block_bytes() > 0 && parts_.ledger != nullptr && parts_.resize && parts_.worth));
}

int32_t KvRoom::extent_blocks() const {
  const int64_t most = std::max<int64_t>(1, kExtentBytesMost / block_bytes());
  return static_cast<int32_t>(std::clamp<int64_t>(floor_blocks_ / kExtents, 1, most));
}

int32_t KvRoom::idle_blocks() const {
  if (!parts_.joint) return 0;
  const KvCache& kv = *parts_.kv;
  return std::max(0, std::min(kv.total() - floor_blocks_, kv.total() - kv.leased() - kept_blocks_));
}

int64_t KvRoom::most_bytes() const {
  return parts_.joint ? int64_t{std::max(0, parts_.kv->total() - floor_blocks_)} * block_bytes() : 0;
}

int64_t KvRoom::reserve_bytes() const {
  return parts_.reserve_part > 0 ? parts_.ledger->budget_bytes() / parts_.reserve_part : 0;
}

// That KV may grow into.
int64_t KvRoom::room_bytes() const {
  const Ledger& ledger = *parts_.ledger;
  const int64_t floor_left = std::max<int64_t>(0, parts_.adapter_floor_bytes - ledger.used_bytes(MemoryUse::kAdapters));
  return ledger.available_bytes(MemoryUse::kKv) - reserve_bytes() - floor_left;
}

int32_t KvRoom::blocks_for_new() const {
  if (!closed_) return INT32_MAX;
  return std::max(0, floor_blocks_ - parts_.kv->leased());
}

void KvRoom::fit(int32_t running, int32_t next, Shelf& adapters) {
  if (!parts_.joint) return;
  kept_blocks_ = running;
  keep_reserve();
  const KvCache& kv = *parts_.kv;
  while (!closed_ && kv.free() < running + next) {
    const int32_t blocks = std::min(extent_blocks(), kv.capacity() - kv.total());
    if (blocks < 1) return;
    const int64_t bytes = blocks * block_bytes();
    if (room_bytes() < bytes && !take_from(adapters, bytes, running, next)) return;
    if (!parts_.resize(kv.total() + blocks).ok()) return;  // somebody else was there first
  }
}

void KvRoom::keep_reserve() {
  const int64_t reserve = reserve_bytes();
  const int64_t free = parts_.ledger->available_bytes(MemoryUse::kOther);
  if (free < reserve / 2) give_back(reserve - free);
}

// True: there is room for so many bytes now.
bool KvRoom::take_from(Shelf& adapters, int64_t bytes, int32_t running, int32_t next) {
  const int32_t available = parts_.kv->total() - parts_.kv->leased();
  const bool must = available < running + next;
  const int64_t now_ns = parts_.clock->now_ns();
  if (!must && now_ns < look_ns_) return false;
  look_ns_ = now_ns + kLookNs;
  const int64_t beyond_floor = parts_.ledger->used_bytes(MemoryUse::kAdapters) - parts_.adapter_floor_bytes;
  if (room_bytes() + std::min(adapters.idle_bytes(), beyond_floor) < bytes) return false;
  while (room_bytes() < bytes) {
    const auto item = adapters.next();
    if (!item || (item->wanted != CacheItem::kUnwanted && available >= running)) return false;
    if (!must) {
      const int32_t prefixes = running + next - parts_.kv->free();  // would go instead
      if (!is_worth_less(*item, parts_.kv->prefix_item(prefixes, parts_.worth()))) return false;
    }
    given_.adapters_to_kv += adapters.give_up("to make room for the KV cache");
  }
  return true;
}

std::optional<CacheItem> KvRoom::next() {
  const int32_t blocks = std::min(idle_blocks(), extent_blocks());
  if (blocks < 1) return std::nullopt;
  return parts_.kv->idle_item(blocks, parts_.worth());
}

int64_t KvRoom::give_up(const char*) {
  const int32_t blocks = std::min(idle_blocks(), extent_blocks());
  CHECK(blocks > 0);
  CHECK(parts_.resize(parts_.kv->total() - blocks).ok());
  given_.kv_to_adapters += blocks * block_bytes();
  return blocks * block_bytes();
}

int64_t KvRoom::give_back(int64_t bytes) {
  if (!parts_.joint || bytes <= 0) return 0;
  const int64_t wanted = (bytes + block_bytes() - 1) / block_bytes();
  const auto blocks = static_cast<int32_t>(std::min<int64_t>(wanted, idle_blocks()));
  if (blocks < 1) return 0;
  CHECK(parts_.resize(parts_.kv->total() - blocks).ok());
  given_.kv_to_others += blocks * block_bytes();
  return blocks * block_bytes();
}

}  // namespace loralei
