// SPDX-License-Identifier: Apache-2.0
#include "sampling/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr size_t kSizes[] = {1, 3, 4, 5, 8, 11, 255, 256, 257, 511, 512, 1000, 32000};

std::vector<float> random_row(Prng& random, size_t size, double spread) {
  std::vector<float> row(size);
  for (float& x : row) x = static_cast<float>((random.uniform() - 0.5) * spread);
  return row;
}

TEST(RowMath, MaximaAreThoseOfTheBlocksWhateverStandsInTheRow) {
  const uint64_t seed = 21;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  for (const size_t size : kSizes) {
    auto row = random_row(random, size, 10);
    for (size_t i = 0; i < size / 3; ++i) row[random.below(size)] = random.below(2) ? NAN : -kInf;
    if (size == 257) row[256] = NAN;  // a block of nothing else
    if (size == 511) row[300] = kInf;
    std::vector<float> maxima(row_blocks(size)), cleaned(size);
    const float best = block_maxima(row, maxima.data());
    clean_row(row, cleaned.data());
    for (size_t i = 0; i < size; ++i) {
      const float wanted = std::isnan(row[i]) ? -kInf : std::min(row[i], std::numeric_limits<float>::max());
      ASSERT_EQ(cleaned[i], wanted);
      ASSERT_EQ(clean_logit(row[i]), wanted);
    }
    EXPECT_EQ(best, *std::max_element(cleaned.begin(), cleaned.end()));
    for (size_t block = 0; block < maxima.size(); ++block) {
      const auto part = row_block(cleaned, block);
      EXPECT_EQ(maxima[block], *std::max_element(part.begin(), part.end())) << "size " << size << " block " << block;
    }
  }
}

TEST(RowMath, WeightsAreExponentialsAndAddUp) {
  const uint64_t seed = 22;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  for (const size_t size : kSizes) {
    for (const float temperature : {0.05f, 0.7f, 1.0f, 2.0f}) {
      auto row = random_row(random, size, 30);
      row[random.below(size)] = NAN;
      row[random.below(size)] = -kInf;
      row[random.below(size)] = 15.5f;
      std::vector<float> weights(size);
      std::vector<double> sums(row_blocks(size));
      const double total = exp_weights(row, 15.5f, temperature, weights.data(), sums.data());
      double all = 0;
      for (size_t i = 0; i < size; ++i) {
        all += static_cast<double>(weights[i]);
        float alone;
        double sum;
        exp_weights({&row[i], 1}, 15.5f, temperature, &alone, &sum);
        ASSERT_EQ(alone, weights[i]);
        if (std::isnan(row[i]) || std::isinf(row[i])) {
          ASSERT_EQ(weights[i], 0.0f);
          continue;
        }
        // The quotient, below 87, is rounded twice.
        const double x = (static_cast<double>(row[i]) - 15.5) / static_cast<double>(temperature);
        const double wanted = x > -87 ? std::exp(x) : 0;
        const double tolerance = wanted * (3e-7 + std::fabs(x) * 1.3e-7) + 2e-38;
        ASSERT_NEAR(static_cast<double>(weights[i]), wanted, tolerance) << "x " << x;
      }
      EXPECT_NEAR(total, all, all * 1e-12);
    }
  }
}

TEST(RowMath, ExtremeTemperaturesLeaveTheBestItsWeight) {
  for (const float temperature : {1e-45f, 1e-30f, 1e-3f, 3e38f}) {
    const float row[] = {1.0f, -2.0f, std::numeric_limits<float>::lowest(), NAN, 0.5f};
    float weights[5];
    double sum;
    const double total = exp_weights(row, 1.0f, temperature, weights, &sum);
    EXPECT_EQ(weights[0], 1.0f) << temperature;
    EXPECT_EQ(weights[3], 0.0f) << temperature;
    EXPECT_GE(total, 1.0) << temperature;
    EXPECT_LE(total, 4.0) << temperature;
  }
}

}  // namespace
}  // namespace loralei
