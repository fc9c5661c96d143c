// SPDX-License-Identifier: Apache-2.0
// Turns between clients, and what requests want of time.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kMs = 1'000'000;
constexpr SchedulingOptions kTurns{.fairness = Fairness::kVtc};

// A step takes so long, and for each of its rows.
void turn(World& world, int64_t step_ns = kMs, int64_t row_ns = 0) {
  EngineOutput output;
  const Next next = world.next(output);
  if (next.step != nullptr) {
    world.clock.advance_ns(step_ns + row_ns * static_cast<int64_t>(next.step->tokens.size()));
    world.compute(*next.step, output);
  }
  world.loop->check();
  world.take(output);
}

bool has_ended(World& world, RequestId id) { return world.record(id).end != EndReason::kNone; }

void run_all(World& world, const std::vector<RequestId>& ids) {
  const auto ended = [&](RequestId id) { return has_ended(world, id); };
  for (int turns = 0; turns < 100'000 && !std::all_of(ids.begin(), ids.end(), ended); ++turns) turn(world);
  for (const RequestId id : ids) world.expect_oracle(id);
}

Submit of_client(uint64_t client, int prompt, int output, int salt) {
  Submit submit = simple(prompt, output, salt);
  submit.client = ClientId{client};
  submit.ignore_eos = true;
  return submit;
}

uint64_t counted(const World& world, SloKind kind, bool met) {
  return world.stats().slo_requests[static_cast<size_t>(kind)][met ? 1 : 0];
}

TEST(EngineLoopService, WhereOneClientFloodsAnothersRequestsAreNextWithTurnsAlone) {
  for (const bool turns : {true, false}) {
    for (int policy = 0; policy < kSchedulePolicies; ++policy) {
      SCOPED_TRACE(testing::Message() << "turns " << turns << " policy " << policy);
      SchedulingOptions scheduling = turns ? kTurns : SchedulingOptions{};
      scheduling.policy = static_cast<SchedulePolicy>(policy);
      World world({.max_sequences = 1, .scheduling = scheduling});
      std::vector<RequestId> flood, few;
      for (int i = 0; i < 20; ++i) flood.push_back(world.submit(of_client(1, 10, 5, i)));
      for (int i = 0; i < 3; ++i) turn(world);
      for (int i = 0; i < 3; ++i) few.push_back(world.submit(of_client(2, 10, 5, 50 + i)));
      run_all(world, few);
      const auto before = std::count_if(flood.begin(), flood.end(), [&](RequestId id) { return has_ended(world, id); });
      if (turns) {
        EXPECT_LE(before, 4) << "they take turns, one by one";
      } else {
        EXPECT_GE(before, 19);
      }
      run_all(world, flood);
      world.expect_nothing_held();
    }
  }
}

// Preempted, squashed, held, cancelled, guessed ahead: what a client has had is what its
// answers say.
TEST(EngineLoopService, AClientIsChargedItsPromptsOnceAndEachTokenOnce) {
  uint64_t preemptions = 0, cancelled = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    World world({.blocks = 12,
                 .max_sequences = 6,
                 .prefix_cache = seed % 2 == 0,
                 .max_model_len = 120,
                 .speculate = seed % 3 == 0 ? Speculation::kLookup : Speculation::kOff,
                 .draft_rows = 10,
                 .scheduling = kTurns});
    for (int i = 0; i < 20; ++i) {
      Submit submit = of_client(5, 1 + static_cast<int>(random.below(40)), 1 + static_cast<int>(random.below(60)), i);
      submit.choices = 1 + static_cast<int32_t>(random.below(3));
      world.submit(submit);
    }
    for (int turns = 0; turns < 300; ++turns) {
      turn(world);
      if (random.below(20) == 0) world.hold(RequestId{1 + random.below(20)}, random.below(2) == 0);
      // One that has begun: of others nobody could say whether they were charged.
      const RequestId leaves{1 + random.below(20)};
      if (random.below(30) == 0 && world.record(leaves).events > 0) world.cancel(leaves);
    }
    for (uint64_t id = 1; id <= 20; ++id) world.hold(RequestId{id}, false);
    world.run(20'000);
    int64_t said = 0;
    for (const auto& [id, submit] : world.submits) {
      said += static_cast<int64_t>(submit.prompt.size());
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        said += 2 * static_cast<int64_t>(world.record(id, choice).tokens.size());
        cancelled += world.record(id, choice).end == EndReason::kCancelled ? 1 : 0;
      }
    }
    preemptions += world.stats().preemptions;
    EXPECT_EQ(world.loop->clients().least(), said);
    EXPECT_EQ(world.loop->clients().known(), 0u);
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(cancelled, 20u);
}

TEST(EngineLoopService, AStepWithTurnsAllocatesNothing) {
  World world({.blocks = 256, .max_sequences = 4, .step_tokens = 64, .max_model_len = 400, .scheduling = kTurns});
  for (int i = 0; i < 40; ++i) world.submit(of_client(static_cast<uint64_t>(i % 5), 20, 300, i));
  for (int i = 0; i < 60; ++i) turn(world);
  ASSERT_EQ(world.stats().running, 4);
  EngineOutput output;
  output.tokens.reserve(1000);
  start_counting_allocations();
  for (int i = 0; i < 60; ++i) world.turn(output);
  EXPECT_EQ(stop_counting_allocations().count, 0);
  EXPECT_EQ(output.tokens.size(), 240u);
}

TEST(EngineLoopService, WhoWouldMissItsDeadlineGoesFirstButWithPriority) {
  for (int number = 0; number < kSchedulePolicies; ++number) {
    SCOPED_TRACE(testing::Message() << "policy " << number);
    const auto policy = static_cast<SchedulePolicy>(number);
    World world({.max_sequences = 1, .scheduling = {.policy = policy}});
    std::vector<RequestId> others;
    for (int i = 0; i < 8; ++i) others.push_back(world.submit(of_client(0, 10, 20, i)));
    for (int i = 0; i < 45; ++i) turn(world);
    Submit submit = of_client(0, 10, 20, 99);
    submit.slo.ttft_ns = 30 * kMs;
    const RequestId hurried = world.submit(submit);
    submit.slo.ttft_ns = 10'000 * kMs;
    const RequestId patient = world.submit(submit);
    run_all(world, {hurried});
    const bool counts = policy != SchedulePolicy::kPriority;
    EXPECT_EQ(has_ended(world, others.back()), !counts);
    EXPECT_EQ(counted(world, SloKind::kTtft, true), counts ? 1u : 0u);
    EXPECT_EQ(counted(world, SloKind::kTtft, false), counts ? 0u : 1u);
    run_all(world, others);
    run_all(world, {patient});
    EXPECT_EQ(counted(world, SloKind::kTtft, true), counts ? 2u : 1u);
    EXPECT_EQ(counted(world, SloKind::kTpot, true) + counted(world, SloKind::kTpot, false), 0u);
  }
}

TEST(EngineLoopService, OneThatEndsWithoutAnAnswerHasMissedItsTimeIfThatIsOver) {
  World world({.max_sequences = 1});
  const RequestId first = world.submit(of_client(0, 10, 50, 1));
  Submit submit = of_client(0, 10, 5, 2);
  submit.slo.ttft_ns = 20 * kMs;
  const RequestId leaves_early = world.submit(submit), leaves_late = world.submit(submit);
  for (int i = 0; i < 10; ++i) turn(world);
  world.cancel(leaves_early);
  turn(world);
  EXPECT_EQ(counted(world, SloKind::kTtft, false), 0u);
  for (int i = 0; i < 20; ++i) turn(world);
  world.cancel(leaves_late);
  turn(world);
  EXPECT_EQ(counted(world, SloKind::kTtft, false), 1u);
  EXPECT_EQ(counted(world, SloKind::kTtft, true), 0u);
  run_all(world, {first});
}

// A row takes a millisecond, a step five beside. One decodes that wants a token every
// 25.5 ms, or sooner than it could have it alone, and long prompts come.
TEST(EngineLoopService, StepsBesideOneThatWantsItsTokensSoonAreShort) {
  constexpr int64_t kWanted[] = {0, 25'500'000, 2'000'000};
  for (const int64_t wanted_ns : kWanted) {
    SCOPED_TRACE(testing::Message() << "tpot " << wanted_ns);
    World world({.blocks = 256, .step_tokens = 200, .max_model_len = 1000});
    const auto turn_until_end = [&](RequestId id) {
      int64_t longest_ns = 0;
      while (!has_ended(world, id)) {
        const int64_t before_ns = world.clock.now_ns();
        turn(world, 5 * kMs, kMs);
        longest_ns = std::max(longest_ns, world.clock.now_ns() - before_ns);
      }
      world.expect_oracle(id);
      return longest_ns;
    };
    for (int i = 0; i < 6; ++i) turn_until_end(world.submit(of_client(0, 10 << i, 3, i)));
    Submit submit = of_client(0, 10, 30, 20);
    submit.slo.tpot_ns = wanted_ns;
    const RequestId decodes = world.submit(submit);
    while (world.record(decodes).events == 0) turn(world, 5 * kMs, kMs);
    std::vector<RequestId> prompts;
    for (int i = 0; i < 6; ++i) prompts.push_back(world.submit(of_client(0, 200, 2, 30 + i)));
    const int64_t longest_ns = turn_until_end(decodes);
    if (wanted_ns == kWanted[0]) {
      EXPECT_GT(longest_ns, 60 * kMs);
    } else if (wanted_ns == kWanted[1]) {
      EXPECT_LE(longest_ns, 26 * kMs);
    } else {
      EXPECT_LE(longest_ns, 14 * kMs) << "few rows of prompts beside those that decode";
    }
    EXPECT_EQ(counted(world, SloKind::kTpot, true), wanted_ns == kWanted[1] ? 1u : 0u);
    EXPECT_EQ(counted(world, SloKind::kTpot, false), wanted_ns == kWanted[2] ? 1u : 0u);
    for (const RequestId id : prompts) turn_until_end(id);
  }
}

}  // namespace
}  // namespace loralei
