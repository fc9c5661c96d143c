// SPDX-License-Identifier: Apache-2.0
// How long answers will be: what is learned of them, in the order of admission and in
// what outlives the process.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr TokenId kBriefly = 7, kAtLength = 9;

// All may take 60 tokens; `brief` ones end with their first, the others with their 41st.
Submit request(bool brief, int salt, TokenId word, std::vector<AdapterUse> adapters = {}) {
  Submit submit = simple(10, 60, salt, std::move(adapters));
  submit.prompt[0] = word;
  submit.ignore_eos = false;
  submit.min_tokens = brief ? 0 : 40;
  submit.sampling.logit_bias.emplace_back(kEos, 50.0f);
  return submit;
}
Submit worded(bool brief, int salt) { return request(brief, salt, brief ? kBriefly : kAtLength); }

// In the order in which they ended. Steps take a millisecond.
std::vector<size_t> order_of_ends(World& world, const std::vector<RequestId>& ids) {
  std::vector<size_t> order;
  for (int turns = 0; turns < 10'000 && order.size() < ids.size(); ++turns) {
    EngineOutput output;
    const Next next = world.next(output);
    if (next.step != nullptr) {
      world.clock.advance_ns(1'000'000);
      world.compute(*next.step, output);
    }
    world.loop->check();
    world.take(output);
    world.finish_load();
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool ended = world.record(ids[i]).end != EndReason::kNone;
      if (ended && std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    }
  }
  for (const RequestId id : ids) world.expect_oracle(id);
  return order;
}

WorldOptions sjf(LengthPrediction prediction) {
  return {.max_sequences = 1, .scheduling = {.policy = SchedulePolicy::kSjf, .prediction = prediction}};
}

// One that runs meanwhile, then a long one and behind it a brief one.
std::vector<size_t> order_of_three(World& world, const Submit& long_one, const Submit& brief) {
  std::vector<RequestId> ids = {world.submit(request(false, 100, 11))};
  for (int i = 0; i < 5; ++i) world.turn();
  for (const Submit& submit : {long_one, brief}) ids.push_back(world.submit(submit));
  return order_of_ends(world, ids);
}

TEST(EngineLoopLengths, AWordOfThePromptSaysWhomSjfTakes) {
  for (const LengthPrediction prediction : {LengthPrediction::kHistory, LengthPrediction::kLearned}) {
    World world(sjf(prediction));
    const bool learned = prediction == LengthPrediction::kLearned;
    for (int i = 0; i < 60; ++i) (void)order_of_ends(world, {world.submit(worded(i % 2 == 0, i))});
    EXPECT_EQ(order_of_three(world, worded(false, 101), worded(true, 102)),
              learned ? (std::vector<size_t>{0, 2, 1}) : (std::vector<size_t>{0, 1, 2}));
    const auto& errors = world.stats().length_errors;
    const auto counted = [&](LengthPrediction by) {
      uint64_t sum = 0;
      for (const uint64_t count : errors[static_cast<size_t>(by)].counts) sum += count;
      return sum;
    };
    EXPECT_EQ(counted(LengthPrediction::kHistory), 63u);
    EXPECT_EQ(counted(LengthPrediction::kLearned), learned ? 63u : 0u);
    EXPECT_EQ(counted(LengthPrediction::kMaxTokens), 0u);
    const auto error_of = [&](LengthPrediction by) { return errors[static_cast<size_t>(by)].sum; };
    if (learned) {
      EXPECT_LT(error_of(LengthPrediction::kLearned), error_of(LengthPrediction::kHistory) / 2);
    }
  }
}

// Of two adapters one answers briefly. In the next process they have each other's names,
// and lie where they lay.
TEST(EngineLoopLengths, WhatWasLearnedIsThereInTheNextProcess) {
  for (const LengthPrediction prediction : {LengthPrediction::kHistory, LengthPrediction::kLearned}) {
    LengthsState last;
    const auto add = [](World& world, const std::string& name, const std::string& path) {
      world.files.put(path, path == "/a" ? 1 : 2);
      world.command(AdapterAction::kAdd, name, path);
    };
    const auto by = [](bool brief, int salt, const char* adapter) {
      return request(brief, salt, 11, {{source_of(adapter), 1.0f}});
    };
    {
      WorldOptions options = sjf(prediction);
      options.keep_lengths = [&](LengthsState&& state) { last = std::move(state); };
      World world(options);
      add(world, "a", "/a");
      add(world, "b", "/b");
      for (int i = 0; i < 30; ++i)
        (void)order_of_ends(world, {world.submit(by(i % 2 == 0, i, i % 2 == 0 ? "a" : "b"))});
      EngineOutput output;
      world.loop->end_all(world.messages, output);
    }
    ASSERT_EQ(last.adapters.size(), 2u);
    for (const bool kept : {true, false}) {
      WorldOptions options = sjf(prediction);
      if (kept) options.lengths = std::make_shared<const LengthsState>(last);
      World world(options);
      add(world, "a", "/b");
      add(world, "b", "/a");
      for (const char* adapter : {"a", "b"})  // so that both are in memory
        (void)order_of_ends(world, {world.submit(request(false, 50, 11, {{source_of(adapter), 1.0f}}))});
      EXPECT_EQ(order_of_three(world, by(false, 101, "a"), by(true, 102, "b")),
                kept ? (std::vector<size_t>{0, 2, 1}) : (std::vector<size_t>{0, 1, 2}));
    }
  }
}

TEST(EngineLoopLengths, WhatWasLearnedIsHandedOutNowAndThenAndNotInVain) {
  int kept = 0;
  WorldOptions options = sjf(LengthPrediction::kLearned);
  options.keep_lengths = [&](LengthsState&& state) {
    ++kept;
    EXPECT_EQ(state.learned.size(), static_cast<size_t>(LearnedLengths::kPlaces));
  };
  World world(options);
  const auto wait = [&](int64_t seconds) {
    world.clock.advance_ns(seconds * 1'000'000'000);
    world.turn();
  };
  (void)order_of_ends(world, {world.submit(worded(true, 1))});
  wait(10);
  EXPECT_EQ(kept, 0);
  wait(300);
  EXPECT_EQ(kept, 1);
  wait(3000);
  EXPECT_EQ(kept, 1) << "nothing was learned since";
  (void)order_of_ends(world, {world.submit(worded(true, 2))});
  wait(300);
  EXPECT_EQ(kept, 2);
  (void)order_of_ends(world, {world.submit(worded(true, 3))});
  EngineOutput output;
  world.loop->end_all(world.messages, output);
  EXPECT_EQ(kept, 3) << "at the end, whenever that is";
}

}  // namespace
}  // namespace loralei
