// SPDX-License-Identifier: Apache-2.0
#include "engine/budget_plan.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "base/units.h"

namespace loralei {
namespace {

// 4 GiB of weights, blocks of 1 MiB, eight sequences of 1024 tokens.
RunningMemory memory() {
  RunningMemory m;
  m.kept_bytes = kGiB;
  m.whole_weight_bytes = 4 * kGiB;
  m.least_weight_bytes = 256 * kMiB;
  m.kv_blocks_least = 64;
  m.kv_blocks_most = 8 * 64;
  m.asked.block_bytes = kMiB;
  m.asked.max_sequences = 8;
  return m;
}

TEST(BudgetPlan, KvHasHalfOfWhatResidentWeightsLeaveAsAtStart) {
  const BudgetShares shares = share_budget(memory(), 5 * kGiB + 600 * kMiB);
  EXPECT_EQ(shares.kv_blocks, 300);
  EXPECT_EQ(shares.weight_bytes, 4 * kGiB);
  EXPECT_EQ(shares.adapter_bytes, 300 * kMiB);
  EXPECT_EQ(share_budget(memory(), 20 * kGiB).kv_blocks, 512);
}

TEST(BudgetPlan, KvHasTheStreamingShareWhereWeightsDoNotFit) {
  RunningMemory m = memory();
  const BudgetShares shares = share_budget(m, 3 * kGiB);
  EXPECT_EQ(shares.kv_blocks, 64);  // 1024 tokens
  EXPECT_EQ(shares.adapter_bytes, 3 * kGiB / 32);
  EXPECT_EQ(shares.weight_bytes, 2 * kGiB - 64 * kMiB - 3 * kGiB / 32);
  m.asked.max_model_len = 1024;
  EXPECT_EQ(share_budget(m, 3 * kGiB).kv_blocks, 3 * 1024 / 8);
}

TEST(BudgetPlan, WhatAdaptersInUseHoldIsKeptBesideWeightsOfAnyKind) {
  RunningMemory m = memory();
  m.adapter_bytes = 400 * kMiB;
  EXPECT_EQ(share_budget(m, 5 * kGiB + 600 * kMiB).adapter_bytes, 400 * kMiB);
  EXPECT_EQ(share_budget(m, 5 * kGiB + 600 * kMiB).kv_blocks, 200);
  // Weights stay in memory as long as the adapters in use and one sequence have
  // room beside them.
  EXPECT_EQ(share_budget(m, 5 * kGiB + 464 * kMiB).weight_bytes, 4 * kGiB);
  EXPECT_LT(share_budget(m, 5 * kGiB + 463 * kMiB).weight_bytes, 4 * kGiB);
  EXPECT_EQ(share_budget(m, 3 * kGiB).adapter_bytes, 400 * kMiB);
  EXPECT_EQ(least_budget_bytes(m), kGiB + (64 + 400 + 256) * kMiB);
  m.adapter_bytes = 0;  // nobody uses them any more
  EXPECT_LT(least_budget_bytes(m), kGiB + (64 + 256 + 50) * kMiB);
}

TEST(BudgetPlan, StatedSharesStandUntilNothingElseWouldDo) {
  RunningMemory m = memory();
  m.asked.kv_cache_bytes = 400 * kMiB;
  m.asked.adapter_bytes = 100 * kMiB;
  for (const int64_t budget : {2 * kGiB, 5 * kGiB, 9 * kGiB}) {
    EXPECT_EQ(share_budget(m, budget).kv_blocks, 400) << budget;
    EXPECT_EQ(share_budget(m, budget).adapter_bytes, 100 * kMiB) << budget;
  }
  const BudgetShares tight = share_budget(m, kGiB + 500 * kMiB);
  EXPECT_EQ(tight.kv_blocks, 500 - 100 - 256);
  EXPECT_EQ(tight.weight_bytes, 256 * kMiB);
  EXPECT_EQ(least_budget_bytes(m), kGiB + (64 + 100 + 256) * kMiB);
}

// No band of budgets in which weights fit, so that they are not streamed, but what
// is left does not do.
TEST(BudgetPlan, WhatFitsBesideResidentWeightsCanBePlanned) {
  for (const int64_t stated : {0, 100, 400, 4096}) {
    for (const int64_t adapter_bytes : {int64_t{0}, 50 * kMiB}) {
      MemoryRequest request;
      request.block_bytes = kMiB;
      request.model_len_max = 4096;
      request.max_model_len = stated;
      request.max_sequences = 8;
      request.adapter_bytes = adapter_bytes;
      constexpr int64_t kWeights = 1000 * kMiB;
      int resident = 0;
      for (int64_t budget = kWeights; budget < 2 * kWeights; budget += kMiB / 3) {
        request.left_bytes = budget - kWeights;
        if (request.left_bytes < least_beside_resident_bytes(request, budget)) continue;
        ++resident;
        const auto plan = plan_memory(request);
        ASSERT_TRUE(plan.ok()) << budget << " of length " << stated << ": " << plan.error().message;
        EXPECT_GE(plan->kv_blocks * 16, stated);
      }
      EXPECT_GT(resident, 0);
    }
  }
}

TEST(BudgetPlan, AnyBudgetIsSharedWholeAndTheLeastIsTheLeast) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Prng random(kSeed);
  const auto bytes = [&](int64_t most) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(most))); };
  for (int i = 0; i < 20000; ++i) {
    RunningMemory m;
    m.kept_bytes = bytes(10000);
    m.adapter_bytes = bytes(3000) * bytes(2);
    m.whole_weight_bytes = 1 + bytes(20000);
    m.least_weight_bytes = 1 + bytes(m.whole_weight_bytes);
    m.kv_blocks_least = 1 + static_cast<int32_t>(bytes(20));
    m.kv_blocks_most = m.kv_blocks_least + static_cast<int32_t>(bytes(100));
    m.asked.block_bytes = 1 + bytes(50);
    m.asked.max_sequences = 1 + static_cast<int32_t>(bytes(9));
    m.asked.max_model_len = bytes(2) * m.kv_blocks_least * 16;
    m.asked.kv_cache_bytes = bytes(2) * m.asked.block_bytes * m.kv_blocks_most;
    m.asked.adapter_bytes = bytes(2) * bytes(3000);
    const int64_t least = least_budget_bytes(m);
    for (const int64_t budget : {least - 1, least, least + bytes(1000), least + bytes(100000)}) {
      const BudgetShares shares = share_budget(m, budget);
      ASSERT_EQ(shares.weight_bytes >= m.least_weight_bytes, budget >= least) << i << ": " << budget - least;
      ASSERT_GE(shares.kv_blocks, m.kv_blocks_least);
      ASSERT_LE(shares.kv_blocks, m.kv_blocks_most);
      ASSERT_GE(shares.adapter_bytes, kept_adapter_bytes(m));
      ASSERT_EQ(m.kept_bytes + shares.weight_bytes + shares.adapter_bytes + shares.kv_blocks * m.asked.block_bytes,
                budget);
    }
  }
}

}  // namespace
}  // namespace loralei
