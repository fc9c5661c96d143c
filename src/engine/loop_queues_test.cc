// SPDX-License-Identifier: Apache-2.0
// What is said of the queues and of where adapters are, when somebody asks.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/prng.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kStepNs = 1'000'000;

struct AskedWorld : World {
  explicit AskedWorld(const WorldOptions& options) : World(options) {
    executor.clock = &clock;
    executor.step_ns = kStepNs;
  }
  QueuesState ask(int32_t listed_max = 50) {
    messages.emplace_back(QueuesCommand{++tickets, listed_max});
    turn();
    EXPECT_FALSE(replies.empty());
    EXPECT_EQ(replies.back().ticket, tickets);
    EXPECT_NE(replies.back().queues, nullptr);
    return *replies.back().queues;
  }
  AdapterUse add(char name) {
    const std::string text(1, name);
    files.put("/" + text, static_cast<uint64_t>(name));
    command(AdapterAction::kAdd, text, "/" + text);
    return {testing_support::source_of(text), 1.0f};
  }
};

TEST(EngineLoopQueues, FifoHasOneInTheOrderOfArrivalAndSaysWhyEachWaits) {
  AskedWorld world({.max_sequences = 1});
  const AdapterUse absent = world.add('a');
  const RequestId runs = world.submit(simple(10, 50));
  for (int i = 0; i < 3; ++i) world.turn();
  const RequestId first = world.submit(simple(20, 5, 1)), second = world.submit(simple(7, 5, 2));
  const RequestId cold = world.submit(simple(5, 5, 3, {absent}));  // its load never ends
  for (int i = 0; i < 4; ++i) world.turn();
  const QueuesState state = world.ask();
  EXPECT_EQ(state.policy, SchedulePolicy::kFifo);
  EXPECT_GT(state.tokens_total, 0);
  EXPECT_FALSE(state.refit_in_s || state.refit_ago_s || state.refit_in_requests);
  ASSERT_EQ(state.queues.size(), 1u);
  const QueueState& queue = state.queues[0];
  EXPECT_FALSE(queue.quota_tokens || queue.least_tokens || queue.wanted_s);
  EXPECT_EQ(queue.waiting, 2);
  EXPECT_EQ(queue.running, 1);
  ASSERT_EQ(queue.first_waiting.size(), 2u);
  EXPECT_EQ(queue.first_waiting[0].request, first);
  EXPECT_EQ(queue.first_waiting[1].request, second);
  EXPECT_EQ(queue.first_waiting[0].input_tokens, 20);
  EXPECT_FALSE(queue.first_waiting[0].output_predicted) << "fifo predicts nothing";
  EXPECT_EQ(queue.first_waiting[0].cause, WaitCause::kSlots);
  EXPECT_NEAR(queue.first_waiting[0].since_arrival_s, 4e-3, 2e-4);
  EXPECT_DOUBLE_EQ(queue.longest_wait_s, queue.first_waiting[0].since_arrival_s);
  ASSERT_EQ(queue.first_running.size(), 1u);
  EXPECT_EQ(queue.first_running[0].request, runs);
  EXPECT_EQ(queue.first_running[0].output_tokens, 7);
  EXPECT_FALSE(queue.first_running[0].cause);
  EXPECT_GT(queue.first_running[0].running_s, 5e-3);
  EXPECT_EQ(state.unplaced, 1);
  ASSERT_EQ(state.first_unplaced.size(), 1u);
  EXPECT_EQ(state.first_unplaced[0].request, cold);
  EXPECT_EQ(state.first_unplaced[0].adapter, "a");
  EXPECT_EQ(state.first_unplaced[0].cause, WaitCause::kAdapterLoad);
  world.run();
  const QueuesState after = world.ask();
  EXPECT_EQ(after.queues[0].waiting + after.queues[0].running + after.unplaced, 0);
}

TEST(EngineLoopQueues, OneThatWaitsForItsAdaptersPlaceIsSetAsideAndSaysSo) {
  AskedWorld world({.device_bytes = 1000, .scheduling = {.policy = SchedulePolicy::kWrs}});
  const AdapterUse a = world.add('a'), b = world.add('b');
  const auto let_arrive = [&] {
    world.turn();
    world.finish_load();
    (void)world.finish_upload();
  };
  const RequestId holds = world.submit(simple(10, 200, 1, {a}));
  while (world.record(holds).events == 0) let_arrive();
  const RequestId waits = world.submit(simple(10, 3, 2, {b}));
  for (int i = 0; i < 4; ++i) let_arrive();
  const QueuesState state = world.ask();
  ASSERT_EQ(state.queues.size(), 1u) << "until enough have come";
  EXPECT_EQ(state.queues[0].quota_tokens, state.tokens_total);
  EXPECT_GT(state.queues[0].taken_tokens, 0);
  EXPECT_EQ(state.refit_in_requests, 498);
  EXPECT_EQ(state.queues[0].set_aside, 1);
  ASSERT_EQ(state.queues[0].first_waiting.size(), 1u);
  EXPECT_EQ(state.queues[0].first_waiting[0].request, waits);
  EXPECT_EQ(state.queues[0].first_waiting[0].cause, WaitCause::kAdapterRoom);
  EXPECT_EQ(state.queues[0].first_waiting[0].adapter, "b");
  EXPECT_GT(state.queues[0].first_waiting[0].output_predicted.value_or(0), 0);
  world.cancel(holds);
  world.run();
  world.expect_oracle(waits);
}

TEST(EngineLoopQueues, LaidOutTheySayWhatTheyAreAndListSoManyAtMost) {
  AskedWorld world(
      {.blocks = 256,
       .max_sequences = 4,
       .scheduling = {.policy = SchedulePolicy::kWrs, .prediction = LengthPrediction::kMaxTokens, .first_fit = 40}});
  std::vector<RequestId> ids;
  for (int i = 0; i < 60; ++i) ids.push_back(world.submit(i % 3 == 0 ? simple(100, 100, i) : simple(5, 5, i)));
  for (int i = 0; i < 3; ++i) world.turn();
  const QueuesState state = world.ask(2);
  EXPECT_EQ(state.refits, 1u);
  EXPECT_TRUE(state.refit_ago_s && state.refit_in_s && !state.refit_in_requests);
  ASSERT_GE(state.queues.size(), 2u);
  int64_t quotas = 0;
  int32_t waiting = 0, running = 0;
  double from = 0;
  for (const QueueState& queue : state.queues) {
    EXPECT_EQ(queue.size_from, from);
    from = queue.size_to;
    quotas += queue.quota_tokens.value_or(0);
    waiting += queue.waiting;
    running += queue.running;
    EXPECT_LE(queue.first_waiting.size(), 2u);
    EXPECT_LE(queue.first_running.size(), 2u);
    EXPECT_EQ(queue.first_waiting.size(), static_cast<size_t>(std::min(2, queue.waiting)));
    EXPECT_TRUE(queue.least_tokens && queue.wanted_s && queue.arrivals_per_s);
    for (const QueuedSequence& one : queue.first_waiting) EXPECT_GE(queue.longest_wait_s, one.since_arrival_s);
  }
  EXPECT_GT(from, 1e300) << "the last has no end";
  EXPECT_EQ(quotas, state.tokens_total);
  EXPECT_EQ(running, world.stats().running);
  EXPECT_EQ(waiting, world.stats().waiting);
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
}

TEST(EngineLoopQueues, GaugesAreThoseOfTheQueues) {
  AskedWorld world({.max_sequences = 2, .scheduling = {.policy = SchedulePolicy::kWrs, .first_fit = 10}});
  for (int i = 0; i < 30; ++i) world.submit(i % 2 == 0 ? simple(90, 40, i) : simple(4, 4, i));
  world.turn();  // lays them out
  for (int turns = 0; turns < 40; ++turns) {
    const QueuesState state = world.ask();  // as the turn began
    const EngineStats stats = world.stats();
    ASSERT_EQ(static_cast<size_t>(stats.queue_count), state.queues.size());
    int32_t waiting = 0;
    int64_t quotas = 0;
    for (int32_t queue = 0; queue < stats.queue_count; ++queue) {
      waiting += stats.queues[static_cast<size_t>(queue)].waiting;
      quotas += stats.queues[static_cast<size_t>(queue)].quota_tokens;
    }
    EXPECT_EQ(waiting, stats.waiting);
    EXPECT_EQ(quotas, state.tokens_total);
  }
  world.run();
}

// Of all copies on the device and of no other.
TEST(EngineLoopQueues, AdaptersAreShownOnTheDeviceWhileTheirCopiesAreThere) {
  for (const bool keeps : {true, false}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " keeps " << keeps);
      Prng random(seed);
      AskedWorld world({.device_bytes = 3000, .adapter_keeping = keeps ? AdapterKeeping{} : AdapterKeeping::none()});
      std::vector<AdapterUse> adapters;
      for (char name = 'a'; name < 'h'; ++name) adapters.push_back(world.add(name));
      size_t shown_most = 0;
      for (int round = 0; round < 30; ++round) {
        for (uint64_t i = random.below(4); i > 0; --i)
          world.submit(simple(5, 3, round, {adapters[random.below(adapters.size())]}));
        if (random.below(8) == 0) world.command(AdapterAction::kLoad, "c", "/c", true);
        for (uint64_t i = random.below(6); i > 0; --i) world.turn();
        if (random.below(2) == 0) world.finish_load();
        if (random.below(2) == 0) (void)world.finish_upload(random.below(5) != 0);
        world.turn();
        if (random.below(3) != 0) continue;
        world.run();
        size_t shown = 0;
        for (const auto& adapter : world.adapters()) {
          shown += adapter->on_device ? 1 : 0;
          EXPECT_TRUE(!adapter->on_device || adapter->tier == AdapterTier::kResident);
        }
        EXPECT_EQ(shown, world.executor.tier->copies());
        shown_most = std::max(shown_most, shown);
      }
      EXPECT_EQ(shown_most > 0, keeps);
    }
  }
}

}  // namespace
}  // namespace loralei
