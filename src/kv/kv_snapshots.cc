// SPDX-License-Identifier: Apache-2.0
// Where layers keep a state of a whole text in the place of K and V (state_pool.h): the
// states of leases, and the copies of them by which prefixes are found.
//
// A state is of all tokens up to one position, and cannot be taken back to another. So a
// lease begins with a copy that a holding has of the text up to there, or with zeros; and
// copies are made where a later text can use them, at borders of blocks. Where these are
// is known when a lease begins (KvKeepAt):
//
//   known text   | found with a copy | found without one | new ............ | <= 16 |
//                begins here         ^ branch: others    ^ ... and the same text, or one
//                                      shared it so far    that goes on, from here on
//
// A step of the prompt ends at either (SeqState::rows_end).
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace loralei {
namespace {

// A copy saves the computing of a few blocks at least: it costs megabytes, and the prompt
// a step more.
constexpr int32_t kKeptBlocksLeast = 4;

// Of a text that has `begins` blocks with a copy, of which so many were found, and so
// many could be.
KvKeepAt keep_at(int32_t begins, int32_t found, int32_t most) {
  KvKeepAt positions = kKeepNowhere;
  size_t count = 0;
  for (const int32_t border : {found, most}) {
    if (border - begins < kKeptBlocksLeast) continue;
    positions[count++] = border * kKvBlockTokens;
    begins = border;
  }
  return positions;
}

}  // namespace

int32_t KvLease::keeps_next(int32_t computed) const {
  for (const int32_t position : keep_at_) {
    if (position > computed) return position;
  }
  return kNowhere;
}

Status KvCache::keep_states(int64_t floats, int32_t slots, Ledger& ledger) {
  CHECK(holdings_.size() == 0 && states_ == nullptr && windows_ == nullptr);
  CHECK(resting_ == nullptr && spilling_ == nullptr && telling_ == nullptr && lenders_.empty());
  TRY_ASSIGN(auto pool, StatePool::create(floats, slots, ledger));
  states_ = std::make_unique<States>();
  states_->pool = std::move(pool);
  states_->snapshots.set_capacity(holdings_.capacity());
  return {};
}

KvStates KvCache::state_counts() const {
  if (states_ == nullptr) return {};
  KvStates counts = states_->counts;
  counts.slots = states_->pool->slots();
  counts.snapshots = states_->snapshots.size();
  counts.running = counts.slots - states_->pool->free() - counts.snapshots;
  counts.bytes = states_->pool->bytes();
  return counts;
}

// As far as there is a copy at the end.
KvMatch KvCache::peek_state(const KvKey& key, std::span<const TokenId> tokens, int32_t blocks_max) const {
  KvMatch match;
  int32_t text = kNoText, unpinned = 0, found = 0;
  for (; found < blocks_max; ++found) {
    const int32_t holding = find(key, tokens, found, text);
    if (holding == kNoHolding) break;
    unpinned += holdings_.pins(holding) == 0 ? 1 : 0;
    if (!states_->snapshots.has(holding)) continue;
    match.blocks = found + 1;
    match.evictable = unpinned;
  }
  match.held = match.blocks;
  match.keep_at = keep_at(match.blocks, found, blocks_max);
  return match;
}

// A free slot, or that of the copy that was used least lately.
StateLease KvCache::take_state() {
  StateLease state = states_->pool->take();
  if (state) return state;
  const int32_t least = states_->snapshots.least_used();
  if (least == kNoHolding) return {};
  ++states_->counts.dropped;
  return states_->snapshots.remove(least);
}

// Once it has its holdings. The copy that it begins with is the last to give way, and
// then becomes its own.
void KvCache::begin_state(KvLease& lease, const KvMatch& match) {
  StateSnapshots& snapshots = states_->snapshots;
  const int32_t end = lease.holdings_.empty() ? kNoHolding : lease.holdings_.back();
  if (end != kNoHolding) snapshots.use(end);
  lease.state_ = take_state();
  if (!lease.state_) return;
  if (end == kNoHolding) {
    states_->pool->clear(lease.state_);
  } else {
    if (snapshots.has(end)) states_->pool->copy(snapshots.state(end), lease.state_);
    ++states_->counts.found;
  }
  lease.state_at_ = match.tokens();
  lease.keep_at_ = match.keep_at;
}

void KvCache::keep_state(KvLease& lease, int32_t computed) {
  if (states_ == nullptr) return;
  CHECK(lease.cache_ == this && lease.state_);
  lease.state_at_ = computed;
  const bool wanted = computed == lease.keep_at_[0] || computed == lease.keep_at_[1];
  if (!wanted || lease.shared() * kKvBlockTokens != computed) return;
  StateSnapshots& snapshots = states_->snapshots;
  const int32_t holding = lease.holdings_.back();
  if (snapshots.has(holding)) return snapshots.use(holding);
  StateLease state = take_state();
  if (!state) return;  // all slots are of those that run
  states_->pool->copy(lease.state_, state);
  snapshots.add(holding, std::move(state));
  ++states_->counts.kept;
}

// It goes with its holding.
void KvCache::drop_snapshot(int32_t holding) {
  if (!states_->snapshots.has(holding)) return;
  states_->snapshots.remove(holding).release();
  ++states_->counts.dropped;
}

void KvCache::check_states(std::span<const KvLease* const> leases) const {
  const StatePool& pool = *states_->pool;
  pool.check();
  states_->snapshots.check();
  std::vector<bool> seen(static_cast<size_t>(pool.slots()), false);
  int32_t taken = 0;
  const auto see = [&](int32_t slot) {
    CHECK(slot >= 0 && slot < pool.slots() && !seen[static_cast<size_t>(slot)]);
    seen[static_cast<size_t>(slot)] = true;
    ++taken;
  };
  for (const KvLease* lease : leases) {
    if (lease->cache_ == nullptr || !lease->state_) continue;
    see(lease->state());
    CHECK(lease->state_at() == kNoState || lease->state_at() >= lease->shared() * kKvBlockTokens);
  }
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    if (!states_->snapshots.has(holding)) continue;
    CHECK(holdings_.contains(holding));
    see(states_->snapshots.state(holding).slot());
  }
  CHECK(taken == pool.slots() - pool.free());
}

}  // namespace loralei
