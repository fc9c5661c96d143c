// SPDX-License-Identifier: Apache-2.0
#include "sched/prompt_lookup.h"

#include <gtest/gtest.h>

#include <vector>

namespace loralei {
namespace {

using Tokens = std::vector<TokenId>;

const PromptLookup::Bounds kWide{.tokens_max = 100, .vocab = 1000};

Tokens propose(PromptLookup& lookup, const Tokens& text, const PromptLookup::Bounds& bounds = kWide) {
  const auto draft = lookup.propose(text, bounds);
  return {draft.begin(), draft.end()};
}

TEST(PromptLookup, ProposesWhatCameAfterTheLastTokensBefore) {
  PromptLookup lookup;
  EXPECT_EQ(propose(lookup, {1, 2, 3, 4, 5, 6, 7, 9, 1, 2}), (Tokens{3, 4, 5, 6}));
  EXPECT_EQ(propose(lookup, {1, 2, 3, 9, 1, 2, 4, 9, 1, 2}), (Tokens{4, 9, 1, 2}));     // the latest
  EXPECT_EQ(propose(lookup, {7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2}), (Tokens{3, 9, 1, 2}));  // the longest before it
}

TEST(PromptLookup, OneTokenIsNoReason) {
  PromptLookup lookup;
  EXPECT_TRUE(propose(lookup, {1, 2, 3, 1}).empty());
  EXPECT_TRUE(propose(lookup, {1, 2, 3, 4}).empty());
  EXPECT_TRUE(propose(lookup, {1, 1}).empty());
  EXPECT_TRUE(propose(lookup, {1}).empty());
  EXPECT_TRUE(propose(lookup, {}).empty());
}

TEST(PromptLookup, AShortPeriodGoesOnBeyondTheText) {
  PromptLookup lookup;
  EXPECT_EQ(propose(lookup, {5, 5, 5}), (Tokens{5, 5, 5, 5}));
  EXPECT_EQ(propose(lookup, {9, 1, 2, 3, 1, 2, 3}), (Tokens{1, 2, 3, 1}));
}

TEST(PromptLookup, StaysWithinItsBounds) {
  PromptLookup lookup;
  const Tokens text{1, 2, 3, 4, 50, 6, 9, 1, 2};
  EXPECT_EQ(propose(lookup, text, {.tokens_max = 2, .vocab = 1000}), (Tokens{3, 4}));
  EXPECT_TRUE(propose(lookup, text, {.tokens_max = 0, .vocab = 1000}).empty());
  EXPECT_TRUE(propose(lookup, text, {.tokens_max = -3, .vocab = 1000}).empty());
  EXPECT_EQ(propose(lookup, text, {.tokens_max = 8, .vocab = 50}), (Tokens{3, 4}));
  const Tokens ends{7, 4};
  EXPECT_EQ(propose(lookup, text, {.tokens_max = 8, .vocab = 1000, .ends = ends}), (Tokens{3}));
}

TEST(PromptLookup, LooksBackSoFarAndNoFurther) {
  for (const bool within : {true, false}) {
    PromptLookup lookup;
    Tokens text{1, 2, 3};
    while (text.size() < PromptLookup::kWindow - (within ? 2u : 0u)) text.push_back(static_cast<TokenId>(text.size()));
    text.push_back(1);
    text.push_back(2);
    EXPECT_EQ(propose(lookup, text, {.tokens_max = 1, .vocab = 1000}), within ? Tokens{3} : Tokens{});
  }
}

TEST(PromptLookup, DraftsGrowWhileTheyHoldAndShrinkWhenTheyDoNot) {
  PromptLookup lookup;
  const Tokens text(20, 5);
  const auto length = [&] { return static_cast<int32_t>(propose(lookup, text).size()); };
  EXPECT_EQ(length(), kDraftTokensMax / 2);
  lookup.learn(4, 4);
  EXPECT_EQ(length(), kDraftTokensMax);
  lookup.learn(8, 8);
  EXPECT_EQ(length(), kDraftTokensMax);
  lookup.learn(8, 2);
  EXPECT_EQ(length(), 3);
  lookup.learn(3, 0);
  EXPECT_EQ(length(), 1);
  lookup.learn(1, 0);
  EXPECT_EQ(length(), 1);
  lookup.learn(1, 1);
  EXPECT_EQ(length(), 2);
}

}  // namespace
}  // namespace loralei
