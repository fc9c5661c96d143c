// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace loralei {
namespace {

// The identity that names block i is the one in force at its last token.
const KvIdentity& block_identity(const KvKey& key, int32_t block) { return key.at((block + 1) * kKvBlockTokens - 1); }

std::span<const TokenId> block_tokens(std::span<const TokenId> tokens, int32_t block) {
  return tokens.subspan(static_cast<size_t>(block) * kKvBlockTokens, kKvBlockTokens);
}

}  // namespace

KvLease::KvLease(KvLease&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      blocks_(std::exchange(other.blocks_, {})),
      shared_(std::exchange(other.shared_, 0)) {}

KvLease& KvLease::operator=(KvLease&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = std::exchange(other.cache_, nullptr);
    blocks_ = std::exchange(other.blocks_, {});
    shared_ = std::exchange(other.shared_, 0);
  }
  return *this;
}

void KvLease::release() {
  if (cache_ != nullptr) std::exchange(cache_, nullptr)->release(*this);
}

Result<std::unique_ptr<KvCache>> KvCache::create(const KvShape& shape, int32_t blocks, bool prefix_cache,
                                                 Ledger& ledger, const Clock& clock, int32_t capacity) {
  TRY_ASSIGN(auto pool, BlockPool::create(shape, blocks, ledger, capacity));
  return std::unique_ptr<KvCache>(new KvCache(std::move(pool), prefix_cache, clock));
}

std::unique_ptr<KvCache> KvCache::create_ids(int32_t blocks, bool prefix_cache, const Clock& clock,
                                             const BlockPool::Counted& counted) {
  return std::unique_ptr<KvCache>(new KvCache(BlockPool::create_ids(blocks, counted), prefix_cache, clock));
}

KvMatch KvCache::peek(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) const {
  KvMatch match;
  if (!prefix_cache_) return match;
  const int32_t blocks_max = std::min<int32_t>(limit, static_cast<int32_t>(tokens.size())) / kKvBlockTokens;
  int32_t node = kNoNode;
  while (match.blocks < blocks_max) {
    node = tree_.find(node, block_identity(key, match.blocks), block_tokens(tokens, match.blocks));
    if (node == kNoNode) break;
    ++match.blocks;
    if (tree_.pins(node) == 0) ++match.evictable;
  }
  return match;
}

KvLease KvCache::match(const KvKey& key, std::span<const TokenId> tokens, int32_t limit, int32_t blocks_max) {
  const int32_t blocks = peek(key, tokens, limit).blocks;
  KvLease lease;
  lease.cache_ = this;
  lease.blocks_.reserve(static_cast<size_t>(std::max(blocks, blocks_max)));
  int32_t node = kNoNode;
  const int64_t now_ns = clock_.now_ns();
  for (int32_t block = 0; block < blocks; ++block) {
    node = tree_.find(node, block_identity(key, block), block_tokens(tokens, block));
    times_.reuse_gap.add(now_ns - tree_.used_ns(node));
    tree_.pin(node, now_ns);
    tree_.count_find(node, now_ns);
    ++found_;
    lease.blocks_.push_back(node);
  }
  lease.shared_ = blocks;
  return lease;
}

bool KvCache::reserve(KvLease& lease, int32_t tokens) {
  CHECK(lease.cache_ == this);
  const int32_t missing = kv_blocks_for(tokens) - static_cast<int32_t>(lease.blocks_.size());
  if (missing > available()) return false;
  for (int32_t i = 0; i < missing; ++i) {
    auto block = pool_->take();
    if (!block) {
      evict();
      block = pool_->take();
    }
    lease.blocks_.push_back(*block);
  }
  return true;
}

void KvCache::publish(KvLease& lease, const KvKey& key, std::span<const TokenId> tokens, int32_t computed) {
  CHECK(lease.cache_ == this);
  if (!prefix_cache_) return;
  const int32_t full = computed / kKvBlockTokens;
  CHECK(full <= static_cast<int32_t>(lease.blocks_.size()) && computed <= static_cast<int32_t>(tokens.size()));
  for (int32_t block = lease.shared_; block < full; ++block) {
    int32_t& id = lease.blocks_[static_cast<size_t>(block)];
    const int32_t parent = block == 0 ? kNoNode : lease.blocks_[static_cast<size_t>(block) - 1];
    const KvIdentity& identity = block_identity(key, block);
    const auto ids = block_tokens(tokens, block);
    const int32_t equal = tree_.find(parent, identity, ids);
    if (equal == kNoNode) {
      tree_.insert(parent, identity, ids, id, clock_.now_ns());
      ++stored_;
    } else {
      tree_.pin(equal, clock_.now_ns());
      pool_->give_back(id);
      id = equal;
    }
    lease.shared_ = block + 1;
  }
}

int32_t KvCache::exclusive(const KvLease& lease) const {
  // Pins never grow along a path, so the blocks that only this lease pins are the last
  // ones of its shared part.
  int32_t shared = lease.shared_;
  while (shared > 0 && tree_.pins(lease.blocks_[static_cast<size_t>(shared) - 1]) == 1) --shared;
  return static_cast<int32_t>(lease.blocks_.size()) - shared;
}

Status KvCache::resize(int32_t blocks, std::span<KvLease* const> leases) {
  CHECK(leased() <= blocks);
  while (total() - pool_->free() > blocks) evict();
  TRY_ASSIGN(const std::vector<int32_t> names, pool_->resize(blocks));
  tree_.resize(blocks, names);
  for (KvLease* lease : leases) {
    CHECK(lease->cache_ == this || lease->blocks_.empty());
    for (int32_t& block : lease->blocks_) block = names[static_cast<size_t>(block)];
  }
  return {};
}

void KvCache::evict_by(KvEviction eviction, std::function<KvWorth()> worth) {
  eviction_ = eviction;
  worth_ = std::move(worth);
}

// One that was not found yet: as often as others were.
double KvCache::expected_per_s(int32_t node, int64_t now_ns) const {
  const double of_found = tree_.finds(node).expected_per_s(now_ns, tree_.used_ns(node));
  if (tree_.was_found(node)) return of_found;
  return of_found * (stored_ > 0 ? std::min(1.0, found_ / stored_) : 0);
}

// Of a block: its part of what having the whole prefix again takes.
double KvCache::recreate_s(int32_t node, const KvWorth& worth) const {
  const double rows_s = kKvBlockTokens * worth.row_s;
  if (!worth.load_s) return rows_s;
  return std::max(0.0, rows_s - worth.load_s(tree_.identity(node)) / tree_.depth(node));
}

CacheItem KvCache::idle_item(int32_t blocks, const KvWorth& worth) const {
  CacheItem item = prefix_item(std::max(0, blocks - free()), worth);
  item.bytes = blocks * block_bytes();
  return item;
}

CacheItem KvCache::prefix_item(int32_t blocks, const KvWorth& worth) const {
  CHECK(blocks >= 0 && blocks <= cached());
  CacheItem item{.bytes = blocks * block_bytes()};
  const int64_t now_ns = clock_.now_ns();
  double saved_s = 0;  // a second
  Firsts next = firsts();
  for (int32_t left = blocks; left > 0; --left) {
    int32_t& first = next.nodes[goes_first(next, worth, now_ns, false)];
    const int32_t node = std::exchange(first, tree_.released_next(first));
    const double expected = expected_per_s(node, now_ns);
    item.uses_per_s += tree_.finds(node).per_s(now_ns);
    item.expected_per_s += expected;
    saved_s += expected * recreate_s(node, worth);
    item.last_use_ns = std::max(item.last_use_ns, tree_.used_ns(node));
  }
  if (item.expected_per_s > 0) item.recreate_s = saved_s / item.expected_per_s;
  return item;
}

bool KvCache::goes_first(const Firsts& firsts, const KvWorth& worth, int64_t now_ns, bool leaf) const {
  const auto [unfound, found] = firsts.nodes;
  if (unfound == kNoNode || found == kNoNode) return unfound == kNoNode;
  const bool older = tree_.release_order(found) < tree_.release_order(unfound);
  if (eviction_ == KvEviction::kLru) return older;
  if (leaf && !tree_.is_leaf(found)) return false;
  const double unfound_s = expected_per_s(unfound, now_ns) * recreate_s(unfound, worth);
  const double found_s = expected_per_s(found, now_ns) * recreate_s(found, worth);
  return found_s != unfound_s ? found_s < unfound_s : older;
}

void KvCache::evict() {
  const int64_t now_ns = clock_.now_ns();
  const Firsts next = firsts();
  const int32_t block =
      next.nodes[goes_first(next, eviction_ == KvEviction::kLru ? KvWorth{} : worth_(), now_ns, true)];
  tree_.evict(block);
  times_.lifetime.add(now_ns - tree_.stored_ns(block));
  times_.idle_before_evict.add(now_ns - tree_.used_ns(block));
  pool_->give_back(block);
}

void KvCache::release(KvLease& lease) {
  const int64_t now_ns = clock_.now_ns();
  for (auto index = static_cast<int32_t>(lease.blocks_.size()) - 1; index >= 0; --index) {
    const int32_t block = lease.blocks_[static_cast<size_t>(index)];
    if (index >= lease.shared_) {
      pool_->give_back(block);
    } else {
      tree_.unpin(block, now_ns);
    }
  }
  lease.blocks_.clear();
  lease.shared_ = 0;
}

void KvCache::check(std::span<const KvLease* const> leases) const {
  pool_->check();
  tree_.check();
  std::vector<int32_t> pins(static_cast<size_t>(total()), 0), owners(static_cast<size_t>(total()), 0);
  int32_t private_blocks = 0;
  for (const KvLease* lease : leases) {
    if (lease->cache_ == nullptr) continue;
    CHECK(lease->cache_ == this && lease->shared_ <= static_cast<int32_t>(lease->blocks_.size()));
    for (size_t index = 0; index < lease->blocks_.size(); ++index) {
      const auto block = static_cast<size_t>(lease->blocks_[index]);
      if (index < static_cast<size_t>(lease->shared_)) {
        ++pins[block];
      } else {
        ++owners[block];
        ++private_blocks;
      }
    }
  }
  for (int32_t block = 0; block < total(); ++block) {
    const auto index = static_cast<size_t>(block);
    if (tree_.contains(block)) {
      CHECK(pool_->is_taken(block) && owners[index] == 0 && tree_.pins(block) == pins[index]);
    } else {
      CHECK(pins[index] == 0 && owners[index] == (pool_->is_taken(block) ? 1 : 0));
    }
  }
  CHECK(pool_->free() + tree_.size() + private_blocks == total());
}

}  // namespace loralei
