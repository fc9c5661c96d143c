// SPDX-License-Identifier: Apache-2.0
// What a request holds, and when: nothing while it waits, its leases together while it
// runs.
#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include "base/prng.h"
#include "engine/loop.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

int32_t users(const World& world) {
  int32_t sum = 0;
  for (const auto& adapter : world.adapters()) sum += adapter->users;
  return sum;
}

int32_t users_of(const World& world, const std::string& name) {
  for (const auto& adapter : world.adapters())
    if (adapter->source.label == name) return adapter->users;
  return -1;
}

bool in_memory(const World& world, const std::string& name) {
  for (const auto& adapter : world.adapters())
    if (adapter->source.label == name) return adapter->tier == AdapterTier::kResident;
  return false;
}

void add(World& world, const std::string& name, uint64_t content, int64_t bytes = 1000) {
  world.files.put("/" + name, content, bytes);
  world.command(AdapterAction::kAdd, name, "/" + name);
}

void turns(World& world, int count) {
  for (int i = 0; i < count; ++i) world.turn();
}

// Until its choice has so many tokens; loads end by themselves.
void run_until(World& world, RequestId id, size_t tokens) {
  for (int i = 0; i < 500 && world.record(id).tokens.size() < tokens; ++i) {
    world.turn();
    if (world.loop->idle()) world.finish_load();
  }
  ASSERT_GE(world.record(id).tokens.size(), tokens);
}

TEST(EngineLoopLeases, AThousandQueuedRequestsOverAThousandAdaptersHoldNothing) {
  constexpr int kCount = 1000;
  WorldOptions setup;
  setup.max_sequences = 4;
  setup.adapter_bytes = 700'000;  // of the least that a load asks for: ten
  World world(setup);
  std::vector<RequestId> ids;
  for (int i = 0; i < kCount; ++i) {
    const std::string name = "a" + std::to_string(i);
    add(world, name, 100 + static_cast<uint64_t>(i));
    ids.push_back(world.submit(simple(20, 3, i, {{source_of(name), 1.0f}})));
  }
  int at_once = 0;
  for (int turn = 0; turn < 20000 && !(world.loop->idle() && world.jobs.empty() && world.messages.empty()); ++turn) {
    world.turn();
    if (world.loop->idle()) world.finish_load();
    if (turn % 20 != 0) continue;
    const EngineStats stats = world.stats();
    ASSERT_EQ(users(world), stats.running);
    ASSERT_LE(stats.kv_blocks_used, 3 * stats.running);
    at_once = std::max(at_once, stats.running);
  }
  EXPECT_GT(at_once, 0);
  for (const RequestId id : ids) world.expect_oracle(id);
  world.expect_nothing_held();
}

TEST(EngineLoopLeases, WhoWaitsForASlotHoldsNothingThoughItsAdapterIsThere) {
  WorldOptions setup;
  setup.max_sequences = 1;
  World world(setup);
  add(world, "a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  std::vector<RequestId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(world.submit(simple(30, 20, i, {{source_of("a"), 1.0f}})));
  turns(world, 10);
  EXPECT_EQ(world.stats().waiting, 19);
  EXPECT_EQ(world.adapters().at(0)->waiting, 19);
  EXPECT_EQ(users(world), 1);
  EXPECT_LE(world.stats().kv_blocks_used, 4);
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  EXPECT_EQ(world.adapters().at(0)->waiting, 0);
}

TEST(EngineLoopLeases, PreemptionDropsThemAndTheTextGoesOnUnchanged) {
  WorldOptions setup;
  setup.device_bytes = 1 << 20;
  World world(setup);
  add(world, "a", 11);
  const RequestId id = world.submit(simple(30, 40, 1, {{source_of("a"), 1.0f}}));
  for (int i = 0; i < 100 && world.record(id).tokens.size() < 5; ++i) {
    world.turn();
    if (!world.loop->idle()) continue;
    if (!world.finish_upload()) world.finish_load();
  }
  ASSERT_EQ(users(world), 1);
  ASSERT_EQ(world.executor.tier->holds(), 1);
  world.hold(id, true);  // its reader is slow
  world.turn();
  EXPECT_EQ(users(world), 0);
  EXPECT_EQ(world.stats().kv_blocks_used, 0);
  EXPECT_EQ(world.executor.tier->holds(), 0);
  world.hold(id, false);
  world.run();
  world.expect_oracle(id);
  world.expect_nothing_held();
}

// A request with adapter a that has begun, and is held while b takes the room of a.
struct LeftMeanwhile {
  WorldOptions setup;
  std::unique_ptr<World> world;
  RequestId begun;

  LeftMeanwhile() {
    setup.adapter_bytes = 110'000;  // one at a time
    world = std::make_unique<World>(setup);
    add(*world, "a", 11, 40'000);
    add(*world, "b", 22, 40'000);
    begun = world->submit(simple(30, 40, 1, {{source_of("a"), 1.0f}}));
    run_until(*world, begun, 5);
    world->hold(begun, true);
    const RequestId other = world->submit(simple(30, 5, 2, {{source_of("b"), 1.0f}}));
    world->run();
    world->expect_oracle(other);
    EXPECT_FALSE(in_memory(*world, "a"));
  }
};

// It is loaded again, and the text is the same.
TEST(EngineLoopLeases, AnAdapterThatLeftMeanwhileIsLoadedAgain) {
  const LeftMeanwhile left;
  World& world = *left.world;
  world.hold(left.begun, false);
  world.run();
  world.expect_oracle(left.begun);
  EXPECT_EQ(world.stats().adapter_loads, 3u);
}

// The same, but its files are others by then: what has begun with one version never goes
// on with another.
TEST(EngineLoopLeases, WhatHasBegunNeverGoesOnWithAnotherVersion) {
  const LeftMeanwhile left;
  World& world = *left.world;
  world.files.put("/a", 33, 40'000);
  const RequestId fresh = world.submit(simple(30, 10, 3, {{source_of("a"), 1.0f}}));
  world.hold(left.begun, false);
  world.run();
  EXPECT_EQ(world.record(left.begun).end, EndReason::kError);
  EXPECT_NE(world.record(left.begun).last.error.message.find("send the request again"), std::string::npos);
  EXPECT_EQ(FakeFiles::content_of(world.record(fresh).first.adapter_version), 33u);
  world.expect_oracle(fresh);
  world.expect_nothing_held();
}

// A version that could not be loaded again stays for those that were made for it.
TEST(EngineLoopLeases, AReplacedVersionStaysForThoseThatWaitWithIt) {
  World world;
  add(world, "a", 11);
  const RequestId begun = world.submit(simple(30, 40, 1, {{source_of("a"), 1.0f}}));
  run_until(world, begun, 5);
  world.hold(begun, true);
  world.turn();
  world.files.put("/a", 33);
  world.command(AdapterAction::kLoad, "a", "/a", true);
  world.run();
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 2000);
  const RequestId fresh = world.submit(simple(30, 10, 3, {{source_of("a"), 1.0f}}));
  world.run();
  EXPECT_EQ(FakeFiles::content_of(world.record(fresh).first.adapter_version), 33u);
  world.hold(begun, false);
  world.run();
  EXPECT_EQ(FakeFiles::content_of(world.record(begun).first.adapter_version), 11u);
  world.expect_oracle(begun);
  world.expect_oracle(fresh);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 1000) << "it left with the last of them";
}

TEST(EngineLoopLeases, QueuedRequestsAreServedThoughTheirAdapterIsUnloaded) {
  WorldOptions setup;
  setup.max_sequences = 1;
  World world(setup);
  add(world, "a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const size_t before = world.replies.size();
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(world.submit(simple(20, 10, i, {{source_of("a"), 1.0f}})));
  turns(world, 3);
  world.command(AdapterAction::kDrop, "a");
  turns(world, 3);
  EXPECT_EQ(world.replies.size(), before) << "some still wait with it";
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  ASSERT_EQ(world.replies.size(), before + 1);
  EXPECT_EQ(world.replies.back().bytes_freed, 1000);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

// One order for all: what an older request waits with does not leave for a younger one's
// load.
TEST(EngineLoopLeases, WhatAnOlderRequestWaitsWithDoesNotLeaveForAYoungerOne) {
  WorldOptions setup;
  setup.max_sequences = 1;
  setup.adapter_bytes = 110'000;
  World world(setup);
  add(world, "a", 11, 40'000);
  add(world, "b", 22, 40'000);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const RequestId runs = world.submit(simple(20, 30, 1));
  const RequestId waits = world.submit(simple(20, 5, 2, {{source_of("a"), 1.0f}}));
  const RequestId younger = world.submit(simple(20, 5, 3, {{source_of("b"), 1.0f}}));
  for (int i = 0; i < 20; ++i) {
    world.turn();
    world.finish_load();
  }
  EXPECT_EQ(world.record(runs).end, EndReason::kNone);
  EXPECT_TRUE(in_memory(world, "a"));
  EXPECT_EQ(users_of(world, "a"), 0);
  world.run();
  for (const RequestId id : {runs, waits, younger}) world.expect_oracle(id);
  EXPECT_EQ(world.stats().adapter_loads, 2u);
}

// It waits with a version that was replaced, and what else it needs finds no room beside
// that. Nobody runs who could give some.
TEST(EngineLoopLeases, WhoKeepsAReplacedVersionLetsItGoWhereNobodyCouldGoOn) {
  WorldOptions setup;
  setup.max_sequences = 1;
  setup.adapter_bytes = 500'000;
  World world(setup);
  add(world, "a", 11, 300'000);
  add(world, "b", 22, 100'000);
  add(world, "c", 33, 120'000);
  for (const char* name : {"a", "b"}) {
    world.command(AdapterAction::kLoad, name, std::string("/") + name);
    world.run();
  }
  const auto load = [&](const std::string& name, bool reload) {
    world.command(AdapterAction::kLoad, name, "/" + name, reload);
    for (int i = 0; i < 6; ++i) {
      world.turn();
      world.finish_load();
    }
  };
  const RequestId runs = world.submit(simple(20, 60, 1));
  const RequestId waits = world.submit(simple(20, 5, 2, {{source_of("a"), 1.0f}, {source_of("b"), 1.0f}}));
  turns(world, 3);
  world.files.put("/a", 12, 1000);
  load("a", true);
  world.files.put("/b", 23, 300'000);
  load("c", false);  // in the room of "b"
  ASSERT_TRUE(in_memory(world, "c"));
  ASSERT_FALSE(in_memory(world, "b"));
  ASSERT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 300'000 + 120'000) << "the replaced one is there";
  ASSERT_EQ(world.record(runs).end, EndReason::kNone);
  world.run();
  world.expect_oracle(runs);
  ASSERT_EQ(world.record(waits).end, EndReason::kLength) << "it waits for ever";
  world.expect_oracle(waits);
  world.expect_nothing_held();
}

// However many wait for adapters that are not there, those whose adapters are there go
// on; and nobody is loaded out of order.
TEST(EngineLoopLeases, ManyColdRequestsHoldNobodyUp) {
  WorldOptions setup;
  setup.adapter_bytes = 700'000;
  World world(setup);
  add(world, "there", 11);
  world.command(AdapterAction::kLoad, "there", "/there");
  world.run();
  for (int i = 0; i < 300; ++i) {
    const std::string name = "cold" + std::to_string(i);
    add(world, name, 100 + static_cast<uint64_t>(i));
    world.submit(simple(10, 2, i, {{source_of(name), 1.0f}}));
  }
  const RequestId warm = world.submit(simple(10, 5, 1, {{source_of("there"), 1.0f}}));
  const RequestId base = world.submit(simple(10, 5, 2));
  turns(world, 20);
  world.expect_oracle(warm);
  world.expect_oracle(base);
  EXPECT_TRUE(world.loop->idle()) << "nothing to do before a load ends";
  for (const LoadJob& job : world.jobs) EXPECT_TRUE(job.path == "/cold0" || job.path == "/cold1") << job.path;
  world.run(20000);
  world.expect_nothing_held();
}

// The same for those that wait for room on a device: more than a planning asks.
TEST(EngineLoopLeases, ManyThatWaitForTheDeviceHoldNobodyUp) {
  WorldOptions setup;
  setup.device_bytes = 1500;
  World world(setup);
  for (const char* name : {"a", "b"}) {
    add(world, name, name[0]);
    world.command(AdapterAction::kLoad, name, std::string("/") + name);
  }
  for (int i = 0; i < 20; ++i) {
    world.turn();
    world.finish_load();
  }
  const RequestId arriving = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  world.turn();
  ASSERT_EQ(world.executor.tier->holds(), 1);
  std::vector<RequestId> lacking;
  for (int i = 0; i < 2 * Admission::kOffersMax; ++i)
    lacking.push_back(world.submit(simple(10, 2, i, {{source_of("b"), 1.0f}})));
  const RequestId base = world.submit(simple(10, 5, 2));
  turns(world, 10);
  EXPECT_EQ(world.record(arriving).events, 0) << "its upload has not ended";
  world.expect_oracle(base);
  EXPECT_TRUE(world.loop->idle());
  EXPECT_EQ(world.stats().waiting_for_adapter, 1 + 2 * Admission::kOffersMax);
  world.run(20000);
  world.expect_oracle(arriving);
  for (const RequestId id : lacking) world.expect_oracle(id);
  world.expect_nothing_held();
}

// A short prompt computes in the next step, whatever long ones are under way.
TEST(EngineLoopLeases, AShortPromptDoesNotWaitForLongOnes) {
  WorldOptions setup;
  setup.blocks = 200;
  setup.max_model_len = 1000;
  setup.step_tokens = 64;
  World world(setup);
  std::vector<RequestId> longs;
  for (int i = 0; i < 4; ++i) longs.push_back(world.submit(simple(700, 2, i)));
  turns(world, 3);
  const RequestId brief = world.submit(simple(20, 2, 9));
  world.turn();
  EXPECT_EQ(world.record(brief).tokens.size(), 1u);
  EXPECT_EQ(world.record(longs[0]).tokens.size(), 0u);
  world.run();
  for (const RequestId id : longs) world.expect_oracle(id);
}

// Everything that a loop says under a manual clock, in one thread, follows from its seed.
std::string said(uint64_t seed) {
  Prng random(seed);
  WorldOptions setup;
  setup.blocks = 16;
  setup.adapter_bytes = 150'000;
  World world(setup);
  for (int i = 0; i < 5; ++i)
    add(world, std::string(1, static_cast<char>('a' + i)), 100 + static_cast<uint64_t>(i), 40'000);
  std::ostringstream text;
  EngineOutput output;
  for (int step = 0; step < 600; ++step) {
    if (random.below(5) == 0) {
      std::vector<AdapterUse> adapters;
      if (random.below(3) != 0)
        adapters.push_back({source_of(std::string(1, static_cast<char>('a' + random.below(5)))), 1.0f});
      Submit submit = simple(1 + static_cast<int>(random.below(80)), 1 + static_cast<int>(random.below(20)),
                             static_cast<int>(random.below(4)), std::move(adapters));
      submit.sampling.temperature = 0.8f;
      world.submit(submit);
    }
    if (world.last_id > 0 && random.below(20) == 0) world.cancel(RequestId{1 + random.below(world.last_id)});
    if (random.below(3) == 0) world.finish_load();
    world.clock.advance_ns(1 + static_cast<int64_t>(random.below(1'000'000)));
    world.turn(output);
    world.loop->check();
    for (const TokenEvent& event : output.tokens) {
      text << step << ' ' << event.id.value << ' ' << event.choice << ' ' << event.token << ' '
           << static_cast<int>(event.end) << ' ' << event.queue_ns << ' ' << event.cached_tokens << ' '
           << event.error.message << '\n';
    }
    output.tokens.clear();
  }
  return text.str();
}

TEST(EngineLoopLeases, ALoopUnderAManualClockReplaysASeedByteForByte) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::string first = said(seed);
    EXPECT_GT(first.size(), 1000u);
    EXPECT_EQ(first, said(seed)) << "seed " << seed;
  }
}

// An older request's load waits for the room of "a" and has lost its patience: a younger
// request for "a" is set aside, and goes on when that has changed.
TEST(EngineLoopLeases, WhoIsSetAsideForAnOlderLoadGoesOnWhenThatIsOver) {
  for (const bool cancels : {false, true}) {
    SCOPED_TRACE(testing::Message() << "the older one is cancelled: " << cancels);
    World world({.adapter_bytes = 3000});
    for (const char* name : {"a", "b"}) {
      world.files.put(std::string("/") + name, name[0] == 'a' ? 11 : 22, 2000);
      world.command(AdapterAction::kAdd, name, std::string("/") + name);
    }
    const RequestId first = world.submit(simple(10, 60, 1, {{source_of("a"), 1.0f}}));
    while (world.record(first).events == 0) {
      world.turn();
      world.finish_load();
    }
    const RequestId older = world.submit(simple(10, 5, 2, {{source_of("b"), 1.0f}}));
    for (int i = 0; i < 5; ++i) {
      world.turn();
      world.finish_load();
    }
    world.clock.advance_ns(kRoomPatienceNs);
    world.turn();
    const RequestId younger = world.submit(simple(10, 5, 3, {{source_of("a"), 1.0f}}));
    for (int i = 0; i < 5; ++i) world.turn();
    ASSERT_EQ(world.record(younger).events, 0) << "it is set aside";
    ASSERT_EQ(world.stats().waiting_for_adapter, 2);
    ASSERT_EQ(world.record(first).end, EndReason::kNone);
    if (cancels) {
      world.cancel(older);
      for (int i = 0; i < 3; ++i) world.turn();
      EXPECT_GT(world.record(younger).events, 0) << "beside the first";
      EXPECT_EQ(world.record(first).end, EndReason::kNone);
    }
    world.run();
    for (const RequestId id : {first, younger}) world.expect_oracle(id);
    if (!cancels) world.expect_oracle(older);
    world.expect_nothing_held();
  }
}

}  // namespace
}  // namespace loralei
