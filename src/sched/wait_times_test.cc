// SPDX-License-Identifier: Apache-2.0
#include "sched/wait_times.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(WaitTimes, WhoIsInTheQueueWaitsForWhatEndedThePlanning) {
  WaitTimes times;
  WaitClock early, late;
  times.queue_waits_for(WaitCause::kRows, 100);
  times.came(107, 110);
  times.waits_for(early, WaitCause::kTurn, 110);
  times.queue_waits_for(WaitCause::kKv, 150);
  times.waits_for(late, WaitCause::kTurn, 160);
  times.queue_waits_for(WaitCause::kTurn, 200);
  times.waits_for(late, std::nullopt, 207);
  times.waits_for(early, std::nullopt, 210);
  const std::array<int64_t, kWaitCauses> expected = {3 + 10 + 7, 40, 50 + 40, 0, 0, 0, 0};
  EXPECT_EQ(times.totals_ns(), expected);
}

// Against a twin that goes through everybody at every moment.
TEST(WaitTimes, AddUpToTheTimeThatEverybodyWaited) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    WaitTimes times;
    std::vector<WaitClock> clocks(12);
    WaitCause queue = WaitCause::kTurn;
    std::array<int64_t, kWaitCauses> naive{};
    int64_t now_ns = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto passed = static_cast<int64_t>(random.below(50));
      now_ns += passed;
      for (const WaitClock& clock : clocks) {
        if (!clock.cause()) continue;
        naive[static_cast<size_t>(clock.cause() == WaitCause::kTurn ? queue : *clock.cause())] += passed;
      }
      if (random.below(3) == 0) {
        queue = static_cast<WaitCause>(random.below(4));
        times.queue_waits_for(queue, now_ns);
      } else {
        const uint64_t what = random.below(kWaitCauses + 1);
        const auto cause = what == kWaitCauses ? std::nullopt : std::optional(static_cast<WaitCause>(what));
        times.waits_for(clocks[random.below(clocks.size())], cause, now_ns);
      }
    }
    for (WaitClock& clock : clocks) times.waits_for(clock, std::nullopt, now_ns);
    EXPECT_EQ(times.totals_ns(), naive);
  }
}

}  // namespace
}  // namespace loralei
