// SPDX-License-Identifier: Apache-2.0
// Scenarios of the engine loop: how requests end.
#include <gtest/gtest.h>

#include "base/prng.h"
#include "engine/loop.h"
#include "engine/loop_test_world.h"
#include "sampling/grammar.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(EngineLoopEnds, StopIdsEosAndMinimumLength) {
  World world;
  Submit submit = simple(10, 200, 1);
  submit.ignore_eos = false;
  submit.stop_ids = {7, 8};
  const RequestId plain = world.submit(submit);
  submit.min_tokens = 30;
  const RequestId longer = world.submit(submit);
  world.run();
  world.expect_oracle(plain);
  world.expect_oracle(longer);
  EXPECT_EQ(world.record(plain).end, EndReason::kStop);
  EXPECT_TRUE(world.record(plain).last.stop_token.has_value());
  EXPECT_GE(world.record(longer).tokens.size(), 30u);
}

TEST(EngineLoopEnds, OutputIsClippedAtTheModelsLength) {
  World world({.max_model_len = 40});
  const RequestId id = world.submit(simple(30, 500));
  world.run();
  EXPECT_EQ(world.record(id).tokens.size(), 10u);
  EXPECT_EQ(world.record(id).end, EndReason::kLength);
}

TEST(EngineLoopEnds, RefusalsNameTheReason) {
  World world;
  world.files.put("/a", 11);
  world.files.put("/s", 12);
  world.files.change("/s", [](FakeFiles::File& file) { file.saved_tensors = true; });
  world.command(AdapterAction::kAdd, "a", "/a");
  world.command(AdapterAction::kAdd, "s", "/s");
  const RequestId unknown = world.submit(simple(10, 5, 1, {{source_of("nobody"), 1.0f}}));
  const RequestId summed = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}, {source_of("s"), 1.0f}}));
  const RequestId scaled = world.submit(simple(10, 5, 1, {{source_of("s"), 0.5f}}));
  Submit foreign = simple(10, 5, 1);
  foreign.prompt[3] = kVocab;
  const RequestId token = world.submit(foreign);
  const RequestId fine = world.submit(simple(10, 5, 1, {{source_of("s"), 1.0f}}));
  world.run();
  EXPECT_EQ(world.record(unknown).last.error.code, ErrorCode::kNotFound);
  EXPECT_EQ(world.record(summed).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.record(scaled).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.record(token).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.record(fine).end, EndReason::kLength);
  world.expect_nothing_held();
}

// A letter may begin any of ten counts of forty letters, beside the text that goes on:
// every token leads to sets of hundreds of states that no other token leads to.
TEST(EngineLoopEnds, AFormThatIsGivenUpIsTheRequestsFault) {
  GrammarBuilder builder;
  const GrammarRuleId root = builder.add_rule();
  builder.add_range(builder.start(root), 'a', 'z', builder.start(root));
  for (uint8_t last = 'e'; last <= 'w'; last += 2) {
    GrammarStateId state = builder.range(builder.start(root), 'a', last);
    for (int i = 1; i < 40; ++i) state = builder.range(state, 'a', 'z');
    builder.end_rule(state);
  }
  Prng letters(7);
  std::vector<GrammarToken> tokens{{kEos, "", GrammarToken::Kind::kEnd}};
  for (int32_t id = 1; id < kVocab; ++id) {
    if (id == kEos) continue;
    GrammarToken& token = tokens.emplace_back(GrammarToken{id, ""});
    for (int i = 0; i < 500; ++i) token.bytes += static_cast<char>('a' + letters.below(26));
  }
  World world;
  Submit submit = simple(10, 5, 1);
  submit.sampling.grammar = std::move(std::move(builder).finish(root)).value();
  submit.sampling.vocab_trie = std::move(VocabTrie::build(std::move(tokens), kVocab)).value();
  const RequestId id = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(id).end, EndReason::kError);
  EXPECT_EQ(world.record(id).last.error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(world.record(id).last.error.message.find("fewer alternatives"), std::string::npos);
  world.expect_nothing_held();
}

TEST(EngineLoopEnds, AnExecutorErrorEndsTheRequestsOfThatStepOnly) {
  World world;
  const RequestId first = world.submit(simple(10, 5, 1));
  world.executor.fail_next = true;
  world.turn();
  EXPECT_EQ(world.record(first).end, EndReason::kError);
  const RequestId second = world.submit(simple(10, 5, 1));
  world.run();
  world.expect_oracle(second);
  world.expect_nothing_held();
}

// From the step that failed of it, until the executor says otherwise: whether somebody
// asks or not.
TEST(EngineLoopEnds, WhatCannotBeComputedForNowIsAskedAboutUntilItCan) {
  World world;
  const RequestId first = world.submit(simple(10, 5, 1));
  world.turn();
  EXPECT_TRUE(world.loop->ready().ok());
  world.executor.fail_next = true;
  world.executor.damage = Error{ErrorCode::kUnavailable, "The weights are being mended."};
  world.turn();
  EXPECT_EQ(world.record(first).last.error.code, ErrorCode::kInternal);
  ASSERT_FALSE(world.loop->ready().ok()) << "it is asked at once";
  EXPECT_EQ(world.stats().ready.error().message, "The weights are being mended.");
  EXPECT_TRUE(world.loop->idle());
  const RequestId second = world.submit(simple(10, 5, 1));
  world.turn();
  EXPECT_EQ(world.record(second).last.error.message, "The weights are being mended.");
  for (int i = 0; i < 3; ++i) {
    const int asked = world.executor.asked;
    world.turn();
    EXPECT_EQ(world.executor.asked, asked + 1);
    EXPECT_TRUE(world.loop->idle());
  }
  world.executor.readiness = {};
  world.turn();
  EXPECT_TRUE(world.loop->ready().ok());
  EXPECT_TRUE(world.stats().ready.ok());
  const int asked = world.executor.asked;
  for (int i = 0; i < 3; ++i) world.turn();
  EXPECT_EQ(world.executor.asked, asked) << "all is well and there are no requests";
  const RequestId third = world.submit(simple(10, 5, 1));
  world.run();
  world.expect_oracle(third);
  world.expect_nothing_held();
}

// A change of the budget reads weights, too.
TEST(EngineLoopEnds, AChangeOfTheBudgetThatFailsAsksWhetherAnythingCanBeComputed) {
  World world({.blocks = 8, .blocks_max = 8});
  world.executor.readiness = Error{ErrorCode::kUnavailable, "The weights are being mended."};
  world.resize(7);
  world.run();
  ASSERT_TRUE(world.replies.back().status.ok());
  EXPECT_TRUE(world.loop->ready().ok()) << "nothing has failed";
  world.resize(9);
  world.turn();
  ASSERT_FALSE(world.replies.back().status.ok());
  EXPECT_FALSE(world.loop->ready().ok());
}

// Those that run, that wait for room and that wait for an adapter end with the step that
// tells; those that come later end without a step. Commands go on.
TEST(EngineLoopEnds, ALostDeviceEndsEveryRequestNowAndLater) {
  World world({.max_sequences = 2});
  world.files.put("/a", 11);
  world.command(AdapterAction::kAdd, "a", "/a");
  Submit two = simple(10, 5, 1);
  two.choices = 2;
  const std::vector<RequestId> ids = {world.submit(two), world.submit(simple(10, 5, 2)),
                                      world.submit(simple(10, 5, 3, {{source_of("a"), 1.0f}}))};
  world.turn();
  EXPECT_TRUE(world.loop->health().ok());
  world.executor.lost = true;
  world.turn();
  const auto expect_lost = [&](RequestId id, int32_t choice = 0) {
    EXPECT_EQ(world.record(id, choice).end, EndReason::kError);
    EXPECT_EQ(world.record(id, choice).last.error.code, ErrorCode::kUnavailable);
    EXPECT_EQ(world.record(id, choice).last.error.message, "Nothing can be computed any more: the fake device is lost");
  };
  for (const RequestId id : ids) expect_lost(id);
  expect_lost(ids[0], 1);
  EXPECT_EQ(world.loop->health().error().code, ErrorCode::kUnavailable);
  const int64_t steps = world.executor.steps;
  const RequestId later = world.submit(simple(10, 5, 4));
  const RequestId with_adapter = world.submit(simple(10, 5, 4, {{source_of("a"), 1.0f}}));
  world.run();
  expect_lost(later);
  expect_lost(with_adapter);
  EXPECT_EQ(world.executor.steps, steps);
  world.command(AdapterAction::kLoad, "b", "/a");
  world.run();
  EXPECT_TRUE(world.replies.back().status.ok());
  EXPECT_TRUE(world.loop->idle());
  world.expect_nothing_held();
}

TEST(EngineLoopEnds, CancelFreesInEveryState) {
  World world({.blocks = 10, .max_sequences = 3});
  world.files.put("/a", 11);
  world.command(AdapterAction::kAdd, "a", "/a");
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    Submit submit =
        simple(30, 50, i, i % 2 ? std::vector<AdapterUse>{{source_of("a"), 1.0f}} : std::vector<AdapterUse>{});
    submit.choices = 1 + i % 3;
    ids.push_back(world.submit(submit));
  }
  for (int i = 0; i < 4; ++i) world.turn();
  world.cancel(RequestId{999});
  for (const RequestId id : ids) {
    world.cancel(id);
    world.cancel(id);
    world.turn();
  }
  for (int i = 0; i < 6; ++i) {
    for (int32_t choice = 0; choice < 1 + i % 3; ++choice)
      EXPECT_EQ(world.record(ids[static_cast<size_t>(i)], choice).end, EndReason::kCancelled);
  }
  world.run();
  world.expect_nothing_held();
}

// Held requests leave slots and KV to others, and go on with the same tokens, from the
// prefix cache or without.
TEST(EngineLoopEnds, HeldRequestsRestAndGoOn) {
  for (const bool prefix_cache : {true, false}) {
    World world({.blocks = 30, .max_sequences = 2, .prefix_cache = prefix_cache});
    Submit submit = simple(40, 30, 1);
    submit.choices = 2;
    const RequestId slow = world.submit(submit);
    for (int i = 0; i < 8; ++i) world.turn();
    EXPECT_EQ(world.stats().running, 2);
    world.hold(slow, true);
    world.hold(slow, true);
    world.hold(RequestId{999}, true);
    world.turn();
    const auto said = world.record(slow, 0).tokens.size();
    EXPECT_EQ(world.stats().running, 0);
    EXPECT_EQ(world.stats().held, 2);
    EXPECT_TRUE(world.loop->idle()) << "it would turn for nothing";
    const RequestId other = world.submit(simple(60, 20, 2));
    world.run();
    EXPECT_EQ(world.record(other, 0).end, EndReason::kLength);
    EXPECT_EQ(world.record(slow, 0).tokens.size(), said);
    EXPECT_EQ(world.record(slow, 0).end, EndReason::kNone);
    world.hold(slow, false);
    world.run();
    for (const int32_t choice : {0, 1}) {
      EXPECT_EQ(world.record(slow, choice).end, EndReason::kLength);
      world.expect_oracle(slow, choice);
    }
    world.expect_nothing_held();
  }
}

TEST(EngineLoopEnds, HeldRequestsEndWhenTheyAreCancelled) {
  World world({.blocks = 30, .max_sequences = 4});
  Submit submit = simple(40, 30, 1);
  submit.choices = 3;
  const RequestId whole = world.submit(submit), led = world.submit(submit), waiting = world.submit(submit);
  for (int i = 0; i < 3; ++i) world.turn();
  for (const RequestId id : {whole, led, waiting}) world.hold(id, true);
  world.turn();
  world.cancel(whole);
  world.cancel(led, 0);  // its siblings wait for nobody
  world.cancel(waiting);
  world.hold(led, false);
  world.run();
  for (const int32_t choice : {0, 1, 2}) {
    EXPECT_EQ(world.record(whole, choice).end, EndReason::kCancelled);
    EXPECT_EQ(world.record(waiting, choice).end, EndReason::kCancelled);
    EXPECT_EQ(world.record(led, choice).end, choice == 0 ? EndReason::kCancelled : EndReason::kLength);
  }
  EXPECT_EQ(world.stats().held, 0);
  world.expect_nothing_held();
}

TEST(EngineLoopEnds, CancelOfOneChoiceLeavesItsSiblings) {
  World world({.max_sequences = 8});
  Submit submit = simple(20, 12, 3);
  submit.choices = 3;
  const RequestId id = world.submit(submit);
  for (int i = 0; i < 4; ++i) world.turn();
  world.cancel(id, 1);
  world.cancel(id, 1);
  world.cancel(id, 7);  // no such choice
  world.run();
  EXPECT_EQ(world.record(id, 1).end, EndReason::kCancelled);
  for (const int32_t choice : {0, 2}) {
    EXPECT_EQ(world.record(id, choice).end, EndReason::kLength);
    world.expect_oracle(id, choice);
  }
  world.expect_nothing_held();
}

TEST(EngineLoopEnds, EndAllEndsEverythingOnce) {
  World world({.max_sequences = 2});
  world.files.put("/a", 11);
  world.command(AdapterAction::kAdd, "a", "/a");
  for (int i = 0; i < 6; ++i)
    world.submit(
        simple(20, 50, i, i == 3 ? std::vector<AdapterUse>{{source_of("a"), 1.0f}} : std::vector<AdapterUse>{}));
  world.command(AdapterAction::kPin, "a");
  for (int i = 0; i < 4; ++i) world.turn();
  EngineOutput output;
  world.loop->end_all(world.messages, output);
  world.take(output);
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(world.record(RequestId{id}).end, EndReason::kCancelled);
  EXPECT_EQ(world.replies.back().status.error().code, ErrorCode::kUnavailable);
  world.expect_nothing_held();
}

TEST(EngineLoopEnds, WhatArrivesDuringAStepIsLookedAtBehindIt) {
  World world;
  const RequestId first = world.submit(simple(10, 5, 1));
  const RequestId cancelled = world.submit(simple(10, 5, 2));
  EngineOutput output;
  const Next next = world.next(output);
  ASSERT_NE(next.step, nullptr);
  EXPECT_EQ(next.step->groups.size(), 2u);
  world.cancel(cancelled);
  world.loop->receive(world.messages, output);
  EXPECT_TRUE(world.loop->in_flight() && world.messages.empty() && output.tokens.empty());
  world.loop->check();
  world.executor.start(*next.step);
  const RequestId second = world.submit(simple(10, 5, 3));
  world.messages.emplace_back(world.done);
  world.loop->receive(world.messages, output);
  EXPECT_FALSE(world.loop->in_flight());
  world.loop->check();
  ASSERT_EQ(output.tokens.size(), 3u) << "one token each, and the end of one";
  EXPECT_EQ(output.tokens[2].id, cancelled);
  EXPECT_EQ(output.tokens[2].end, EndReason::kCancelled);
  world.take(output);
  world.run();
  for (const RequestId id : {first, second}) world.expect_oracle(id);
  world.expect_nothing_held();
}

TEST(EngineLoopEnds, TheLoopSaysWhenItWantsToBeAskedAgain) {
  World world;
  EngineOutput output;
  const auto wake_in_ns = [&] {
    const Next next = world.next(output);
    EXPECT_EQ(next.step, nullptr);
    return next.wake_at_ns == Next::kNever ? next.wake_at_ns : next.wake_at_ns - world.clock.now_ns();
  };
  EXPECT_EQ(wake_in_ns(), Next::kNever) << "nothing to do";
  world.files.put("/a", 7);
  world.command(AdapterAction::kAdd, "a", "/a");
  const RequestId cold = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  while (world.jobs.empty()) wake_in_ns();
  EXPECT_EQ(wake_in_ns(), Next::kNever) << "the end of a load will come";
  world.executor.readiness = Error{ErrorCode::kUnavailable, "The weights are being mended."};
  EXPECT_EQ(wake_in_ns(), 1'000'000'000) << "nobody says when they are mended";
  world.executor.readiness = {};
  world.take(output);
  EXPECT_EQ(world.record(cold).end, EndReason::kError);
  world.run();
  EXPECT_EQ(wake_in_ns(), Next::kNever);
}

}  // namespace
}  // namespace loralei
