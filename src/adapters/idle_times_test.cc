// SPDX-License-Identifier: Apache-2.0
#include "adapters/idle_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kMinute = IdleTimes::kBinNs, kSecond = kMinute / 60;

TEST(IdleTimes, WhatComesEveryTenMinutesIsExpectedShortlyBefore) {
  IdleTimes times;
  for (int use = 0; use < IdleTimes::kSamplesLeast; ++use) {
    EXPECT_FALSE(times.window()) << "after " << use;
    times.add(10 * kMinute - 3 * kSecond);
  }
  const auto window = times.window();
  ASSERT_TRUE(window);
  EXPECT_EQ(window->from_ns, 9 * kMinute - 54 * kSecond) << "a tenth before the minute it came in";
  EXPECT_EQ(window->until_ns, 11 * kMinute) << "a tenth behind the end of that minute";
}

TEST(IdleTimes, WhatComesAtAnyTimeIsNotExpected) {
  IdleTimes evenly, beyond;
  for (int minute = 0; minute < IdleTimes::kBins; ++minute) evenly.add(minute * kMinute);
  EXPECT_FALSE(evenly.window());
  for (int use = 0; use < 10; ++use) beyond.add(20 * kMinute);
  for (int use = 0; use < 10; ++use) beyond.add(IdleTimes::kBins * kMinute);
  EXPECT_TRUE(beyond.window());
  beyond.add(100 * IdleTimes::kBins * kMinute);
  EXPECT_FALSE(beyond.window()) << "most rest longer than is counted";
}

TEST(IdleTimes, ATimeThatWentBackIsNone) {
  IdleTimes times;
  for (int use = 0; use < 100; ++use) times.add(-1 - use * kMinute);
  EXPECT_FALSE(times.window());
  times.add(INT64_MIN);
  times.add(INT64_MAX);
  for (int use = 0; use < IdleTimes::kSamplesLeast; ++use) times.add(0);
  const auto window = times.window();
  ASSERT_TRUE(window);
  EXPECT_EQ(*window, (IdleTimes::Window{0, kMinute + kMinute / 10}));
}

TEST(IdleTimes, WhatWasLongAgoFades) {
  IdleTimes times;
  for (int use = 0; use < 1000; ++use) times.add(10 * kMinute);
  for (int use = 0; use < 5 * 1000; ++use) times.add(100 * kMinute);
  const auto window = times.window();
  ASSERT_TRUE(window);
  EXPECT_EQ(window->from_ns, 90 * kMinute);
}

// Keeps all idle times, and goes by the words of the header.
struct Naive {
  std::vector<int64_t> minutes;  // within the bins
  int64_t beyond = 0;

  std::optional<IdleTimes::Window> window() const {
    const auto count = static_cast<double>(minutes.size());
    if (minutes.size() < 5 || beyond > static_cast<int64_t>(minutes.size())) return std::nullopt;
    const double mean = count / 240;
    double squares = 0;
    for (int64_t bin = 0; bin < 240; ++bin)
      squares += std::pow(static_cast<double>(std::count(minutes.begin(), minutes.end(), bin)) - mean, 2);
    if (std::sqrt(squares / 240) / mean < 2 - 1e-9) return std::nullopt;
    std::vector<int64_t> sorted = minutes;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](double percent) {
      return sorted[static_cast<size_t>(std::ceil(percent * count / 100 - 1e-9)) - 1];
    };
    return IdleTimes::Window{at(5) * kMinute / 10 * 9, (at(99) + 1) * kMinute / 10 * 11};
  }
};

TEST(IdleTimes, EqualsANaiveTwin) {
  int representative = 0, others = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    IdleTimes times;
    Naive naive;
    const uint64_t about = random.below(240), spread = 1 + random.below(140), strays = 2 + random.below(20);
    for (uint64_t use = random.below(240); use > 0; --use) {  // no bin is full
      const uint64_t minute = random.below(strays) == 0 ? random.below(400) : about + random.below(spread);
      times.add(static_cast<int64_t>(minute) * kMinute + static_cast<int64_t>(random.below(60)) * kSecond);
      if (minute < 240) {
        naive.minutes.push_back(static_cast<int64_t>(minute));
      } else {
        ++naive.beyond;
      }
    }
    const auto window = times.window();
    ASSERT_EQ(window, naive.window());
    (window ? representative : others) += 1;
  }
  EXPECT_GT(representative, 50);
  EXPECT_GT(others, 50);
}

}  // namespace
}  // namespace loralei
