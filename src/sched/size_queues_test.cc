// SPDX-License-Identifier: Apache-2.0
#include "sched/size_queues.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

SizeQueues::Options options(int64_t total = 10'000) {
  return {.first_fit = 100, .interval_ns = 60 * kSecond, .bytes_per_token = 1000, .tokens_total = total};
}

// Small ones three times as often as large ones, ten a second.
void send(SizeQueues& queues, int count, int64_t& now_ns, bool end = true) {
  for (int i = 0; i < count; ++i, now_ns += kSecond / 10) {
    const bool large = i % 4 == 3;
    const RequestSize request = large ? RequestSize{800, 200, 64'000} : RequestSize{40, 10, 8'000};
    queues.arrived(request, now_ns);
    if (end) queues.ended(request, large ? 8 : 0.5);
  }
}

TEST(SizeQueues, ASizeIsTheWeightedSumOfPartsOfTheLargest) {
  SizeQueues queues(options());
  queues.arrived({100, 50, 4000}, 0);
  queues.arrived({20, 200, 1000}, 0);
  EXPECT_DOUBLE_EQ(queues.size_of({50, 100, 2000}), 0.3 * 0.5 + 0.5 * 0.5 + 0.2 * 0.5);
  EXPECT_DOUBLE_EQ(queues.size_of({0, 0, 0}), 0);
  EXPECT_DOUBLE_EQ(queues.size_of({200, 200, 4000}), 0.6 + 0.5 + 0.2) << "larger than the largest so far";
  EXPECT_EQ(queues.tokens_of({100, 50.5, 4000}), 154);
}

TEST(SizeQueues, ThereIsOneQueueForAllUntilSizesAreKnown) {
  SizeQueues queues(options());
  int64_t now_ns = 5;
  send(queues, 99, now_ns);
  EXPECT_FALSE(queues.refit(now_ns));
  EXPECT_EQ(queues.count(), 1);
  EXPECT_EQ(queues.quota(0), 10'000);
  EXPECT_EQ(queues.share(0), 1);
  send(queues, 1, now_ns);
  EXPECT_TRUE(queues.refit(now_ns));
  EXPECT_EQ(queues.count(), 2);
  EXPECT_FALSE(queues.refit(now_ns)) << "not again before an interval";
  queues.check();
}

TEST(SizeQueues, EachHasThePartThatItsRequestsAskFor) {
  SizeQueues queues(options());
  int64_t now_ns = 0;
  send(queues, 200, now_ns);
  ASSERT_TRUE(queues.refit(now_ns));
  ASSERT_EQ(queues.count(), 2);
  EXPECT_EQ(queues.queue_of(queues.size_of({40, 10, 8'000})), 0);
  EXPECT_EQ(queues.queue_of(queues.size_of({800, 200, 64'000})), 1);
  const QueueLoad &small = queues.loads()[0], &large = queues.loads()[1];
  EXPECT_EQ(small.largest_tokens, 58);
  EXPECT_EQ(large.largest_tokens, 1064);
  EXPECT_NEAR(small.arrivals_per_s, 7.5, 0.1);
  EXPECT_NEAR(large.arrivals_per_s, 2.5, 0.1);
  EXPECT_DOUBLE_EQ(small.duration_s, 0.5);
  EXPECT_DOUBLE_EQ(large.slo_s, SizeQueues::kSloFactor * 8);
  // Minima: 58 * 0.5 * (7.5 + 1 / 2.5) = 229; 1064 * 8 * (2.5 + 1 / 40) = 21,493: more
  // than there is, so both have room for their largest, and the rest goes by what is
  // above.
  EXPECT_EQ(queues.times_short(), 1u);
  EXPECT_EQ(queues.quota(0) + queues.quota(1), 10'000);
  EXPECT_NEAR(static_cast<double>(queues.quota(0)), 58 + (10'000 - 1122) * 171 / 20'600.0, 5);
  queues.set_total(40'000);
  EXPECT_EQ(queues.quota(0) + queues.quota(1), 40'000);
  EXPECT_NEAR(queues.share(0), 229 / 21'722.0, 0.001);
  queues.check();
}

TEST(SizeQueues, WhatChangesIsLaidOutAnewBehindAnInterval) {
  SizeQueues queues(options());
  int64_t now_ns = 0;
  send(queues, 100, now_ns);
  ASSERT_TRUE(queues.refit(now_ns));
  ASSERT_EQ(queues.count(), 2);
  queues.take(1, 500);
  for (int i = 0; i < 700; ++i, now_ns += kSecond / 10) queues.arrived({40, 10, 8'000}, now_ns);
  ASSERT_TRUE(queues.refit(now_ns));
  EXPECT_EQ(queues.count(), 1) << "all alike within the last interval";
  EXPECT_EQ(queues.taken(), 0) << "whoever runs takes again";
  // The largest of long ago are no measure any more.
  for (int i = 0; i < 700; ++i, now_ns += kSecond / 10) queues.arrived({40, 10, 8'000}, now_ns);
  ASSERT_TRUE(queues.refit(now_ns));
  EXPECT_DOUBLE_EQ(queues.size_of({40, 10, 8'000}), 1);
}

TEST(SizeQueues, WhatIsTakenIsCounted) {
  Prng random(20261128);
  SizeQueues queues(options());
  int64_t now_ns = 0;
  std::multimap<int32_t, int64_t> running;
  for (int step = 0; step < 20'000; ++step) {
    now_ns += static_cast<int64_t>(random.below(kSecond / 5));
    const RequestSize request{static_cast<int32_t>(random.below(random.below(2) == 0 ? 50 : 2000)),
                              static_cast<double>(random.below(300)), static_cast<int64_t>(random.below(100'000))};
    switch (random.below(4)) {
      case 0: {
        queues.arrived(request, now_ns);
        const int32_t queue = queues.queue_of(queues.size_of(request));
        ASSERT_TRUE(queue >= 0 && queue < queues.count());
        queues.take(queue, queues.tokens_of(request));
        running.emplace(queue, queues.tokens_of(request));
        break;
      }
      case 1:
        if (running.empty()) break;
        queues.give_back(running.begin()->first, running.begin()->second);
        running.erase(running.begin());
        break;
      case 2:
        queues.ended(request, random.uniform());
        break;
      default:
        if (queues.refit(now_ns)) running.clear();
        if (random.below(100) == 0) queues.set_total(static_cast<int64_t>(random.below(100'000)));
    }
    queues.check();
    int64_t sum = 0;
    for (const auto& [queue, tokens] : running) sum += tokens;
    ASSERT_EQ(queues.taken(), sum);
  }
  EXPECT_GT(queues.refits(), 10u);
}

}  // namespace
}  // namespace loralei
