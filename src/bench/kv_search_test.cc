// SPDX-License-Identifier: Apache-2.0
// The search for factors, over rows of which it is known what they bear.
#include "bench/kv_search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(KvSearch, AnswersWhatWasAskedLastWithYes) {
  for (uint64_t seed = 1; seed < 300; ++seed) {
    Prng prng(seed);
    const size_t rows = 2 * (1 + prng.below(40));
    std::vector<int32_t> bears;  // the coarsest rung of each
    for (size_t i = 0; i < rows; ++i) bears.push_back(static_cast<int32_t>(prng.below(kKvRungs + 1)) - 1);
    int32_t asked = 0;
    KvRungs last_yes;
    const auto holds = [&](const KvRungs& rungs) -> Result<bool> {
      ++asked;
      for (size_t i = 0; i < rows; ++i) {
        EXPECT_TRUE(rungs[i] >= 0 && rungs[i] < kKvRungs);
        if (rungs[i] > bears[i]) return false;
      }
      last_yes = rungs;
      return true;
    };
    const auto found = search_kv_rungs(rows, holds, [](size_t, int32_t rung) { return 8.0 - 0.5 * rung; });
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->trials, asked);
    EXPECT_LE(asked, kKvTrialsMost);
    const int32_t least = *std::min_element(bears.begin(), bears.end());
    EXPECT_EQ(found->holds, least >= 0) << seed;
    if (least < 0) {
      EXPECT_EQ(found->rungs, KvRungs(rows, 0));
      continue;
    }
    EXPECT_EQ(found->rungs, last_yes);
    for (size_t i = 0; i < rows; ++i) EXPECT_TRUE(found->rungs[i] >= least && found->rungs[i] <= least + 2);
    if (rows <= 8) {  // few enough that nothing is left unasked
      for (size_t i = 0; i < rows; ++i) EXPECT_EQ(found->rungs[i], std::min(bears[i], least + 2)) << seed;
    }
  }
}

TEST(KvSearch, RowsThatSaveMoreGoFirst) {
  // Only two rows more in all can be coarser than the rest.
  const auto holds = [](const KvRungs& rungs) -> Result<bool> {
    int32_t sum = 0;
    for (const int32_t rung : rungs) sum += rung;
    return sum <= 18;
  };
  const auto bits = [](size_t row, int32_t rung) { return row == 6 || row == 3 ? 8.0 - rung : 8.0 - 0.1 * rung; };
  const auto found = search_kv_rungs(8, holds, bits);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->rungs, (KvRungs{2, 2, 2, 3, 2, 2, 3, 2}));
}

TEST(KvSearch, AnErrorEndsIt) {
  const auto found = search_kv_rungs(
      4, [](const KvRungs&) -> Result<bool> { return internal_error("broken"); }, [](size_t, int32_t) { return 1.0; });
  EXPECT_FALSE(found.ok());
}

TEST(KvSearch, TheLadderIsFromASixteenthToTwo) {
  EXPECT_EQ(kv_rung_factor(0), 1.0f / 16);
  EXPECT_EQ(kv_rung_factor(4), 0.25f);
  EXPECT_EQ(kv_rung_factor(kKvRungs - 1), 2.0f);
}

}  // namespace
}  // namespace loralei
