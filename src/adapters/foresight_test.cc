// SPDX-License-Identifier: Apache-2.0
#include "adapters/foresight.h"

#include <gtest/gtest.h>

#include <set>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kMinute = IdleTimes::kBinNs;
constexpr AdapterSourceId kA{1}, kB{2};

// Uses of a minute each, so many minutes apart; the end of the last one.
int64_t use_every(AdapterForesight& foresight, AdapterSourceId source, int64_t minutes, int64_t now_ns = 0) {
  for (int use = 0; use < 8; ++use) {
    foresight.asked(source, now_ns);
    now_ns += kMinute;
    foresight.ended(source, now_ns);
    foresight.check();
    now_ns += minutes * kMinute;
  }
  return now_ns - minutes * kMinute;
}

TEST(AdapterForesight, SaysWhenAnAdapterIsExpectedAndTellsThatOnce) {
  AdapterForesight foresight;
  EXPECT_EQ(foresight.foreseen(kA, 0), Foreseen::kUnknown);
  EXPECT_EQ(foresight.next_due_ns(), AdapterForesight::kNever);
  const int64_t end_ns = use_every(foresight, kA, 10);
  EXPECT_EQ(foresight.next_due_ns(), end_ns + 9 * kMinute);
  EXPECT_EQ(foresight.foreseen(kA, end_ns), Foreseen::kLater);
  EXPECT_FALSE(foresight.take_due(end_ns + 9 * kMinute - 1));
  EXPECT_EQ(foresight.foreseen(kA, end_ns + 9 * kMinute), Foreseen::kSoon);
  EXPECT_EQ(foresight.take_due(end_ns + 9 * kMinute), kA);
  EXPECT_FALSE(foresight.take_due(end_ns + 9 * kMinute));
  EXPECT_EQ(foresight.foreseen(kA, end_ns + 12 * kMinute), Foreseen::kSoon);
  EXPECT_EQ(foresight.foreseen(kA, end_ns + 13 * kMinute), Foreseen::kUnknown) << "it did not come";
  foresight.asked(kA, end_ns + 13 * kMinute);
  EXPECT_EQ(foresight.foreseen(kA, end_ns + 13 * kMinute), Foreseen::kUnknown) << "it is in use";
  foresight.check();
}

TEST(AdapterForesight, UsesThatOverlapAreOne) {
  AdapterForesight foresight;
  int64_t now_ns = 0;
  for (int use = 0; use < 8; ++use, now_ns += 20 * kMinute) {
    foresight.asked(kA, now_ns);
    foresight.asked(kA, now_ns + kMinute);
    foresight.ended(kA, now_ns + 2 * kMinute);
    EXPECT_EQ(foresight.next_due_ns(), AdapterForesight::kNever);
    foresight.ended(kA, now_ns + 15 * kMinute);
  }
  EXPECT_EQ(foresight.next_due_ns() - (now_ns - 5 * kMinute), 5 * kMinute * 9 / 10);
}

TEST(AdapterForesight, WhatIsExpectedTooLateIsPassedOver) {
  AdapterForesight foresight;
  const int64_t end_ns = use_every(foresight, kA, 10);
  use_every(foresight, kB, 30);
  EXPECT_EQ(foresight.take_due(end_ns + 10'000 * kMinute), std::nullopt);
  EXPECT_EQ(foresight.next_due_ns(), AdapterForesight::kNever);
}

TEST(AdapterForesight, AClockThatGoesBackDoesNoHarm) {
  AdapterForesight foresight;
  const int64_t end_ns = use_every(foresight, kA, 10, 1000 * kMinute);
  EXPECT_EQ(foresight.foreseen(kA, end_ns - 500 * kMinute), Foreseen::kUnknown);
  EXPECT_FALSE(foresight.take_due(end_ns - 500 * kMinute));
  const int64_t later_ns = use_every(foresight, kA, 10, end_ns - 500 * kMinute);
  EXPECT_EQ(foresight.next_due_ns(), later_ns + 9 * kMinute) << "of the time as it is now";
  foresight.check();
}

TEST(AdapterForesight, WhatIsGoneIsForgottenThoughRequestsStillEnd) {
  AdapterForesight foresight;
  use_every(foresight, kA, 10);
  foresight.asked(kA, 1000 * kMinute);
  foresight.forget(kA);
  foresight.asked(kA, 1001 * kMinute);  // added again
  foresight.ended(kA, 1002 * kMinute);
  foresight.ended(kA, 1003 * kMinute);
  EXPECT_EQ(foresight.next_due_ns(), AdapterForesight::kNever) << "one idle time is not enough";
  foresight.forget(kA);
  EXPECT_EQ(foresight.last_use_ns(kA), 0);
}

TEST(AdapterForesight, WhatWasLearnedGoesOverToWhatReplacesAnAdapter) {
  AdapterForesight foresight;
  const int64_t end_ns = use_every(foresight, kA, 10);
  foresight.hand_over(kA, kB, end_ns + kMinute);
  EXPECT_EQ(foresight.foreseen(kA, end_ns + 9 * kMinute), Foreseen::kUnknown);
  EXPECT_EQ(foresight.take_due(end_ns + 9 * kMinute), kB);
  foresight.check();
  // While it is in use: its requests end with it.
  foresight.asked(kB, end_ns + 10 * kMinute);
  foresight.hand_over(kB, kA, end_ns + 11 * kMinute);
  foresight.ended(kB, end_ns + 12 * kMinute);
  foresight.asked(kA, end_ns + 21 * kMinute);
  foresight.ended(kA, end_ns + 21 * kMinute);
  EXPECT_EQ(foresight.next_due_ns(), end_ns + 30 * kMinute);
  foresight.hand_over(kA, kB, end_ns + 22 * kMinute);
  EXPECT_EQ(foresight.next_due_ns(), end_ns + 30 * kMinute) << "kB is known";
  EXPECT_EQ(foresight.take_due(end_ns + 30 * kMinute), kA);
  foresight.check();
}

// Any order of events, and any times: it stays in order, and each that is due is told.
TEST(AdapterForesight, RandomEventsKeepItInOrder) {
  int told = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    AdapterForesight foresight;
    std::multiset<AdapterSourceId> uses;
    int64_t now_ns = 0;
    for (int step = 0; step < 2000; ++step) {
      now_ns += (random.below(200) == 0 ? -1 : 1) * static_cast<int64_t>(random.below(5)) * kMinute;
      const AdapterSourceId source{1 + random.below(4)};
      if (random.below(2) == 0) {
        foresight.asked(source, now_ns);
        uses.insert(source);
      } else if (const auto use = uses.find(source); use != uses.end()) {
        foresight.ended(source, now_ns);
        uses.erase(use);
      }
      if (random.below(300) == 0) foresight.forget(source);
      if (random.below(100) == 0) foresight.hand_over(source, {1 + random.below(4)}, now_ns);
      while (const auto due = foresight.take_due(now_ns)) {
        ASSERT_EQ(foresight.foreseen(*due, now_ns), Foreseen::kSoon);
        ASSERT_EQ(uses.count(*due), 0u);
        ++told;
      }
      ASSERT_GT(foresight.next_due_ns(), now_ns);
      foresight.check();
    }
  }
  EXPECT_GT(told, 1000);
}

}  // namespace
}  // namespace loralei
