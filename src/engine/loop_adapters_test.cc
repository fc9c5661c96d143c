// SPDX-License-Identifier: Apache-2.0
// Scenarios of the engine loop with adapters that come, change and go.
#include <gtest/gtest.h>

#include "engine/loop.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

TEST(EngineLoopAdapters, ManyAdaptersInOneBatchGiveWhatTheyGiveAlone) {
  World world;
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    world.files.put("/" + name, 100 + static_cast<uint64_t>(i));
    world.command(AdapterAction::kAdd, name, "/" + name);
  }
  ids.push_back(world.submit(simple(20, 15, 1)));
  ids.push_back(world.submit(simple(20, 15, 1, {{source_of("a"), 1.0f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{source_of("b"), 1.0f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{source_of("b"), 0.3f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{source_of("c"), 0.5f}, {source_of("d"), 0.7f}})));
  ids.push_back(world.submit(simple(20, 15, 1, {{source_of("d"), 0.7f}, {source_of("c"), 0.5f}})));
  ids.push_back(world.submit(simple(20, 15, 2, {{source_of("a"), 1.0f}})));
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  EXPECT_NE(world.record(ids[0]).tokens, world.record(ids[1]).tokens);
  world.expect_nothing_held();
}

TEST(EngineLoopAdapters, ABaseOnlyStepHasNoSegmentsThoughAdaptersAreLoaded) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  ASSERT_TRUE(world.replies.at(0).status.ok());
  world.submit(simple(20, 10));
  world.run();
  EXPECT_EQ(world.executor.segments, 0);
}

TEST(EngineLoopAdapters, ColdAdaptersDelayOnlyTheirOwnRequests) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kAdd, "a", "/a");
  const RequestId cold = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  const RequestId base = world.submit(simple(10, 5, 2));
  for (int i = 0; i < 20; ++i) world.turn();
  EXPECT_EQ(world.record(base).end, EndReason::kLength);
  EXPECT_EQ(world.record(cold).events, 0);
  EXPECT_EQ(world.stats().waiting_for_adapter, 1);
  EXPECT_EQ(world.adapters().at(0)->tier, AdapterTier::kLoading);
  EXPECT_TRUE(world.loop->idle());
  world.run();
  world.expect_oracle(cold);
}

TEST(EngineLoopAdapters, NewsComeWithRepliesAtRestAndInTimeWhileStepsRun) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const auto shown = [&] { return *world.board.list().at(0); };
  EXPECT_EQ(shown().tier, AdapterTier::kResident);
  EXPECT_EQ(world.stats().idle_adapter_bytes, shown().bytes);
  world.submit(simple(10, 100, 1, {{source_of("a"), 1.0f}}));
  for (int i = 0; i < 3; ++i) world.turn();
  EXPECT_EQ(shown().users, 0) << "not in every step";
  EXPECT_EQ(world.stats().idle_adapter_bytes, 0);
  world.clock.advance_ns(kAdapterNewsNs);
  world.turn();
  EXPECT_EQ(shown().users, 1);
  world.command(AdapterAction::kPin, "a");
  EngineOutput output;
  world.turn(output);
  ASSERT_EQ(output.replies.size(), 1u);
  ASSERT_EQ(output.adapters.size(), 1u) << "with the reply";
  EXPECT_TRUE(output.adapters[0].status->pinned);
  world.take(output);
  world.run();
  world.turn();
  EXPECT_EQ(shown().users, 0) << "at rest";
  world.command(AdapterAction::kDrop, "a");
  world.command(AdapterAction::kAdd, "a", "/a");  // the same source again
  world.turn();
  EXPECT_EQ(shown().tier, AdapterTier::kSource) << "what is gone goes first";
  EXPECT_FALSE(shown().pinned);
}

TEST(EngineLoopAdapters, ReplaceUnderTrafficKeepsTheVersionOfRunningRequests) {
  World world;
  world.files.put("/a", 11);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const RequestId old_one = world.submit(simple(10, 40, 1, {{source_of("a"), 1.0f}}));
  for (int i = 0; i < 5; ++i) world.turn();
  world.files.put("/a", 22);
  world.command(AdapterAction::kLoad, "a", "/a", true);
  world.turn();
  world.finish_load();
  world.turn();
  world.finish_load();
  world.turn();
  const RequestId new_one = world.submit(simple(10, 40, 1, {{source_of("a"), 1.0f}}));
  world.run();
  EXPECT_EQ(FakeFiles::content_of(world.record(old_one).first.adapter_version), 11u);
  EXPECT_EQ(FakeFiles::content_of(world.record(new_one).first.adapter_version), 22u);
  EXPECT_EQ(world.record(new_one).first.cached_tokens, 0);
  world.expect_oracle(old_one);
  world.expect_oracle(new_one);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 1000);
}

// Each is computed with the source that it names, whatever came to replace it meanwhile.
TEST(EngineLoopAdapters, ARequestMadeForAReplacedSourceIsNotComputedWithTheNewOne) {
  World world;
  world.files.put("/a", 11);
  world.files.put("/b", 22);
  world.command(AdapterAction::kAdd, "a", "/a");
  world.run();
  world.command(AdapterAction::kLoad, "b", "/b", false, source_of("a"));
  const RequestId old_one = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  const RequestId new_one = world.submit(simple(10, 5, 1, {{source_of("b"), 1.0f}}));
  for (int i = 0; i < 10; ++i) {
    world.finish_load();
    world.turn();
  }
  world.command(AdapterAction::kDrop, "a");
  const RequestId late = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  world.run();
  EXPECT_EQ(FakeFiles::content_of(world.record(old_one).first.adapter_version), 11u);
  EXPECT_EQ(FakeFiles::content_of(world.record(new_one).first.adapter_version), 22u);
  EXPECT_EQ(world.record(late).last.error.code, ErrorCode::kNotFound);
  world.expect_oracle(old_one);
  world.expect_oracle(new_one);
}

TEST(EngineLoopAdapters, UnloadUnderTrafficAnswersWhenTheLastUserIsDone) {
  World world;
  world.files.put("/a", 11, 5000);
  world.command(AdapterAction::kLoad, "a", "/a");
  world.run();
  const RequestId id = world.submit(simple(10, 10, 1, {{source_of("a"), 1.0f}}));
  for (int i = 0; i < 3; ++i) world.turn();
  world.command(AdapterAction::kDrop, "a");
  const RequestId late = world.submit(simple(10, 10, 1, {{source_of("a"), 1.0f}}));
  world.turn();
  EXPECT_EQ(world.replies.size(), 1u);
  EXPECT_EQ(world.record(late).end, EndReason::kError);
  EXPECT_EQ(world.record(late).last.error.code, ErrorCode::kNotFound);
  world.run();
  world.expect_oracle(id);
  ASSERT_EQ(world.replies.size(), 2u);
  EXPECT_EQ(world.replies[1].bytes_freed, 5000);
  EXPECT_EQ(world.ledger.used_bytes(MemoryUse::kAdapters), 0);
}

TEST(EngineLoopAdapters, AFailedLoadEndsItsRequestsWithTheReason) {
  World world;
  world.files.put("/a", 11);
  world.files.change("/a", [](FakeFiles::File& file) { file.broken = corrupt("a tensor is cut off"); });
  world.command(AdapterAction::kAdd, "a", "/a");
  Submit submit = simple(10, 5, 1, {{source_of("a"), 1.0f}});
  submit.choices = 3;
  const RequestId id = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(world.record(id, choice).end, EndReason::kError);
    EXPECT_NE(world.record(id, choice).last.error.message.find("a tensor is cut off"), std::string::npos);
  }
  world.files.change("/a", [](FakeFiles::File& file) { file.broken.reset(); });
  const RequestId again = world.submit(submit);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) world.expect_oracle(again, choice);
  world.expect_nothing_held();
}

TEST(EngineLoopAdapters, ActivatedLoraStartsAtTheLastInvocationAndSharesTheBasePrefix) {
  World world;
  world.files.put("/a", 33);
  world.files.change("/a", [](FakeFiles::File& file) { file.invocation = {5, 6}; });
  world.invocations[33] = {5, 6};
  world.command(AdapterAction::kAdd, "a", "/a");
  Submit submit = simple(60, 10, 1);
  submit.prompt[10] = submit.prompt[45] = 5;
  submit.prompt[11] = submit.prompt[46] = 6;
  world.submit(submit);  // the base writes the prefix
  world.run();
  submit.adapters = {{source_of("a"), 1.0f}};
  const RequestId invoked = world.submit(submit);
  world.run();
  EXPECT_EQ(world.record(invoked).first.cached_tokens, 32);
  world.expect_oracle(invoked);
  submit.prompt[46] = submit.prompt[11] = 9;  // never invoked: the base's text
  const RequestId never = world.submit(submit);
  world.run();
  world.expect_oracle(never);
}

// f32 sums depend on their order; the fake model's do, too. A chunk may begin before the
// activation or behind it.
TEST(EngineLoopAdapters, ASumWithActivatedLoraHasOneOrderWhateverTheChunks) {
  for (const int32_t step_tokens : {8, 24, 64}) {
    SCOPED_TRACE(step_tokens);
    World world({.step_tokens = step_tokens});
    for (const char* name : {"a", "b", "c"}) {
      const uint64_t content = 30 + static_cast<uint64_t>(name[0]);
      world.files.put(std::string("/") + name, content);
      world.command(AdapterAction::kAdd, name, std::string("/") + name);
    }
    world.files.change("/a", [](FakeFiles::File& file) { file.invocation = {5, 6}; });
    world.files.change("/c", [](FakeFiles::File& file) { file.invocation = {7, 8}; });
    world.invocations[30 + 'a'] = {5, 6};
    world.invocations[30 + 'c'] = {7, 8};
    Submit submit = simple(60, 10, 1, {{source_of("a"), 1.0f}, {source_of("b"), 0.5f}, {source_of("c"), 0.25f}});
    submit.prompt[45] = 5;
    submit.prompt[46] = 6;
    submit.prompt[20] = 7;
    submit.prompt[21] = 8;
    const RequestId cold = world.submit(submit);
    world.run();
    world.expect_oracle(cold);
    const RequestId warm = world.submit(submit);
    world.run();
    EXPECT_EQ(world.record(warm).first.cached_tokens, 48);
    world.expect_oracle(warm);
  }
}

void add_adapters(World& world, const std::string& names) {
  for (const char name : names) {
    world.files.put(std::string("/") + name, static_cast<uint64_t>(name));
    world.command(AdapterAction::kAdd, std::string(1, name), std::string("/") + name);
  }
}

AdapterTier tier_of(const World& world, const std::string& name) {
  for (const auto& adapter : world.adapters())
    if (adapter->source.label == name) return adapter->tier;
  return AdapterTier::kFailed;
}

TEST(EngineLoopAdapters, WhereNoneAreKeptTheyLeaveBehindTheLastRequestThatWantsThem) {
  World world({.max_sequences = 1, .adapter_keeping = AdapterKeeping::none()});
  add_adapters(world, "abc");
  world.command(AdapterAction::kPin, "c", "");
  const RequestId first = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  const RequestId second = world.submit(simple(10, 5, 2, {{source_of("a"), 1.0f}}));
  const RequestId third = world.submit(simple(10, 5, 3, {{source_of("c"), 1.0f}}));
  while (world.record(first).end == EndReason::kNone) {
    world.turn();
    world.finish_load();
  }
  EXPECT_EQ(tier_of(world, "a"), AdapterTier::kResident) << "the second waits with it";
  world.run();
  EXPECT_EQ(tier_of(world, "a"), AdapterTier::kSource);
  EXPECT_EQ(tier_of(world, "c"), AdapterTier::kResident) << "it is pinned";
  EXPECT_EQ(world.stats().adapter_loads, 2u);
  EXPECT_EQ(world.stats().adapter_evictions, 1u);
  const RequestId again = world.submit(simple(10, 5, 4, {{source_of("a"), 1.0f}}));
  world.run();
  EXPECT_EQ(world.stats().adapter_loads, 3u);
  for (const RequestId id : {first, second, third, again}) world.expect_oracle(id);
  // One that leaves while it waits takes its adapter with it.
  world.submit(simple(10, 50, 5));
  world.turn();
  const RequestId left = world.submit(simple(10, 5, 6, {{source_of("b"), 1.0f}}));
  for (int i = 0; i < 3; ++i) {
    world.turn();
    world.finish_load();
  }
  EXPECT_EQ(tier_of(world, "b"), AdapterTier::kResident);
  world.cancel(left);
  world.run();
  EXPECT_EQ(tier_of(world, "b"), AdapterTier::kSource);
  world.expect_nothing_held();
}

TEST(EngineLoopAdapters, WhereNoneAreKeptTheirCopiesOnTheDeviceLeaveToo) {
  World world({.max_sequences = 1, .device_bytes = 1 << 20, .adapter_keeping = AdapterKeeping::none()});
  add_adapters(world, "ab");
  const RequestId first = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  const RequestId second = world.submit(simple(10, 5, 2, {{source_of("b"), 1.0f}}));
  world.run();
  for (const RequestId id : {first, second}) world.expect_oracle(id);
  EXPECT_EQ(world.executor.tier->copies(), 0u);
  EXPECT_EQ(tier_of(world, "a"), AdapterTier::kResident) << "in host memory they stay";
  // Brought ahead for one that then leaves.
  world.submit(simple(10, 50, 3));
  world.turn();
  const RequestId left = world.submit(simple(10, 5, 4, {{source_of("a"), 1.0f}}));
  world.turn();
  EXPECT_EQ(world.executor.tier->copies(), 1u);
  world.cancel(left);
  world.run();
  EXPECT_EQ(world.executor.tier->copies(), 0u);
}

// The device has room for two: which of those that nobody uses leaves for a third?
TEST(EngineLoopAdapters, WhoLeavesTheDeviceIsForThePolicyToSay) {
  for (const KeepPolicy policy : {KeepPolicy::kLru, KeepPolicy::kChameleon, KeepPolicy::kDensity}) {
    SCOPED_TRACE(static_cast<int>(policy));
    World world({.max_sequences = 1, .device_bytes = 2 * 1000, .adapter_keeping = {.policy = policy}});
    add_adapters(world, "abc");
    uint64_t seed = 0;
    const auto use = [&](const char* name) {
      const RequestId id = world.submit(simple(10, 2, ++seed, {{source_of(name), 1.0f}}));
      world.run();
      world.expect_oracle(id);
    };
    for (const char* name : {"a", "a", "a", "b"}) use(name);
    const int64_t uploads = world.executor.tier->uploads;
    use("c");  // for b, which is used less; or for a, which was used before b
    use("a");
    EXPECT_EQ(world.executor.tier->uploads - uploads, policy == KeepPolicy::kLru ? 2 : 1);
    world.expect_nothing_held();
  }
}

// Full of what nobody uses, the device has room for those that will be asked next all the
// same; what another of them waits with stays.
TEST(EngineLoopAdapters, WhatNobodyWantsLeavesForWhatIsBroughtAhead) {
  World world({.max_sequences = 1, .device_bytes = 2 * 1000});
  add_adapters(world, "abcd");
  for (const char* name : {"a", "b"}) {
    world.submit(simple(10, 2, 1, {{source_of(name), 1.0f}}));
    world.run();
  }
  ASSERT_EQ(world.executor.tier->copies(), 2u);
  std::vector<RequestId> ids = {world.submit(simple(10, 60, 2))};
  world.turn();
  for (const char* name : {"b", "c", "d"}) ids.push_back(world.submit(simple(10, 2, 3, {{source_of(name), 1.0f}})));
  const int64_t uploads = world.executor.tier->uploads;
  for (int i = 0; i < 20; ++i) {
    world.turn();
    world.finish_load();
    (void)world.finish_upload();
  }
  ASSERT_EQ(world.record(ids[0]).end, EndReason::kNone) << "it still runs";
  EXPECT_EQ(world.executor.tier->uploads - uploads, 1) << "c has come for a; b is wanted, and so is c";
  world.run();
  EXPECT_EQ(world.executor.tier->uploads - uploads, 2) << "b and c were there when they were asked";
  for (const RequestId id : ids) world.expect_oracle(id);
  world.expect_nothing_held();
}

TEST(EngineLoopAdapters, WhatWillBeAskedNextIsBroughtToTheDeviceAheadAsFarAsThereIsRoom) {
  World world({.max_sequences = 1, .device_bytes = 1 << 20});
  add_adapters(world, "abcd");
  std::vector<RequestId> ids = {world.submit(simple(10, 60, 1))};
  world.turn();
  for (const char* name : {"a", "b", "c", "d"})
    ids.push_back(world.submit(simple(10, 2, 2, {{source_of(name), 1.0f}})));
  for (int i = 0; i < 8; ++i) {
    world.turn();
    world.finish_load();
  }
  EXPECT_EQ(world.executor.tier->copies(), 2u) << "no more than two at a time";
  ASSERT_TRUE(world.finish_upload());
  world.turn();
  EXPECT_EQ(world.executor.tier->copies(), 3u);
  EXPECT_EQ(world.executor.tier->holds(), 0) << "who waits holds nothing";
  world.run();
  EXPECT_EQ(world.executor.tier->uploads, 4);
  for (const RequestId id : ids) world.expect_oracle(id);
  world.expect_nothing_held();
}

// A link that is broken is not tried again and again for those that only wait.
TEST(EngineLoopAdapters, WhatCouldNotBeBroughtAheadIsLeftUntilItIsAskedFor) {
  World world({.max_sequences = 1, .device_bytes = 1 << 20});
  add_adapters(world, "a");
  world.submit(simple(10, 40, 1));
  world.turn();
  const RequestId waits = world.submit(simple(10, 2, 2, {{source_of("a"), 1.0f}}));
  while (!world.finish_upload(false)) {
    world.turn();
    world.finish_load();
  }
  for (int i = 0; i < 10; ++i) {
    world.turn();
    EXPECT_EQ(world.executor.tier->copies(), 0u);
  }
  world.run();
  world.expect_oracle(waits);
}

// Nobody leaves the device for what is brought ahead.
TEST(EngineLoopAdapters, WhatIsBroughtAheadTakesNobodysPlace) {
  World world({.max_sequences = 1, .device_bytes = 1500});
  add_adapters(world, "ab");
  const RequestId runs = world.submit(simple(10, 20, 1, {{source_of("a"), 1.0f}}));
  while (world.record(runs).events == 0) {
    world.turn();
    world.finish_load();
    (void)world.finish_upload();
  }
  const RequestId waits = world.submit(simple(10, 2, 3, {{source_of("b"), 1.0f}}));
  for (int i = 0; i < 5; ++i) {
    world.turn();
    world.finish_load();
  }
  EXPECT_EQ(world.executor.tier->uploads, 1);
  EXPECT_EQ(world.executor.tier->copies(), 1u);
  world.run();
  EXPECT_EQ(world.executor.tier->uploads, 2);
  for (const RequestId id : {runs, waits}) world.expect_oracle(id);
}

// The last user of an adapter that was unloaded ends with a step, and the adapter leaves
// with it: the step's record still knows its rank.
TEST(EngineLoopAdapters, TheRecordOfAStepKnowsAnAdapterThatLeavesWithIt) {
  std::vector<StepRecord> records;
  World world({.on_step = [&](const StepRecord& record) { records.push_back(record); }});
  add_adapters(world, "a");
  const RequestId id = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}}));
  for (int i = 0; i < 3; ++i) {
    world.turn();
    world.finish_load();
  }
  world.command(AdapterAction::kDrop, "a", "");
  world.run();
  world.expect_oracle(id);
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(records.back().features.adapters, 1);
  EXPECT_EQ(world.stats().adapter_bytes, 0);
}

}  // namespace
}  // namespace loralei
