// SPDX-License-Identifier: Apache-2.0
#include "memory/ledger.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(Ledger, DroppingAGrantReturnsItsBytes) {
  Ledger ledger(100);
  ledger.set_cap(MemoryUse::kKv, 60);
  {
    auto grant = ledger.try_grant(MemoryUse::kKv, 50);
    ASSERT_TRUE(grant);
    EXPECT_FALSE(ledger.try_grant(MemoryUse::kKv, 11));       // over the cap of its use
    EXPECT_FALSE(ledger.try_grant(MemoryUse::kWeights, 51));  // over the total
    EXPECT_EQ(ledger.available_bytes(MemoryUse::kKv), 10);
    grant->shrink_to(20);
    EXPECT_EQ(ledger.used_bytes(), 20);
    Grant moved = std::move(*grant);
    EXPECT_EQ(ledger.used_bytes(), 20);
  }
  EXPECT_EQ(ledger.used_bytes(), 0);
  ledger.check();
}

TEST(Ledger, TheBudgetAndAGrantGrowAndShrink) {
  Ledger ledger(100);
  Grant weights = *ledger.try_grant(MemoryUse::kWeights, 60);
  EXPECT_FALSE(ledger.set_budget(59));  // in use
  EXPECT_TRUE(ledger.set_budget(60));
  EXPECT_FALSE(weights.grow_to(61));
  EXPECT_EQ(weights.bytes(), 60);
  EXPECT_TRUE(ledger.set_budget(200));
  EXPECT_TRUE(weights.grow_to(150));
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kWeights), 150);
  EXPECT_EQ(ledger.available_bytes(MemoryUse::kKv), 50);
  weights.shrink_to(10);
  EXPECT_TRUE(ledger.set_budget(10));
  ledger.check();
}

TEST(Ledger, ALoanIsUsedNowAndFreeInTheLongRun) {
  Ledger ledger(100);
  ledger.set_cap(MemoryUse::kAdapters, 90);
  const Grant weights = *ledger.try_grant(MemoryUse::kWeights, 30);
  Grant loan = *ledger.try_lend(MemoryUse::kOther, 50);
  EXPECT_EQ(ledger.used_bytes(), 80);
  EXPECT_EQ(ledger.available_bytes(MemoryUse::kAdapters), 20);
  EXPECT_EQ(ledger.available_after_loans_bytes(MemoryUse::kAdapters), 70);
  EXPECT_FALSE(ledger.try_lend(MemoryUse::kOther, 21));
  EXPECT_FALSE(loan.grow_to(71));
  EXPECT_TRUE(loan.grow_to(60));
  EXPECT_EQ(ledger.available_after_loans_bytes(MemoryUse::kAdapters), 70);
  Grant moved = std::move(loan);
  moved.shrink_to(10);
  EXPECT_EQ(ledger.available_bytes(MemoryUse::kAdapters), 60);
  ledger.check();
  const Grant own = *ledger.try_lend(MemoryUse::kAdapters, 40);  // counts against its use's cap, too
  EXPECT_EQ(ledger.available_after_loans_bytes(MemoryUse::kAdapters), 70);
  moved = Grant();
  EXPECT_EQ(ledger.available_bytes(MemoryUse::kAdapters), 30);
  EXPECT_EQ(ledger.available_after_loans_bytes(MemoryUse::kAdapters), 70);
  ledger.check();
}

TEST(Ledger, RandomGrantsAgreeWithANaiveSum) {
  const uint64_t seed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  Ledger ledger(10000);
  std::vector<Grant> live;
  for (int step = 0; step < 5000; ++step) {
    const auto use = static_cast<MemoryUse>(random.below(kMemoryUses));
    const auto bytes = static_cast<int64_t>(random.below(1500));
    if (random.below(2) == 0) {
      const bool fits = bytes <= ledger.available_bytes(use);
      auto grant = random.below(2) == 0 ? ledger.try_grant(use, bytes) : ledger.try_lend(use, bytes);
      ASSERT_EQ(grant.has_value(), fits);
      if (grant) live.push_back(std::move(*grant));
    } else if (!live.empty()) {
      live.erase(live.begin() + static_cast<int64_t>(random.below(live.size())));
    }
    int64_t sum = 0;
    for (const Grant& grant : live) sum += grant.bytes();
    ASSERT_EQ(ledger.used_bytes(), sum);
    ledger.check();
  }
}

}  // namespace
}  // namespace loralei
