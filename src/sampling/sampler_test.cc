// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(Prng& random, size_t vocab, double spread) {
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = static_cast<float>((random.uniform() - 0.5) * spread);
  return logits;
}

TokenId sample(const std::vector<float>& logits, const SamplingParams& params, uint64_t position = 0) {
  Sampler sampler;
  return sampler.sample({.logits = logits, .params = &params, .position = position});
}

// The whole distribution by sorting everything; the set that may be drawn, with
// its probabilities.
std::map<TokenId, double> naive_distribution(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<std::pair<double, TokenId>> all;
  for (size_t id = 0; id < logits.size(); ++id) all.emplace_back(logits[id], static_cast<TokenId>(id));
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.first > b.first; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < all.size()) all.resize(static_cast<size_t>(params.top_k));
  double total = 0;
  for (auto& [value, id] : all) total += std::exp((value - all[0].first) / params.temperature);
  double sum = 0;
  size_t kept = 0;
  while (kept < all.size() && (kept == 0 || sum < params.top_p * total))
    sum += std::exp((all[kept++].first - logits[static_cast<size_t>(all[0].second)]) / params.temperature);
  all.resize(kept);
  std::map<TokenId, double> result;
  double left = 0;
  for (auto& [value, id] : all) {
    const double weight = std::exp((value - all[0].first) / params.temperature);
    if (weight < params.min_p && id != all[0].second) continue;
    result[id] = weight;
    left += weight;
  }
  for (auto& [id, weight] : result) weight /= left;
  return result;
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sample({1, 3, 2, 3}, greedy), 1);
  EXPECT_EQ(sample({NAN, -1, NAN, -2}, greedy), 1);
  EXPECT_EQ(sample({0, kInf, 1}, greedy), 1);
  EXPECT_EQ(sample({-kInf, NAN}, greedy), kNoToken);
}

TEST(Sampler, NothingPossibleIsSaidInEveryMode) {
  const std::vector<float> none{-kInf, NAN, -kInf};
  for (SamplingParams params : {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.top_k = 2},
                                SamplingParams{.top_p = 0.5f}}) {
    EXPECT_EQ(sample(none, params), kNoToken);
    params.logit_bias = {{0, 1.0f}};
    EXPECT_EQ(sample(none, params), kNoToken);
  }
}

TEST(Sampler, InfiniteLogitsDoNotBreakSampling) {
  for (SamplingParams params : {SamplingParams{}, SamplingParams{.top_k = 2}, SamplingParams{.top_p = 0.9f}}) {
    EXPECT_EQ(sample({0, kInf, NAN, 3}, params), 1);
  }
}

TEST(Sampler, DrawsFromExactlyTheNaiveSetWithItsFrequencies) {
  const uint64_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  Sampler sampler;
  for (int round = 0; round < 40; ++round) {
    SamplingParams params;
    params.seed = random();
    params.temperature = 0.3f + static_cast<float>(random.uniform() * 1.5);
    if (random.below(2)) params.top_k = 1 + static_cast<int32_t>(random.below(12));
    if (random.below(2)) params.top_p = 0.2f + static_cast<float>(random.uniform() * 0.7);
    if (random.below(2)) params.min_p = static_cast<float>(random.uniform() * 0.3);
    const auto logits = random_logits(random, 20, 6);
    const auto expected = naive_distribution(logits, params);
    std::map<TokenId, int> seen;
    constexpr int kDraws = 4000;
    for (uint64_t position = 0; position < kDraws; ++position) {
      ++seen[sampler.sample({.logits = logits, .params = &params, .position = position})];
    }
    double chi_square = 0;
    for (const auto& [id, count] : seen) ASSERT_TRUE(expected.count(id)) << "token " << id << " should have been cut";
    for (const auto& [id, p] : expected) {
      const double wanted = p * kDraws;
      if (wanted > 5) chi_square += (seen[id] - wanted) * (seen[id] - wanted) / wanted;
    }
    EXPECT_LT(chi_square, 60.0) << "round " << round;  // 19 degrees of freedom; a fixed seed, so this never flickers
  }
}

TEST(Sampler, LargeNucleiAreFoundWithoutAFullSort) {
  const uint64_t seed = 5;
  Prng random(seed);
  const auto logits = random_logits(random, 5000, 1.0);
  SamplingParams params{.top_p = 0.7f};
  const auto expected = naive_distribution(logits, params);
  ASSERT_GT(expected.size(), 2048u);
  Sampler sampler;
  for (uint64_t position = 0; position < 300; ++position) {
    ASSERT_TRUE(expected.count(sampler.sample({.logits = logits, .params = &params, .position = position})));
  }
}

// Many blocks, the last one short, with everything that cuts: what is drawn lies in the
// naive set, as often as it should.
TEST(Sampler, LargeVocabulariesAreCutAsTheNaiveSetIs) {
  const uint64_t seed = 17;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  Sampler sampler;
  for (int round = 0; round < 24; ++round) {
    SamplingParams params;
    params.seed = random();
    params.temperature = 0.3f + static_cast<float>(random.uniform() * 1.5);
    if (random.below(2)) params.top_k = 1 + static_cast<int32_t>(random.below(60));
    if (random.below(2)) params.top_p = 0.2f + static_cast<float>(random.uniform() * 0.79);
    if (random.below(2)) params.min_p = static_cast<float>(random.uniform() * 0.1);
    auto logits = random_logits(random, 2600 + random.below(600), random.below(2) ? 3 : 40);
    if (round % 3 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // ties across blocks
    }
    const auto expected = naive_distribution(logits, params);
    std::map<TokenId, int> seen;
    constexpr int kDraws = 2000;
    for (uint64_t position = 0; position < kDraws; ++position) {
      ++seen[sampler.sample({.logits = logits, .params = &params, .position = position})];
    }
    for (const auto& [id, count] : seen) ASSERT_TRUE(expected.count(id)) << "token " << id << " should have been cut";
    double chi_square = 0;
    int cells = 0;
    for (const auto& [id, p] : expected) {
      const double wanted = p * kDraws;
      if (wanted <= 5) continue;
      chi_square += (seen[id] - wanted) * (seen[id] - wanted) / wanted;
      ++cells;
    }
    EXPECT_LT(chi_square, cells + 6 * std::sqrt(2.0 * cells) + 10) << "round " << round;
  }
}

TEST(Sampler, DependsOnSeedChoiceAndPositionAlone) {
  Prng random(3);
  const auto logits = random_logits(random, 300, 4), other = random_logits(random, 500, 4);
  SamplingParams params{.seed = 42};
  Sampler used, fresh;
  for (uint64_t position = 0; position < 50; ++position) {
    (void)used.sample({.logits = other, .params = &params, .position = position});
    EXPECT_EQ(used.sample({.logits = logits, .params = &params, .choice = 2, .position = position}),
              fresh.sample({.logits = logits, .params = &params, .choice = 2, .position = position}));
  }
}

TEST(Sampler, PenaltiesBiasAndMasks) {
  Sampler sampler;
  const std::vector<float> logits{2.0f, 1.9f, -1.0f, 1.0f};
  const std::vector<TokenId> prompt{0}, output{1, 1, 3};
  const auto greedy = [&](SamplingParams params, std::span<const uint32_t> allowed = {},
                          std::span<const TokenId> forbidden = {}) {
    params.temperature = 0;
    return sampler.sample({.logits = logits,
                           .params = &params,
                           .prompt = prompt,
                           .output = output,
                           .allowed = allowed,
                           .forbidden = forbidden});
  };
  EXPECT_EQ(greedy({}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 1.5f}), 0);  // 1.33 against 1.27, -1, 0.67
  EXPECT_EQ(greedy({.repetition_penalty = 0.5f}), 0);
  EXPECT_EQ(greedy({.presence_penalty = -0.2f}), 1);    // the prompt does not count
  EXPECT_EQ(greedy({.frequency_penalty = -0.06f}), 1);  // 2.02
  EXPECT_EQ(greedy({.frequency_penalty = -0.04f}), 0);  // 1.98
  EXPECT_EQ(greedy({.logit_bias = {{2, 4.0f}, {9, 100.0f}}}), 2);
  const uint32_t allowed[] = {0b1100};
  EXPECT_EQ(greedy({}, allowed), 3);
  const TokenId forbidden[] = {3, 0, 77};
  EXPECT_EQ(greedy({}, {}, forbidden), 1);
  EXPECT_EQ(greedy({}, allowed, forbidden), 2);
  const uint32_t nothing[] = {0};
  EXPECT_EQ(greedy({}, nothing), kNoToken);
}

TEST(Logprob, AgreesWithANaiveSum) {
  const uint64_t seed = 9;
  Prng random(seed);
  for (int round = 0; round < 30; ++round) {
    auto logits = random_logits(random, 100 + random.below(100), 30);
    for (float& logit : logits) logit = std::round(logit);  // many ties
    if (round % 3 == 0) logits[7] = -kInf;
    long double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
    std::vector<TokenId> ids(logits.size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i);
    std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    std::vector<TokenLogprob> top(random.below(21));
    const auto token = static_cast<TokenId>(random.below(logits.size()));
    const float value = token_logprob({.logits = logits, .token = token}, top);
    if (std::isinf(logits[static_cast<size_t>(token)])) {
      EXPECT_EQ(value, -kInf);
    } else {
      EXPECT_NEAR(value, static_cast<double>(logits[static_cast<size_t>(token)] - std::log(sum)), 1e-5);
    }
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token, ids[i]);
      EXPECT_NEAR(top[i].logprob, static_cast<double>(logits[static_cast<size_t>(ids[i])] - std::log(sum)), 1e-5);
    }
  }
}

}  // namespace
}  // namespace loralei
