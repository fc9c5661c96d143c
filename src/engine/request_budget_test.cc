// SPDX-License-Identifier: Apache-2.0
#include "engine/request_budget.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"
#include "base/units.h"

namespace loralei {
namespace {

std::shared_ptr<RequestBudget> budget_of(Ledger& ledger, int64_t reserve) {
  return std::make_shared<RequestBudget>(ledger, *ledger.try_grant(MemoryUse::kRequests, reserve));
}

TEST(RequestBudget, BorrowsBeyondItsReserveAndGivesBack) {
  Ledger ledger(100 * kMiB);
  const auto budget = budget_of(ledger, 10 * kMiB);
  Grant adapters = *ledger.try_grant(MemoryUse::kAdapters, 60 * kMiB);
  EXPECT_EQ(budget->most_bytes(), 40 * kMiB);
  int returned = 0;
  budget->on_returned([&] { ++returned; });
  ByteShare body(budget);
  EXPECT_TRUE(body.grow_to(10 * kMiB));
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kRequests), 10 * kMiB);
  EXPECT_TRUE(body.grow_to(40 * kMiB));
  EXPECT_EQ(ledger.used_bytes(), 100 * kMiB);
  // Others see a loan: an adapter waits for it instead of being refused.
  EXPECT_EQ(ledger.available_bytes(MemoryUse::kAdapters), 0);
  EXPECT_EQ(ledger.available_after_loans_bytes(MemoryUse::kAdapters), 30 * kMiB);
  EXPECT_FALSE(body.grow_to(40 * kMiB + 1));
  EXPECT_EQ(returned, 0);
  body.shrink_to(kMiB);
  EXPECT_EQ(returned, 1);
  EXPECT_EQ(ledger.used_bytes(MemoryUse::kRequests), 10 * kMiB);
  body.release();
  EXPECT_EQ(budget->taken_bytes(), 0);
  EXPECT_EQ(budget->returned_bytes(), 40 * kMiB);
  budget->close();
  ledger.check();
}

TEST(RequestBudget, TakesTheLastByteThatIsLess) {
  Ledger ledger(10 * kMiB + 7);
  const auto budget = budget_of(ledger, 10 * kMiB);
  ByteShare share(budget);
  EXPECT_TRUE(share.grow_to(10 * kMiB + 7));
  EXPECT_FALSE(share.grow_to(10 * kMiB + 8));
  share.release();
  budget->close();
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(RequestBudget, RefusesEverythingOnceClosedAndOutlivesTheLedger) {
  std::shared_ptr<RequestBudget> budget;
  ByteShare share;
  {
    Ledger ledger(kMiB);
    budget = budget_of(ledger, 0);
    share = ByteShare(budget);
    EXPECT_TRUE(share.grow_to(1000));
    budget->close();
  }
  EXPECT_FALSE(share.grow_to(1001));
  EXPECT_EQ(budget->most_bytes(), 0);
  share.release();
  EXPECT_EQ(budget->taken_bytes(), 0);
}

TEST(RequestBudget, RandomSharesNeverExceedTheLedger) {
  const uint64_t seed = 20261126;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng random(seed);
  Ledger ledger(64 * kMiB);
  const auto budget = budget_of(ledger, 4 * kMiB);
  std::vector<ByteShare> shares;
  for (int i = 0; i < 16; ++i) shares.emplace_back(budget);
  std::vector<int64_t> naive(16, 0);
  for (int step = 0; step < 20'000; ++step) {
    const size_t at = random() % 16;
    const auto bytes = static_cast<int64_t>(random() % (12 * kMiB));
    if (bytes < naive[at]) {
      shares[at].shrink_to(bytes);
      naive[at] = bytes;
    } else if (shares[at].grow_to(bytes)) {
      naive[at] = bytes;
    }
    int64_t sum = 0;
    for (const int64_t one : naive) sum += one;
    ASSERT_EQ(budget->taken_bytes(), sum);
    ASSERT_LE(sum, 64 * kMiB);
    ASSERT_GE(ledger.used_bytes(), sum);
    ASSERT_LE(ledger.used_bytes(), std::max<int64_t>(4 * kMiB, sum + kMiB));
  }
  shares.clear();
  EXPECT_EQ(ledger.used_bytes(), 4 * kMiB);
  budget->close();
}

}  // namespace
}  // namespace loralei
