// SPDX-License-Identifier: Apache-2.0
// Where layers attend to windows (ops/kv_tables.h): what leases and holdings have of
// them.
//
// A holding has its blocks of the full tables as long as it is there, and its *part*, the
// blocks of the sliding tables, as long as nobody needed them elsewhere. A lease pins the
// parts that its window reaches. Without its part a holding is a way to those behind it,
// and of no use where there are none.
#include <algorithm>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace loralei {

std::span<int32_t> KvCache::more_of(int32_t holding) const {
  const auto count = static_cast<size_t>(std::max(0, tables_.full - 1));
  return std::span(windows_->more).subspan(static_cast<size_t>(holding) * count, count);
}

int32_t KvCache::unpinned_blocks() const {
  if (windows_ == nullptr) return holdings_.unpinned_blocks();
  return holdings_.unpinned_blocks() * tables_.full + windows_->parts.unpinned_blocks();
}

// Of the pool.
int32_t KvCache::blocks_of(int32_t holding) const {
  if (windows_ == nullptr) return holdings_.block(holding) == kNoBlock ? 0 : 1;
  return tables_.full + (windows_->parts.has(holding) ? tables_.sliding : 0);
}

bool KvCache::is_only_way(int32_t holding) const { return windows_ != nullptr && !windows_->parts.has(holding); }

// As far as the window before the end is there.
KvMatch KvCache::peek_window(const KvKey& key, std::span<const TokenId> tokens, int32_t places_max) const {
  KvMatch match;
  int32_t text = kNoText, unpinned = 0, end = kNoHolding;
  int32_t parts = 0;  // one behind the other up to here
  for (int32_t place = 0; place < places_max; ++place) {
    const int32_t holding = find(key, tokens, place, text);
    if (holding == kNoHolding) break;
    unpinned += holdings_.pins(holding) == 0 ? 1 : 0;
    parts = windows_->parts.has(holding) ? parts + 1 : 0;
    const int32_t places = place + 1;
    if (parts < places - tables_.first_read(places * kKvBlockTokens)) continue;
    match.blocks = places;
    match.evictable = unpinned * tables_.full;
    end = holding;
  }
  const int32_t window = match.blocks - tables_.first_read(match.tokens());
  match.held = match.blocks * tables_.full + window * tables_.sliding;
  for (int32_t left = window; left > 0; --left, end = holdings_.parent(end))
    match.evictable += windows_->parts.pins(end) == 0 ? tables_.sliding : 0;
  return match;
}

// Its places, once it has its holdings.
void KvCache::lease_window(KvLease& lease) {
  const int32_t places = lease.shared();
  lease.window_first_ = tables_.first_read(places * kKvBlockTokens);
  for (int32_t place = 0; place < places; ++place) {
    const int32_t holding = lease.holdings_[static_cast<size_t>(place)];
    if (tables_.full > 0) lease.blocks_.push_back(holdings_.block(holding));
    for (const int32_t block : more_of(holding)) lease.blocks_.push_back(block);
    if (place < lease.window_first_) {
      lease.blocks_.insert(lease.blocks_.end(), static_cast<size_t>(tables_.sliding), kNoBlock);
      continue;
    }
    windows_->parts.pin(holding);
    const std::span<const int32_t> part = windows_->parts.blocks(holding);
    lease.blocks_.insert(lease.blocks_.end(), part.begin(), part.end());
  }
}

// What the lease has of this place is the holding's.
void KvCache::keep_window(const KvLease& lease, int32_t holding, std::span<const int32_t> blocks, int32_t place) {
  const auto full = static_cast<size_t>(tables_.full);
  if (full > 1) std::copy_n(blocks.begin() + 1, full - 1, more_of(holding).begin());
  if (place >= lease.window_first_) windows_->parts.add(holding, blocks.subspan(full));
}

// The lease changes over to what is held there. What that has not got, and the lease has,
// is the holding's from now on.
void KvCache::join_window(KvLease& lease, const KvKey& key, int32_t holding, int32_t place) {
  const std::span<int32_t> own = lease.place(place);
  const auto full = static_cast<size_t>(tables_.full);
  holdings_.pin(holding, clock_.now_ns());
  for (size_t table = 0; table < full; ++table) {
    pool_->give_back(own[table]);
    own[table] = table == 0 ? holdings_.block(holding) : more_of(holding)[table - 1];
  }
  used_by(holding, key.app);
  if (place < lease.window_first_) return;
  if (!windows_->parts.has(holding)) return windows_->parts.add(holding, own.subspan(full));
  for (const int32_t block : own.subspan(full)) pool_->give_back(block);
  windows_->parts.pin(holding);
  const std::span<const int32_t> part = windows_->parts.blocks(holding);
  std::copy(part.begin(), part.end(), own.begin() + static_cast<int64_t>(full));
}

void KvCache::pass(KvLease& lease, int32_t computed) {
  if (windows_ == nullptr) return;
  CHECK(lease.cache_ == this);
  const int64_t now_ns = clock_.now_ns();
  const int32_t first = std::min(tables_.first_read(computed), lease.places());
  for (; lease.window_first_ < first; ++lease.window_first_) {
    const int32_t place = lease.window_first_;
    const bool shared = place < lease.shared();
    if (shared) windows_->parts.unpin(lease.holdings_[static_cast<size_t>(place)], now_ns);
    for (int32_t& block : lease.place(place).subspan(static_cast<size_t>(tables_.full))) {
      if (!shared) pool_->give_back(block);
      block = kNoBlock;
    }
  }
}

// All that nobody else has of it but its holding.
void KvCache::release_place(KvLease& lease, int32_t place, int64_t now_ns) {
  const bool shared = place < lease.shared();
  if (!shared) {
    for (const int32_t block : lease.place(place)) {
      if (block != kNoBlock) pool_->give_back(block);
    }
  } else if (windows_ != nullptr && place >= lease.window_first_) {
    windows_->parts.unpin(lease.holdings_[static_cast<size_t>(place)], now_ns);
  }
}

int32_t KvCache::exclusive_window(const KvLease& lease) const {
  int32_t shared = lease.shared(), blocks = lease.held();
  while (shared > 0 && holdings_.pins(lease.holdings_[static_cast<size_t>(shared) - 1]) == 1) --shared;
  blocks -= shared * tables_.full;
  for (int32_t place = lease.window_first_; place < lease.shared(); ++place) {
    if (windows_->parts.pins(lease.holdings_[static_cast<size_t>(place)]) > 1) blocks -= tables_.sliding;
  }
  return blocks;
}

// Of parts and prefixes behind which nothing is held what nobody used for longer.
void KvCache::evict_window() {
  const int32_t part = windows_->parts.released_first(), leaf = first_of({Form::kPlain}, true);
  CHECK(part != kNoHolding || leaf != kNoHolding);
  if (part == kNoHolding || (leaf != kNoHolding && windows_->parts.released_ns(part) > holdings_.used_ns(leaf)))
    return remove(leaf);
  if (holdings_.pins(part) == 0 && may_go(part)) return remove(part);
  for (const int32_t block : windows_->parts.blocks(part)) pool_->give_back(block);
  windows_->parts.remove(part);
}

// Its blocks but for the first one of the full tables.
void KvCache::remove_window(int32_t holding) {
  for (int32_t& block : more_of(holding)) {
    pool_->give_back(block);
    block = kNoBlock;
  }
  if (!windows_->parts.has(holding)) return;
  for (const int32_t block : windows_->parts.blocks(holding)) pool_->give_back(block);
  windows_->parts.remove(holding);
}

void KvCache::rename_window(std::span<const int32_t> names) {
  windows_->parts.rename_blocks(names);
  for (int32_t& block : windows_->more) {
    if (block != kNoBlock) block = names[static_cast<size_t>(block)];
  }
}

void KvCache::check_window(std::span<const KvLease* const> leases, std::vector<int32_t>& owners,
                           std::vector<int32_t>& held) const {
  windows_->parts.check();
  const auto full = static_cast<size_t>(tables_.full);
  std::vector<int32_t> pins(static_cast<size_t>(holdings_.capacity()), 0);
  for (const KvLease* lease : leases) {
    if (lease->cache_ == nullptr) continue;
    CHECK(lease->tables_ == tables_ && lease->window_first_ <= lease->places());
    for (int32_t place = 0; place < lease->places(); ++place) {
      const auto own =
          lease->blocks().subspan(static_cast<size_t>(place * tables_.count()), static_cast<size_t>(tables_.count()));
      const bool shared = place < lease->shared(), in_window = place >= lease->window_first_;
      const int32_t holding = shared ? lease->holdings_[static_cast<size_t>(place)] : kNoHolding;
      for (size_t table = 0; table < own.size(); ++table) {
        const bool slides = table >= full;
        CHECK((own[table] == kNoBlock) == (slides && !in_window));
        if (own[table] == kNoBlock) continue;
        if (!shared) {
          ++owners[static_cast<size_t>(own[table])];
        } else if (slides) {
          CHECK(windows_->parts.has(holding) && windows_->parts.blocks(holding)[table - full] == own[table]);
        } else {
          CHECK((table == 0 ? holdings_.block(holding) : more_of(holding)[table - 1]) == own[table]);
        }
      }
      if (shared && in_window) ++pins[static_cast<size_t>(holding)];
    }
  }
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    const bool there = holdings_.contains(holding), part = windows_->parts.has(holding);
    CHECK((part ? windows_->parts.pins(holding) : 0) == pins[static_cast<size_t>(holding)]);
    CHECK(there || !part);
    if (!there) continue;
    CHECK((holdings_.block(holding) != kNoBlock) == (full > 0));
    CHECK(part || holdings_.pins(holding) > 0 || !holdings_.is_leaf(holding));  // else it is of no use
    for (const int32_t block : more_of(holding)) ++held[static_cast<size_t>(block)];
    if (!part) continue;
    for (const int32_t block : windows_->parts.blocks(holding)) ++held[static_cast<size_t>(block)];
  }
}

}  // namespace loralei
