// SPDX-License-Identifier: Apache-2.0
// What requests wait for before anything of them is computed, by cause.
#include <gtest/gtest.h>

#include <numeric>

#include "base/prng.h"
#include "engine/loop.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kStepNs = 1'000'000;

// Every step takes a millisecond.
struct SlowWorld : World {
  explicit SlowWorld(const WorldOptions& options) : World(options) {
    executor.clock = &clock;
    executor.step_ns = kStepNs;
  }
  double waited_s(WaitCause cause) const { return stats().waited_s[static_cast<size_t>(cause)]; }
  double all_s() const {
    const auto waited_s = stats().waited_s;
    return std::accumulate(waited_s.begin(), waited_s.end(), 0.0);
  }
  // So many steps, and next to nothing for anything else.
  void expect_only(WaitCause cause, int steps) const {
    EXPECT_NEAR(waited_s(cause), steps * 1e-3, 1e-4);
    EXPECT_NEAR(all_s() - waited_s(cause), 0, 1e-4);
  }
};

TEST(EngineLoopWaits, ForOneOfAsManyAsMayRun) {
  SlowWorld world({.max_sequences = 1});
  world.submit(simple(10, 5));
  world.turn();
  world.submit(simple(10, 1, 1));
  world.run();
  world.expect_only(WaitCause::kSlots, 4);
}

TEST(EngineLoopWaits, ForBlocksOfTheKvCache) {
  SlowWorld world({.blocks = 6, .step_tokens = 96, .prefix_cache = false, .max_model_len = 96});
  world.submit(simple(60, 5));
  world.turn();
  world.submit(simple(60, 1, 1));
  world.run();
  world.expect_only(WaitCause::kKv, 4);
}

TEST(EngineLoopWaits, ForRowsOfTheSteps) {
  SlowWorld world({.step_tokens = 32, .prefix_cache = false});
  world.submit(simple(200, 1));
  world.submit(simple(90, 1, 1));
  world.submit(simple(120, 1, 2));
  world.run();
  EXPECT_GT(world.waited_s(WaitCause::kRows), 2e-3);
  EXPECT_NEAR(world.all_s() - world.waited_s(WaitCause::kRows), 0, 1e-4);
}

TEST(EngineLoopWaits, ForTheStepUnderWay) {
  SlowWorld world({});
  world.submit(simple(10, 2));
  EngineOutput output;
  const Next next = world.next(output);
  ASSERT_NE(next.step, nullptr);
  world.submit(simple(10, 1, 1));
  world.compute(*next.step, output);
  world.take(output);
  world.run();
  world.expect_only(WaitCause::kTurn, 1);
}

TEST(EngineLoopWaits, ForTheAdapterAndForItsPlaceOnTheDevice) {
  SlowWorld world({.device_bytes = 1 << 20});
  world.files.put("/a", 7);
  world.command(AdapterAction::kAdd, "a", "/a");
  world.submit(simple(10, 1, 0, {{source_of("a"), 1.0f}}));
  world.turn();
  world.finish_load();  // a look at the file
  world.turn();
  world.clock.advance_ns(5 * kStepNs);
  world.finish_load();
  world.turn();
  world.expect_only(WaitCause::kAdapterLoad, 5);
  world.clock.advance_ns(3 * kStepNs);
  ASSERT_TRUE(world.finish_upload());
  world.run();
  EXPECT_NEAR(world.waited_s(WaitCause::kAdapterLoad), 5e-3, 1e-4);
  EXPECT_NEAR(world.waited_s(WaitCause::kAdapterRoom), 3e-3, 1e-4);
  EXPECT_NEAR(world.all_s(), 8e-3, 1e-4);
}

// Whoever takes nothing waits for itself.
TEST(EngineLoopWaits, WhileItIsHeldARequestWaitsForNothing) {
  SlowWorld world({.max_sequences = 1});
  world.submit(simple(10, 5));
  world.turn();
  const RequestId held = world.submit(simple(10, 1, 1));
  world.turn();
  world.hold(held, true);
  world.turn();
  world.clock.advance_ns(100 * kStepNs);
  world.hold(held, false);
  world.run();
  world.expect_only(WaitCause::kSlots, 1 + 2);
}

// The causes of all requests add up to the times from arrival to admission.
TEST(EngineLoopWaits, AddUpToTheTimeInTheQueue) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    SlowWorld world({.blocks = 24,
                     .max_sequences = static_cast<int32_t>(1 + random.below(5)),
                     .device_bytes = seed % 2 == 0 ? 1500 : 0});
    for (const char* name : {"a", "b", "c"}) {
      world.files.put(std::string("/") + name, static_cast<uint64_t>(name[0]));
      world.command(AdapterAction::kAdd, name, std::string("/") + name);
    }
    std::vector<RequestId> ids;
    for (int i = 0; i < 40; ++i) {
      std::vector<AdapterUse> adapters;
      if (random.below(2) == 0)
        adapters.push_back({source_of(std::string(1, static_cast<char>('a' + random.below(3)))), 1.0f});
      ids.push_back(world.submit(
          simple(static_cast<int>(1 + random.below(100)), static_cast<int>(1 + random.below(8)), i, adapters)));
      for (uint64_t turns = random.below(3); turns > 0; --turns) world.turn();
      if (random.below(2) == 0) world.finish_load();
      if (random.below(2) == 0) world.finish_upload();
    }
    world.run();
    double queue_s = 0;
    for (const RequestId id : ids) queue_s += static_cast<double>(world.record(id).first.queue_ns) * 1e-9;
    EXPECT_NEAR(world.all_s(), queue_s, 1e-9);
    EXPECT_GT(queue_s, 1e-3);
  }
}

}  // namespace
}  // namespace loralei
