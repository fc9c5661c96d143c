// SPDX-License-Identifier: Apache-2.0
#include "weights/expert_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

// The same, by going through everything.
struct NaiveScores {
  int32_t layers, experts;
  double half_life;
  std::vector<double> uses, steps;  // decayed, at the layer's time
  std::vector<int64_t> last;
  std::set<int32_t> kept;
  int64_t count = 0;
  NaiveScores(int32_t l, int32_t e, double h)
      : layers(l),
        experts(e),
        half_life(h),
        uses(static_cast<size_t>(l * e)),
        steps(static_cast<size_t>(l)),
        last(static_cast<size_t>(l)) {}
  void used(int32_t layer, const std::vector<int32_t>& ids) {
    last[static_cast<size_t>(layer)] = ++count;
    double& of_layer = steps[static_cast<size_t>(layer)];
    of_layer = of_layer * std::exp2(-1.0 / half_life) + 1;
    for (int32_t e = 0; e < experts; ++e) uses[static_cast<size_t>(layer * experts + e)] *= std::exp2(-1.0 / half_life);
    for (const int32_t id : ids) uses[static_cast<size_t>(id)] += 1;
  }
  double score(int32_t id) const {
    const double of_layer = steps[static_cast<size_t>(id / experts)];
    return of_layer == 0 ? 0 : uses[static_cast<size_t>(id)] / of_layer;
  }
  int64_t last_of(int32_t id) const { return last[static_cast<size_t>(id / experts)]; }
};

TEST(ExpertScores, WhoGoesFirstIsThatOfANaiveTwin) {
  for (const uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng prng(seed);
    constexpr int32_t kLayers = 5, kExperts = 9;
    ExpertScores scores(kLayers, kExperts, 7);
    NaiveScores naive(kLayers, kExperts, 7);
    const std::vector<int32_t> layers = {0, 1, 3, 4};  // of one size; layer 2 is of another
    for (int i = 0; i < 20000; ++i) {
      const auto id = static_cast<int32_t>(prng.below(kLayers * kExperts));
      switch (prng.below(4)) {
        case 0: {
          const auto layer = static_cast<int32_t>(prng.below(kLayers));
          std::vector<int32_t> ids;
          for (int32_t e = 0; e < kExperts; ++e) {
            if (prng.below(3) == 0) ids.push_back(layer * kExperts + e);
          }
          scores.used(layer, ids);
          naive.used(layer, ids);
          break;
        }
        case 1:
          if (scores.kept(id)) {
            scores.drop(id);
            naive.kept.erase(id);
          } else {
            scores.keep(id);
            naive.kept.insert(id);
          }
          break;
        case 2:
          ASSERT_NEAR(scores.score(id), naive.score(id), 1e-9 * (1 + naive.score(id)));
          ASSERT_EQ(scores.kept(id), naive.kept.count(id) == 1);
          break;
        default: {
          const int32_t first = scores.take_first(layers);
          double lowest = 1e300;
          int64_t last = -1;
          for (const int32_t other : naive.kept) {
            if (other / kExperts != 2) lowest = std::min(lowest, naive.score(other));
          }
          for (const int32_t other : naive.kept) {
            if (other / kExperts != 2 && naive.score(other) <= lowest * (1 + 1e-9))
              last = std::max(last, naive.last_of(other));
          }
          if (last < 0) {
            ASSERT_EQ(first, -1);
            break;
          }
          ASSERT_EQ(naive.kept.count(first), 1U);
          ASSERT_LE(naive.score(first), lowest * (1 + 1e-5) + 1e-12);
          if (naive.score(first) <= lowest * (1 + 1e-9)) {
            ASSERT_EQ(naive.last_of(first), last);
          }
          naive.kept.erase(first);
        }
      }
    }
  }
}

// Every step uses all experts of all layers, and three of four have room.
TEST(ExpertScores, WhereAllAreUsedInTurnAFixedPartStays) {
  constexpr int32_t kLayers = 6, kExperts = 8, kRoom = kLayers * kExperts * 3 / 4;
  ExpertScores scores(kLayers, kExperts);
  const std::vector<int32_t> layers = {0, 1, 2, 3, 4, 5};
  int32_t held = 0, hits = 0;
  std::vector<bool> here(kLayers * kExperts);
  for (int step = 0; step < 50; ++step) {
    hits = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<int32_t> ids;
      for (int32_t e = 0; e < kExperts; ++e) ids.push_back(layer * kExperts + e);
      scores.used(layer, ids);
      std::vector<int32_t> misses;
      for (const int32_t id : ids) {
        hits += here[static_cast<size_t>(id)] ? 1 : 0;
        if (!here[static_cast<size_t>(id)]) misses.push_back(id);
      }
      for (const int32_t id : misses) {
        if (held == kRoom) {
          here[static_cast<size_t>(scores.take_first(layers))] = false;
          --held;
        }
        here[static_cast<size_t>(id)] = true;
        scores.keep(id);
        ++held;
      }
    }
  }
  // One place is that of what passes through.
  EXPECT_GE(hits, kRoom - 1);
}

TEST(ExpertScores, WhatIsUsedOftenStaysAmongWhatIsUsedOnce) {
  ExpertScores scores(1, 64);
  const std::vector<int32_t> layers = {0};
  scores.keep(7);
  for (int step = 0; step < 3; ++step) scores.used(0, std::vector<int32_t>{7});
  for (int step = 0; step < 100; ++step) {
    const int32_t other = 8 + step % 50;
    const int32_t both[] = {7, other};
    scores.used(0, both);
    scores.keep(other);
    EXPECT_NE(scores.take_first(layers), 7) << "step " << step;
  }
}

// What was used often once goes after what is used now.
TEST(ExpertScores, UsesFade) {
  ExpertScores scores(1, 4, 16);
  const int32_t once[] = {0}, now[] = {1};
  for (int i = 0; i < 100; ++i) scores.used(0, once);
  for (int i = 0; i < 100; ++i) scores.used(0, now);
  scores.keep(0);
  scores.keep(1);
  const std::vector<int32_t> layers = {0};
  EXPECT_EQ(scores.take_first(layers), 0);
}

}  // namespace
}  // namespace loralei
