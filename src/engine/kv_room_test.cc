// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_room.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>

#include "base/check.h"
#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kBlock = 1000;
constexpr double kRowSeconds = 0.001;

// Adapters that nobody uses, by hand: each with a grant, the first listed is worth least.
struct IdleAdapters final : Shelf {
  struct One {
    CacheItem item;
    Grant grant;
  };
  Ledger& ledger;
  std::list<One> all;

  explicit IdleAdapters(Ledger& ledger) : ledger(ledger) {}
  bool add(CacheItem item) {
    auto grant = ledger.try_grant(MemoryUse::kAdapters, item.bytes);
    if (!grant) return false;
    all.push_back({item, *std::move(grant)});
    return true;
  }
  int64_t idle_bytes() const override {
    int64_t sum = 0;
    for (const One& one : all) sum += one.item.bytes;
    return sum;
  }
  int64_t most_bytes() const override { return idle_bytes(); }
  std::optional<CacheItem> next() override {
    if (all.empty()) return std::nullopt;
    return all.front().item;
  }
  int64_t give_up(const char*) override {
    const int64_t bytes = all.front().item.bytes;
    all.pop_front();
    return bytes;
  }
};

struct Rig {
  Ledger ledger;
  ManualClock clock;
  std::unique_ptr<KvCache> kv;
  IdleAdapters adapters{ledger};
  std::vector<KvLease> leases;
  std::unique_ptr<KvRoom> room;

  explicit Rig(int64_t budget_blocks, int32_t floor, KvRoomParts parts = {}, bool joint = true)
      : ledger(budget_blocks * kBlock),
        kv(KvCache::create_ids(floor, true, clock, {.ledger = &ledger, .block_bytes = kBlock, .capacity = 1000})) {
    clock.advance_ns(1'000'000'000);
    parts.joint = joint;
    parts.kv = kv.get();
    parts.ledger = &ledger;
    parts.clock = &clock;
    parts.resize = [this](int32_t blocks) {
      std::vector<KvLease*> held;
      for (KvLease& lease : leases) held.push_back(&lease);
      return kv->resize(blocks, held);
    };
    parts.worth = [] { return KvWorth{.row_s = kRowSeconds, .load_s = {}}; };
    room = std::make_unique<KvRoom>(parts);
  }
  KvKey key() { return make_kv_key(kv->identities(), {}, ""); }
  std::vector<TokenId> text(int32_t blocks, int32_t salt) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < blocks * kKvBlockTokens; ++i) tokens.push_back(i * 31 + salt * 100003);
    return tokens;
  }
  bool lease(int32_t blocks) {
    KvLease lease = kv->match(key(), {}, 0, blocks);
    if (!kv->reserve(lease, blocks * kKvBlockTokens)) return false;
    leases.push_back(std::move(lease));
    return true;
  }
  // A prefix that nobody leases any more; again: it is found.
  bool cache(int32_t blocks, int32_t salt) {
    const std::vector<TokenId> tokens = text(blocks, salt);
    KvLease lease = kv->match(key(), tokens, blocks * kKvBlockTokens, blocks);
    if (!kv->reserve(lease, blocks * kKvBlockTokens)) return false;
    kv->publish(lease, key(), tokens, blocks * kKvBlockTokens);
    return true;
  }
  int32_t found(int32_t blocks, int32_t salt) { return kv->peek(key(), text(blocks, salt), 1 << 20).blocks; }
};

TEST(KvRoom, GrowsIntoWhatNobodyHasButNotIntoFloorOrReserve) {
  Rig rig(100, 32, {.adapter_floor_bytes = 20 * kBlock, .reserve_part = 10});
  ASSERT_TRUE(rig.lease(32));
  rig.room->fit(8, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 40);
  ASSERT_TRUE(rig.lease(8));
  rig.room->fit(200, 200, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 70) << "ten stay free, and twenty for adapters";
  ASSERT_TRUE(rig.adapters.add({.id = 1, .bytes = 20 * kBlock}));
  rig.room->fit(200, 200, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 70) << "nor do adapters leave that floor";
}

TEST(KvRoom, FixedItKeepsWhatItHas) {
  Rig rig(100, 32, {}, false);
  ASSERT_TRUE(rig.lease(32));
  rig.room->fit(8, 8, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 32);
  EXPECT_EQ(rig.room->idle_bytes() + rig.room->most_bytes(), 0);
  EXPECT_FALSE(rig.room->next());
  EXPECT_EQ(rig.room->give_back(kBlock), 0);
  EXPECT_EQ(rig.room->blocks_for_new(), INT32_MAX);
}

// Two adapters, one worth less than a prefix that was found again and one worth more.
TEST(KvRoom, APrefixGoesOrAnAdapterWhicheverIsWorthLess) {
  Rig rig(64, 32);
  ASSERT_TRUE(rig.cache(32, 1) && rig.cache(32, 1));  // found once: 32 uses in 5 minutes, each saves 16 ms
  ASSERT_TRUE(rig.adapters.add({.id = 1, .bytes = 16 * kBlock, .expected_per_s = 0.01, .recreate_s = 0.001}));
  ASSERT_TRUE(rig.adapters.add({.id = 2, .bytes = 16 * kBlock, .expected_per_s = 10, .recreate_s = 1}));
  rig.room->fit(16, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 48) << "what the first had";
  EXPECT_EQ(rig.adapters.all.size(), 1u);
  EXPECT_EQ(rig.room->given().adapters_to_kv, 16 * kBlock);
  ASSERT_TRUE(rig.cache(16, 2));
  rig.clock.advance_ns(KvRoom::kLookNs);
  rig.room->fit(16, 0, rig.adapters);
  EXPECT_EQ(rig.adapters.all.size(), 1u) << "the second is worth more than any prefix";
  EXPECT_EQ(rig.kv->total(), 48);
  EXPECT_EQ(rig.found(32, 1), 32) << "nobody was evicted yet";
}

TEST(KvRoom, APrefixWhoseAdapterIsNotThereIsWorthLess) {
  Rig rig(64, 32);
  ASSERT_TRUE(rig.cache(8, 1) && rig.cache(8, 1) && rig.lease(24));
  const CacheItem there = rig.kv->idle_item(8, {.row_s = kRowSeconds, .load_s = {}});
  const auto missing = [](double load_s) {
    return KvWorth{.row_s = kRowSeconds, .load_s = [load_s](const KvIdentity&) { return load_s; }};
  };
  EXPECT_NEAR(there.recreate_s, 16 * kRowSeconds, 1e-12);
  // Spread over the prefix: the n-th block of one saves 16 rows less an n-th of the load.
  double expected = 0;
  for (int n = 1; n <= 8; ++n) expected += std::max(0.0, 16 * kRowSeconds - 0.02 / n) / 8;
  EXPECT_NEAR(rig.kv->idle_item(8, missing(0.02)).recreate_s, expected, 1e-12);
  EXPECT_EQ(rig.kv->idle_item(8, missing(10)).recreate_s, 0);
}

TEST(KvRoom, WhoRunsComesBeforeAdaptersAndWhoWaitsBeforeThoseNobodyWants) {
  Rig rig(64, 32);
  ASSERT_TRUE(rig.lease(32));
  const double dear = 1e6;
  ASSERT_TRUE(rig.adapters.add({.id = 1, .bytes = 16 * kBlock, .expected_per_s = dear, .recreate_s = dear}));
  ASSERT_TRUE(
      rig.adapters.add({.id = 2, .bytes = 16 * kBlock, .expected_per_s = dear, .recreate_s = dear, .wanted = 7}));
  rig.room->fit(0, 4, rig.adapters);
  EXPECT_EQ(rig.adapters.all.size(), 1u) << "the one that nobody wants left";
  EXPECT_EQ(rig.kv->total(), 36);
  rig.room->fit(0, 40, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 48);
  EXPECT_EQ(rig.adapters.all.size(), 1u) << "one that waits does not take what another waits with";
  rig.room->fit(40, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 64);
  EXPECT_TRUE(rig.adapters.all.empty());
}

TEST(KvRoom, GivesBackDownToItsFloorAndWhatIsLeased) {
  Rig rig(100, 32);
  ASSERT_TRUE(rig.lease(32));
  rig.room->fit(68, 0, rig.adapters);
  ASSERT_TRUE(rig.lease(8));
  rig.room->fit(4, 0, rig.adapters);  // four are for those that run
  EXPECT_EQ(rig.kv->total(), 100);
  EXPECT_EQ(rig.room->most_bytes(), 68 * kBlock);
  EXPECT_EQ(rig.room->idle_bytes(), (100 - 40 - 4) * kBlock);
  EXPECT_EQ(rig.room->next()->bytes, 2 * kBlock) << "an extent";
  EXPECT_EQ(rig.room->next()->expected_per_s, 0) << "of blocks that hold nothing";
  int64_t sum = 0;
  while (rig.room->next()) sum += rig.room->give_up("for a test");
  EXPECT_EQ(sum, 56 * kBlock);
  EXPECT_EQ(rig.room->given().kv_to_adapters, sum);
  EXPECT_EQ(rig.kv->total(), 44);
  rig.leases.clear();
  EXPECT_EQ(rig.room->give_back(3 * kBlock - 1), 3 * kBlock);
  EXPECT_EQ(rig.room->give_back(100 * kBlock), (41 - 32) * kBlock);
  EXPECT_EQ(rig.kv->total(), 32);
  EXPECT_EQ(rig.room->given().kv_to_others, 12 * kBlock);
}

TEST(KvRoom, KeepsThePartThatOthersMayNeedWithoutAsking) {
  Rig rig(100, 32, {.reserve_part = 10});
  ASSERT_TRUE(rig.lease(32));
  rig.room->fit(60, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 90);
  std::optional<Grant> other = rig.ledger.try_grant(MemoryUse::kRequests, 4 * kBlock);
  rig.room->fit(0, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 90) << "six are left";
  ASSERT_TRUE(other->grow_to(8 * kBlock));
  rig.room->fit(0, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), 82) << "with two left it gives back";
}

TEST(KvRoom, WhileALoadIsImpatientNewOnesHaveTheFloorAlone) {
  Rig rig(100, 32);
  ASSERT_TRUE(rig.lease(20));
  rig.room->fit(40, 0, rig.adapters);
  EXPECT_GT(rig.kv->total(), 32);
  rig.room->set_closed(true);
  EXPECT_EQ(rig.room->blocks_for_new(), 12);
  const int32_t total = rig.kv->total();
  rig.room->fit(90, 0, rig.adapters);
  EXPECT_EQ(rig.kv->total(), total);
  ASSERT_TRUE(rig.lease(14));
  EXPECT_EQ(rig.room->blocks_for_new(), 0);
  rig.room->set_closed(false);
  EXPECT_EQ(rig.room->blocks_for_new(), INT32_MAX);
}

// Only those that run ask, so that nobody compares: KV grows by as many extents as there
// is room for, without and then with the adapters that may go.
void expect_growth(Rig& rig, int32_t running, int64_t adapter_floor, int64_t reserve, int32_t extent) {
  const bool must = rig.kv->available() < running;
  const int64_t had = rig.ledger.used_bytes(MemoryUse::kAdapters);
  int64_t room = rig.ledger.available_bytes(MemoryUse::kKv) - reserve - std::max<int64_t>(0, adapter_floor - had);
  const bool short_of_reserve = rig.ledger.available_bytes(MemoryUse::kOther) < reserve / 2;
  int32_t total = rig.kv->total(), free = rig.kv->free();
  while (free < running && room >= extent * kBlock) {
    room -= extent * kBlock;
    total += extent;
    free += extent;
  }
  const bool enough = free >= running;
  rig.room->fit(running, 0, rig.adapters);
  const int64_t has = rig.ledger.used_bytes(MemoryUse::kAdapters);
  if (short_of_reserve) return;  // it gave back, and may have grown again
  if (enough || (!must && had == has)) {
    ASSERT_EQ(rig.kv->total(), total);
    ASSERT_EQ(had, has) << "nobody left for what was free";
  } else {
    ASSERT_GE(rig.kv->total(), total);
    const int64_t left = rig.ledger.available_bytes(MemoryUse::kKv) - reserve;
    const bool more = has > adapter_floor && !rig.adapters.all.empty() &&
                      left + std::min(rig.adapters.idle_bytes(), has - adapter_floor) >= extent * kBlock;
    ASSERT_TRUE(!must || rig.kv->free() >= running || rig.kv->available() >= running || !more)
        << "those that run have what adapters can give";
  }
}

// What must hold after every operation, whatever came before; and by how much KV grows is
// what a plain count of the rules says.
TEST(KvRoom, RandomTrafficAgreesWithAPlainCount) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const auto floor = static_cast<int32_t>(8 + random.below(40));
    const auto adapter_floor = static_cast<int64_t>(random.below(20)) * kBlock;
    const int64_t budget = floor + adapter_floor / kBlock + 4 + static_cast<int64_t>(random.below(80));
    const int32_t part = random.below(2) == 0 ? 0 : 16;
    Rig rig(budget, floor, {.adapter_floor_bytes = adapter_floor, .reserve_part = part});
    const int64_t reserve = part > 0 ? budget * kBlock / part : 0;
    const int32_t extent = std::max(1, floor / KvRoom::kExtents);
    uint64_t id = 0;
    for (int step = 0; step < 200; ++step) {
      rig.clock.advance_ns(static_cast<int64_t>(random.below(400'000'000)));
      switch (random.below(6)) {
        case 0:
          (void)rig.lease(static_cast<int32_t>(1 + random.below(8)));
          break;
        case 1:
          if (!rig.leases.empty())
            rig.leases.erase(rig.leases.begin() + static_cast<int64_t>(random.below(rig.leases.size())));
          break;
        case 2:
          (void)rig.cache(static_cast<int32_t>(1 + random.below(8)), static_cast<int32_t>(random.below(6)));
          break;
        case 3:
          if (rig.ledger.available_bytes(MemoryUse::kAdapters) > reserve) {
            (void)rig.adapters.add({.id = ++id,
                                    .bytes = static_cast<int64_t>(1 + random.below(9)) * kBlock,
                                    .last_use_ns = rig.clock.now_ns(),
                                    .expected_per_s = random.uniform(),
                                    .recreate_s = random.uniform() * 0.1});
          }
          break;
        case 4:
          if (rig.room->next()) {
            const int64_t idle = rig.room->idle_bytes(), bytes = rig.room->give_up("for a test");
            ASSERT_GT(bytes, 0);
            ASSERT_EQ(rig.room->idle_bytes(), idle - bytes);
          }
          break;
        default:
          expect_growth(rig, static_cast<int32_t>(random.below(30)), adapter_floor, reserve, extent);
          break;
      }
      rig.ledger.check();
      std::vector<const KvLease*> held;
      for (const KvLease& lease : rig.leases) held.push_back(&lease);
      rig.kv->check(held);
      ASSERT_GE(rig.kv->total(), floor);
      ASSERT_LE(rig.room->idle_bytes(), rig.room->most_bytes());
      // Adapters can always come to have their floor.
      const int64_t adapters = rig.ledger.used_bytes(MemoryUse::kAdapters);
      ASSERT_GE(rig.ledger.available_bytes(MemoryUse::kAdapters) + adapters, adapter_floor);
    }
    rig.leases.clear();
  }
}

}  // namespace
}  // namespace loralei
