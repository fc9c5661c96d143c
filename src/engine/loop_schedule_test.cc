// SPDX-License-Identifier: Apache-2.0
// Who is computed next: by priority, sjf, queues by size with quotas, and those that are
// squashed.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kStepNs = 1'000'000;

// Steps that take time.
void turn(World& world, int64_t step_ns = kStepNs) {
  EngineOutput output;
  const Next next = world.next(output);
  if (next.step != nullptr) {
    world.clock.advance_ns(step_ns);
    world.compute(*next.step, output);
  }
  world.loop->check();
  world.take(output);
}

void run_all(World& world, const std::vector<RequestId>& ids) {
  const auto ended = [&](RequestId id) {
    for (int32_t choice = 0; choice < world.submits.at(id).choices; ++choice)
      if (world.record(id, choice).end == EndReason::kNone) return false;
    return true;
  };
  const auto all_ended = [&] { return std::all_of(ids.begin(), ids.end(), ended); };
  for (int turns = 0; turns < 100'000 && !all_ended(); ++turns) {
    turn(world);
    world.finish_load();
    (void)world.finish_upload();
  }
  for (const RequestId id : ids) world.expect_oracle(id);
}

// The order in which they ended.
std::vector<size_t> order_of_ends(World& world, const std::vector<RequestId>& ids) {
  std::vector<size_t> order;
  for (int turns = 0; turns < 10'000 && order.size() < ids.size(); ++turns) {
    turn(world);
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool ended = world.record(ids[i]).end != EndReason::kNone;
      if (ended && std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    }
  }
  for (const RequestId id : ids) world.expect_oracle(id);
  return order;
}

TEST(EngineLoopSchedule, LowerPriorityNumbersComeFirstWithThatPolicyAlone) {
  for (int number = 0; number < kSchedulePolicies; ++number) {
    const auto policy = static_cast<SchedulePolicy>(number);
    World world({.max_sequences = 1, .scheduling = {.policy = policy}});
    std::vector<RequestId> ids;
    for (const int32_t priority : {0, 5, -1, 0}) {
      Submit submit = simple(10, 5, 1 + static_cast<int>(ids.size()));
      submit.priority = priority;
      ids.push_back(world.submit(submit));
    }
    const bool counts = policy == SchedulePolicy::kPriority;
    EXPECT_EQ(order_of_ends(world, ids), counts ? (std::vector<size_t>{2, 0, 3, 1}) : (std::vector<size_t>{0, 1, 2, 3}))
        << number;
  }
}

TEST(EngineLoopSchedule, SjfTakesTheShortestAndThoseThatWaitRise) {
  World world(
      {.max_sequences = 1, .scheduling = {.policy = SchedulePolicy::kSjf, .prediction = LengthPrediction::kMaxTokens}});
  std::vector<RequestId> ids = {world.submit(simple(10, 20, 1))};
  for (int i = 0; i < 5; ++i) turn(world);
  for (const int output : {60, 10, 30}) ids.push_back(world.submit(simple(10, output, output)));
  EXPECT_EQ(order_of_ends(world, ids), (std::vector<size_t>{0, 2, 3, 1}));
  // One of 60 steps is passed by those of 10 that come no more than (60 - 10) / 0.25
  // steps behind it.
  std::vector<RequestId> stream = {world.submit(simple(10, 20, 1)), world.submit(simple(10, 60, 2))};
  int passed_by = 0;
  for (int turns = 0; turns < 2000 && world.record(stream[1]).end == EndReason::kNone; ++turns) {
    if (turns % 8 == 0) stream.push_back(world.submit(simple(10, 10, 3 + turns)));
    turn(world);
    if (world.record(stream[1]).events > 0) continue;
    passed_by = static_cast<int>(std::count_if(stream.begin(), stream.end(),
                                               [&](RequestId id) { return world.record(id).end != EndReason::kNone; }));
  }
  EXPECT_GT(passed_by, 15);
  EXPECT_LT(passed_by, 30) << "about 200 steps of 10 each";
  run_all(world, stream);
}

// Large ones fill the server and more of them wait: with queues a small one is computed
// at once, and a stream of small ones without end does not starve the large ones.
TEST(EngineLoopSchedule, QueuesKeepRoomForSmallOnesAndStarveNoLargeOnes) {
  World world(
      {.blocks = 48,
       .max_sequences = 16,
       .scheduling = {.policy = SchedulePolicy::kWrs, .prediction = LengthPrediction::kMaxTokens, .first_fit = 20}});
  const auto large = [](int salt) { return simple(100, 60, salt); };
  const auto small = [](int salt) { return simple(4, 4, salt); };
  std::vector<RequestId> ids;
  for (int i = 0; i < 30; ++i) ids.push_back(world.submit(i % 3 == 0 ? large(i) : small(i)));
  run_all(world, ids);
  ids.clear();
  for (int i = 0; i < 20; ++i) ids.push_back(world.submit(large(100 + i)));
  for (int i = 0; i < 30; ++i) turn(world);
  const auto running = world.stats().running;
  ASSERT_LT(running, 20) << "the KV cache has no room for all of them";
  const RequestId one = world.submit(small(7));
  for (int i = 0; i < 3; ++i) turn(world);
  EXPECT_GT(world.record(one).events, 0) << "in the step after it came, but for one";
  run_all(world, {one});
  // Twice as many small ones as the server can do.
  int longest_turns = 0, since = 0;
  size_t ended_large = 0;
  std::vector<RequestId> stream;
  for (int turns = 0; turns < 4000 && ended_large < ids.size(); ++turns) {
    for (int i = 0; i < 4; ++i) stream.push_back(world.submit(small(1000 + turns * 4 + i)));
    turn(world);
    const auto ended = static_cast<size_t>(
        std::count_if(ids.begin(), ids.end(), [&](RequestId id) { return world.record(id).end != EndReason::kNone; }));
    since = ended > ended_large ? 0 : since + 1;
    longest_turns = std::max(longest_turns, since);
    ended_large = ended;
  }
  EXPECT_EQ(ended_large, ids.size());
  EXPECT_LT(longest_turns, 400) << "a large one takes 60 steps and its share of rows";
  for (const RequestId id : ids) world.expect_oracle(id);
}

// There is KV for hundreds, and four may run together: quotas share those four, too.
TEST(EngineLoopSchedule, QueuesShareWhatMayRunTogetherWhereThatIsShort) {
  World world(
      {.blocks = 400,
       .max_sequences = 4,
       .scheduling = {.policy = SchedulePolicy::kWrs, .prediction = LengthPrediction::kMaxTokens, .first_fit = 20}});
  const auto large = [](int salt) { return simple(100, 60, salt); };
  const auto small = [](int salt) { return simple(4, 4, salt); };
  std::vector<RequestId> ids, stream;
  for (int i = 0; i < 30; ++i) ids.push_back(world.submit(i % 3 == 0 ? large(i) : small(i)));
  run_all(world, ids);
  ids.clear();
  for (int i = 0; i < 200; ++i) stream.push_back(world.submit(small(100 + i)));
  for (int i = 0; i < 6; ++i) ids.push_back(world.submit(large(500 + i)));
  const auto all_ended = [&] {
    return std::all_of(ids.begin(), ids.end(), [&](RequestId id) { return world.record(id).end != EndReason::kNone; });
  };
  int turns = 0;
  for (; turns < 3000 && !all_ended(); ++turns) {
    for (int i = 0; i < 2; ++i) stream.push_back(world.submit(small(1000 + turns * 2 + i)));
    turn(world);
  }
  EXPECT_TRUE(all_ended());
  EXPECT_LT(turns, 900) << "six of 62 steps each, one at a time at least";
  for (const RequestId id : ids) world.expect_oracle(id);
}

// The device has room for one adapter, which one request uses for long. Another one waits
// for that room; a third without adapter passes, since it is to end before. It runs
// longer, and is squashed behind its k-th token.
TEST(EngineLoopSchedule, ASquashedAnswerIsTheSameWhereverItWasSquashed) {
  constexpr int kTokens = 12;
  for (const bool prefix_cache : {true, false}) {
    for (const int32_t choices : {1, 4}) {
      for (int at = 0; at < kTokens; ++at) {
        SCOPED_TRACE(testing::Message() << "cache " << prefix_cache << " choices " << choices << " token " << at);
        World world({.prefix_cache = prefix_cache,
                     .device_bytes = 1000,
                     .scheduling = {.policy = SchedulePolicy::kWrs, .prediction = LengthPrediction::kMaxTokens}});
        for (const char name : {'a', 'b'}) {
          const std::string text(1, name);
          world.files.put("/" + text, static_cast<uint64_t>(name));
          world.command(AdapterAction::kAdd, text, "/" + text);
        }
        run_all(world, {world.submit(simple(40, 20, 9))});  // so that it knows what steps take
        const RequestId holds = world.submit(simple(10, 200, 1, {{source_of("a"), 1.0f}}));
        while (world.record(holds).events == 0) {
          turn(world);
          world.finish_load();
          (void)world.finish_upload();
        }
        const RequestId waits = world.submit(simple(10, 3, 2, {{source_of("b"), 1.0f}}));
        for (int i = 0; i < 3; ++i) {
          turn(world);
          world.finish_load();
        }
        Submit submit = simple(40, kTokens, 3);
        submit.choices = choices;
        submit.sampling.temperature = 0.8f;
        const RequestId passes = world.submit(submit);
        for (int turns = 0; turns < 100 && world.record(passes).events < at; ++turns) turn(world);
        if (at == 0) turn(world);
        ASSERT_EQ(world.record(waits).events, 0);
        ASSERT_EQ(world.stats().squashes, 0u);
        world.clock.advance_ns(1000 * kStepNs);  // the machine had other things to do
        turn(world);
        EXPECT_GE(world.stats().squashes, 1u);
        const int events = world.record(passes).events;
        for (int i = 0; i < 5; ++i) turn(world);
        EXPECT_EQ(world.record(passes).events, events) << "it passes nobody any more";
        run_all(world, {holds, waits, passes});
        for (int32_t choice = 0; choice < choices; ++choice) {
          world.expect_oracle(passes, choice);
          EXPECT_EQ(world.record(passes, choice).events, kTokens) << "each token once";
        }
        world.expect_nothing_held();
      }
    }
  }
}

}  // namespace
}  // namespace loralei
