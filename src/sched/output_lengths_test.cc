// SPDX-License-Identifier: Apache-2.0
#include "sched/output_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr double kBinError = 1.2;  // four classes an octave: their middles are 9 % from their ends

OutputLengths::Asked asked(uint64_t source, int32_t prompt = 100) { return {AdapterSourceId{source}, prompt}; }

void expect_about(double predicted, double length) {
  EXPECT_GT(predicted, length / kBinError);
  EXPECT_LT(predicted, length * kBinError);
}

TEST(OutputLengths, AnAdaptersOwnAnswersSpeakWhereThereAreSome) {
  OutputLengths lengths;
  EXPECT_EQ(lengths.predict(asked(1)), OutputLengths::kAtFirst);
  for (int i = 0; i < 100; ++i) {
    lengths.learn(asked(1), 10, false);
    lengths.learn(asked(2), 800, false);
  }
  expect_about(lengths.predict(asked(1)), 10);
  expect_about(lengths.predict(asked(2)), 800);
  lengths.forget(AdapterSourceId{2});
  lengths.learn(asked(1), 10, false);
  expect_about(lengths.predict(asked(2)), 10);
}

TEST(OutputLengths, PromptsOfTheSameLengthSpeakForANewAdapter) {
  OutputLengths lengths;
  for (int i = 0; i < 100; ++i) {
    lengths.learn(asked(1 + i % 10, 50), 20, false);
    lengths.learn(asked(1 + i % 10, 4000), 300, false);
  }
  expect_about(lengths.predict(asked(99, 60)), 20);
  expect_about(lengths.predict(asked(99, 3000)), 300);
}

TEST(OutputLengths, QuantilesAreThoseOfWhatWasSeen) {
  OutputLengths lengths;
  Prng random(20261128);
  std::vector<int32_t> seen;
  for (int i = 0; i < 400; ++i) {
    seen.push_back(static_cast<int32_t>(std::exp(2 + 4 * random.uniform())));
    lengths.learn(asked(1), seen.back(), false);
  }
  const std::vector<int32_t> late(seen.end() - 300, seen.end());  // older ones have faded
  auto sorted = late;
  std::sort(sorted.begin(), sorted.end());
  for (const double quantile : {0.1, 0.5, 0.9}) {
    const double exact = sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1))];
    EXPECT_NEAR(std::log2(lengths.predict(asked(1), quantile)), std::log2(exact), 0.5) << quantile;
  }
}

TEST(OutputLengths, WhatWasCutCountsAsOneOfThoseThatWereLonger) {
  OutputLengths lengths;
  for (int i = 0; i < 200; ++i) lengths.learn(asked(1), i % 2 == 0 ? 10 : 1000, false);
  const double before = lengths.predict(asked(1), 0.6);
  expect_about(before, 1000);
  for (int i = 0; i < 100; ++i) lengths.learn(asked(1), 50, true);  // they would have become long ones
  expect_about(lengths.predict(asked(1), 0.5), 1000);
  expect_about(lengths.predict_beyond(asked(1), 30), 1000);
  EXPECT_GE(lengths.predict_beyond(asked(1), 5000), 5000);
}

TEST(OutputLengths, WhatChangesIsLearned) {
  OutputLengths lengths;
  for (int i = 0; i < 1000; ++i) lengths.learn(asked(1), 10, false);
  for (int i = 0; i < 400; ++i) lengths.learn(asked(1), 500, false);
  expect_about(lengths.predict(asked(1)), 500);
}

TEST(OutputLengths, EveryLengthHasAPlace) {
  for (const int32_t length : {-5, 0, 1, 2, 3, 1000, 1'000'000, INT32_MAX}) {
    const int bin = OutputLengths::bin_of(length);
    EXPECT_GE(bin, 0);
    EXPECT_LT(bin, OutputLengths::kBins);
    OutputLengths lengths;
    lengths.learn(asked(1, length), length, false);
    EXPECT_GE(lengths.predict(asked(1, length)), 1);
  }
}

}  // namespace
}  // namespace loralei
