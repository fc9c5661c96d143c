// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "base/prng.h"
#include "kv/kv_cache.h"
#include "sys/process.h"

namespace loralei {
namespace {

const KvShape kTinyShape{.layers = 2, .kv_heads = 1, .head_dim = 4, .dtype = DType::kF32};

KvIdentityPart part(uint8_t digest, float scale, int32_t first_position = 0) {
  KvIdentityPart value;
  value.digest[0] = digest;
  value.scale = scale;
  value.first_position = first_position;
  return value;
}

std::vector<TokenId> sequence_tokens(int count, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i * 7 + salt);
  return tokens;
}

struct Cache {
  Ledger ledger{1 << 20};
  ManualClock clock;
  std::unique_ptr<KvCache> cache;
  explicit Cache(int32_t blocks, bool prefix = true, int32_t capacity = 0)
      : cache(std::move(KvCache::create(kTinyShape, blocks, prefix, ledger, clock, capacity)).value()) {}
  KvCache* operator->() { return cache.get(); }
  KvKey key(std::vector<KvIdentityPart> parts, const std::string& salt = "") {
    return make_kv_key(cache->identities(), parts, salt);
  }
};

TEST(BlockPool, ViewAddressesEverySliceOnceInsideTheAllocation) {
  Ledger ledger(1 << 20);
  auto pool = std::move(BlockPool::create(kTinyShape, 3, ledger)).value();
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kKv), 3 * kv_block_bytes(kTinyShape));
  const KvView view = pool->view();
  std::set<std::byte*> seen;
  for (int block = 0; block < 3; ++block) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int v = 0; v < 2; ++v) seen.insert(view.slice(block, layer, v));
    }
  }
  EXPECT_EQ(seen.size(), 12u);
  EXPECT_LE(*seen.rbegin() + view.kv_stride_bytes, view.base + pool->bytes());
  pool->check();
}

TEST(BlockPool, Int8HasRoomForOneScaleAVector) {
  Ledger ledger(1 << 20);
  const KvShape shape{.layers = 3, .kv_heads = 2, .head_dim = 40, .dtype = DType::kI8};
  EXPECT_EQ(kv_block_bytes(shape), 3 * 2 * 2 * 16 * (40 + 4));
  auto pool = std::move(BlockPool::create(shape, 4, ledger)).value();
  const KvView view = pool->view();
  std::byte* last = view.head(3, 2, 1, 1);
  EXPECT_EQ(reinterpret_cast<std::byte*>(view.scales(last) + kKvBlockTokens), view.base + pool->bytes());
  EXPECT_EQ(reinterpret_cast<std::byte*>(view.scales(view.head(0, 0, 0, 0)) + kKvBlockTokens), view.head(0, 0, 0, 1));
}

TEST(BlockPool, RefusesWithTheNumbersWhenTheBudgetIsShort) {
  Ledger ledger(100);
  const auto pool = BlockPool::create(kTinyShape, 3, ledger);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().code, ErrorCode::kTooLarge);
  EXPECT_NE(pool.error().message.find("100 B"), std::string::npos) << pool.error().message;
}

TEST(KvCache, WithoutBytesItHandsOutTheSameIds) {
  Cache with(4);
  const std::unique_ptr<KvCache> without = KvCache::create_ids(4, true, with.clock);
  EXPECT_EQ(without->bytes(), 0);
  EXPECT_EQ(without->view().base, nullptr);
  EXPECT_EQ(without->total(), 4);
  const auto tokens = sequence_tokens(40);
  const auto blocks = [&](KvCache& cache) {
    const KvKey key = make_kv_key(cache.identities(), {}, "");
    KvLease first = cache.match(key, tokens, 40, 3);
    EXPECT_TRUE(cache.reserve(first, 40));
    cache.publish(first, key, tokens, 40);
    KvLease second = cache.match(key, tokens, 40, 3);
    EXPECT_TRUE(cache.reserve(second, 40));
    KvLease third = cache.match(key, {}, 0, 1);
    EXPECT_FALSE(cache.reserve(third, 1));
    const KvLease* const leases[] = {&first, &second, &third};
    cache.check(leases);
    std::vector<int32_t> ids(first.blocks().begin(), first.blocks().end());
    ids.insert(ids.end(), second.blocks().begin(), second.blocks().end());
    return ids;
  };
  EXPECT_EQ(blocks(*without), blocks(*with.cache));
  without->check({});
}

TEST(KvCache, SaysWhoHoldsHowMuchAndWhatNobodyElseHas) {
  Cache cache(12);
  const auto tokens = sequence_tokens(50);
  const KvKey base = cache.key({}), adapter = cache.key({part(1, 0.5f, 20)}), salted = cache.key({}, "s");
  const auto compute = [&](const KvKey& key, int32_t count) {
    KvLease lease = cache->match(key, tokens, count, 4);
    EXPECT_TRUE(cache->reserve(lease, count));
    cache->publish(lease, key, tokens, count);
    return lease;
  };
  compute(base, 48).release();
  compute(base, 16).release();
  KvLease runs = compute(adapter, 48);  // the base's first block, then two of its own
  compute(salted, 16).release();
  const KvSummary summary = cache->summary();
  EXPECT_EQ(summary.texts, 3);
  ASSERT_EQ(summary.held.size(), 3u);
  const auto [of_base, of_adapter, of_salted] = std::tie(summary.held[0], summary.held[1], summary.held[2]);
  EXPECT_EQ(of_base.blocks, 3);
  EXPECT_EQ(of_base.leased, 1);
  EXPECT_EQ(of_base.alone, 0) << "the adapter has its own on both texts behind, the salted on the first";
  EXPECT_EQ(of_base.times_found, 2u);
  EXPECT_EQ(identity_adapters(of_base.identity), 0);
  EXPECT_FALSE(identity_salted(of_base.identity));
  EXPECT_EQ(of_adapter.blocks, 2);
  EXPECT_EQ(of_adapter.leased, 2);
  ASSERT_EQ(identity_adapters(of_adapter.identity), 1);
  EXPECT_EQ(identity_part(of_adapter.identity, 0).digest[0], 1);
  EXPECT_EQ(identity_part(of_adapter.identity, 0).scale, 0.5f);
  EXPECT_EQ(identity_part(of_adapter.identity, 0).first_position, 20);
  EXPECT_EQ(of_salted.blocks, 1);
  EXPECT_TRUE(identity_salted(of_salted.identity));
  compute(base, 49).release();
  const KvLease* const leases[] = {&runs};
  cache->check(leases);
}

// Every slice of a block filled with one number, and whether it still is.
void fill(const KvView& view, int32_t block, uint64_t value) {
  for (int64_t at = 0; at < view.block_stride_bytes; at += 8) std::memcpy(view.slice(block, 0, 0) + at, &value, 8);
}
bool holds(const KvView& view, int32_t block, uint64_t value) {
  for (int64_t at = 0; at < view.block_stride_bytes; at += 8) {
    if (std::memcmp(view.slice(block, 0, 0) + at, &value, 8) != 0) return false;
  }
  return true;
}

TEST(BlockPool, ResizesInPlaceAndMovesWhatHasNoPlaceAnyMore) {
  Ledger ledger(12 * kv_block_bytes(kTinyShape));
  auto pool = std::move(BlockPool::create(kTinyShape, 8, ledger, 20)).value();
  std::byte* const base = pool->view().base;
  for (int32_t block = 0; block < 8; ++block) {
    ASSERT_EQ(pool->take(), block);
    fill(pool->view(), block, 100 + static_cast<uint64_t>(block));
  }
  for (const int32_t block : {1, 2, 4, 6}) pool->give_back(block);
  EXPECT_EQ(pool->resize(5).value(), (std::vector<int32_t>{0, 1, 2, 3, 4, 1, 6, 2}));
  pool->check();
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kKv), 5 * kv_block_bytes(kTinyShape));
  for (const auto& [block, value] : std::map<int32_t, uint64_t>{{0, 100}, {1, 105}, {2, 107}, {3, 103}})
    EXPECT_TRUE(pool->is_taken(block) && holds(pool->view(), block, value)) << block;
  EXPECT_EQ(pool->free(), 1);

  ASSERT_TRUE(pool->resize(12).ok());
  pool->check();
  EXPECT_EQ(pool->view().base, base);
  EXPECT_EQ(pool->take(), 4);
  EXPECT_TRUE(holds(pool->view(), 2, 107));
  const auto refused = pool->resize(13);  // of which the ledger has no room for the last
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("13 blocks"), std::string::npos) << refused.error().message;
  EXPECT_EQ(pool->resize(21).error().code, ErrorCode::kTooLarge);  // beyond its capacity
  EXPECT_EQ(pool->total(), 12);
  pool->check();
}

TEST(BlockPool, MemoryThatIsGivenUpGoesBackToTheSystem) {
  constexpr int64_t kMegabyte = int64_t{1} << 20;
  const KvShape shape{.layers = 32, .kv_heads = 4, .head_dim = 64, .dtype = DType::kF32};  // 1 MiB a block
  ASSERT_EQ(kv_block_bytes(shape), kMegabyte);
  Ledger ledger(200 * kMegabyte);
  auto pool = std::move(BlockPool::create(shape, 96, ledger)).value();
  const int64_t before = process_memory()->rss_bytes;
  for (int32_t block = 0; block < 96; ++block) fill(pool->view(), block, 7);
  const int64_t filled = process_memory()->rss_bytes;
  EXPECT_GT(filled - before, 80 * kMegabyte);
  ASSERT_TRUE(pool->resize(8).ok());
  EXPECT_GT(filled - process_memory()->rss_bytes, 80 * kMegabyte);
}

TEST(KvCache, APublishedPrefixIsFoundAndSharedByTheSameIdentityOnly) {
  Cache cache(16);
  const auto tokens = sequence_tokens(40);
  const KvKey base = cache.key({}), half = cache.key({part(1, 0.5f)}), full = cache.key({part(1, 1.0f)});
  KvLease first = cache->match(full, tokens, 39, 8);
  EXPECT_EQ(first.shared(), 0);
  ASSERT_TRUE(cache->reserve(first, 40));
  cache->publish(first, full, tokens, 40);
  EXPECT_EQ(first.shared(), 2);  // the third block is not full

  KvLease second = cache->match(full, tokens, 39, 8);
  EXPECT_EQ(second.shared(), 2);
  EXPECT_EQ(second.blocks()[1], first.blocks()[1]);
  for (const KvKey& other :
       {base, half, cache.key({part(1, 1.0f)}, "salt"), cache.key({part(1, 1.0f), part(2, 1.0f)})}) {
    EXPECT_EQ(cache->peek(other, tokens, 39).blocks, 0);
  }
  const KvLease* leases[] = {&first, &second};
  cache->check(leases);
}

TEST(KvCache, AFullHitLeavesTheLastTokenToCompute) {
  Cache cache(8);
  const auto tokens = sequence_tokens(32);
  const KvKey key = cache.key({});
  {
    KvLease lease = cache->match(key, tokens, 31, 4);
    ASSERT_TRUE(cache->reserve(lease, 32));
    cache->publish(lease, key, tokens, 32);
  }
  EXPECT_EQ(cache->peek(key, tokens, 32).tokens(), 32);
  EXPECT_EQ(cache->peek(key, tokens, 31).tokens(), 16);
  EXPECT_EQ(cache->available(), 8);
  cache->check({});
}

TEST(KvCache, ActivatedLoraSharesTheBasePrefixAndKeepsTheRestApart) {
  Cache cache(32);
  const auto tokens = sequence_tokens(64);
  const KvKey base = cache.key({}), at20 = cache.key({part(1, 1, 20)}), at24 = cache.key({part(1, 1, 24)});
  for (const KvKey* key : {&base, &at20}) {
    KvLease lease = cache->match(*key, tokens, 63, 8);
    ASSERT_TRUE(cache->reserve(lease, 64));
    cache->publish(lease, *key, tokens, 64);
    EXPECT_EQ(lease.shared(), 4);
  }
  EXPECT_EQ(cache->peek(at20, tokens, 64).blocks, 4);
  EXPECT_EQ(cache->peek(at24, tokens, 64).blocks, 1);  // starts midway in the same block, at another token
  EXPECT_EQ(cache->peek(cache.key({part(1, 1, 32)}), tokens, 64).blocks, 2);
  EXPECT_EQ(cache->peek(cache.key({part(1, 1, 0)}), tokens, 64).blocks, 0);
  cache->check({});
}

TEST(KvCache, EqualBlocksComputedTwiceAreKeptOnce) {
  Cache cache(8);
  const auto tokens = sequence_tokens(16);
  const KvKey key = cache.key({});
  KvLease a = cache->match(key, tokens, 15, 1), b = cache->match(key, tokens, 15, 1);
  ASSERT_TRUE(cache->reserve(a, 16) && cache->reserve(b, 16));
  cache->publish(a, key, tokens, 16);
  cache->publish(b, key, tokens, 16);
  EXPECT_EQ(a.blocks()[0], b.blocks()[0]);
  EXPECT_EQ(cache->available(), 7);
  EXPECT_EQ(cache->exclusive(a), 0);
  b.release();
  EXPECT_EQ(cache->exclusive(a), 1);
}

TEST(KvCache, WithoutPrefixCacheNothingIsKept) {
  Cache cache(4, false);
  const auto tokens = sequence_tokens(32);
  const KvKey key = cache.key({});
  {
    KvLease lease = cache->match(key, tokens, 31, 2);
    ASSERT_TRUE(cache->reserve(lease, 32));
    cache->publish(lease, key, tokens, 32);
  }
  EXPECT_EQ(cache->peek(key, tokens, 31).blocks, 0);
  EXPECT_EQ(cache->cached(), 0);
  EXPECT_EQ(cache->available(), 4);
}

TEST(KvCache, AShrunkCacheKeepsThePrefixesReleasedLastWithTheirBytes) {
  Cache cache(12);
  const KvKey key = cache.key({});
  const auto old_text = sequence_tokens(64, 1000), new_text = sequence_tokens(64),
             running_text = sequence_tokens(40, 5);
  const auto compute = [&](KvLease& lease, const std::vector<TokenId>& tokens) {
    const auto count = static_cast<int32_t>(tokens.size());
    ASSERT_TRUE(cache->reserve(lease, count));
    for (size_t i = 0; i < lease.blocks().size(); ++i)
      fill(cache->view(), lease.blocks()[i], static_cast<uint64_t>(tokens[i * kKvBlockTokens]));
    cache->publish(lease, key, tokens, count);
  };
  KvLease old_lease = cache->match(key, old_text, 63, 4), new_lease = cache->match(key, new_text, 63, 4);
  KvLease running = cache->match(key, running_text, 39, 4);
  compute(old_lease, old_text);
  compute(new_lease, new_text);
  compute(running, running_text);
  old_lease.release();
  new_lease.release();
  KvLease* const leases[] = {&running};
  ASSERT_TRUE(cache->resize(6, leases).ok());
  const KvLease* const live[] = {&running};
  cache->check(live);
  EXPECT_EQ(cache->total(), 6);
  EXPECT_EQ(cache->peek(key, old_text, 64).blocks, 0);
  ASSERT_EQ(cache->peek(key, new_text, 64).blocks, 3);  // its last block went first
  KvLease again = cache->match(key, new_text, 64, 4);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(holds(cache->view(), again.blocks()[i], static_cast<uint64_t>(i) * 112));
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(holds(cache->view(), running.blocks()[i], 5 + static_cast<uint64_t>(i) * 112));
  EXPECT_EQ(cache->available(), 0);
}

// `counts` in the class with this upper limit in seconds.
uint64_t within(const TimeCounts& times, double limit) {
  const auto* const found = std::find(kBlockTimeLimits.begin(), kBlockTimeLimits.end(), limit);
  return times.counts.at(static_cast<size_t>(found - kBlockTimeLimits.begin()));
}

TEST(KvCache, CountsHowLongStoredBlocksStayAndHowSoonTheyAreFoundAgain) {
  Cache cache(4);
  const auto second = [&](int64_t count) { cache.clock.advance_ns(count * 1'000'000'000); };
  const auto tokens = sequence_tokens(32), others = sequence_tokens(64, 1000);
  const KvKey key = cache.key({});
  second(50);
  KvLease first = cache->match(key, tokens, 31, 2);
  ASSERT_TRUE(cache->reserve(first, 32));
  cache->publish(first, key, tokens, 32);
  second(20);
  first.release();
  second(5);
  KvLease again = cache->match(key, tokens, 31, 2);  // one block, five seconds after its release
  second(1);
  KvLease beside = cache->match(key, tokens, 31, 2);  // the same one, a second after it was found
  EXPECT_EQ(within(cache->times().reuse_gap, 5), 1u);
  EXPECT_EQ(within(cache->times().reuse_gap, 1), 1u);
  EXPECT_EQ(cache->times().reuse_gap.sum_s, 6);
  second(2);
  again.release();
  beside.release();
  second(2);
  EXPECT_EQ(cache->times().lifetime.sum_s, 0);
  KvLease full = cache->match(key, others, 63, 4);
  ASSERT_TRUE(cache->reserve(full, 64));  // evicts both
  EXPECT_EQ(within(cache->times().lifetime, 30), 2u);
  EXPECT_EQ(cache->times().lifetime.sum_s, 60);
  EXPECT_EQ(within(cache->times().idle_before_evict, 2), 1u);
  EXPECT_EQ(within(cache->times().idle_before_evict, 10), 1u);
  EXPECT_EQ(cache->times().idle_before_evict.sum_s, 12);
  cache->publish(full, key, others, 64);
  second(3600);
  full.release();
  ASSERT_TRUE(cache->resize(1, {}).ok());  // evicts three
  EXPECT_EQ(cache->times().lifetime.counts.back(), 3u);
}

// What is found again stays, and what nobody asks for goes, though it came later; by age
// it is the other way about.
TEST(KvCache, ByDensityWhatIsFoundAgainOutlivesWhatIsNot) {
  for (const KvEviction eviction : {KvEviction::kLru, KvEviction::kDensity}) {
    Cache cache(8);
    cache->evict_by(eviction, [] { return KvWorth{.row_s = 0.001, .load_s = {}}; });
    const KvKey key = cache.key({});
    const auto compute = [&](const std::vector<TokenId>& tokens) {
      const auto count = static_cast<int32_t>(tokens.size());
      KvLease lease = cache->match(key, tokens, count, 8);
      ASSERT_TRUE(cache->reserve(lease, count));
      cache->publish(lease, key, tokens, count);
      cache.clock.advance_ns(1'000'000'000);
    };
    const auto asked_twice = sequence_tokens(64);
    compute(asked_twice);
    compute(asked_twice);
    for (int i = 1; i <= 6; ++i) compute(sequence_tokens(32, 1000 * i));
    EXPECT_EQ(cache->peek(key, asked_twice, 64).blocks, eviction == KvEviction::kLru ? 0 : 4);
    EXPECT_EQ(cache->peek(key, sequence_tokens(32, 6000), 32).blocks, 2);
    cache->check({});
  }
}

// An adapter that must be loaded first makes its prefix worth nothing: it goes before one
// that was released earlier and found as often.
TEST(KvCache, ByDensityAPrefixGoesWhoseAdapterIsNotThere) {
  Cache cache(4);
  const KvKey there = cache.key({part(1, 1)}), missing = cache.key({part(2, 1)});
  cache->evict_by(KvEviction::kDensity, [&] {
    return KvWorth{.row_s = 0.001,
                   .load_s = [id = missing.at(0)](const KvIdentity& identity) { return identity == id ? 10.0 : 0.0; }};
  });
  const auto tokens = sequence_tokens(32), others = sequence_tokens(16, 1000);
  const auto compute = [&](const KvKey& key, const std::vector<TokenId>& text) {
    const auto count = static_cast<int32_t>(text.size());
    KvLease lease = cache->match(key, text, count, 2);
    ASSERT_TRUE(cache->reserve(lease, count));
    cache->publish(lease, key, text, count);
  };
  compute(there, tokens);  // never found
  compute(missing, tokens);
  compute(missing, tokens);  // found, and released last
  compute(there, others);
  EXPECT_EQ(cache->peek(there, tokens, 32).blocks, 2);
  EXPECT_EQ(cache->peek(missing, tokens, 32).blocks, 1);
}

// The naive model: every stored block is its whole path as a value; what is evicted is
// searched for among all of them.
struct NaiveCache {
  using Path = std::vector<std::pair<std::string, std::vector<TokenId>>>;
  struct Stored {
    int pins = 0;
    bool found = false;
    RecentUses finds;
    int64_t used_ns = 0;
    std::set<std::string> apps;  // that use it
  };
  KvEviction eviction = KvEviction::kLru;
  double row_s = 0;
  std::map<std::string, double> load_s;  // by identity
  int64_t now_ns = 0;
  double blocks_stored = 0, blocks_found = 0;
  std::map<Path, Stored> stored;
  std::list<Path> released;                // oldest first
  std::map<std::string, AppState> states;  // of applications; none: in the foreground
  int private_blocks = 0;
  int total = 0;

  AppState state_of(const std::string& app) const {
    const auto state = states.find(app);
    return state == states.end() ? AppState::kForeground : state->second;
  }
  bool all_killed(const Path& p) const {
    const auto& apps = stored.at(p).apps;
    return std::all_of(apps.begin(), apps.end(), [&](const auto& app) { return state_of(app) == AppState::kKilled; });
  }
  void drop(const Path& p) {
    released.remove(p);
    stored.erase(p);
  }
  void kill(const std::string& app) {
    states[app] = AppState::kKilled;
    for (bool changed = true; changed;) {
      changed = false;
      for (const Path& p : std::vector<Path>(released.begin(), released.end())) {
        if (!all_killed(p) || !is_leaf(p)) continue;
        drop(p);
        changed = true;
      }
    }
  }
  double utility(const Path& p) const {
    const Stored& s = stored.at(p);
    double score = 0;
    for (const auto& app : s.apps)
      score += state_of(app) == AppState::kForeground ? 1 : state_of(app) == AppState::kBackground ? 0.5 : 0;
    const double tokens = kKvBlockTokens * static_cast<double>(p.size());
    return 0.5 * score / (1 + score) + 0.4 / (1 + static_cast<double>(now_ns - s.used_ns) * 1e-9 / 300) +
           0.1 * tokens / (1024 + tokens);
  }

  static Path path(const KvKey& key, const std::vector<TokenId>& tokens, int blocks) {
    Path result;
    for (int i = 0; i < blocks; ++i) {
      result.emplace_back(
          *key.at((i + 1) * kKvBlockTokens - 1),
          std::vector<TokenId>(tokens.begin() + i * kKvBlockTokens, tokens.begin() + (i + 1) * kKvBlockTokens));
    }
    return result;
  }
  int match(const KvKey& key, const std::vector<TokenId>& tokens, int limit) const {
    int blocks = 0;
    while ((blocks + 1) * kKvBlockTokens <= limit && stored.count(path(key, tokens, blocks + 1))) ++blocks;
    return blocks;
  }
  void store(const Path& p, const std::string& app) {
    ++blocks_stored;
    stored[p].apps = {app};
    stored[p].pins = 1;
    stored[p].used_ns = now_ns;
  }
  void pin(const Path& p, const std::string& app) {
    stored[p].apps.insert(app);
    if (stored[p].pins++ == 0) released.remove(p);
    stored[p].used_ns = now_ns;
  }
  void find(const Path& p, const std::string& app) {
    pin(p, app);
    ++blocks_found;
    stored[p].found = true;
    stored[p].finds.add(now_ns);
  }
  void unpin(const Path& p) {
    stored[p].used_ns = now_ns;
    if (--stored[p].pins > 0) return;
    released.push_back(p);
    if (all_killed(p) && is_leaf(p)) drop(p);
  }
  int free() const { return total - private_blocks - static_cast<int>(stored.size()); }
  int available() const { return free() + static_cast<int>(released.size()); }
  bool is_leaf(const Path& parent) const {
    return std::none_of(stored.begin(), stored.end(), [&](const auto& entry) {
      const Path& p = entry.first;
      return p.size() == parent.size() + 1 && std::equal(parent.begin(), parent.end(), p.begin());
    });
  }
  double saves(const Path& p) const {
    const Stored& s = stored.at(p);
    const double again = s.found ? 1 : blocks_stored > 0 ? std::min(1.0, blocks_found / blocks_stored) : 0;
    const auto load = load_s.find(p.back().first);
    const double load_part = load == load_s.end() ? 0 : load->second / static_cast<double>(p.size());
    return s.finds.expected_per_s(now_ns, s.used_ns) * again * std::max(0.0, kKvBlockTokens * row_s - load_part);
  }
  void evict() {
    const auto first = [&](bool found) {
      return std::find_if(released.begin(), released.end(), [&](const Path& p) { return stored.at(p).found == found; });
    };
    auto goes = released.begin();
    if (eviction == KvEviction::kUtility) goes = least_useful();
    const auto unfound = first(false), found = first(true);
    if (eviction == KvEviction::kDensity && unfound != released.end() && found != released.end()) {
      if (!is_leaf(*found) || saves(*unfound) < saves(*found)) goes = unfound;
      if (is_leaf(*found) && saves(*found) < saves(*unfound)) goes = found;
    }
    EXPECT_TRUE(is_leaf(*goes));
    stored.erase(*goes);
    released.erase(goes);
  }
  // Of the firsts of each set of applications.
  std::list<Path>::iterator least_useful() {
    std::set<std::set<std::string>> seen;
    auto least = released.end();
    for (auto p = released.begin(); p != released.end(); ++p) {
      if (!seen.insert(stored.at(*p).apps).second || !is_leaf(*p)) continue;
      if (least == released.end() || utility(*p) < utility(*least)) least = p;
    }
    return least;
  }
  void take(int count) {
    for (; count > 0; --count) {
      if (free() == 0) evict();
      ++private_blocks;
    }
  }
  void resize(int blocks) {
    total = blocks;
    while (free() < 0) evict();
  }
};

// What a block of this text must hold: a number that all its tokens so far and their
// identities decide.
uint64_t content(const KvKey& key, const std::vector<TokenId>& tokens, int block, int computed) {
  uint64_t hash = 1;
  for (int i = 0; i < std::min(computed, (block + 1) * kKvBlockTokens); ++i) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(key.at(i).get())) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15u;
  }
  return hash;
}

// By each rule in its turn; in half of the runs by density with adapters that are not in
// memory.
void evict_alike(Cache& cache, NaiveCache& naive, const std::vector<KvKey>& keys, uint64_t seed) {
  naive.eviction = seed % 2 == 0 ? KvEviction::kDensity : seed % 4 == 1 ? KvEviction::kLru : KvEviction::kUtility;
  naive.row_s = 0.001;
  if (seed % 4 == 0) naive.load_s = {{*keys[1].at(0), 0.03}, {*keys[3].at(0), 0.001}};
  const auto load_s = [&naive](const KvIdentity& identity) {
    const auto found = naive.load_s.find(*identity);
    return found == naive.load_s.end() ? 0 : found->second;
  };
  cache->evict_by(naive.eviction, [&naive, load_s] { return KvWorth{.row_s = naive.row_s, .load_s = load_s}; });
}

struct Live {
  KvLease lease;
  size_t key = 0;
  std::string app;
  std::vector<TokenId> tokens;
  int computed = 0;
  int shared = 0;
  int blocks = 0;
};

// An application says anew how it stands.
void state_alike(Cache& cache, NaiveCache& naive, Prng& random) {
  const std::string app(1, static_cast<char>('a' + random.below(4)));
  const auto state = static_cast<AppState>(random.below(3));
  const int32_t before = cache->cached();
  const Result<int32_t> gone = cache->state_app(app, state);
  ASSERT_TRUE(gone.ok());
  ASSERT_EQ(cache->cached(), before - *gone);
  state == AppState::kKilled ? naive.kill(app) : void(naive.states[app] = state);
}

// Somebody comes: what of his text is there is leased.
std::unique_ptr<Live> begin_alike(Cache& cache, NaiveCache& naive, std::vector<KvKey>& keys, Prng& random) {
  auto one = std::make_unique<Live>();
  one->key = random.below(keys.size());
  if (random.below(3) != 0) one->app = std::string(1, static_cast<char>('a' + random.below(4)));
  if (naive.state_of(one->app) == AppState::kKilled) naive.states.erase(one->app);
  keys[one->key].app = cache->apps().asks(one->app);
  const int count = 1 + static_cast<int>(random.below(90));
  for (int i = 0; i < count; ++i) one->tokens.push_back(static_cast<TokenId>(i / 16 == 0 ? 0 : random.below(20) == 0));
  const int limit = count - 1;
  const int expected = naive.match(keys[one->key], one->tokens, limit);
  EXPECT_EQ(cache->peek(keys[one->key], one->tokens, limit).blocks, expected);
  one->lease = cache->match(keys[one->key], one->tokens, limit, 8);
  EXPECT_EQ(one->lease.shared(), expected);
  for (int i = 1; i <= expected; ++i) naive.find(NaiveCache::path(keys[one->key], one->tokens, i), one->app);
  one->shared = one->blocks = expected;
  one->computed = expected * kKvBlockTokens;
  return one;
}

TEST(KvCache, RandomOperationsAgreeWithANaiveModel) {
  constexpr int32_t kCapacity = 40;
  int shrunk = 0, grown = 0;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Cache cache(24, true, kCapacity);
    NaiveCache naive;
    naive.total = 24;
    std::vector<KvKey> keys = {cache.key({}), cache.key({part(1, 1)}), cache.key({part(1, 1, 20)}),
                               cache.key({part(1, 0.5f)})};
    evict_alike(cache, naive, keys, seed);
    std::vector<std::unique_ptr<Live>> live;
    for (int step = 0; step < 600; ++step) {
      const auto choice = random.below(10);
      cache.clock.advance_ns(static_cast<int64_t>(random.below(60)) * 1'000'000'000);
      naive.now_ns = cache.clock.now_ns();
      if (random.below(20) == 0) {
        state_alike(cache, naive, random);
      } else if (random.below(12) == 0) {
        const int32_t leased = cache->leased(), most = random.below(2) == 0 ? kCapacity : cache->total();
        const int32_t least = std::max(1, leased);
        const int32_t blocks = least + static_cast<int32_t>(random.below(static_cast<uint64_t>(most - least) + 1));
        ++(blocks < cache->total() ? shrunk : grown);
        std::vector<KvLease*> leases;
        for (const auto& one : live) leases.push_back(&one->lease);
        ASSERT_TRUE(cache->resize(blocks, leases).ok());
        naive.resize(blocks);
        ASSERT_EQ(cache.ledger.used_bytes(MemoryUse::kKv), blocks * kv_block_bytes(kTinyShape));
      } else if (choice < 3) {
        live.push_back(begin_alike(cache, naive, keys, random));
        if (testing::Test::HasFatalFailure()) return;
      } else if (choice < 8 && !live.empty()) {
        Live& one = *live[random.below(live.size())];
        const int target =
            std::min<int>(static_cast<int>(one.tokens.size()), one.computed + 1 + static_cast<int>(random.below(30)));
        const int missing = std::max(0, kv_blocks_for(target) - one.blocks);
        const bool fits = missing <= naive.available();
        ASSERT_EQ(cache->reserve(one.lease, target), fits);
        if (fits) {
          naive.take(missing);
          one.blocks += missing;
          for (int block = one.computed / kKvBlockTokens; block < one.blocks; ++block) {
            fill(cache->view(), one.lease.blocks()[static_cast<size_t>(block)],
                 content(keys[one.key], one.tokens, block, target));
          }
          one.computed = target;
          keys[one.key].app = cache->apps().asks(one.app);
          if (naive.state_of(one.app) == AppState::kKilled) naive.states.erase(one.app);
          cache->publish(one.lease, keys[one.key], one.tokens, target);
          for (; (one.shared + 1) * kKvBlockTokens <= target; ++one.shared) {
            --naive.private_blocks;
            const auto path = NaiveCache::path(keys[one.key], one.tokens, one.shared + 1);
            if (naive.stored.count(path)) {
              naive.pin(path, one.app);
            } else {
              naive.store(path, one.app);
            }
          }
        }
      } else if (!live.empty()) {
        const size_t index = random.below(live.size());
        Live& one = *live[index];
        naive.private_blocks -= one.blocks - one.shared;
        for (int i = one.shared; i >= 1; --i) naive.unpin(NaiveCache::path(keys[one.key], one.tokens, i));
        live.erase(live.begin() + static_cast<int64_t>(index));
      }
      ASSERT_EQ(cache->available(), naive.available());
      ASSERT_EQ(cache->cached(), static_cast<int>(naive.released.size()));
      std::vector<const KvLease*> leases;
      for (const auto& one : live) {
        leases.push_back(&one->lease);
        for (int block = 0; block * kKvBlockTokens < one->computed; ++block) {
          ASSERT_TRUE(holds(cache->view(), one->lease.blocks()[static_cast<size_t>(block)],
                            content(keys[one->key], one->tokens, block, one->computed)));
        }
      }
      cache->check(leases);
    }
  }
  EXPECT_GT(shrunk, 600);
  EXPECT_GT(grown, 600);
}

}  // namespace
}  // namespace loralei
