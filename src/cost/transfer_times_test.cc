// SPDX-License-Identifier: Apache-2.0
#include "cost/transfer_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(TransferTimes, LearnsLatencyAndRate) {
  TransferTimes times;
  EXPECT_DOUBLE_EQ(times.predict_s(1'000'000'000), 1);  // a guess
  for (int i = 0; i < 100; ++i) {
    const int64_t bytes = (1 + i % 16) * 1'000'000;
    times.learn(bytes, 0.002 + static_cast<double>(bytes) / 2e9);
  }
  EXPECT_NEAR(times.predict_s(4'000'000), 0.004, 1e-6);
  EXPECT_NEAR(times.predict_s(100'000'000), 0.052, 1e-5);
  EXPECT_NEAR(times.predict_s(0), 0.002, 1e-6);
}

TEST(TransferTimes, OfOneSizeTheRateAloneSpeaks) {
  TransferTimes times;
  for (int i = 0; i < 10; ++i) times.learn(1'000'000, 0.01);
  EXPECT_NEAR(times.predict_s(1'000'000), 0.01, 1e-9);
  EXPECT_NEAR(times.predict_s(3'000'000), 0.03, 1e-9);
}

TEST(TransferTimes, ForgetsHowItWas) {
  TransferTimes times;
  for (int i = 0; i < 1000; ++i) times.learn((1 + i % 4) * 1'000'000, 0.001 * (1 + i % 4));
  for (int i = 0; i < 1000; ++i) times.learn((1 + i % 4) * 1'000'000, 0.004 * (1 + i % 4));
  EXPECT_NEAR(times.predict_s(2'000'000), 0.008, 1e-4);
}

TEST(TransferTimes, WhateverItIsToldItsAnswersAreTimes) {
  Prng random(20261128);
  for (int round = 0; round < 200; ++round) {
    TransferTimes times;
    for (int i = 0; i < 20; ++i) {
      const auto bytes = static_cast<int64_t>(random.below(1'000'000'000)) - 10;
      times.learn(bytes, (static_cast<double>(random.below(1'000'000)) - 10) * 1e-6);
      const double first = times.predict_s(1), second = times.predict_s(1'000'000'000);
      ASSERT_GE(first, 0);
      ASSERT_GE(second, first);
      ASSERT_LT(second, std::numeric_limits<double>::infinity());
    }
    times.learn(5, std::numeric_limits<double>::quiet_NaN());
    times.learn(-5, 1);
    ASSERT_GE(times.predict_s(7), 0);
  }
}

}  // namespace
}  // namespace loralei
