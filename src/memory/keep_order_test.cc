// SPDX-License-Identifier: Apache-2.0
#include "memory/keep_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/prng.h"
#include "memory/recent_uses.h"

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string order(const KeepOrder& keep, std::vector<CacheItem> items) {
  keep.sort(items);
  std::string ids;
  for (const CacheItem& item : items) ids += static_cast<char>('a' + item.id);
  return ids;
}

TEST(KeepOrder, TheLeastRecentlyUsedLeavesFirst) {
  EXPECT_EQ(order(KeepOrder(KeepPolicy::kLru),
                  {{.id = 0, .last_use_ns = 30}, {.id = 1, .last_use_ns = 10}, {.id = 2, .last_use_ns = 20}}),
            "bca");
}

TEST(KeepOrder, WhatSomebodyWaitsWithLeavesLastWhateverThePolicy) {
  for (const KeepPolicy policy :
       {KeepPolicy::kLru, KeepPolicy::kFairShare, KeepPolicy::kChameleon, KeepPolicy::kDensity}) {
    const std::vector<CacheItem> items = {{.id = 0, .bytes = 1, .last_use_ns = 1, .wanted = 7},
                                          {.id = 1, .bytes = 9, .last_use_ns = 9, .uses_per_s = 9, .recreate_s = 9},
                                          {.id = 2, .bytes = 1, .last_use_ns = 1, .wanted = 3}};
    EXPECT_EQ(order(KeepOrder(policy), items), "bac") << static_cast<int>(policy);
  }
}

TEST(KeepOrder, WhatIsExpectedSoonLeavesBehindTheOthersAndWhatIsExpectedLaterBeforeThem) {
  for (const KeepPolicy policy :
       {KeepPolicy::kLru, KeepPolicy::kFairShare, KeepPolicy::kChameleon, KeepPolicy::kDensity}) {
    const std::vector<CacheItem> items = {
        {.id = 0, .bytes = 1, .last_use_ns = 1, .foreseen = Foreseen::kSoon},
        {.id = 1, .bytes = 5, .last_use_ns = 5, .uses_per_s = 5, .recreate_s = 5},
        {.id = 2, .bytes = 9, .last_use_ns = 9, .uses_per_s = 9, .recreate_s = 99, .foreseen = Foreseen::kLater},
        {.id = 3, .bytes = 1, .last_use_ns = 1, .wanted = 3, .foreseen = Foreseen::kLater}};
    EXPECT_EQ(order(KeepOrder(policy), items), "cbad") << static_cast<int>(policy);
  }
}

// S = 0.45 frequency + 0.10 recency + 0.45 size, worked out by hand:
//   a  1.0 * .45 + 0.0 * .10 + 0.25 * .45 = 0.5625
//   b  0.2 * .45 + 1.0 * .10 + 1.00 * .45 = 0.6400
//   c  0.5 * .45 + 0.5 * .10 + 0.50 * .45 = 0.5000
TEST(KeepOrder, ThePapersScoreIsWhatItSays) {
  std::vector<CacheItem> items = {{.id = 0, .bytes = 25, .last_use_ns = 0, .uses_per_s = 10},
                                  {.id = 1, .bytes = 100, .last_use_ns = 8, .uses_per_s = 2},
                                  {.id = 2, .bytes = 50, .last_use_ns = 4, .uses_per_s = 5}};
  EXPECT_EQ(order(KeepOrder(KeepPolicy::kChameleon), items), "cab");
  KeepOrder(KeepPolicy::kChameleon).sort(items);
  EXPECT_DOUBLE_EQ(items[0].score, 0.5);
  EXPECT_DOUBLE_EQ(items[1].score, 0.5625);
  EXPECT_DOUBLE_EQ(items[2].score, 0.64);
  // Equal weights: a 0.4167, b 0.7333, c 0.5.
  EXPECT_EQ(order(KeepOrder(KeepPolicy::kFairShare), items), "acb");
  EXPECT_EQ(order(KeepOrder(KeepPolicy::kChameleon, {1, 0, 0}), items), "bca");
}

TEST(KeepOrder, DensityIsWhatAByteKeptSaves) {
  const std::vector<CacheItem> items = {{.id = 0, .bytes = 100, .expected_per_s = 1, .recreate_s = 1},    // 0.01
                                        {.id = 1, .bytes = 1000, .expected_per_s = 1, .recreate_s = 5},   // 0.005
                                        {.id = 2, .bytes = 10, .expected_per_s = 0.5, .recreate_s = 1}};  // 0.05
  EXPECT_EQ(order(KeepOrder(KeepPolicy::kDensity), items), "bac");
}

TEST(KeepOrder, NumbersThatAreNoneCountAsNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const KeepPolicy policy : {KeepPolicy::kFairShare, KeepPolicy::kChameleon, KeepPolicy::kDensity}) {
    std::vector<CacheItem> items = {{.id = 0, .bytes = 0, .uses_per_s = nan, .expected_per_s = nan, .recreate_s = inf},
                                    {.id = 1, .bytes = 5, .uses_per_s = 1, .expected_per_s = 1, .recreate_s = 1}};
    KeepOrder(policy).sort(items);
    EXPECT_EQ(items[0].id, 0u);
    EXPECT_EQ(items[0].score, 0);
  }
}

// The twin takes the least each time, by the definition.
TEST(KeepOrder, EqualsANaiveTwinHoweverTheObjectsAreListed) {
  Prng random(20261128);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<CacheItem> items;
    const auto count = 1 + random.below(12);
    for (uint64_t id = 0; id < count; ++id) {
      items.push_back({.id = id,
                       .bytes = static_cast<int64_t>(1 + random.below(4)),
                       .last_use_ns = static_cast<int64_t>(random.below(5)),
                       .uses_per_s = static_cast<double>(random.below(4)),
                       .expected_per_s = static_cast<double>(random.below(4)),
                       .recreate_s = static_cast<double>(random.below(3)),
                       .wanted = random.below(3) == 0 ? random.below(4) : CacheItem::kUnwanted,
                       .foreseen = static_cast<Foreseen>(random.below(3))});
    }
    double uses = 0, bytes = 0, oldest = 1e9, newest = 0;
    for (const CacheItem& item : items) {
      uses = std::max(uses, item.uses_per_s);
      bytes = std::max(bytes, static_cast<double>(item.bytes));
      oldest = std::min(oldest, static_cast<double>(item.last_use_ns));
      newest = std::max(newest, static_cast<double>(item.last_use_ns));
    }
    const auto score = [&](KeepPolicy policy, const CacheItem& item) {
      if (policy == KeepPolicy::kLru) return static_cast<double>(item.last_use_ns);
      if (policy == KeepPolicy::kDensity)
        return item.expected_per_s * item.recreate_s / static_cast<double>(item.bytes);
      const double f = uses > 0 ? item.uses_per_s / uses : 0;
      const double r = newest > oldest ? (static_cast<double>(item.last_use_ns) - oldest) / (newest - oldest) : 0;
      const double s = static_cast<double>(item.bytes) / bytes;
      return policy == KeepPolicy::kChameleon ? 0.45 * f + 0.10 * r + 0.45 * s : (f + r + s) / 3;
    };
    for (const KeepPolicy policy :
         {KeepPolicy::kLru, KeepPolicy::kFairShare, KeepPolicy::kChameleon, KeepPolicy::kDensity}) {
      std::vector<CacheItem> sorted = items;
      for (size_t i = sorted.size(); i > 1; --i) std::swap(sorted[i - 1], sorted[random.below(i)]);
      KeepOrder(policy).sort(sorted);
      for (size_t i = 1; i < sorted.size(); ++i) {
        const CacheItem &a = sorted[i - 1], &b = sorted[i];
        ASSERT_GE(a.wanted, b.wanted);
        if (a.wanted != b.wanted) continue;
        ASSERT_LE(a.foreseen, b.foreseen);
        if (a.foreseen != b.foreseen) continue;
        const double first = score(policy, a), second = score(policy, b);
        ASSERT_LE(first, second + 1e-12);
        if (a.score != b.score) continue;
        ASSERT_LE(a.last_use_ns, b.last_use_ns);
        ASSERT_TRUE(a.last_use_ns < b.last_use_ns || a.id < b.id);
      }
    }
  }
}

TEST(RecentUses, CountsThoseOfTheLastWindow) {
  const int64_t window = RecentUses::kWindowNs;
  RecentUses uses;
  EXPECT_EQ(uses.count(5 * kSecond), 0);
  for (int second = 0; second < 300; ++second) uses.add(second * kSecond);
  EXPECT_NEAR(uses.count(window - 1), 300, 1e-6);
  EXPECT_NEAR(uses.per_s(window - 1), 1, 1e-9);
  EXPECT_NEAR(uses.count(window + window / 2), 150, 1e-6);  // half of them are older than a window
  EXPECT_EQ(uses.count(2 * window), 0);
  EXPECT_EQ(uses.count(100 * window), 0);
  uses.add(window + window / 2);
  EXPECT_NEAR(uses.count(window + window / 2), 151, 1e-6);
  EXPECT_NEAR(uses.count(window), 301, 1e-6);  // a time that went back counts as the window's begin
}

TEST(RecentUses, WhatIsIdleForLongIsExpectedLessOftenTheLongerItIs) {
  const int64_t window = RecentUses::kWindowNs;
  const double window_s = static_cast<double>(window) * 1e-9;
  RecentUses uses;
  for (int i = 0; i < 10; ++i) uses.add(window + i);
  EXPECT_DOUBLE_EQ(uses.expected_per_s(window + 9, window + 9), 10 / window_s);
  EXPECT_DOUBLE_EQ(uses.expected_per_s(5 * window, window), 0.5 / (4 * window_s));
  EXPECT_DOUBLE_EQ(uses.expected_per_s(9 * window, window), 0.5 / (8 * window_s));
  EXPECT_DOUBLE_EQ(RecentUses().expected_per_s(10, 5), 0.5 / window_s);
}

TEST(RecentUses, AReplacementInheritsThem) {
  const int64_t window = RecentUses::kWindowNs;
  RecentUses old, fresh;
  for (int i = 0; i < 10; ++i) old.add(window - 1);
  fresh.add(window + 1);
  fresh.add(old, window + 1);
  EXPECT_NEAR(fresh.count(window + 1), 11, 1e-6);
  EXPECT_NEAR(fresh.count(window + window / 2), 6, 1e-6);
}

}  // namespace
}  // namespace loralei
