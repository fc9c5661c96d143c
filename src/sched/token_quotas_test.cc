// SPDX-License-Identifier: Apache-2.0
#include "sched/token_quotas.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

// Tok_min = 100 * 2 * (3 + 1/4) = 650: then mu = 650 / 200 = 3.25, and the time in the
// system is 1 / (3.25 - 3) = 4.
TEST(TokenQuotas, TheLeastMeetsTheObjectiveOfAnMM1Queue) {
  const QueueLoad load{.largest_tokens = 100, .duration_s = 2, .arrivals_per_s = 3, .slo_s = 4};
  EXPECT_DOUBLE_EQ(least_tokens(load), 650);
  const double rate = least_tokens(load) / (load.largest_tokens * load.duration_s);
  EXPECT_DOUBLE_EQ(1 / (rate - load.arrivals_per_s), load.slo_s);
  EXPECT_DOUBLE_EQ(least_tokens({.largest_tokens = 100, .duration_s = 0.001, .arrivals_per_s = 1, .slo_s = 10}), 100)
      << "its largest request has room";
}

TEST(TokenQuotas, WhatIsLeftIsSharedInProportion) {
  const std::vector<QueueLoad> queues = {{100, 1, 2, 1}, {50, 1, 1, 1}};  // 300 and 100
  const TokenQuotas quotas = share_tokens(queues, 800);
  EXPECT_EQ(quotas.tokens, (std::vector<int64_t>{600, 200}));
  EXPECT_FALSE(quotas.short_of);
}

TEST(TokenQuotas, WhereTheMinimaAreTooMuchTheyShrinkAndTheLargestRequestsStillFit) {
  const std::vector<QueueLoad> queues = {{100, 1, 2, 1}, {50, 1, 1, 1}};
  const TokenQuotas quotas = share_tokens(queues, 275);  // half of what is above 150
  EXPECT_EQ(quotas.tokens, (std::vector<int64_t>{200, 75}));
  EXPECT_TRUE(quotas.short_of);
  EXPECT_EQ(share_tokens(queues, 75).tokens, (std::vector<int64_t>{50, 25})) << "not even those fit together";
}

TEST(TokenQuotas, RandomLoadsAddUpAndKeepTheirPromises) {
  Prng random(20261128);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<QueueLoad> queues(1 + random.below(4));
    double largest = 0, minima = 0;
    for (QueueLoad& queue : queues) {
      queue = {.largest_tokens = static_cast<double>(random.below(5000)),
               .duration_s = 20 * random.uniform(),
               .arrivals_per_s = random.below(5) == 0 ? 0 : 10 * random.uniform(),
               .slo_s = 0.01 + 30 * random.uniform()};
      largest += queue.largest_tokens;
      minima += least_tokens(queue);
    }
    const auto total = static_cast<int64_t>(random.below(random.below(2) == 0 ? 20'000 : 2'000'000));
    const TokenQuotas quotas = share_tokens(queues, total);
    ASSERT_EQ(quotas.tokens.size(), queues.size());
    ASSERT_EQ(std::accumulate(quotas.tokens.begin(), quotas.tokens.end(), int64_t{0}), total);
    ASSERT_EQ(quotas.short_of, minima > static_cast<double>(total));
    for (size_t i = 0; i < queues.size(); ++i) {
      ASSERT_GE(quotas.tokens[i], 0);
      const auto tokens = static_cast<double>(quotas.tokens[i]);
      ASSERT_TRUE(largest > static_cast<double>(total) || tokens >= queues[i].largest_tokens);
      ASSERT_TRUE(quotas.short_of || tokens + 1 >= least_tokens(queues[i]));
    }
  }
}

}  // namespace
}  // namespace loralei
