// SPDX-License-Identifier: Apache-2.0
#include "workload/served.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(ServedTest, PercentilesAreOfTheNearestRank) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({3, 1, 2}, 0), 1);
  EXPECT_EQ(percentile({3, 1, 2}, 1), 3);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  const Percentiles all = percentiles_of(hundred);
  EXPECT_EQ(all.p50, 50);
  EXPECT_EQ(all.p90, 90);
  EXPECT_EQ(all.p99, 99);
}

TEST(ServedTest, CountsOfGapsTellPercentilesToAPercent) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    GapCounts gaps, others;
    std::vector<double> exact;
    for (int i = 0; i < 3000; ++i) {
      const double seconds = std::exp(12 * random.uniform() - 9);
      (i % 2 == 0 ? gaps : others).add(static_cast<int64_t>(seconds * 1e9));
      exact.push_back(seconds);
    }
    gaps.add(others);
    EXPECT_EQ(gaps.count(), 3000);
    for (const double share : {0.01, 0.5, 0.9, 0.99, 1.0})
      EXPECT_NEAR(gaps.percentile_s(share) / percentile(exact, share), 1, 0.011) << share;
  }
  EXPECT_EQ(GapCounts().percentile_s(0.5), 0);
}

TEST(ServedTest, TheDistributionOfGapsAscendsToOne) {
  GapCounts gaps;
  for (const int64_t ms : {5, 1, 1, 20}) gaps.add(ms * kMs);
  const auto shares = gaps.distribution();
  ASSERT_EQ(shares.size(), 3u);
  const std::pair<double, double> expected[] = {{0.001, 0.5}, {0.005, 0.75}, {0.020, 1}};
  for (size_t i = 0; i < shares.size(); ++i) {
    EXPECT_NEAR(shares[i].first / expected[i].first, 1, 0.011);
    EXPECT_DOUBLE_EQ(shares[i].second, expected[i].second);
  }
  EXPECT_TRUE(GapCounts().distribution().empty());
}

TEST(ServedTest, EveryRequestIsCountedInItsClasses) {
  const Workload workload = {{.at_ns = 0, .prompt_tokens = 100, .output_tokens = 5},
                             {.at_ns = 0, .adapter = "a", .rank = 16, .prompt_tokens = 100, .output_tokens = 5},
                             {.at_ns = kMs, .adapter = "b", .rank = 128, .prompt_tokens = 9000, .output_tokens = 5},
                             {.at_ns = kMs, .adapter = "c", .prompt_tokens = 600, .output_tokens = 5}};
  const std::vector<ServedRequest> served = {{.first_ns = 10 * kMs, .end_ns = 20 * kMs, .tokens = 5},
                                             {.first_ns = 30 * kMs, .end_ns = 40 * kMs, .tokens = 5},
                                             {.end_ns = 2 * kMs, .failed = true},
                                             {.first_ns = 50 * kMs, .end_ns = 1000 * kMs, .tokens = 10}};
  const ServedSummary summary = summarise(workload, served, {}, {.first_s = 0.020});
  std::vector<std::string> names;
  for (const ServedClass& one : summary.classes) names.push_back(one.name);
  EXPECT_EQ(names, (std::vector<std::string>{"all", "adapters", "base", "rank_16", "rank_128", "prompt_to_128",
                                             "prompt_to_1024", "prompt_longer"}));
  const ServedClass& all = summary.classes[0];
  EXPECT_EQ(all.requests, 4);
  EXPECT_EQ(all.failed, 1);
  EXPECT_DOUBLE_EQ(all.first_s.p50, 0.030);
  EXPECT_DOUBLE_EQ(all.first_s.p99, 0.049);
  EXPECT_DOUBLE_EQ(all.mean_first_s, (0.010 + 0.030 + 0.049) / 3);
  EXPECT_DOUBLE_EQ(summary.seconds, 1);
  EXPECT_DOUBLE_EQ(summary.requests_per_s, 3);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 20);
  EXPECT_DOUBLE_EQ(summary.good_per_s, 1) << "within 20 ms";
  EXPECT_DOUBLE_EQ(summary.good_share, 0.25);
  EXPECT_DOUBLE_EQ(all.mean_end_s, (0.020 + 0.040 + 0.999) / 3);
  EXPECT_DOUBLE_EQ(all.mean_token_s, (0.020 / 5 + 0.040 / 5 + 0.999 / 10) / 3);
  const ServedObjectives tokens{.token_s = 0.005};
  EXPECT_DOUBLE_EQ(summarise(workload, served, {}, tokens).good_share, 0.25) << "4 ms for each";
  const ServedObjectives both{.first_s = 0.005, .token_s = 0.005};
  EXPECT_DOUBLE_EQ(summarise(workload, served, {}, both).good_share, 0);
}

}  // namespace
}  // namespace loralei
