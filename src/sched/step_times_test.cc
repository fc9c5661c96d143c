// SPDX-License-Identifier: Apache-2.0
#include "sched/step_times.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr double kS = 1e9;

int64_t ns_of(double a, double b, double c, const StepLoad& load) {
  return static_cast<int64_t>((a + b * load.rows + c * static_cast<double>(load.attended)) * kS);
}

TEST(StepTimes, FindsTheLineAndKeepsStepsWithinTheBound) {
  const double a = 0.05, b = 0.002, c = 1e-7;
  StepTimes times(200'000'000, 512);
  Prng random(3);
  for (int step = 0; step < 200; ++step) {
    const auto rows = static_cast<int32_t>(step % 3 == 0 ? 8 : 1 + random.below(512));
    const StepLoad load{rows, rows * static_cast<int64_t>(random.below(3000))};
    times.learn(load, ns_of(a, b, c, load));
  }
  for (const StepLoad load : {StepLoad{1, 100}, {64, 64 * 1000}, {512, 512 * 2500}})
    EXPECT_NEAR(times.predicted_s(load), static_cast<double>(ns_of(a, b, c, load)) / kS, 0.03);
  const StepLoad decode{8, 8 * 500};
  const PrefillRows rows = times.prefill_rows(decode, 1000);
  const auto took_s = [&](int32_t prompt_rows) {
    return a + b * (8 + prompt_rows) + c * (8 * 500 + prompt_rows * 1000.0);
  };
  EXPECT_NEAR(took_s(rows.shared), 0.2, 0.03);
  EXPECT_NEAR(took_s(rows.alone), 0.6, 0.06);
}

TEST(StepTimes, ThousandsOfSmallStepsDoNotDrownALargeOne) {
  StepTimes times(100'000'000, 512);
  const StepLoad large{256, 0}, small{1, 0};
  times.learn(large, ns_of(0.01, 0.001, 0, large));
  for (int step = 0; step < 10000; ++step) times.learn(small, ns_of(0.01, 0.001, 0, small));
  EXPECT_NEAR(times.predicted_s(large), 0.266, 0.01);
}

TEST(StepTimes, TheDefaultGrowsWhereRowsWouldBecomeTooDear) {
  StepTimes cheap(0, 512), streamed(0, 512), large(0, 512);
  for (const int32_t rows : {1, 8, 32, 64, 128, 256, 512}) {
    const StepLoad load{rows, 0};
    cheap.learn(load, ns_of(0.002, 0.002, 0, load));   // 512 rows: 1 s; 49 of them cost 2 % more each
    streamed.learn(load, ns_of(3.0, 0.002, 0, load));  // a step takes 3 s whatever it computes
    large.learn(load, ns_of(0.3, 0.014, 0, load));     // of a 7B model on two cores
  }
  EXPECT_EQ(cheap.bound_ns(), StepTimes::kStepTimeNs);
  EXPECT_NEAR(cheap.prefill_rows({}, 0).shared, 49, 2);
  EXPECT_GE(streamed.prefill_rows({8, 0}, 0).shared, 443) << "a tenth dearer than 512";
  EXPECT_EQ(streamed.prefill_rows({}, 0).alone, 512);
  EXPECT_NEAR(static_cast<double>(large.bound_ns()) / kS, 0.9, 0.01) << "three times what one row takes";
}

// A step of 100 rows that decode takes 70 ms, and the bound is 150 ms.
TEST(StepTimes, TheDefaultGrowsWithWhatWaitsAndFallsBack) {
  const double a = 0.02, b = 0.0005;
  StepTimes times(0, 1024), stated(100'000'000, 1024);
  for (const int32_t rows : {1, 8, 32, 64, 128, 256, 512}) {
    times.learn({rows, 0}, ns_of(a, b, 0, {rows, 0}));
    stated.learn({rows, 0}, ns_of(a, b, 0, {rows, 0}));
  }
  const StepLoad decode{100, 0}, few{4, 0};
  const auto took_s = [&](const StepLoad& beside, int32_t rows) { return a + b * (beside.rows + rows); };
  const double usual_s = static_cast<double>(times.bound_ns()) / kS;
  const PrefillRows without = times.prefill_rows(decode, 0);
  EXPECT_NEAR(took_s(decode, without.shared), usual_s, 0.002);
  int32_t before = 0;
  for (int64_t backlog = 0; backlog < 5000; backlog += 50) {
    const PrefillRows rows = times.prefill_rows(decode, 0, backlog);
    ASSERT_GE(rows.shared, before);
    ASSERT_GE(rows.alone, rows.shared);
    ASSERT_LE(took_s(decode, rows.shared), 0.07 / (1 - StepTimes::kBacklogShare) + 0.002);
    ASSERT_LE(took_s(few, times.prefill_rows(few, 0, backlog).shared), usual_s + 0.002)
        << "they take a small part of it";
    ASSERT_EQ(stated.prefill_rows(decode, 0, backlog).shared, stated.prefill_rows(decode, 0).shared);
    before = rows.shared;
  }
  EXPECT_NEAR(took_s(decode, before), 0.07 / (1 - StepTimes::kBacklogShare), 0.002);
  EXPECT_EQ(times.prefill_rows(decode, 0).shared, without.shared);
  const StepLoad heavy{2000, 0};
  EXPECT_NEAR(took_s(heavy, times.prefill_rows(heavy, 0, 100'000).shared), 1.02 * 4 / 3, 0.01)
      << "what decodes takes more than four times the bound: a quarter for prompts";
}

TEST(StepTimes, RowsGrowNoFasterThanWhatIsKnown) {
  StepTimes times(0, 512);
  EXPECT_EQ(times.prefill_rows({}, 0).shared, StepTimes::kFirstRows);
  times.learn({16, 0}, 1'000'000);  // a GPU, say
  EXPECT_EQ(times.prefill_rows({}, 0).shared, StepTimes::kFirstRows);
  times.learn({128, 0}, 2'000'000);
  EXPECT_EQ(times.prefill_rows({}, 0).shared, 512);
}

// However slow the machine, a step computes some rows of a prompt; never more than there
// may be.
TEST(StepTimes, RowsStayWithinTheirLimits) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const auto rows_max = static_cast<int32_t>(1 + random.below(600));
    StepTimes times(random.below(2) == 0 ? 0 : static_cast<int64_t>(1 + random.below(1'000'000'000)), rows_max);
    for (int step = 0; step < 100; ++step) {
      const auto rows = static_cast<int32_t>(1 + random.below(static_cast<uint64_t>(rows_max)));
      const StepLoad load{rows, static_cast<int64_t>(random.below(1'000'000))};
      times.learn(load, static_cast<int64_t>(random.below(4) == 0 ? 0 : random.below(10'000'000'000)));
      const PrefillRows allowed = times.prefill_rows({8, 1000}, 500, static_cast<int64_t>(random.below(10'000)));
      for (const int32_t value : {allowed.shared, allowed.alone}) {
        ASSERT_GE(value, std::min(rows_max, StepTimes::kPrefillRowsMin));
        ASSERT_LE(value, rows_max);
      }
      ASSERT_GE(allowed.alone, allowed.shared);
      ASSERT_GE(times.predicted_s(load), 0);
    }
  }
}

}  // namespace
}  // namespace loralei
