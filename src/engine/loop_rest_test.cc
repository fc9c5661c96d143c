// SPDX-License-Identifier: Apache-2.0
// When what rests is encoded: on nobody's way.
#include <gtest/gtest.h>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

int64_t encoded(const World& world) { return world.stats().kv_coded.times.encoded_blocks; }

// Tokens that a step has brought are told before time is taken for encoding.
TEST(EngineLoopRest, NoAnswerWaitsForIt) {
  World world({.blocks = 16, .kv_sharing = KvSharing::kLossless});
  world.submit_all({simple(100, 5, 1), simple(30, 100, 2)});
  for (int turns = 0; turns < 400 && !(world.loop->idle() && world.messages.empty()); ++turns) {
    EngineOutput output;
    const bool running = world.stats().running > 0;
    const int64_t before = encoded(world);
    const Next next = world.next(output);
    const int64_t planned = encoded(world);
    if (running && planned > before) {
      EXPECT_TRUE(output.tokens.empty()) << "told before";
    }
    if (next.step != nullptr) world.compute(*next.step, output);
    EXPECT_EQ(encoded(world), planned) << "in turn " << turns;
    world.take(output);
  }
  EXPECT_GT(encoded(world), 0);
  world.expect_oracle({1});
  world.expect_oracle({2});
}

// While as much as the next may want is free, steps follow each other at once.
TEST(EngineLoopRest, NothingIsEncodedBetweenStepsWhereMuchIsFree) {
  World world({.blocks = 64, .kv_sharing = KvSharing::kLossless});
  world.submit_all({simple(100, 5, 1), simple(30, 100, 2)});
  while (world.record({2}).end == EndReason::kNone) {
    EXPECT_EQ(encoded(world), 0);
    world.turn();
  }
  world.run();
  EXPECT_GT(encoded(world), 0) << "nothing runs now";
}

}  // namespace
}  // namespace loralei
