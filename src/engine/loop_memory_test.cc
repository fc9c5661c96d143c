// SPDX-License-Identifier: Apache-2.0
// KV and adapters that share one memory, in the loop.
#include <gtest/gtest.h>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

int64_t block_bytes() {
  const ModelConfig config = fake_config();
  return kv_block_bytes({config.layers, config.kv_heads, config.head_dim, DType::kF32});
}

// Sixteen blocks for sure, and so many more that nobody has.
WorldOptions shared(int32_t more, KeepPolicy policy = KeepPolicy::kLru) {
  WorldOptions setup{.blocks = 16, .blocks_max = 1000, .max_sequences = 16, .step_tokens = 64, .joint = true};
  setup.memory_bytes = (setup.blocks + more) * block_bytes();
  setup.adapter_bytes = more * block_bytes();
  setup.adapter_keeping.policy = policy;
  return setup;
}

TEST(EngineLoopMemory, KvGrowsWithTheTrafficAndTextsStay) {
  for (const bool joint : {false, true}) {
    SCOPED_TRACE(joint);
    WorldOptions setup = shared(200);
    setup.joint = joint;
    World world(setup);
    std::vector<Submit> requests;
    for (int i = 0; i < 12; ++i) requests.push_back(simple(60, 60, i));
    const std::vector<RequestId> ids = world.submit_all(requests);
    for (int i = 0; i < 40; ++i) world.turn();
    EXPECT_EQ(world.stats().running, joint ? 12 : 2);
    world.run();
    EXPECT_EQ(world.stats().preemptions == 0, joint);
    for (const RequestId id : ids) world.expect_oracle(id);
    world.expect_nothing_held();
  }
}

TEST(EngineLoopMemory, PrefixesStayInMemoryThatNobodyHas) {
  World world(shared(200));
  const auto ask_all = [&] {
    for (int i = 0; i < 20; ++i) {
      world.submit(simple(100, 2, i));
      world.run();
    }
  };
  ask_all();
  const uint64_t hits = world.stats().prefix_hits;
  ask_all();
  EXPECT_EQ(world.stats().prefix_hits - hits, 20u * 96) << "7.5 times what the floor holds";
  EXPECT_GT(world.stats().kv_bytes, world.stats().kv_floor_bytes * 7);
}

TEST(EngineLoopMemory, PrefixesGoForAnAdapterAndComeBackBehindIt) {
  World world(shared(200));
  for (int i = 0; i < 20; ++i) {
    world.submit(simple(100, 2, i));
    world.run();
  }
  const int64_t kv_bytes = world.stats().kv_bytes;
  world.files.put("/a", 100, 80'000);  // 157 blocks
  world.command(AdapterAction::kAdd, "a", "/a");
  const RequestId id = world.submit(simple(20, 5, 50, {{source_of("a"), 1.0f}}));
  world.run();
  world.expect_oracle(id);
  EngineStats stats = world.stats();
  EXPECT_LT(stats.kv_bytes, kv_bytes);
  EXPECT_GE(stats.kv_bytes, stats.kv_floor_bytes);
  EXPECT_GT(stats.given.kv_to_adapters, 0);
  std::vector<Submit> many;  // more than the rest holds
  for (int i = 0; i < 12; ++i) many.push_back(simple(100, 60, i));
  const std::vector<RequestId> ids = world.submit_all(many);
  world.run();
  stats = world.stats();
  EXPECT_EQ(stats.adapter_bytes, 0);
  EXPECT_EQ(stats.given.adapters_to_kv, 80'000);
  for (const RequestId one : ids) world.expect_oracle(one);
}

// Requests to the base come without end, and their KV takes all there is; a request whose
// adapter needs most of it is served nevertheless.
TEST(EngineLoopMemory, ALargeLoadFindsItsRoomUnderEndlessTraffic) {
  World world(shared(100));
  world.files.put("/large", 100, 40'000);  // 79 blocks
  world.command(AdapterAction::kAdd, "large", "/large");
  int salt = 0;
  const auto keep_busy = [&] {
    while (world.stats().running + world.stats().waiting < 20) {
      world.submit(simple(80, 60, ++salt % 200));
      world.turn();
    }
  };
  for (int i = 0; i < 100; ++i) {
    keep_busy();
    world.turn();
  }
  ASSERT_GT(world.stats().kv_bytes, world.stats().kv_floor_bytes * 6);
  const RequestId id = world.submit(simple(20, 5, 500, {{source_of("large"), 1.0f}}));
  int turns = 0;
  for (; turns < 1000 && world.record(id).end == EndReason::kNone; ++turns) {
    keep_busy();
    world.clock.advance_ns(kRoomPatienceNs / 20);
    world.finish_load();
    world.turn();
  }
  EXPECT_LT(turns, 1000);
  world.expect_oracle(id);
  world.run(20000);
  world.expect_nothing_held();
}

// What was kept for prompts of requests that were cancelled is nobody's any more, though
// no step follows.
TEST(EngineLoopMemory, ALoadFindsWhatWasKeptForThoseThatAreGone) {
  World world(shared(200));
  world.files.put("/large", 100, 100'000);  // nearly all beyond the floor
  world.command(AdapterAction::kAdd, "large", "/large");
  std::vector<RequestId> gone;
  for (int i = 0; i < 12; ++i) gone.push_back(world.submit(simple(235 - i, 20, i)));  // the shorter, the sooner
  for (int i = 0; i < 20 && world.stats().running < 4; ++i) world.turn();
  ASSERT_GE(world.stats().running, 4);
  world.turn();  // which keeps blocks for them
  for (const RequestId id : gone) world.cancel(id);
  const RequestId id = world.submit(simple(20, 5, 500, {{source_of("large"), 1.0f}}));
  world.run(200);
  world.expect_oracle(id);
  world.expect_nothing_held();
}

// A process that grows takes of the KV cache beyond its floor, where there is no adapter.
TEST(EngineLoopMemory, TheProcessIsGivenWhatKvHasBeyondItsFloor) {
  WorldOptions setup = shared(200);
  int64_t wanted = 0;
  setup.watch_memory = [&wanted](const std::function<void(int64_t bytes)>& give_way) {
    if (wanted > 0) give_way(std::exchange(wanted, 0));
    return false;
  };
  World world(setup);
  for (int i = 0; i < 20; ++i) {
    world.submit(simple(100, 2, i));
    world.run();
  }
  const int64_t kv_bytes = world.stats().kv_bytes;
  wanted = 10 * block_bytes();
  world.clock.advance_ns(2'000'000'000);
  world.turn();
  EXPECT_EQ(world.stats().kv_bytes, kv_bytes - 10 * block_bytes());
  EXPECT_EQ(world.stats().given.kv_to_others, 10 * block_bytes());
}

TEST(EngineLoopMemory, AnotherBudgetIsAnotherFloor) {
  World world(shared(200));
  for (int i = 0; i < 20; ++i) {
    world.submit(simple(100, 2, i));
    world.run();
  }
  world.resize(40);
  world.turn();
  EXPECT_EQ(world.stats().kv_floor_bytes, 40 * block_bytes());
  EXPECT_EQ(world.stats().kv_bytes, 40 * block_bytes()) << "what lies beyond comes back when it is wanted";
  for (int i = 0; i < 20; ++i) {
    world.submit(simple(100, 2, i));
    world.run();
  }
  EXPECT_GT(world.stats().kv_bytes, 40 * block_bytes());
  world.resize(16);
  world.turn();
  EXPECT_EQ(world.stats().kv_bytes, 16 * block_bytes());
  world.expect_nothing_held();
}

}  // namespace
}  // namespace loralei
