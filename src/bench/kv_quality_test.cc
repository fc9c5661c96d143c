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

std::vector<float> leading(TokenId token, float lead) {
  std::vector<float> logits(4, 0);
  logits[static_cast<size_t>(token)] = lead;
  return logits;
}

TEST(KvQuality, AWholeAnswerIsLostWithOneOfItsTokens) {
  KvQualityCount count(12, 0);
  const KvDistribution one(leading(1, 20)), two(leading(2, 20));
  const auto answer = [&](const std::vector<float>& first, const std::vector<float>& second, TokenId given) {
    count.add(one, first, 1);
    count.add(two, second, given);
    count.add(one, leading(1, 20), kKvAnswerEnds);
  };
  answer(leading(1, 20), leading(2, 20), 2);  // right, and still
  answer(leading(1, 20), leading(3, 20), 2);  // lost
  answer(leading(1, 20), leading(3, 20), 3);  // won: the exact one was wrong
  answer(leading(1, 20), leading(2, 20), 3);  // wrong, and the same
  const KvQuality quality = count.quality();
  EXPECT_EQ(quality.answers, 4);
  EXPECT_EQ(quality.answers_same, 2);
  EXPECT_EQ(quality.answers_exact_right, 2);
  EXPECT_EQ(quality.answers_right, 2);
  EXPECT_NEAR(quality.agreement, 10.0 / 12, 1e-12);
  EXPECT_NEAR(count.answers_exact(), 2, 1e-5);
  EXPECT_NEAR(count.answers_other(), 2, 1e-5);
  EXPECT_NEAR(quality.answers_lost, 0, 1e-5);
}

TEST(KvQuality, PositionsOfAnswersAreHeldToTheAgreementOnlyWhereAnswersAreNot) {
  const KvDistribution exact(leading(1, 20));
  for (const bool by_answers : {false, true}) {
    KvQualityCount count(100, 0.99, by_answers);
    for (int i = 0; i < 3; ++i) count.add(exact, leading(2, 20), i < 2 ? 1 : kKvAnswerEnds);
    EXPECT_EQ(count.failed(), !by_answers);
    EXPECT_EQ(count.quality().agreement, 0);
    count.add(exact, leading(2, 20));
    EXPECT_EQ(count.failed(), !by_answers);
    count.add(exact, leading(2, 20));
    EXPECT_TRUE(count.failed());
  }
}

TEST(KvQuality, AnAnswerOnTheEdgeLosesLittleWhicheverWayItTurns) {
  KvQualityCount count(2, 0);
  count.add(KvDistribution(std::vector<float>{0.01f, 0}), std::vector<float>{0, 0.01f}, 0);
  count.add(KvDistribution(leading(1, 20)), leading(1, 20), kKvAnswerEnds);
  EXPECT_EQ(count.quality().answers_same, 0);
  EXPECT_NEAR(count.quality().answers_lost, 0.01, 1e-3);
}

TEST(KvQuality, OneTurnedPositionCountsBoundedlyInTheDivergence) {
  KvQualityCount count(2, 0);
  count.add(KvDistribution(leading(1, 20)), leading(2, 20));
  count.add(KvDistribution(leading(1, 20)), leading(1, 20));
  EXPECT_GT(count.quality().mean_kl, 5);
  EXPECT_NEAR(count.divergence(), kKvDivergenceMost / 2, 1e-6);
  EXPECT_EQ(KvQualityCount(0, 0).divergence(), 0);
}

// So many sure answers, of which some are turned.
KvQualityCount answers(int right, int lost) {
  KvQualityCount count(2 * (right + lost), 0);
  for (int i = 0; i < right + lost; ++i) {
    count.add(KvDistribution(leading(1, 30)), leading(i < lost ? 2 : 1, 30), 1);
    count.add(KvDistribution(leading(1, 30)), leading(1, 30), kKvAnswerEnds);
  }
  return count;
}

TEST(KvQuality, AnswersHoldTogetherAndNoneOfThemFallsFarBehind) {
  const auto hold = [](std::initializer_list<KvQualityCount> counts, double agreement) {
    return answers_hold(std::vector<KvQualityCount>(counts), agreement);
  };
  EXPECT_TRUE(hold({answers(990, 10)}, 0.99));
  EXPECT_FALSE(hold({answers(989, 11)}, 0.99));
  EXPECT_TRUE(hold({answers(500, 0), answers(491, 9)}, 0.99));
  EXPECT_FALSE(hold({answers(400, 0), answers(490, 12)}, 0.99));   // 1.3 % together
  EXPECT_FALSE(hold({answers(5000, 0), answers(489, 11)}, 0.99));  // twice 1 % of 500 are 10
  EXPECT_TRUE(hold({answers(5000, 0), answers(491, 9)}, 0.99));
  EXPECT_FALSE(hold({answers(20, 1)}, 0.99));  // where there are few none may be lost
  EXPECT_TRUE(hold({answers(200, 0)}, 1));
  EXPECT_FALSE(hold({answers(200, 1)}, 1));
  EXPECT_TRUE(hold({answers(2, 1)}, 0.99));  // three say nothing
  EXPECT_FALSE(answers_tell(49, 100));
  EXPECT_TRUE(answers_tell(50, 100));
  EXPECT_FALSE(answers_tell(3.9, 4));
  EXPECT_TRUE(hold({}, 1));
}

}  // namespace
}  // namespace loralei
