// SPDX-License-Identifier: Apache-2.0
// Which experts rows use, against sorting all of them.
#include "model/expert_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int kRowsMax = 40;

// The lists of a choice, each against what they mean.
void expect_sound(const ExpertRows& rows, const ExpertConfig& config, int count) {
  ASSERT_EQ(rows.assignments(), count * config.used);
  int32_t next = 0;
  size_t chosen = 0;
  for (int expert = 0; expert < config.count; ++expert) {
    const ExpertRows::Run run = rows.run_of(expert);
    ASSERT_EQ(run.begin, next);
    next += run.count;
    if (run.count > 0) {
      ASSERT_LT(chosen, rows.chosen().size());
      EXPECT_EQ(rows.chosen()[chosen++], expert);
    }
    const auto of = rows.rows_of(run);
    EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
    EXPECT_EQ(std::adjacent_find(of.begin(), of.end()), of.end()) << "a row twice";
    for (int32_t at = run.begin; at < run.begin + run.count; ++at) {
      const auto uses = rows.uses(rows.row_of(at));
      EXPECT_EQ(std::count_if(uses.begin(), uses.end(),
                              [&](const ExpertRows::Use& use) { return use.expert == expert && use.at == at; }),
                1);
    }
  }
  EXPECT_EQ(next, rows.assignments());
  EXPECT_EQ(chosen, rows.chosen().size());
}

void expect_uses(std::span<const ExpertRows::Use> uses, const std::vector<float>& scores, const ExpertConfig& config) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  order.resize(static_cast<size_t>(config.used));
  std::sort(order.begin(), order.end());
  double all = 0, used = 0;
  for (const float score : scores) all += std::exp(static_cast<double>(score));
  for (const int expert : order) used += std::exp(static_cast<double>(scores[static_cast<size_t>(expert)]));
  ASSERT_EQ(uses.size(), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(uses[i].expert, order[i]);
    const double weight = std::exp(static_cast<double>(scores[static_cast<size_t>(order[i])]));
    EXPECT_NEAR(uses[i].weight, weight / (config.normed ? used : all), 1e-5);
  }
}

TEST(ExpertRows, AreThoseWithTheHighestScoresOfEqualOnesTheFirst) {
  ThreadPool pool(3);
  Prng random(11);
  for (int round = 0; round < 60; ++round) {
    ExpertConfig config;
    config.count = 1 + static_cast<int>(random.below(20));
    config.used = 1 + static_cast<int>(random.below(static_cast<uint64_t>(config.count)));
    config.normed = round % 2 == 0;
    ExpertRows rows(config, kRowsMax);
    const int count = 1 + static_cast<int>(random.below(kRowsMax));
    std::vector<float> scores;
    for (int i = 0; i < count * config.count; ++i)
      scores.push_back(round % 3 == 0 ? static_cast<float>(random.below(3)) : static_cast<float>(random.uniform() * 8));
    rows.choose(scores.data(), count, pool);
    SCOPED_TRACE("round " + std::to_string(round));
    expect_sound(rows, config, count);
    for (int row = 0; row < count; ++row) {
      const auto* const first = scores.data() + row * config.count;
      expect_uses(rows.uses(row), std::vector<float>(first, first + config.count), config);
    }
  }
}

TEST(ExpertRows, OfARowDoNotDependOnTheOthers) {
  ThreadPool one(1), three(3);
  const ExpertConfig config{.count = 16, .used = 5, .normed = true};
  ExpertRows together(config, kRowsMax), alone(config, 1);
  Prng random(12);
  std::vector<float> scores;
  for (int i = 0; i < kRowsMax * config.count; ++i) scores.push_back(static_cast<float>(random.uniform() * 4 - 2));
  together.choose(scores.data(), kRowsMax, three);
  for (int row = 0; row < kRowsMax; ++row) {
    alone.choose(scores.data() + row * config.count, 1, one);
    const auto want = alone.uses(0), got = together.uses(row);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].expert, want[i].expert);
      EXPECT_EQ(std::memcmp(&got[i].weight, &want[i].weight, sizeof(float)), 0);
    }
  }
}

TEST(ExpertRows, ScoresThatAreNoNumbersChooseSomeExperts) {
  ThreadPool pool(1);
  const ExpertConfig config{.count = 6, .used = 3, .normed = true};
  ExpertRows rows(config, 4);
  const float none = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::infinity();
  const std::vector<float> scores = {none, none, none, none, none, none, 1,     none, 2,     none, none, 3,
                                     most, most, 0,    0,    0,    0,    -most, none, -most, 0,    none, 1};
  rows.choose(scores.data(), 4, pool);
  expect_sound(rows, config, 4);
  const auto second = rows.uses(1);
  EXPECT_EQ(second[0].expert, 0);
  EXPECT_EQ(second[1].expert, 2);
  EXPECT_EQ(second[2].expert, 5);
}

}  // namespace
}  // namespace loralei
