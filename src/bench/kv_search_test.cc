// SPDX-License-Identifier: Apache-2.0
// The search for factors, over rows of which it is known what they bear.
#include "bench/kv_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/prng.h"

namespace loralei {
namespace {

// Rows that each add cost * factor^steep to a divergence of `ground`, and hold up to
// `most` in all.
struct Model {
  std::vector<double> cost, steep;
  double most = 1, ground = 1e-7;
  int asked = 0;
  std::vector<KvRungs> held;

  double divergence(const KvRungs& rungs) const {
    double sum = ground;
    for (size_t row = 0; row < rungs.size(); ++row)
      sum += cost[row] * std::pow(static_cast<double>(kv_rung_factor(rungs[row])), steep[row]);
    return sum;
  }
  static double bits(int32_t rung) { return std::max(0.25, 6 - 0.5 * rung); }
  static double bits(const KvRungs& rungs) {
    double sum = 0;
    for (const int32_t rung : rungs) sum += bits(rung);
    return sum;
  }
  Result<KvSearch> search() {
    const auto look = [this](const KvRungs& rungs) {
      EXPECT_EQ(rungs.size(), cost.size());
      for (const int32_t rung : rungs) EXPECT_TRUE(rung >= 0 && rung < kKvRungs);
      ++asked;
      return divergence(rungs);
    };
    const KvTrials trials{.divergence = [=](const KvRungs& rungs) -> Result<double> { return look(rungs); },
                          .holds = [=, this](const KvRungs& rungs) -> Result<bool> {
                            const bool holds = look(rungs) <= most;
                            if (holds) held.push_back(rungs);
                            return holds;
                          },
                          .bits = [](size_t, int32_t rung) { return bits(rung); }};
    return search_kv_rungs(cost.size(), trials);
  }
};

// The fewest bits of all assignments: by a table of what can be had for how much.
double fewest_bits(const Model& model) {
  constexpr int kUnits = 4000;
  std::vector<double> least(kUnits + 1, 0);
  for (size_t row = 0; row < model.cost.size(); ++row) {
    std::vector<double> next(kUnits + 1, HUGE_VAL);
    for (int32_t rung = 0; rung < kKvRungs; ++rung) {
      const double adds =
          model.cost[row] * std::pow(static_cast<double>(kv_rung_factor(rung)), model.steep[row]) / model.most * kUnits;
      const int units = adds > kUnits ? kUnits + 1 : static_cast<int>(std::floor(adds));  // in favour of the twin
      for (int used = units; used <= kUnits; ++used)
        next[static_cast<size_t>(used)] =
            std::min(next[static_cast<size_t>(used)], least[static_cast<size_t>(used - units)] + Model::bits(rung));
    }
    least = next;
  }
  return *std::min_element(least.begin(), least.end());
}

TEST(KvSearch, TakesHardlyMoreBitsThanTheBestOfAll) {
  for (uint64_t seed = 1; seed < 60; ++seed) {
    Prng prng(seed);
    Model model;
    const size_t rows = 2 * (2 + prng.below(8));
    for (size_t i = 0; i < rows; ++i) {
      model.cost.push_back(std::exp2(-20 * prng.uniform()));
      model.steep.push_back(1.5 + 2.5 * prng.uniform());
    }
    model.most = 0.01 + 0.05 * prng.uniform();
    const auto found = model.search();
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(found->holds) << seed;
    EXPECT_LE(Model::bits(found->rungs), fewest_bits(model) + 0.15 * static_cast<double>(rows)) << seed;
  }
}

TEST(KvSearch, AnswersWhatWasAskedWithYesAndNothingThatWasTakesLess) {
  for (uint64_t seed = 1; seed < 200; ++seed) {
    Prng prng(seed);
    Model model;
    const size_t rows = 2 * (1 + prng.below(70));
    for (size_t i = 0; i < rows; ++i) {
      model.cost.push_back(std::exp2(-24 * prng.uniform()));
      model.steep.push_back(6 * prng.uniform());
    }
    model.most = std::exp2(-20 * prng.uniform());
    const auto found = model.search();
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->trials, model.asked);
    EXPECT_LE(model.asked, kKvTrialsMost) << rows;
    EXPECT_EQ(found->holds, !model.held.empty()) << seed;
    if (model.held.empty()) {
      EXPECT_GT(model.divergence(KvRungs(rows, 0)), model.most);
      EXPECT_EQ(found->rungs, KvRungs(rows, 0));
      continue;
    }
    EXPECT_NE(std::find(model.held.begin(), model.held.end(), found->rungs), model.held.end());
    for (const KvRungs& held : model.held) EXPECT_LE(Model::bits(found->rungs), Model::bits(held));
  }
}

TEST(KvSearch, ARowThatAnswersHangOnStaysFineAndOneThatNothingDoesIsCoarse) {
  Model model{.cost = std::vector<double>(8, 1e-3), .steep = std::vector<double>(8, 2), .most = 0.1};
  model.cost[2] = 10;
  model.cost[5] = 0;
  const auto found = model.search();
  ASSERT_TRUE(found.ok() && found->holds);
  EXPECT_EQ(Model::bits(found->rungs[5]), 0.25);  // as coarse as saves something
  for (size_t row = 0; row < 8; ++row) {
    if (row == 2) continue;
    EXPECT_GT(found->rungs[row], found->rungs[2] + 3) << row;
  }
}

TEST(KvSearch, AnErrorEndsItWhereverItComes) {
  for (int broken = 0; broken < 30; ++broken) {
    int asked = 0;
    const auto next = [&] { return asked++ == broken ? Status(internal_error("broken")) : Status(); };
    const KvTrials trials{.divergence = [&](const KvRungs&) -> Result<double> {
                            TRY(next());
                            return 1.0;
                          },
                          .holds = [&](const KvRungs&) -> Result<bool> {
                            TRY(next());
                            return true;
                          },
                          .bits = [](size_t, int32_t) { return 1.0; }};
    const auto found = search_kv_rungs(8, trials);
    if (asked <= broken) break;
    EXPECT_FALSE(found.ok());
    EXPECT_EQ(asked, broken + 1);
  }
}

TEST(KvSearch, TheLadderIsFromASixteenthToEight) {
  EXPECT_EQ(kv_rung_factor(0), 1.0f / 16);
  EXPECT_EQ(kv_rung_factor(4), 0.25f);
  EXPECT_EQ(kv_rung_factor(kKvRungs - 1), 8.0f);
}

}  // namespace
}  // namespace loralei
