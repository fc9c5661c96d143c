// SPDX-License-Identifier: Apache-2.0
#include "sched/length_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/prng.h"
#include "sched/scheduling.h"

namespace loralei {
namespace {

struct Question {
  AdapterSourceId source;
  std::vector<TokenId> prompt;
  LearnedLengths::Features features;
};

Question question(const LengthPredictor& predictor, uint64_t source, std::vector<TokenId> prompt) {
  const AdapterSourceId id{source};
  auto features = predictor.features_of(id, {.prompt = prompt, .output_most = 5000});
  return {id, std::move(prompt), std::move(features)};
}

LengthAsked asked(const Question& question, int32_t so_far = 0, int32_t most = 5000) {
  LengthAsked result;
  result.source = question.source;
  result.prompt = static_cast<int32_t>(question.prompt.size());
  result.output_most = most;
  result.output_so_far = so_far;
  result.features = question.features;
  return result;
}

void answer(LengthPredictor& predictor, const Question& question, int32_t output, bool cut = false) {
  predictor.ended(asked(question), predictor.foresee(asked(question)), output, cut);
}

TEST(LengthPredictor, UntrainedWeightsPredictAsHistoryDoes) {
  const uint64_t seed = 20261128;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  LengthPredictor history(LengthPrediction::kHistory);
  for (uint64_t source = 1; source < 4; ++source) history.introduce(AdapterSourceId{source}, 100 + source);
  for (int i = 0; i < 100; ++i) {
    LengthPredictor learned(LengthPrediction::kLearned);
    for (uint64_t source = 1; source < 4; ++source) learned.introduce(AdapterSourceId{source}, 100 + source);
    learned.put_back(history.state());  // all of it but what words say
    const Question one = question(learned, random.below(4), std::vector<TokenId>(1 + random.below(500), 3));
    for (const int32_t so_far : {0, 1, 30, 700, 4999}) {
      for (const int32_t most : {0, 1, 40, 5000}) {
        ASSERT_EQ(learned.predict(asked(one, so_far, most)), history.predict(asked(one, so_far, most)));
      }
    }
    history.ended(asked(one), {}, static_cast<int32_t>(1 + random.below(900)), random.below(3) == 0);
  }
}

TEST(LengthPredictor, WhatWasOutgrownIsPredictedAnewBeyondIt) {
  LengthPredictor predictor(LengthPrediction::kLearned);
  const Question brief = question(predictor, 1, {1, 2, 3}), long_one = question(predictor, 1, {4, 5, 6});
  for (int i = 0; i < 100; ++i) {
    answer(predictor, brief, 10);
    answer(predictor, long_one, 1000);
  }
  EXPECT_LT(predictor.predict(asked(brief)), 15);
  EXPECT_GT(predictor.predict(asked(long_one)), 500);
  EXPECT_GT(predictor.predict(asked(brief, 20)), 500) << "it is none of the brief ones";
  EXPECT_EQ(predictor.predict(asked(brief, 4000)), 4000);
  EXPECT_EQ(predictor.predict(asked(brief, 20, 300)), 300) << "no more than its request allows";
}

TEST(LengthPredictor, ErrorsAreThoseOfWhatWasSaidAtArrival) {
  LengthPredictor predictor(LengthPrediction::kLearned);
  const Question one = question(predictor, 1, {1, 2, 3});
  predictor.ended(asked(one), {.predicted = 100, .history = 10}, 100, false);
  predictor.ended(asked(one), {.predicted = 100, .history = 10}, 100, true);  // its length is not known
  predictor.ended(asked(one), {}, 100, false);                                // nothing was predicted
  const LengthErrors& learned = predictor.errors()[static_cast<size_t>(LengthPrediction::kLearned)];
  const LengthErrors& history = predictor.errors()[static_cast<size_t>(LengthPrediction::kHistory)];
  EXPECT_EQ(learned.counts, (std::array<uint64_t, 7>{1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(history.counts, (std::array<uint64_t, 7>{0, 0, 0, 0, 0, 1, 0})) << "a tenth: 3.3 octaves";
  EXPECT_NEAR(history.sum, 3.32, 0.01);
  LengthPredictor by_limit(LengthPrediction::kMaxTokens);
  by_limit.ended(asked(one, 0, 200), by_limit.foresee(asked(one, 0, 200)), 100, false);
  EXPECT_EQ(by_limit.errors()[static_cast<size_t>(LengthPrediction::kMaxTokens)].counts[2], 1u);
  EXPECT_EQ(by_limit.errors()[static_cast<size_t>(LengthPrediction::kHistory)].sum, 0);
}

// Sources have other numbers in the next process, and what was learned comes back by
// path.
TEST(LengthPredictor, AdaptersAreKnownAgainByTheirPath) {
  LengthPredictor before(LengthPrediction::kLearned);
  before.introduce(AdapterSourceId{1}, LengthPredictor::key_of("/adapters/brief"));
  before.introduce(AdapterSourceId{2}, LengthPredictor::key_of("/adapters/long"));
  const Question base = question(before, 0, {1, 2});
  for (int i = 0; i < 100; ++i) {
    answer(before, question(before, 1, {1, 2}), 10);
    answer(before, question(before, 2, {1, 2}), 1000);
    answer(before, base, 100);
  }
  auto bytes = encode_lengths(before.state(), "base");
  LengthPredictor next(LengthPrediction::kLearned);
  next.introduce(AdapterSourceId{7}, LengthPredictor::key_of("/adapters/long"));  // some before, some behind
  next.put_back(decode_lengths(bytes, "base").value());
  next.introduce(AdapterSourceId{8}, LengthPredictor::key_of("/adapters/brief"));
  const auto same = [&](uint64_t source_before, uint64_t source_next) {
    EXPECT_EQ(before.predict(asked(question(before, source_before, {1, 2}))),
              next.predict(asked(question(next, source_next, {1, 2}))));
  };
  same(1, 8);
  same(2, 7);
  same(0, 0);
  EXPECT_EQ(encode_lengths(next.state(), "base"), bytes) << "what was put back is kept on";
  // One that leaves and comes back under another number.
  next.forget(AdapterSourceId{7});
  next.introduce(AdapterSourceId{9}, LengthPredictor::key_of("/adapters/long"));
  same(2, 9);
  // A server that predicts otherwise keeps what words say all the same.
  LengthPredictor other(LengthPrediction::kHistory);
  other.put_back(decode_lengths(bytes, "base").value());
  EXPECT_EQ(other.state().learned, before.state().learned);
}

TEST(LengthPredictor, AdaptersThatAreKeptAreBounded) {
  LengthPredictor predictor(LengthPrediction::kHistory);
  const auto use = [&](uint64_t source, int answers) {
    predictor.introduce(AdapterSourceId{source}, 1'000'000 + source);
    for (int i = 0; i < answers; ++i) answer(predictor, question(predictor, source, {1}), 10);
  };
  constexpr uint64_t kMany = LengthsState::kAdaptersMost + 100;
  for (uint64_t source = 1; source <= kMany; ++source) {
    use(source, source % 100 == 0 ? 5 : 1);
    if (source > 10) predictor.forget(AdapterSourceId{source});
  }
  const LengthsState state = predictor.state();
  EXPECT_EQ(state.adapters.size(), LengthsState::kAdaptersMost);
  std::vector<uint64_t> keys;
  for (const auto& one : state.adapters) keys.push_back(one.key);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  for (uint64_t source = 1; source <= 10; ++source)
    EXPECT_TRUE(std::binary_search(keys.begin(), keys.end(), 1'000'000 + source)) << "it is there";
  for (uint64_t source = 100; source <= kMany; source += 100)
    EXPECT_TRUE(std::binary_search(keys.begin(), keys.end(), 1'000'000 + source)) << "it is known best";
  EXPECT_LE(encode_lengths(state, "base").size(), static_cast<size_t>(kLengthsBytesMost));
}

}  // namespace
}  // namespace loralei
