// SPDX-License-Identifier: Apache-2.0
#include "sched/learned_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

using Shares = LearnedLengths::Shares;

std::vector<TokenId> random_prompt(Prng& random, size_t count) {
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < count; ++i) prompt.push_back(static_cast<TokenId>(100 + random.below(2000)));
  return prompt;
}

LearnedLengths::Features features_of(const std::vector<TokenId>& prompt, int32_t most = 500) {
  return LearnedLengths::features_of({.prompt = prompt, .output_most = most});
}

double median(const Shares& shares) { return OutputLengths::quantile_of(shares, 0, 0.5); }

Shares random_history(Prng& random) {
  Shares h{};
  for (double& share : h)
    if (random.below(3) == 0) share = 10 * random.uniform();
  h[random.below(h.size())] = 5;
  return h;
}

TEST(LearnedLengths, UntrainedItSaysWhatHistorySaysToTheBit) {
  Prng random(20261128);
  const LearnedLengths learned;
  for (int i = 0; i < 200; ++i) {
    const Shares h = random_history(random);
    EXPECT_EQ(learned.tilted(h, features_of(random_prompt(random, random.below(100)))), h);
  }
  EXPECT_EQ(learned.tilted({}, features_of({})), Shares{});
}

// One token in a hundred makes answers long; everything else about prompts is chance.
TEST(LearnedLengths, FindsTheWordThatMakesAnswersLong) {
  constexpr TokenId kStory = 7;
  Prng random(20261129);
  LearnedLengths learned;
  OutputLengths history;
  const OutputLengths::Asked asked{AdapterSourceId{1}, 30};
  int right = 0, right_by_history = 0, judged = 0;
  for (int i = 0; i < 1200; ++i) {
    std::vector<TokenId> prompt = random_prompt(random, 30);
    const bool is_long = random.below(2) == 0;
    if (is_long) prompt[random.below(prompt.size())] = kStory;
    const auto output = static_cast<int32_t>((is_long ? 800 : 20) * (0.7 + 0.6 * random.uniform()));
    const LearnedLengths::Features features = features_of(prompt);
    const Shares h = history.shares(asked);
    if (i >= 600) {
      ++judged;
      const auto is_near = [&](double predicted) { return std::abs(std::log2(predicted / output)) < 1; };
      right += is_near(median(learned.tilted(h, features))) ? 1 : 0;
      right_by_history += is_near(median(h)) ? 1 : 0;
    }
    learned.learn(h, features, output, false);
    history.learn(asked, output, false);
  }
  EXPECT_GT(right, judged * 92 / 100);
  EXPECT_LT(right_by_history, judged * 70 / 100) << "it cannot know which of the two comes";
}

TEST(LearnedLengths, AQuestionBehindALongTextIsSeen) {
  Prng random(3);
  std::vector<TokenId> prompt = random_prompt(random, 5000), other = prompt;
  other.back() = 1;
  EXPECT_NE(features_of(prompt), features_of(other));
  other = prompt;
  other[20] = 1;
  EXPECT_NE(features_of(prompt), features_of(other));
  other = prompt;
  other[2500] = 1;
  EXPECT_EQ(features_of(prompt), features_of(other)) << "what stands between is not looked at";
  EXPECT_LE(features_of(prompt).size(), LearnedLengths::kFeaturesMost);
  EXPECT_NE(features_of(prompt, 500), features_of(prompt, 5000));
  EXPECT_NE(LearnedLengths::features_of({.prompt = prompt, .formed = true}),
            LearnedLengths::features_of({.prompt = prompt}));
  EXPECT_NE(LearnedLengths::features_of({.adapter = 5, .prompt = prompt}),
            LearnedLengths::features_of({.prompt = prompt}));
}

TEST(LearnedLengths, WhatWasCutOnlyMakesPredictionsLongerAndOnlyWhereTheyAreShorter) {
  Prng random(20261130);
  LearnedLengths learned;
  OutputLengths history;
  const OutputLengths::Asked asked{AdapterSourceId{1}, 30};
  for (int i = 0; i < 200; ++i) history.learn(asked, i % 2 == 0 ? 10 : 1000, false);
  const Shares h = history.shares(asked);
  int moved = 0;
  for (int i = 0; i < 300; ++i) {
    const LearnedLengths::Features features = features_of(random_prompt(random, 20));
    if (i % 3 == 0) learned.learn(h, features, 1 + static_cast<int32_t>(random.below(1000)), false);
    const Shares before = learned.tilted(h, features);
    const auto cut_at = static_cast<int32_t>(1 + random.below(3000));
    const auto weights = learned.weights();
    learned.learn(h, features, cut_at, true);
    const Shares behind = learned.tilted(h, features);
    if (OutputLengths::bin_of(median(before)) >= OutputLengths::bin_of(cut_at)) {
      EXPECT_EQ(learned.weights(), weights) << "cut at " << cut_at << ", predicted " << median(before);
      continue;
    }
    moved += learned.weights() == weights ? 0 : 1;
    for (const double quantile : {0.1, 0.3, 0.5, 0.7, 0.9})
      EXPECT_GE(OutputLengths::quantile_of(behind, 0, quantile), OutputLengths::quantile_of(before, 0, quantile));
  }
  EXPECT_GT(moved, 50);
  // Where every answer of a kind is cut at 50, it is taken for one of those of 1000.
  const LearnedLengths::Features kind = features_of(std::vector<TokenId>(20, 3));
  for (int i = 0; i < 100; ++i) learned.learn(h, kind, 50, true);
  EXPECT_GT(median(learned.tilted(h, kind)), 500);
}

TEST(LearnedLengths, QuantilesAreInOrderWhateverWasLearned) {
  Prng random(20261201);
  LearnedLengths learned;
  for (int i = 0; i < 2000; ++i) {
    const Shares h = random_history(random);
    const LearnedLengths::Features features = features_of(random_prompt(random, random.below(40)));
    const Shares p = learned.tilted(h, features);
    double before = 0;
    for (double quantile = 0.05; quantile < 1; quantile += 0.05) {
      const double length = OutputLengths::quantile_of(p, 0, quantile);
      ASSERT_GE(length, before);
      before = length;
    }
    learned.learn(h, features, static_cast<int32_t>(1 + random.below(1 << random.below(20))), random.below(4) == 0);
  }
}

TEST(LearnedLengths, WhatChangesIsLearned) {
  LearnedLengths learned;
  OutputLengths history;
  const OutputLengths::Asked asked{AdapterSourceId{1}, 4};
  const LearnedLengths::Features one = features_of({1, 2, 3, 4}), two = features_of({5, 6, 7, 8});
  const auto answer = [&](int32_t of_one, int32_t of_two, int count) {
    for (int i = 0; i < count; ++i) {
      const Shares h = history.shares(asked);
      learned.learn(h, i % 2 == 0 ? one : two, i % 2 == 0 ? of_one : of_two, false);
      history.learn(asked, i % 2 == 0 ? of_one : of_two, false);
    }
  };
  const auto said = [&](const LearnedLengths::Features& of) {
    return median(learned.tilted(history.shares(asked), of));
  };
  answer(10, 1000, 20'000);
  EXPECT_LT(said(one), 20);
  EXPECT_GT(said(two), 500);
  answer(1000, 10, 1000);
  EXPECT_GT(said(one), 500) << "though it was otherwise twenty times as long";
  EXPECT_LT(said(two), 20);
}

// Any input leaves finite weights within their bounds, and a distribution.
TEST(LearnedLengths, NoInputBreaksIt) {
  Prng random(20261202);
  LearnedLengths learned;
  const auto extreme = [&]() -> int32_t {
    const int32_t numbers[] = {INT32_MIN, -1, 0, 1, 2, 1000, INT32_MAX};
    return numbers[random.below(std::size(numbers))];
  };
  for (int i = 0; i < 5000; ++i) {
    Shares h{};
    const auto bins = random.below(4);
    for (uint64_t bin = 0; bin < bins; ++bin)
      h[random.below(h.size())] = std::exp2(static_cast<double>(random.below(120)) - 60);
    std::vector<TokenId> prompt;
    for (auto count = random.below(5); count > 0; --count) prompt.push_back(extreme());
    const LearnedLengths::Features features = features_of(prompt, extreme());
    for (int times = 0; times < 10; ++times) learned.learn(h, features, extreme(), random.below(2) == 0);
    double sum = 0, expected = 0;
    for (const double share : learned.tilted(h, features)) {
      ASSERT_TRUE(std::isfinite(share) && share >= 0);
      sum += share;
    }
    for (const double share : h) expected += share;
    ASSERT_EQ(sum > 0, expected > 0);
  }
  for (const LearnedLengths::Weight& weight : learned.weights()) {
    ASSERT_LE(std::abs(weight.tilt), LearnedLengths::kWeightMost);
    ASSERT_LE(std::abs(weight.bend), LearnedLengths::kWeightMost);
    ASSERT_TRUE(weight.tilt_squares >= 0 && weight.tilt_squares <= LearnedLengths::kSquaresMost);
  }
  std::vector<LearnedLengths::Weight> wild(LearnedLengths::kPlaces);
  for (LearnedLengths::Weight& weight : wild)
    weight = {std::numeric_limits<float>::quiet_NaN(), 1e30f, -1, std::numeric_limits<float>::infinity()};
  learned.put_back(wild);
  Shares h{};
  h[10] = h[40] = 1;
  EXPECT_TRUE(std::isfinite(median(learned.tilted(h, features_of({1, 2, 3})))));
}

// The formulas of the header once more, read as they stand there: weights by name in a
// map, p and its gradients by sums over bins.
class Naive {
 public:
  Shares tilted(const Shares& h, const std::set<uint16_t>& names) {
    double sum = 0, mean = 0, variance = 0;
    for (double share : h) sum += share;
    if (sum == 0) return h;
    for (size_t bin = 0; bin < h.size(); ++bin) mean += h[bin] / sum * static_cast<double>(bin);
    for (size_t bin = 0; bin < h.size(); ++bin) variance += h[bin] / sum * std::pow(static_cast<double>(bin) - mean, 2);
    double a = 0, b = 0;
    for (uint16_t name : names) a += weights_[name][0], b += weights_[name][1];
    a /= std::sqrt(static_cast<double>(names.size()));
    b /= std::sqrt(static_cast<double>(names.size()));
    Shares p{};
    for (size_t bin = 0; bin < h.size(); ++bin) {
      x_[bin] = (static_cast<double>(bin) - mean) / std::max(2.0, std::sqrt(variance));
      p[bin] = h[bin] * std::exp(a * x_[bin] + b * (x_[bin] * x_[bin] - 1) / 2);
    }
    return p;
  }
  void learn(const Shares& h, const std::set<uint16_t>& names, int32_t output) {
    const Shares p = tilted(h, names);
    double all = 0;
    for (double share : p) all += share;
    if (all == 0) return;
    const auto at = static_cast<size_t>(OutputLengths::bin_of(output));
    std::array<double, 2> gradient = {x_[at], (x_[at] * x_[at] - 1) / 2};
    for (size_t bin = 0; bin < h.size(); ++bin) {
      gradient[0] -= p[bin] / all * x_[bin];
      gradient[1] -= p[bin] / all * (x_[bin] * x_[bin] - 1) / 2;
    }
    for (size_t i = 0; i < 2; ++i) {
      const double step = std::clamp(gradient[i], -3.0, 3.0) / std::sqrt(static_cast<double>(names.size()));
      if (step == 0) continue;
      for (uint16_t name : names) {
        squares_[name][i] = std::min(8.0, squares_[name][i] + step * step);
        weights_[name][i] = std::clamp(weights_[name][i] + 0.3 * step / std::sqrt(squares_[name][i]), -8.0, 8.0);
      }
    }
  }

 private:
  std::map<uint16_t, std::array<double, 2>> weights_, squares_;
  Shares x_{};
};

TEST(LearnedLengths, AgreesWithANaiveTwin) {
  const uint64_t seed = 20261203;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  LearnedLengths learned;
  OutputLengths history;
  Naive naive;
  for (int i = 0; i < 3000; ++i) {
    const OutputLengths::Asked asked{AdapterSourceId{random.below(3)}, static_cast<int32_t>(random.below(200))};
    const LearnedLengths::Features features = features_of(random_prompt(random, 1 + random.below(60)));
    const std::set<uint16_t> names(features.begin(), features.end());
    ASSERT_EQ(names.size(), features.size());
    const Shares h = history.shares(asked);
    const Shares p = learned.tilted(h, features), expected = naive.tilted(h, names);
    for (const double quantile : {0.25, 0.5, 0.75})  // between two classes of about equal shares rounding decides
      ASSERT_NEAR(std::log2(OutputLengths::quantile_of(p, 0, quantile)),
                  std::log2(OutputLengths::quantile_of(expected, 0, quantile)), 0.26)
          << i;
    double sum = 0, expected_sum = 0;
    for (size_t bin = 0; bin < p.size(); ++bin) sum += p[bin], expected_sum += expected[bin];
    for (size_t bin = 0; bin < p.size() && sum > 0; ++bin)
      ASSERT_NEAR(p[bin] / sum, expected[bin] / expected_sum, 1e-3) << i;
    const auto output = static_cast<int32_t>(1 + random.below(1 << (2 + random.below(10))));
    learned.learn(h, features, output, false);
    naive.learn(h, names, output);
    history.learn(asked, output, false);
  }
}

}  // namespace
}  // namespace loralei
