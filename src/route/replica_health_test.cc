// SPDX-License-Identifier: Apache-2.0
#include "route/replica_health.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

constexpr int64_t kS = 1'000'000'000;

TEST(ReplicaHealth, OfWhomNothingWasHeardIsNotAsked) {
  ReplicaHealth health;
  EXPECT_EQ(health.state(0), HealthState::kUnknown);
  EXPECT_FALSE(health.usable(0));
  health.heard(true, 1);
  EXPECT_EQ(health.state(1), HealthState::kUp);
  EXPECT_EQ(health.allowed(8, 1), 8);
}

TEST(ReplicaHealth, IsUpAsSoonAsItIsStarted) {
  ReplicaHealth health;
  for (int i = 0; i < 60; ++i) health.failed(i * kS);  // nobody is there yet
  EXPECT_EQ(health.state(59 * kS), HealthState::kUnknown);
  health.heard(true, 60 * kS);
  EXPECT_EQ(health.state(60 * kS), HealthState::kUp);
}

TEST(ReplicaHealth, TakesBackWhatWasStartedAgainAtOnceAndSlowly) {
  ReplicaHealth health;
  health.heard(true, 0);
  for (int i = 0; i < 8; ++i) health.failed(i * 40 * kS);
  health.heard(true, 281 * kS);
  EXPECT_EQ(health.state(281 * kS), HealthState::kOut);
  health.heard(true, 282 * kS, true);
  EXPECT_EQ(health.state(282 * kS), HealthState::kReturning);
  health.failed(300 * kS);
  health.heard(true, 301 * kS);
  EXPECT_TRUE(health.usable(301 * kS)) << "its failures are another process's";
}

TEST(ReplicaHealth, IsAskedAsLongAsItSaysThatItTakesRequests) {
  ReplicaHealth health;
  health.heard(false, 0);
  EXPECT_EQ(health.state(0), HealthState::kNotReady);
  EXPECT_FALSE(health.usable(0));
  health.heard(true, 1);
  EXPECT_TRUE(health.usable(1));
}

TEST(ReplicaHealth, LeavesOutWhoFailedUntilItAnswersAndItsTimeIsOver) {
  ReplicaHealth health;
  health.heard(true, 0);
  health.failed(0);
  EXPECT_EQ(health.state(0), HealthState::kOut);
  health.heard(true, kS - 1);
  EXPECT_FALSE(health.usable(kS - 1));  // its time is not over
  EXPECT_FALSE(health.usable(2 * kS));  // it has not answered since
  health.heard(true, 2 * kS);
  EXPECT_TRUE(health.usable(2 * kS));
}

TEST(ReplicaHealth, ComesBackSlowly) {
  ReplicaHealth health;
  health.heard(true, 0);
  health.failed(0);
  health.heard(true, kS);
  EXPECT_EQ(health.state(kS), HealthState::kReturning);
  EXPECT_EQ(health.allowed(100, kS), 1);
  EXPECT_EQ(health.allowed(100, 6 * kS), 50);
  EXPECT_EQ(health.allowed(100, 11 * kS), 100);
  EXPECT_EQ(health.state(11 * kS), HealthState::kUp);
  EXPECT_EQ(health.allowed(0, kS), 0);
}

TEST(ReplicaHealth, StaysOutLongerWhenItFailsAgain) {
  ReplicaHealth health;
  int64_t now = 0;
  health.heard(true, 0);
  for (const int64_t out_s : {1, 2, 4, 8, 16, 30, 30}) {
    health.failed(now);
    health.heard(true, now + out_s * kS - 1);
    EXPECT_FALSE(health.usable(now + out_s * kS - 1)) << out_s;
    now += out_s * kS;
    health.heard(true, now);
    EXPECT_TRUE(health.usable(now)) << out_s;
  }
  now += 100 * kS;  // long enough to be forgotten
  health.failed(now);
  health.heard(true, now + kS);
  EXPECT_TRUE(health.usable(now + kS));
}

TEST(ReplicaHealth, CountsWhatBreaksOffTogetherAsOneFailure) {
  ReplicaHealth health;
  health.heard(true, 0);
  for (int i = 0; i < 50; ++i) health.failed(i);
  health.heard(true, kS);
  EXPECT_TRUE(health.usable(kS));
  EXPECT_EQ(health.failures(), 50u);
}

}  // namespace
}  // namespace loralei
