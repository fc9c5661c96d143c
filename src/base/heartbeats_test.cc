// SPDX-License-Identifier: Apache-2.0
#include "base/heartbeats.h"

#include <gtest/gtest.h>

#include <deque>

namespace loralei {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(Heartbeats, TellWhoHasBeenSilentForHowLong) {
  ManualClock clock;
  Heartbeats beats(clock);
  EXPECT_TRUE(beats.silences().empty());
  Heartbeats::Mark engine(&beats, "engine");
  {
    Heartbeats::Mark one(&beats, "text");
    clock.advance_ns(2 * kSecond);
    Heartbeats::Mark two(&beats, "text");
    clock.advance_ns(kSecond);
    const auto silent = beats.silences();
    ASSERT_EQ(silent.size(), 2u);
    EXPECT_EQ(silent[0].who, "engine");
    EXPECT_EQ(silent[0].ms, 3000);
    EXPECT_EQ(silent[1].who, "text");
    EXPECT_EQ(silent[1].ms, 3000) << "the longest of both";
    one.beat();
    EXPECT_EQ(beats.silences()[1].ms, 1000);
    two.rest();
    EXPECT_EQ(beats.silences()[1].ms, 0);
  }
  ASSERT_EQ(beats.silences().size(), 1u);
  engine.rest();
  EXPECT_TRUE(beats.silences().empty());
}

TEST(Heartbeats, MarksBeyondTheirPlacesGoUnwatched) {
  ManualClock clock;
  Heartbeats beats(clock);
  std::deque<Heartbeats::Mark> marks;
  for (size_t i = 0; i < Heartbeats::kMarks + 10; ++i) marks.emplace_back(&beats, "http");
  clock.advance_ns(kSecond);
  EXPECT_EQ(beats.silences()[0].ms, 1000);
  marks.clear();
  EXPECT_TRUE(beats.silences().empty());
  Heartbeats::Mark nobody(nullptr, "http");
  nobody.beat();
}

}  // namespace
}  // namespace loralei
