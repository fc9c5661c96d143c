// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <unordered_map>
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
      holdings_(std::exchange(other.holdings_, {})) {}

KvLease& KvLease::operator=(KvLease&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = std::exchange(other.cache_, nullptr);
    blocks_ = std::exchange(other.blocks_, {});
    holdings_ = std::exchange(other.holdings_, {});
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

int32_t KvCache::find(const KvKey& key, std::span<const TokenId> tokens, int32_t block, int32_t& text) const {
  text = texts_.find(text, block_tokens(tokens, block));
  return text == kNoText ? kNoHolding : holdings_.find(text, block_identity(key, block));
}

KvMatch KvCache::peek(const KvKey& key, std::span<const TokenId> tokens, int32_t limit) const {
  KvMatch match;
  if (!prefix_cache_) return match;
  const int32_t blocks_max = std::min<int32_t>(limit, static_cast<int32_t>(tokens.size())) / kKvBlockTokens;
  int32_t text = kNoText;
  while (match.blocks < blocks_max) {
    const int32_t holding = find(key, tokens, match.blocks, text);
    if (holding == kNoHolding) break;
    ++match.blocks;
    if (holdings_.pins(holding) == 0) ++match.evictable;
  }
  return match;
}

KvLease KvCache::match(const KvKey& key, std::span<const TokenId> tokens, int32_t limit, int32_t blocks_max) {
  const int32_t blocks = peek(key, tokens, limit).blocks;
  KvLease lease;
  lease.cache_ = this;
  lease.blocks_.reserve(static_cast<size_t>(std::max(blocks, blocks_max)));
  lease.holdings_.reserve(prefix_cache_ ? lease.blocks_.capacity() : 0);
  int32_t text = kNoText;
  const int64_t now_ns = clock_.now_ns();
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t holding = find(key, tokens, block, text);
    times_.reuse_gap.add(now_ns - holdings_.used_ns(holding));
    holdings_.pin(holding, now_ns);
    holdings_.count_find(holding, now_ns);
    used_by(holding, key.app);
    ++found_;
    lease.holdings_.push_back(holding);
    lease.blocks_.push_back(holdings_.block(holding));
  }
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
  for (int32_t block = lease.shared(); block < full; ++block) {
    int32_t& id = lease.blocks_[static_cast<size_t>(block)];
    const int32_t parent = block == 0 ? kNoHolding : lease.holdings_.back();
    const int32_t before = parent == kNoHolding ? kNoText : holdings_.text(parent);
    int32_t text = before;
    int32_t holding = find(key, tokens, block, text);
    if (holding == kNoHolding) {
      text = texts_.hold(before, block_tokens(tokens, block));
      holding =
          holdings_.add({.parent = parent, .text = text, .identity = block_identity(key, block)}, id, clock_.now_ns());
      const AppSetId apps = apps_.alone(key.app != nullptr ? key.app : apps_.asks(""));
      apps_.hold(apps);
      holdings_.set_apps(holding, apps);
      ++stored_;
    } else {
      holdings_.pin(holding, clock_.now_ns());
      used_by(holding, key.app);
      pool_->give_back(id);
      id = holdings_.block(holding);
    }
    lease.holdings_.push_back(holding);
  }
}

int32_t KvCache::exclusive(const KvLease& lease) const {
  // Pins never grow along a path, so the blocks that only this lease pins are the last
  // ones of its shared part.
  int32_t shared = lease.shared();
  while (shared > 0 && holdings_.pins(lease.holdings_[static_cast<size_t>(shared) - 1]) == 1) --shared;
  return static_cast<int32_t>(lease.blocks_.size()) - shared;
}

Status KvCache::resize(int32_t blocks, std::span<KvLease* const> leases) {
  CHECK(leased() <= blocks);
  while (total() - pool_->free() > blocks) evict();
  TRY_ASSIGN(const std::vector<int32_t> names, pool_->resize(blocks));
  texts_.set_capacity(blocks);
  holdings_.set_capacity(blocks);
  if (blocks < std::ssize(names)) holdings_.rename_blocks(names);  // else nothing has moved
  for (KvLease* lease : leases) {
    CHECK(lease->cache_ == this || lease->blocks_.empty());
    for (int32_t& block : lease->blocks_) block = names[static_cast<size_t>(block)];
  }
  return {};
}

void KvCache::used_by(int32_t holding, const KvAppRef& app) {
  const AppSetId before = holdings_.apps(holding);
  const AppSetId now = apps_.with(before, app != nullptr ? app : apps_.asks(""));
  if (now == before) return;
  apps_.hold(now);
  apps_.let_go(before);
  holdings_.set_apps(holding, now);
}

void KvCache::evict_by(KvEviction eviction, std::function<KvWorth()> worth, const KvUtility& utility) {
  CHECK(holdings_.size() == 0);
  eviction_ = eviction;
  worth_ = std::move(worth);
  utility_ = utility;
}

// One that was not found yet: as often as others were.
double KvCache::expected_per_s(int32_t holding, int64_t now_ns) const {
  const double of_found = holdings_.finds(holding).expected_per_s(now_ns, holdings_.used_ns(holding));
  if (holdings_.was_found(holding)) return of_found;
  return of_found * (stored_ > 0 ? std::min(1.0, found_ / stored_) : 0);
}

// Of a block: its part of what having the whole prefix again takes.
double KvCache::recreate_s(int32_t holding, const KvWorth& worth) const {
  const double rows_s = kKvBlockTokens * worth.row_s;
  if (!worth.load_s) return rows_s;
  return std::max(0.0, rows_s - worth.load_s(holdings_.identity(holding)) / texts_.depth(holdings_.text(holding)));
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
  const std::span<int32_t> next = firsts();
  for (int32_t left = blocks; left > 0; --left) {
    int32_t& first = next[goes_first(next, worth, now_ns, false)];
    const int32_t holding = std::exchange(first, holdings_.released_next(first));
    const double expected = expected_per_s(holding, now_ns);
    item.uses_per_s += holdings_.finds(holding).per_s(now_ns);
    item.expected_per_s += expected;
    saved_s += expected * recreate_s(holding, worth);
    item.last_use_ns = std::max(item.last_use_ns, holdings_.used_ns(holding));
  }
  if (item.expected_per_s > 0) item.recreate_s = saved_s / item.expected_per_s;
  return item;
}

std::span<int32_t> KvCache::firsts() const {
  firsts_.clear();
  for (int32_t group = 0; group < holdings_.groups(); ++group) firsts_.push_back(holdings_.released_first(group));
  return firsts_;
}

double KvCache::utility(int32_t holding, int64_t now_ns) const {
  constexpr double kRecentS = 300, kLongTokens = 1024;
  const double score = apps_.score(holdings_.apps(holding));
  const double idle_s = static_cast<double>(now_ns - holdings_.used_ns(holding)) * 1e-9;
  const double tokens = kKvBlockTokens * texts_.depth(holdings_.text(holding));
  return utility_.state * score / (1 + score) + utility_.recency / (1 + idle_s / kRecentS) +
         utility_.length * tokens / (kLongTokens + tokens);
}

// By kLru all alike: the order of release tells.
double KvCache::keeps(int32_t holding, const KvWorth& worth, int64_t now_ns) const {
  switch (eviction_) {
    case KvEviction::kLru:
      return 0;
    case KvEviction::kDensity:
      return expected_per_s(holding, now_ns) * recreate_s(holding, worth);
    case KvEviction::kUtility:
      return utility(holding, now_ns);
  }
  return 0;
}

size_t KvCache::goes_first(std::span<const int32_t> firsts, const KvWorth& worth, int64_t now_ns, bool leaf) const {
  size_t goes = firsts.size();
  double least = 0;
  for (size_t group = 0; group < firsts.size(); ++group) {
    const int32_t holding = firsts[group];
    if (holding == kNoHolding || (leaf && !holdings_.is_leaf(holding))) continue;
    const double kept = keeps(holding, worth, now_ns);
    if (goes < firsts.size() && kept > least) continue;
    if (goes < firsts.size() && kept == least &&
        holdings_.release_order(holding) > holdings_.release_order(firsts[goes])) {
      continue;
    }
    goes = group;
    least = kept;
  }
  CHECK(goes < firsts.size());
  return goes;
}

void KvCache::evict() {
  const std::span<const int32_t> next = firsts();
  remove(next[goes_first(next, eviction_ == KvEviction::kDensity ? worth_() : KvWorth{}, clock_.now_ns(), true)]);
}

void KvCache::remove(int32_t holding) {
  const int64_t now_ns = clock_.now_ns();
  holdings_.remove(holding);
  texts_.let_go(holdings_.text(holding));
  apps_.let_go(holdings_.apps(holding));
  times_.lifetime.add(now_ns - holdings_.stored_ns(holding));
  times_.idle_before_evict.add(now_ns - holdings_.used_ns(holding));
  pool_->give_back(holdings_.block(holding));
}

// Whoever uses a holding uses its parents. So what only killed ones use has nothing of
// others behind it, and what is behind it stands in an earlier place of some list.
Result<int32_t> KvCache::state_app(const std::string& name, AppState state) {
  TRY(apps_.state(name, state));
  int32_t gone = 0;
  for (int32_t before = -1; state == AppState::kKilled && before != gone;) {
    before = gone;
    for (int32_t group = 0; group < holdings_.groups(); ++group) {
      int32_t next = kNoHolding;
      for (int32_t holding = holdings_.released_first(group); holding != kNoHolding; holding = next) {
        next = holdings_.released_next(holding);
        if (!apps_.all_killed(holdings_.apps(holding)) || !holdings_.is_leaf(holding)) continue;
        remove(holding);
        ++gone;
      }
    }
  }
  return gone;
}

KvSummary KvCache::summary() const {
  KvSummary summary{.texts = texts_.size(), .held = {}};
  std::unordered_map<const std::string*, size_t> places;
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    if (!holdings_.contains(holding)) continue;
    const KvIdentity& identity = holdings_.identity(holding);
    const auto [place, is_new] = places.try_emplace(identity.get(), summary.held.size());
    if (is_new) summary.held.push_back({.identity = identity});
    KvHeld& held = summary.held[place->second];
    ++held.blocks;
    if (holdings_.pins(holding) > 0) ++held.leased;
    if (texts_.holders(holdings_.text(holding)) == 1) ++held.alone;
    held.times_found += holdings_.times_found(holding);
  }
  std::stable_sort(summary.held.begin(), summary.held.end(),
                   [](const KvHeld& a, const KvHeld& b) { return a.blocks > b.blocks; });
  return summary;
}

void KvCache::release(KvLease& lease) {
  const int64_t now_ns = clock_.now_ns();
  for (auto index = static_cast<int32_t>(lease.blocks_.size()) - 1; index >= 0; --index) {
    const int32_t block = lease.blocks_[static_cast<size_t>(index)];
    if (index >= lease.shared()) {
      pool_->give_back(block);
    } else {
      const int32_t holding = lease.holdings_[static_cast<size_t>(index)];
      holdings_.unpin(holding, group_of(holding), now_ns);
      if (apps_.all_killed(holdings_.apps(holding)) && holdings_.pins(holding) == 0 && holdings_.is_leaf(holding))
        remove(holding);
    }
  }
  lease.blocks_.clear();
  lease.holdings_.clear();
}

void KvCache::check(std::span<const KvLease* const> leases) const {
  pool_->check();
  texts_.check();
  holdings_.check();
  apps_.check();
  // Each block: how many leases have it to themselves, and how many holdings are in it.
  std::vector<int32_t> owners(static_cast<size_t>(total()), 0), held(static_cast<size_t>(total()), 0);
  std::vector<int32_t> pins(static_cast<size_t>(holdings_.capacity()), 0);
  for (const KvLease* lease : leases) {
    if (lease->cache_ == nullptr) continue;
    CHECK(lease->cache_ == this && lease->shared() <= static_cast<int32_t>(lease->blocks_.size()));
    int32_t parent = kNoHolding;
    for (size_t index = 0; index < lease->blocks_.size(); ++index) {
      if (index >= lease->holdings_.size()) {
        ++owners[static_cast<size_t>(lease->blocks_[index])];
        continue;
      }
      const int32_t holding = lease->holdings_[index];
      CHECK(holdings_.contains(holding) && holdings_.block(holding) == lease->blocks_[index]);
      CHECK(holdings_.parent(holding) == parent);
      parent = holding;
      ++pins[static_cast<size_t>(holding)];
    }
  }
  std::vector<int32_t> holders(static_cast<size_t>(texts_.capacity()), 0);
  std::vector<int32_t> of_apps(static_cast<size_t>(apps_.sets_end()), 0);
  for (int32_t holding = 0; holding < holdings_.capacity(); ++holding) {
    CHECK((holdings_.contains(holding) ? holdings_.pins(holding) : 0) == pins[static_cast<size_t>(holding)]);
    if (!holdings_.contains(holding)) continue;
    ++held[static_cast<size_t>(holdings_.block(holding))];
    ++holders[static_cast<size_t>(holdings_.text(holding))];
    ++of_apps[static_cast<size_t>(holdings_.apps(holding))];
    const int32_t parent = holdings_.parent(holding);
    CHECK(texts_.parent(holdings_.text(holding)) == (parent == kNoHolding ? kNoText : holdings_.text(parent)));
  }
  for (int32_t text = 0; text < texts_.capacity(); ++text)
    CHECK(texts_.holders(text) == holders[static_cast<size_t>(text)]);
  for (AppSetId set = 0; set < apps_.sets_end(); ++set)
    CHECK(apps_.holders(set) == of_apps[static_cast<size_t>(set)] + (set == KvApps::kNobodyNamed ? 1 : 0));
  for (int32_t block = 0; block < total(); ++block) {
    const auto index = static_cast<size_t>(block);
    CHECK(owners[index] + held[index] == (pool_->is_taken(block) ? 1 : 0));
  }
}

}  // namespace loralei
