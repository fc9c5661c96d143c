// SPDX-License-Identifier: Apache-2.0
#include "serve/recent_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(RecentTimes, TellsNothingOfNothing) {
  RecentTimes times;
  EXPECT_EQ(times.shown(kSecond).count, 0);
}

TEST(RecentTimes, TellsPercentilesByNearestRank) {
  RecentTimes times;
  for (int i = 100; i >= 1; --i) times.add(kSecond, i);
  const RecentTimes::Shown shown = times.shown(kSecond);
  EXPECT_EQ(shown.count, 100);
  EXPECT_EQ(shown.p50, 50);
  EXPECT_EQ(shown.p90, 90);
  EXPECT_EQ(shown.p99, 99);
  EXPECT_EQ(shown.window_s, 10);
}

TEST(RecentTimes, ForgetsWhatIsOlderThanItsWindow) {
  RecentTimes times;
  times.add(kSecond, 1000);
  times.add(5 * kSecond, 2);
  EXPECT_EQ(times.shown(10 * kSecond).p99, 1000);
  EXPECT_EQ(times.shown(11 * kSecond).count, 1);
  EXPECT_EQ(times.shown(11 * kSecond).p99, 2);
  EXPECT_EQ(times.shown(20 * kSecond).count, 0);
}

TEST(RecentTimes, OfMoreThanItKeepsTheNewestCountAndTheirTimeIsTold) {
  RecentTimes times;
  const auto kept = static_cast<int64_t>(RecentTimes::kKept);
  constexpr int64_t kEach = 100'000;
  for (int64_t i = 1; i <= 3 * kept; ++i) times.add(i * kEach, static_cast<double>(i));
  const RecentTimes::Shown shown = times.shown(3 * kept * kEach);
  EXPECT_EQ(shown.count, kept);
  EXPECT_EQ(shown.p99, static_cast<double>(2 * kept) + std::ceil(0.99 * static_cast<double>(kept)));
  EXPECT_NEAR(shown.window_s, static_cast<double>((kept - 1) * kEach) * 1e-9, 1e-9);
}

// Beside a plain twin.
TEST(RecentTimes, SaysWhatSortingAllOfThemSays) {
  constexpr uint64_t kSeed = 46;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Prng random(kSeed);
  RecentTimes times;
  std::deque<std::pair<int64_t, double>> all;
  int64_t now_ns = kSecond;
  for (int i = 0; i < 20'000; ++i) {
    now_ns += static_cast<int64_t>(random() % 3'000'000);
    const double seconds = static_cast<double>(random() % 100'000) * 1e-5;
    times.add(now_ns, seconds);
    all.emplace_back(now_ns, seconds);
    if (i % 997 != 0) continue;
    std::vector<double> sorted;
    for (const auto& [at_ns, value] : all)
      if (at_ns > now_ns - RecentTimes::kWindowNs) sorted.push_back(value);
    std::sort(sorted.begin(), sorted.end());
    const RecentTimes::Shown shown = times.shown(now_ns);
    ASSERT_EQ(shown.count, static_cast<int64_t>(sorted.size()));
    EXPECT_EQ(shown.p50, sorted[(sorted.size() + 1) / 2 - 1]);
    EXPECT_EQ(shown.p99, sorted[(99 * sorted.size() + 99) / 100 - 1]);
  }
}

}  // namespace
}  // namespace loralei
