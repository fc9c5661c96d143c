// SPDX-License-Identifier: Apache-2.0
#include "cost/step_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"

namespace loralei {
namespace {

// Like a small model on two cores: kernels that change at 8 rows, attention, adapters.
StepModel some_machine() {
  StepModel model;
  model.linear = {{1, 0.040}, {2, 0.041}, {8, 0.080}, {64, 0.600}, {512, 4.80}};
  model.seconds[static_cast<size_t>(CostTerm::kPrefillAttended)] = 1e-6;
  model.seconds[static_cast<size_t>(CostTerm::kDecodeAttended)] = 4e-6;
  model.seconds[static_cast<size_t>(CostTerm::kLogitsRow)] = 0.5e-3;
  model.seconds[static_cast<size_t>(CostTerm::kRankSum)] = 20e-6;
  model.seconds[static_cast<size_t>(CostTerm::kLoraRowRank)] = 2e-6;
  return model;
}

StepFeatures some_step(Prng& random) {
  StepFeatures step;
  step.decode_rows = static_cast<int32_t>(random.below(33));
  step.decode_attended = step.decode_rows * static_cast<int64_t>(1 + random.below(1500));
  if (step.decode_rows == 0 || random.below(3) == 0) {
    step.prefill_rows = static_cast<int32_t>(2 + random.below(480));
    step.prefill_attended = step.prefill_rows * static_cast<int64_t>(1 + random.below(1500));
  }
  step.logits_rows = step.decode_rows + static_cast<int32_t>(random.below(2));
  if (random.below(2) == 0) {
    step.adapters = static_cast<int32_t>(1 + random.below(8));
    step.rank_max = int32_t{8} << random.below(4);
    step.rank_sum = step.adapters * step.rank_max / 2 + step.rank_max / 2;
    step.lora_rows = static_cast<int32_t>(1 + random.below(static_cast<uint64_t>(step.rows())));
    step.lora_row_ranks = int64_t{step.lora_rows} * step.rank_max / 2;
  }
  return step;
}

std::vector<StepSample> some_steps(uint64_t seed, int count, double noise) {
  Prng random(seed);
  const StepModel machine = some_machine();
  std::vector<StepSample> samples;
  for (int i = 0; i < count; ++i) {
    const StepFeatures step = some_step(random);
    double seconds = machine.predict_s(step) * (1 + noise * (2 * random.uniform() - 1));
    if (noise > 0 && random.below(20) == 0) seconds *= 1 + 3 * random.uniform();  // something held it up
    samples.push_back({step, seconds});
  }
  return samples;
}

TEST(StepFit, FindsAMachineAgain) {
  const auto learned = fit_steps(some_steps(1, 2000, 0));
  ASSERT_TRUE(learned.ok());
  const FitQuality quality = judge_fit(*learned, some_steps(2, 500, 0));
  EXPECT_EQ(quality.steps, 500);
  EXPECT_GT(quality.r2, 0.999);
  EXPECT_LT(quality.mean_error, 0.02);
  EXPECT_EQ(check_step_model(*learned), "");
}

TEST(StepFit, IsNotLedAstrayByStepsThatWereHeldUp) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto learned = fit_steps(some_steps(seed, 600, 0.05));
    ASSERT_TRUE(learned.ok());
    const FitQuality quality = judge_fit(*learned, some_steps(seed + 100, 500, 0));
    EXPECT_LT(quality.mean_error, 0.05);
    EXPECT_LT(std::abs(quality.mean_bias), 0.03);
    EXPECT_EQ(check_step_model(*learned), "");
  }
}

TEST(StepFit, TellsHowFarStepsThatAreAlikeLieApart) {
  for (const int copies : {2, 3, 10}) {
    SCOPED_TRACE(copies);
    Prng random(static_cast<uint64_t>(copies));
    std::vector<StepSample> samples;
    for (const StepSample& step : some_steps(1, 3000, 0)) {
      for (int copy = 0; copy < copies; ++copy)
        samples.push_back({step.features, step.seconds * (1 + 0.2 * (random.uniform() - 0.5))});
    }
    const auto noise = noise_of(samples);
    ASSERT_TRUE(noise);
    EXPECT_NEAR(*noise, 0.05, 0.004) << "the mean of |u| for u in -0.1 .. 0.1";
  }
  EXPECT_FALSE(noise_of(some_steps(1, 10, 0)));
  EXPECT_EQ(noise_of({}), std::nullopt);
}

TEST(StepFit, ATermThatNothingTellsOfCostsNothing) {
  std::vector<StepSample> samples;
  for (int rows = 1; rows <= 64; ++rows)
    samples.push_back({{.prefill_rows = rows, .prefill_attended = int64_t{rows} * (rows + 1) / 2}, 0.01 * rows});
  const auto learned = fit_steps(samples);
  ASSERT_TRUE(learned.ok());
  EXPECT_EQ(learned->seconds[static_cast<size_t>(CostTerm::kAdapter)], 0);
  EXPECT_NEAR(learned->linear_s(32), 0.32, 0.01);
  EXPECT_NEAR(learned->linear_s(128), 1.28, 0.05) << "as steep as before";
}

// Rows up to 81, as where steps are bounded in time: one row more says nothing of 400.
TEST(StepFit, BeyondItsStepsItGoesOnAsTheyDid) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    std::vector<StepSample> samples;
    for (int i = 0; i < 400; ++i) {
      const auto rows = static_cast<int32_t>(i == 0 ? 81 : 1 + random.below(80));
      samples.push_back({{.prefill_rows = rows}, (0.03 + 0.01 * rows) * (1 + 0.2 * (2 * random.uniform() - 1))});
    }
    const auto learned = fit_steps(samples);
    ASSERT_TRUE(learned.ok());
    EXPECT_NEAR(learned->linear_s(400) / (0.03 + 0.01 * 400), 1, 0.35);
  }
}

TEST(StepFit, TooFewStepsAreAnError) {
  const auto learned = fit_steps(some_steps(1, 5, 0));
  ASSERT_FALSE(learned.ok());
  EXPECT_NE(learned.error().message.find("5 steps are too few"), std::string::npos) << learned.error().message;
}

// The problem is convex: what no small step makes better is the least.
TEST(StepFit, NonNegativeLeastSquaresAreTheLeast) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    constexpr size_t kColumns = 4, kRows = 7;
    double a[kRows][kColumns], b[kRows];
    for (auto& row : a)
      for (double& value : row) value = 2 * random.uniform() - 1;
    for (double& value : b) value = 2 * random.uniform() - 1;
    std::vector<double> gram(kColumns * kColumns), rhs(kColumns);
    for (size_t i = 0; i < kColumns; ++i) {
      for (size_t r = 0; r < kRows; ++r) rhs[i] += a[r][i] * b[r];
      for (size_t j = 0; j < kColumns; ++j)
        for (size_t r = 0; r < kRows; ++r) gram[i * kColumns + j] += a[r][i] * a[r][j];
    }
    const auto loss = [&](const std::vector<double>& x) {
      double sum = 0;
      for (size_t r = 0; r < kRows; ++r) {
        double miss = -b[r];
        for (size_t i = 0; i < kColumns; ++i) miss += a[r][i] * x[i];
        sum += miss * miss;
      }
      return sum;
    };
    const std::vector<double> found = solve_nonnegative(gram, rhs);
    for (const double value : found) EXPECT_GE(value, 0);
    // No step in any direction that is allowed makes it better.
    for (size_t i = 0; i < kColumns; ++i) {
      for (const double step : {1e-4, -1e-4}) {
        std::vector<double> other = found;
        other[i] = std::max(0.0, other[i] + step);
        EXPECT_GE(loss(other), loss(found) - 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace loralei
