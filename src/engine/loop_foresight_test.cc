// SPDX-License-Identifier: Apache-2.0
// Adapters that are expected are in memory when their requests come.
#include <gtest/gtest.h>

#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kMinute = 60'000'000'000;

AdapterTier tier_of(const World& world, const std::string& name) {
  for (const auto& adapter : world.adapters())
    if (adapter->source.label == name) return adapter->tier;
  return AdapterTier::kFailed;
}

void serve(World& world, const std::string& name) {
  const RequestId id = world.submit(simple(10, 2, 1, {{source_of(name), 1.0f}}));
  world.run();
  world.expect_oracle(id);
}

// Three have room. Every minute comes one that was never asked for before, and every ten
// minutes the same.
class Foresight : public testing::TestWithParam<AdapterPrefetch> {};
INSTANTIATE_TEST_SUITE_P(Prefetch, Foresight, testing::Values(AdapterPrefetch::kQueue, AdapterPrefetch::kHistogram),
                         [](const auto& info) {
                           return std::string(info.param == AdapterPrefetch::kQueue ? "Queue" : "Histogram");
                         });

TEST_P(Foresight, WhatComesEveryTenMinutesIsInAFullCacheWhenItComes) {
  const bool foresees = GetParam() == AdapterPrefetch::kHistogram;
  for (const int64_t device_bytes : {0, 1 << 20}) {
    World world({.adapter_bytes = 670'000, .device_bytes = device_bytes, .adapter_keeping = {.prefetch = GetParam()}});
    const auto add = [&](const std::string& name, uint64_t content) {
      world.files.put("/" + name, content, 200'000);
      world.command(AdapterAction::kAdd, name, "/" + name);
    };
    add("often", 1);
    int there = 0, missing = 0;
    for (int minute = 0; minute < 150; ++minute) {
      world.clock.advance_ns(kMinute);
      world.run();
      if (minute % 10 == 0) {
        if (minute >= 70) ++(tier_of(world, "often") == AdapterTier::kResident ? there : missing);
        serve(world, "often");
      } else {
        const std::string other = "other" + std::to_string(minute);
        add(other, 100 + static_cast<uint64_t>(minute));
        serve(world, other);
      }
    }
    EXPECT_EQ(there, foresees ? 8 : 0);
    EXPECT_EQ(missing, foresees ? 0 : 8);
    const EngineStats stats = world.stats();
    EXPECT_EQ(stats.adapter_loads_ahead > 0, foresees);
    EXPECT_GE(stats.adapter_loads_ahead_used + 1, stats.adapter_loads_ahead);
    EXPECT_LE(stats.adapter_loads_ahead_used, stats.adapter_loads_ahead);
    world.expect_nothing_held();
  }
}

TEST(EngineLoopForesight, AnEngineThatHasNothingToDoIsWokenForIt) {
  World world({.adapter_bytes = 670'000, .adapter_keeping = {.prefetch = AdapterPrefetch::kHistogram}});
  for (const char* name : {"often", "a", "b", "c"}) {
    world.files.put(std::string("/") + name, static_cast<uint64_t>(name[0]), 200'000);
    world.command(AdapterAction::kAdd, name, std::string("/") + name);
  }
  for (int use = 0; use < 8; ++use) {
    serve(world, "often");
    world.clock.advance_ns(10 * kMinute);
  }
  serve(world, "often");
  const int64_t end_ns = world.clock.now_ns();
  for (const char* name : {"a", "b", "c"}) serve(world, name);
  ASSERT_EQ(tier_of(world, "often"), AdapterTier::kSource);
  EngineOutput output;
  const Next next = world.next(output);
  EXPECT_NEAR(static_cast<double>(next.wake_at_ns - end_ns), 9.0 * kMinute, 0.01 * kMinute);
  EXPECT_TRUE(world.loop->idle());
  world.clock.advance_ns(next.wake_at_ns - world.clock.now_ns());
  EXPECT_EQ(world.next(output).step, nullptr);
  EXPECT_EQ(world.jobs.size(), 1u);
  world.run();
  EXPECT_EQ(tier_of(world, "often"), AdapterTier::kResident);
  EXPECT_EQ(world.next(output).wake_at_ns, Next::kNever) << "it is told once";
}

}  // namespace
}  // namespace loralei
