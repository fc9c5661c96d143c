// SPDX-License-Identifier: Apache-2.0
// Distributions kept small, and the count of positions that agree.
#include "bench/kv_quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/prng.h"

namespace loralei {
namespace {

std::vector<float> random_logits(Prng& prng, size_t count, double scale) {
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(scale * (prng.uniform() - 0.5));
  return logits;
}

std::vector<double> softmax(const std::vector<float>& logits) {
  std::vector<double> p;
  double sum = 0;
  for (const float logit : logits) sum += p.emplace_back(std::exp(static_cast<double>(logit)));
  for (double& one : p) one /= sum;
  return p;
}

double whole_kl(const std::vector<float>& exact, const std::vector<float>& other) {
  const std::vector<double> p = softmax(exact), q = softmax(other);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += p[i] * std::log(p[i] / q[i]);
  return kl;
}

TEST(KvQuality, TheDivergenceIsThatOfTheWholeOrHardlyLess) {
  Prng prng(1);
  for (const size_t count : {size_t{2}, size_t{50}, kKvTopTokens, kKvTopTokens + 1, size_t{5000}}) {
    const std::vector<float> exact = random_logits(prng, count, 80);
    std::vector<float> other = exact;
    for (float& logit : other) logit += static_cast<float>(prng.uniform() - 0.5);
    const KvDistribution kept(exact);
    const double whole = whole_kl(exact, other), found = kept.kl(other);
    EXPECT_LE(found, whole + 1e-6) << count;
    EXPECT_GE(found, 0.9 * whole - 1e-6) << count;
    EXPECT_NEAR(kept.kl(exact), 0, 1e-6) << count;
  }
}

TEST(KvQuality, ColumnsThatAreNoneAndNumbersThatAreNoneAreBounded) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::vector<float> exact = {1, 3, kNone, 2};
  const KvDistribution kept(exact);
  EXPECT_EQ(kept.likeliest(), 1);
  EXPECT_NEAR(kept.kl(exact), 0, 1e-6);
  EXPECT_EQ(kept.kl(std::vector<float>{1, kNone, 0, 2}), kKvKlMost);
  EXPECT_EQ(kept.kl(std::vector<float>{1, std::nanf(""), 0, 2}), kKvKlMost);
  EXPECT_EQ(likeliest_token(std::vector<float>{1, 4, 4}), 1);
}

TEST(KvQuality, FailsWithTheFirstPositionTooMany) {
  KvQualityCount count(200, 0.99);
  for (int i = 0; i < 2; ++i) count.add(false);
  EXPECT_FALSE(count.failed());
  for (int i = 0; i < 198; ++i) count.add(true);
  EXPECT_FALSE(count.failed());
  EXPECT_DOUBLE_EQ(count.quality().agreement, 0.99);
  EXPECT_EQ(count.quality().positions, 200);
  count.add(false);
  EXPECT_TRUE(count.failed());
  KvQualityCount all(1000, 1);
  all.add(false);
  EXPECT_TRUE(all.failed());
  EXPECT_EQ(KvQualityCount(0, 0.995).quality(), KvQuality{});
}

}  // namespace
}  // namespace loralei
