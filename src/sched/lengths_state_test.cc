// SPDX-License-Identifier: Apache-2.0
#include "sched/lengths_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/fast_hash.h"
#include "base/prng.h"
#include "sched/length_predictor.h"

namespace loralei {
namespace {

LengthsState some_state(uint64_t seed, bool with_weights) {
  Prng random(seed);
  LengthPredictor predictor(with_weights ? LengthPrediction::kLearned : LengthPrediction::kHistory);
  for (uint64_t i = 1; i <= 5; ++i) predictor.introduce(AdapterSourceId{i}, 1000 + i);
  for (int i = 0; i < 300; ++i) {
    LengthAsked asked;
    asked.source = AdapterSourceId{random.below(6)};
    asked.prompt = static_cast<int32_t>(random.below(3000));
    const std::vector<TokenId> prompt = {static_cast<TokenId>(random.below(50)),
                                         static_cast<TokenId>(random.below(50))};
    const auto features = predictor.features_of(asked.source, {.prompt = prompt, .output_most = 100});
    asked.features = features;
    asked.output_most = 100;
    predictor.ended(asked, {}, static_cast<int32_t>(1 + random.below(900)), random.below(5) == 0);
  }
  return predictor.state();
}

TEST(LengthsState, ReadsBackAsItWas) {
  for (const bool with_weights : {false, true}) {
    const LengthsState state = some_state(1, with_weights);
    ASSERT_EQ(state.adapters.size(), 6u);
    const std::string bytes = encode_lengths(state, "a base");
    const auto back = decode_lengths(bytes, "a base");
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(back->learned, state.learned);
    EXPECT_EQ(back->learned.empty(), !with_weights);
    EXPECT_EQ(back->common.all.weight, state.common.all.weight);
    EXPECT_EQ(back->common.all.sum, state.common.all.sum);
    EXPECT_EQ(encode_lengths(*back, "a base"), bytes);
  }
}

TEST(LengthsState, WhatIsNotForThisServerIsNamed) {
  const LengthsState state = some_state(2, true);
  const std::string bytes = encode_lengths(state, "a base");
  const auto said = [](const Result<LengthsState>& result) { return result.ok() ? "" : result.error().message; };
  EXPECT_NE(said(decode_lengths(bytes, "another")).find("another base model"), std::string::npos);
  std::string other = bytes;
  other[8] = 2;
  EXPECT_NE(said(decode_lengths(other, "a base")).find("another version"), std::string::npos);
  EXPECT_NE(said(decode_lengths(std::string(100, 'x'), "a base")).find("holds no learned lengths"), std::string::npos);
  EXPECT_NE(said(decode_lengths("", "a base")).find("damaged"), std::string::npos);
}

TEST(LengthsState, NoTruncationAndNoFlippedBitIsTaken) {
  const uint64_t seed = 20261128;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  for (const bool with_weights : {false, true}) {
    const std::string bytes = encode_lengths(some_state(3, with_weights), "a base");
    for (int i = 0; i < 400; ++i) {
      const size_t size = i < 60 ? static_cast<size_t>(i) : random.below(bytes.size());
      EXPECT_FALSE(decode_lengths(bytes.substr(0, size), "a base").ok()) << size;
      std::string flipped = bytes;
      const uint64_t bit = i < 320 ? static_cast<uint64_t>(i) : random.below(bytes.size() * 8);
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_FALSE(decode_lengths(flipped, "a base").ok()) << bit;
      EXPECT_FALSE(decode_lengths(bytes + std::string(1 + random.below(1000), '\0'), "a base").ok());
    }
  }
}

// Somebody who makes the checksum right, too: what is read is in bounds, or refused.
TEST(LengthsState, DamageUnderARightChecksumBreaksNothing) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Prng random(seed);
  const std::string bytes = encode_lengths(some_state(4, true), "a base");
  int taken = 0, refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string damaged = bytes.substr(0, bytes.size() - 8);
    for (auto count = 1 + random.below(4); count > 0; --count) {
      const size_t at = i % 3 == 0 ? 24 + random.below(16) : 40 + random.below(damaged.size() - 40);
      damaged[at] = static_cast<char>(random.below(256));
    }
    const uint64_t checksum = fast_hash(reinterpret_cast<const std::byte*>(damaged.data()), damaged.size(), 0x01020304);
    damaged.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
    auto state = decode_lengths(damaged, "a base");
    ++(state.ok() ? taken : refused);
    if (!state.ok()) continue;
    LengthPredictor predictor(LengthPrediction::kLearned);
    predictor.put_back(std::move(*state));
    LengthAsked asked;
    asked.prompt = static_cast<int32_t>(random.below(3000));
    asked.output_most = 500;
    const std::vector<TokenId> prompt = {static_cast<TokenId>(random.below(50))};
    const auto features = predictor.features_of({}, {.prompt = prompt, .output_most = 500});
    asked.features = features;
    const double predicted = predictor.predict(asked);
    EXPECT_TRUE(predicted >= 1 && predicted <= 500) << predicted;
  }
  EXPECT_GT(taken, 50);
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace loralei
