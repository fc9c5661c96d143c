// SPDX-License-Identifier: Apache-2.0
// Applications and what they use: who goes first, and what goes when one is killed. The
// naive twin is that of the cache (kv_test).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(KvApps, EqualSetsAreOneAndAnEmptyOneGoes) {
  KvApps apps;
  const KvAppRef a = apps.asks("a"), b = apps.asks("b");
  const AppSetId of_a = apps.alone(a);
  apps.hold(of_a);
  const AppSetId both = apps.with(of_a, b);
  apps.hold(both);
  EXPECT_EQ(apps.with(both, a), both);
  EXPECT_EQ(apps.alone(a), of_a);
  apps.check();
  const AppSetId of_b = apps.alone(b);
  apps.hold(of_b);
  EXPECT_EQ(apps.with(of_b, a), both) << "whoever came first";
  apps.let_go(of_a);
  apps.let_go(of_b);
  apps.check();
  ASSERT_EQ(apps.shown().size(), 2u);
  EXPECT_EQ(apps.shown()[0].name, "a");
  EXPECT_EQ(apps.shown()[0].blocks, 1);
  EXPECT_EQ(apps.shown()[0].alone, 0);
  apps.let_go(both);
  EXPECT_TRUE(apps.shown().empty());
  apps.check();
}

TEST(KvApps, StatesCountAndWhoAsksIsNotKilled) {
  KvApps apps;
  const AppSetId set = apps.with(apps.alone(apps.asks("a")), apps.asks("b"));
  apps.hold(set);
  EXPECT_EQ(apps.score(set), 2);
  ASSERT_TRUE(apps.state("a", AppState::kBackground).ok());
  EXPECT_EQ(apps.score(set), 1.5);
  ASSERT_TRUE(apps.state("a", AppState::kKilled).ok());
  EXPECT_EQ(apps.score(set), 1);
  EXPECT_FALSE(apps.all_killed(set));
  ASSERT_TRUE(apps.state("b", AppState::kKilled).ok());
  EXPECT_TRUE(apps.all_killed(set));
  EXPECT_EQ(apps.asks("b")->state, AppState::kForeground);
  EXPECT_FALSE(apps.all_killed(set));
  apps.check();
}

TEST(KvApps, WhoeverNamesNoneIsNeverKilledAndTooManyAreEverybody) {
  KvApps apps;
  AppSetId set = apps.alone(apps.asks(""));
  apps.hold(set);
  const AppSetId nobody = set;
  for (size_t i = 0; i < KvApps::kSetMost; ++i) {
    const std::string name = "app " + std::to_string(i);
    ASSERT_TRUE(apps.state(name, AppState::kBackground).ok());
    const AppSetId more = apps.with(set, apps.asks(name));
    apps.hold(more);
    apps.let_go(set);
    set = more;
    apps.check();
  }
  EXPECT_EQ(nobody, KvApps::kNobodyNamed);
  EXPECT_EQ(set, KvApps::kEverybody);
  for (size_t i = 0; i < KvApps::kSetMost; ++i)
    ASSERT_TRUE(apps.state("app " + std::to_string(i), AppState::kKilled).ok());
  EXPECT_FALSE(apps.all_killed(set));
  EXPECT_EQ(apps.with(set, apps.asks("one more")), set);
}

// Otherwise requests that name another one each would make every eviction dearer.
TEST(KvApps, SoManySetsAreToldApart) {
  KvApps apps;
  std::vector<AppSetId> held;
  for (size_t i = 0; i < 2 * KvApps::kSetsMost; ++i) {
    held.push_back(apps.alone(apps.asks("app " + std::to_string(i))));
    apps.hold(held.back());
  }
  apps.check();
  EXPECT_EQ(apps.sets_end(), static_cast<int32_t>(KvApps::kSetsMost) + 1);
  EXPECT_EQ(held.back(), KvApps::kEverybody);
  EXPECT_NE(held.front(), KvApps::kEverybody);
  ASSERT_TRUE(apps.state("app 0", AppState::kKilled).ok());
  EXPECT_TRUE(apps.all_killed(held.front()));
  apps.let_go(held.front());
  EXPECT_NE(apps.alone(apps.asks("another")), KvApps::kEverybody) << "there is room again";
}

TEST(KvApps, SoManyMayHaveAState) {
  KvApps apps;
  for (size_t i = 0; i < KvApps::kStatedMost; ++i)
    ASSERT_TRUE(apps.state(std::to_string(i), AppState::kBackground).ok());
  const Status refused = apps.state("one more", AppState::kBackground);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("1024 applications have a state"), std::string::npos);
  ASSERT_TRUE(apps.state("0", AppState::kForeground).ok()) << "it has one already";
  ASSERT_TRUE(apps.state("0", AppState::kKilled).ok());
  EXPECT_TRUE(apps.state("one more", AppState::kBackground).ok());
}

struct Rig {
  ManualClock clock;
  std::unique_ptr<KvCache> cache;
  explicit Rig(int32_t blocks, KvEviction eviction = KvEviction::kUtility)
      : cache(KvCache::create_ids(blocks, true, clock)) {
    cache->evict_by(eviction, [] { return KvWorth{}; });
  }
  KvLease compute(const std::string& app, std::vector<TokenId> tokens) {
    KvKey key = make_kv_key(cache->identities(), {}, "");
    key.app = cache->apps().asks(app);
    const auto count = static_cast<int32_t>(tokens.size());
    KvLease lease = cache->match(key, tokens, count, count / kKvBlockTokens);
    EXPECT_TRUE(cache->reserve(lease, count));
    cache->publish(lease, key, tokens, count);
    return lease;
  }
  int32_t held(std::vector<TokenId> tokens) const {
    const KvKey key = make_kv_key(cache->identities(), {}, "");
    return cache->peek(key, tokens, static_cast<int32_t>(tokens.size())).blocks;
  }
};

std::vector<TokenId> text(int32_t blocks, TokenId which) {
  std::vector<TokenId> tokens(static_cast<size_t>(blocks * kKvBlockTokens), which);
  tokens.front() = 7;
  return tokens;
}

TEST(KvAppsInTheCache, WhatOnlyKilledOnesUseGoesAtOnceWhateverTheRule) {
  for (const KvEviction eviction : {KvEviction::kLru, KvEviction::kDensity, KvEviction::kUtility}) {
    Rig rig(16, eviction);
    rig.compute("mail", text(4, 1)).release();
    rig.compute("notes", text(3, 2)).release();
    rig.compute("mail", text(3, 2)).release();
    KvLease runs = rig.compute("mail", text(2, 3));
    const Result<int32_t> gone = rig.cache->state_app("mail", AppState::kKilled);
    ASSERT_TRUE(gone.ok());
    EXPECT_EQ(*gone, 4);
    EXPECT_EQ(rig.held(text(4, 1)), 0);
    EXPECT_EQ(rig.held(text(3, 2)), 3) << "notes uses it as well";
    EXPECT_EQ(rig.held(text(2, 3)), 2) << "it is leased";
    const KvLease* const leases[] = {&runs};
    rig.cache->check(leases);
    runs.release();
    EXPECT_EQ(rig.held(text(2, 3)), 0);
    rig.cache->check({});
  }
}

TEST(KvAppsInTheCache, TheBackgroundsGoesBeforeTheForegroundsThatIsOlder) {
  Rig rig(8);
  rig.compute("mail", text(4, 1)).release();
  rig.clock.advance_ns(60 * kSecond);
  rig.compute("sync", text(4, 2)).release();
  ASSERT_TRUE(rig.cache->state_app("sync", AppState::kBackground).ok());
  rig.compute("mail", text(3, 3)).release();
  EXPECT_EQ(rig.held(text(4, 1)), 4);
  EXPECT_EQ(rig.held(text(4, 2)), 1);
  rig.cache->check({});
}

TEST(KvAppsInTheCache, RecencyAndLengthCountAmongEquals) {
  Rig rig(8);
  rig.compute("a", text(4, 1)).release();
  rig.clock.advance_ns(600 * kSecond);
  rig.compute("b", text(4, 2)).release();
  rig.compute("c", text(2, 3)).release();
  EXPECT_EQ(rig.held(text(4, 1)), 2) << "older";
  Rig equal(8);
  equal.compute("a", text(2, 1)).release();
  equal.compute("b", text(6, 2)).release();
  equal.compute("c", text(1, 3)).release();
  EXPECT_EQ(equal.held(text(2, 1)), 1) << "shorter";
  EXPECT_EQ(equal.held(text(6, 2)), 6);
}

}  // namespace
}  // namespace loralei
