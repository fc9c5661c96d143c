// SPDX-License-Identifier: Apache-2.0
// Whoever is told what the KV cache holds, as the loop tells him.
#include <gtest/gtest.h>

#include <set>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(EngineLoopTell, WhatFoundNoPlaceIsToldWhenThereIsRoomAlsoWhereNothingRuns) {
  const auto events = std::make_shared<KvEvents>(8);
  World world({.kv_events = events});
  std::set<uint64_t> told;
  const auto take = [&] {
    for (KvEvent event; events->take(event);) {
      if (event.kind == KvEvent::Kind::kCleared) told.clear();
      if (event.kind == KvEvent::Kind::kStored) told.insert(event.hash);
      if (event.kind == KvEvent::Kind::kRemoved) told.erase(event.hash);
    }
  };
  world.submit_all({simple(70, 5, 1), simple(70, 5, 2), simple(70, 5, 3)});
  world.run();
  EXPECT_EQ(events->room(), 0u);
  EXPECT_GT(events->counts().lost, 0u);
  // Nobody asks for anything any more: it wakes by itself until all is told.
  const auto wakes_in_ns = [&] {
    EngineOutput output;
    return world.next(output).wake_at_ns - world.clock.now_ns();
  };
  EXPECT_LE(wakes_in_ns(), 20'000'000);
  for (int turn = 0; turn < 100; ++turn) {
    take();
    world.clock.advance_ns(20'000'000);
    world.turn();
  }
  take();
  EXPECT_GT(wakes_in_ns(), int64_t{1} << 60) << "there is no more to tell";
  EXPECT_EQ(static_cast<int64_t>(told.size()), world.stats().kv_blocks_cached);
  EXPECT_GT(told.size(), 8u);
  EXPECT_EQ(events->counts().pictures, 1u);
  world.expect_nothing_held();
}

}  // namespace
}  // namespace loralei
