// SPDX-License-Identifier: Apache-2.0
// The engine loop over an executor with a tier of adapters of its own: who waits for what
// arrives there, who waits for room, and that nobody waits for ever.
#include "engine/device_tier.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/prng.h"
#include "engine/loop_test_world.h"
#include "engine/start.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kBytes = 1000;  // of an adapter

// Adapters "a", "b", ... loaded in host memory.
void load(World& world, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    world.files.put("/" + name, 100 + static_cast<uint64_t>(i), kBytes);
    world.command(AdapterAction::kLoad, name, "/" + name);
  }
  world.run();
}

Submit using_adapter(const std::string& name, int output = 10, int salt = 1) {
  return simple(10, output, salt, {{source_of(name), 1.0f}});
}

void turns(World& world, int count) {
  for (int i = 0; i < count; ++i) world.turn();
}

TEST(DeviceTier, AnAdapterOnItsWayDelaysItsOwnRequestsOnly) {
  World world({.device_bytes = 10 * kBytes});
  load(world, 2);
  EXPECT_EQ(world.executor.tier->copies(), 0u) << "what nobody asked for is not uploaded";
  const RequestId first = world.submit(using_adapter("a"));
  world.turn();
  ASSERT_TRUE(world.finish_upload());
  turns(world, 3);
  const RequestId second = world.submit(using_adapter("b"));
  const RequestId third = world.submit(using_adapter("a", 10, 2));
  const RequestId base = world.submit(simple(10, 10, 3));
  turns(world, 20);
  EXPECT_EQ(world.record(first).end, EndReason::kLength);
  EXPECT_EQ(world.record(third).end, EndReason::kLength);
  EXPECT_EQ(world.record(base).end, EndReason::kLength);
  EXPECT_EQ(world.record(second).events, 0);
  EXPECT_EQ(world.stats().waiting_for_adapter, 1);
  EXPECT_TRUE(world.loop->idle()) << "an upload is waited for without turning";
  world.run();
  for (const RequestId id : {first, second, third, base}) world.expect_oracle(id);
  EXPECT_EQ(world.stats().adapter_uploads, 2u);
  world.expect_nothing_held();
}

// Nothing runs: what is in memory is on its way to the device. Only the budget's change
// can give the other one its room.
TEST(DeviceTier, ALoadThatWaitsForRoomBeginsWhenTheBudgetIsRaised) {
  World world({.adapter_bytes = 100000, .device_bytes = 200000});
  for (const char* path : {"/a", "/b"}) {
    world.files.put(path, 100 + static_cast<uint64_t>(path[1]), 60000);
    world.command(AdapterAction::kAdd, path + 1, path);
  }
  const RequestId first = world.submit(using_adapter("a"));
  turns(world, 2);
  while (!world.jobs.empty()) {
    world.finish_load();
    turns(world, 2);
  }
  const RequestId second = world.submit(using_adapter("b"));
  turns(world, 2);
  world.finish_load();  // its stamp
  turns(world, 3);
  ASSERT_TRUE(world.loop->idle() && world.jobs.empty()) << "it waits for room";
  world.ledger.set_cap(MemoryUse::kAdapters, 300000);
  world.resize(64);
  world.turn();
  EXPECT_EQ(world.jobs.size(), 1u);
  world.run();
  for (const RequestId id : {first, second}) world.expect_oracle(id);
}

TEST(DeviceTier, WhatAddsNothingIsNotBrought) {
  World world({.device_bytes = kBytes});
  load(world, 2);
  const RequestId none = world.submit(simple(10, 5, 1, {{source_of("a"), 0.0f}}));
  turns(world, 10);
  world.expect_oracle(none);
  EXPECT_EQ(world.executor.tier->copies(), 0u);
  const RequestId twice =
      world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}, {source_of("a"), 0.5f}, {source_of("b"), 0.0f}}));
  world.run();
  world.expect_oracle(twice);
  EXPECT_EQ(world.executor.tier->copies(), 1u);
  world.expect_nothing_held();
}

TEST(DeviceTier, CancelWhileItIsOnItsWay) {
  World world({.device_bytes = 2 * kBytes});
  load(world, 1);
  Submit submit = using_adapter("a");
  submit.choices = 3;
  const RequestId whole = world.submit(submit);
  const RequestId part = world.submit(submit);
  world.turn();
  world.cancel(whole);
  world.cancel(part, 0);
  world.turn();
  EXPECT_EQ(world.executor.tier->holds(), 1);
  world.run();
  for (int32_t choice = 0; choice < 3; ++choice) EXPECT_EQ(world.record(whole, choice).end, EndReason::kCancelled);
  EXPECT_EQ(world.record(part, 0).end, EndReason::kCancelled);
  world.expect_oracle(part, 1);
  world.expect_oracle(part, 2);
  world.expect_nothing_held();
}

TEST(DeviceTier, UnloadAndReplaceWhileItIsOnItsWay) {
  World world({.device_bytes = 10 * kBytes});
  load(world, 2);
  const RequestId unloaded = world.submit(using_adapter("a"));
  const RequestId replaced = world.submit(using_adapter("b"));
  const RequestId dropped = world.submit(using_adapter("b"));
  world.turn();
  const size_t replies = world.replies.size();
  world.command(AdapterAction::kDrop, "a");
  world.files.put("/b", 500, kBytes);
  world.command(AdapterAction::kLoad, "b", "/b", true);
  world.cancel(dropped);
  world.turn();
  while (!world.jobs.empty()) {
    world.finish_load();
    world.turn();
  }
  EXPECT_EQ(world.replies.size(), replies + 1) << "who waits for its upload uses it";
  const RequestId after = world.submit(using_adapter("b"));
  world.run();
  EXPECT_EQ(world.replies.size(), replies + 2);
  for (const RequestId id : {unloaded, replaced, after}) world.expect_oracle(id);
  EXPECT_EQ(FakeFiles::content_of(world.record(replaced).first.adapter_version), 101u);
  EXPECT_EQ(FakeFiles::content_of(world.record(after).first.adapter_version), 500u);
  EXPECT_EQ(world.executor.tier->copies(), 1u) << "what left host memory left the device";

  // Nobody is left when the upload ends: the host's copy goes at once, the device's then.
  world.files.put("/c", 7, kBytes);
  world.command(AdapterAction::kLoad, "c", "/c");
  world.run();
  const RequestId alone = world.submit(using_adapter("c"));
  world.turn();
  world.cancel(alone);
  world.command(AdapterAction::kDrop, "c");
  world.turn();
  EXPECT_EQ(world.replies.size(), replies + 4);
  EXPECT_EQ(world.executor.tier->copies(), 2u);
  ASSERT_TRUE(world.finish_upload());
  EXPECT_EQ(world.executor.tier->copies(), 1u);
  world.expect_nothing_held();
}

// The device has room for one. Requests of the one that is there keep coming; the other
// one's turn comes all the same.
TEST(DeviceTier, WhoWaitsForRoomIsNotOvertaken) {
  World world({.device_bytes = kBytes});
  load(world, 2);
  const RequestId first = world.submit(using_adapter("a", 30));
  world.turn();
  ASSERT_TRUE(world.finish_upload());
  turns(world, 2);
  const RequestId other = world.submit(using_adapter("b", 5));
  const RequestId base = world.submit(simple(10, 5)), none = world.submit(simple(10, 5, 1, {{source_of("b"), 0.0f}}));
  turns(world, 10);
  world.expect_oracle(base);
  world.expect_oracle(none);
  EXPECT_EQ(world.record(other).events, 0);
  std::vector<RequestId> later;
  for (int i = 0; i < 40; ++i) {
    later.push_back(world.submit(using_adapter("a", 30, i)));
    world.turn();
    world.finish_upload();
    if (world.record(other).end != EndReason::kNone) break;
    for (const RequestId id : later) ASSERT_EQ(world.record(id).events, 0) << "overtakes one that waits for room";
  }
  EXPECT_EQ(world.record(first).end, EndReason::kLength);
  EXPECT_EQ(world.record(other).end, EndReason::kLength);
  world.run();
  for (const RequestId id : later) world.expect_oracle(id);
  world.expect_oracle(other);
  world.expect_nothing_held();
}

TEST(DeviceTier, AFailedUploadEndsItsRequestsAndIsTriedAgain) {
  World world({.device_bytes = 3 * kBytes});
  load(world, 2);
  Submit submit = using_adapter("a");
  submit.choices = 2;
  const RequestId failed = world.submit(submit);
  const RequestId summed = world.submit(simple(10, 5, 1, {{source_of("b"), 1.0f}, {source_of("a"), 1.0f}}));
  const RequestId fine = world.submit(using_adapter("b"));
  world.turn();
  ASSERT_TRUE(world.finish_upload(false));  // "a"
  ASSERT_TRUE(world.finish_upload());
  turns(world, 2);
  for (const RequestId id : {failed, summed}) {
    EXPECT_EQ(world.record(id).end, EndReason::kError);
    EXPECT_EQ(world.record(id).last.error.message,
              "adapter \"a\" could not be brought to the device: the copy was refused");
  }
  EXPECT_EQ(world.record(failed, 1).end, EndReason::kError);
  const RequestId again = world.submit(submit);
  world.run();
  world.expect_oracle(fine);
  world.expect_oracle(again);
  world.expect_nothing_held();
}

TEST(DeviceTier, AnUploadThatFindsTheDeviceLostEndsEverything) {
  World world({.device_bytes = 3 * kBytes});
  load(world, 2);
  const RequestId base = world.submit(simple(10, 50, 1));
  const RequestId a = world.submit(using_adapter("a")), b = world.submit(using_adapter("b"));
  world.turn();
  world.executor.tier->lost = true;
  ASSERT_TRUE(world.finish_upload(false));  // "a"
  world.turn();
  for (const RequestId id : {base, a, b}) {
    EXPECT_EQ(world.record(id).end, EndReason::kError);
    EXPECT_EQ(world.record(id).last.error.code, ErrorCode::kUnavailable) << world.record(id).last.error.message;
  }
  EXPECT_FALSE(world.loop->health().ok());
  world.finish_upload(false);
  world.run();
  world.expect_nothing_held();
}

TEST(DeviceTier, MoreTogetherThanTheDeviceHasIsRefused) {
  World world({.device_bytes = 2 * kBytes});
  load(world, 3);
  const RequestId three =
      world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}, {source_of("b"), 1.0f}, {source_of("c"), 1.0f}}));
  const RequestId two = world.submit(simple(10, 5, 1, {{source_of("a"), 1.0f}, {source_of("b"), 1.0f}}));
  world.run();
  EXPECT_EQ(world.record(three).end, EndReason::kError);
  EXPECT_EQ(world.record(three).last.error.code, ErrorCode::kTooLarge);
  world.expect_oracle(two);
  world.expect_nothing_held();
}

TEST(DeviceTier, EndAllEndsThoseWhoseAdaptersAreOnTheirWay) {
  World world({.device_bytes = kBytes});
  load(world, 2);
  const RequestId first = world.submit(using_adapter("a"));
  const RequestId second = world.submit(using_adapter("b"));  // waits for room
  world.turn();
  EngineOutput output;
  world.loop->end_all(world.messages, output);
  world.take(output);
  EXPECT_EQ(world.record(first).end, EndReason::kCancelled);
  EXPECT_EQ(world.record(second).end, EndReason::kCancelled);
  world.expect_nothing_held();
  world.loop.reset();
  EXPECT_TRUE(world.finish_upload());
  EXPECT_EQ(world.executor.tier->copies(), 0u) << "every version is forgotten with its registry";
}

// A cancelled leader does not come back to life, and its siblings do without it.
TEST(EngineLoop, CancelOfTheFirstChoiceWhileItsAdapterIsLoaded) {
  for (const bool prefix_cache : {true, false}) {
    World world({.prefix_cache = prefix_cache});
    world.files.put("/a", 11);
    world.command(AdapterAction::kAdd, "a", "/a");
    Submit submit = using_adapter("a");
    submit.choices = 3;
    const RequestId id = world.submit(submit);
    world.turn();
    world.cancel(id, 0);
    world.run();
    EXPECT_EQ(world.record(id, 0).end, EndReason::kCancelled);
    world.expect_oracle(id, 1);
    world.expect_oracle(id, 2);
    world.expect_nothing_held();
  }
}

TEST(DeviceTier, AStoppedEngineIsNotCalled) {
  Ledger ledger(8 << 20);
  SteadyClock clock;
  NullLogSink log;
  FakeFiles files;
  EngineParts parts;
  parts.config = fake_config();
  parts.options.max_sequences = 4;
  parts.options.max_model_len = 100;
  auto executor = std::make_unique<FakeExecutor>(step_limits(parts.options, parts.config));
  executor->tier = std::make_unique<FakeTier>(kBytes);
  FakeTier& tier = *executor->tier;
  parts.executor = std::move(executor);
  parts.adapters = files.source();
  parts.ledger = &ledger;
  parts.clock = &clock;
  parts.log = &log;
  const auto engine = std::move(start_engine(std::move(parts))).value();
  EXPECT_TRUE(tier.news != nullptr);
  engine->stop();
  EXPECT_TRUE(tier.news == nullptr);
}

AdapterKeeping some_keeping(uint64_t seed) {
  if (seed % 3 == 0) return AdapterKeeping::none();
  constexpr KeepPolicy kPolicies[] = {KeepPolicy::kLru, KeepPolicy::kFairShare, KeepPolicy::kChameleon,
                                      KeepPolicy::kDensity};
  return {.policy = kPolicies[seed % 4]};
}

// The device has room for two or three of six adapters.
WorldOptions some_world(uint64_t seed, Prng& random) {
  return {.blocks = 12 + static_cast<int32_t>(random.below(30)),
          .max_sequences = 1 + static_cast<int32_t>(random.below(6)),
          .step_tokens = 16,
          .adapter_bytes = 1 << 20,
          .prefix_cache = random.below(3) != 0,
          .max_model_len = 120,
          .device_bytes = kBytes * static_cast<int64_t>(20 + random.below(12)) / 10,
          .adapter_keeping = some_keeping(seed),
          .scheduling = {.policy = static_cast<SchedulePolicy>(seed / 3 % kSchedulePolicies),
                         .first_fit = 10,
                         .fairness = seed / 2 % 2 == 0 ? Fairness::kVtc : Fairness::kNone}};
}

// Of one of three clients; every fourth wants something of time.
Submit some_submit(uint64_t number, Prng& random) {
  Submit submit = simple(1 + static_cast<int>(random.below(50)), 1 + static_cast<int>(random.below(30)),
                         static_cast<int>(random.below(3)));
  submit.choices = 1 + static_cast<int32_t>(random.below(3) * random.below(2));
  submit.client = ClientId{number % 3};
  if (number % 4 == 0) submit.slo.ttft_ns = 20'000;
  return submit;
}

// Everything at once over a device that holds two or three of six adapters.
TEST(DeviceTier, RandomTrafficKeepsEveryPromise) {
  const char* given = std::getenv("DEVICE_TIER_TEST_SEED");
  const uint64_t first_seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(first_seed + 39));
  for (uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    World world(some_world(seed, random));
    load(world, 6);
    const auto name_of = [&] { return std::string(1, static_cast<char>('a' + random.below(6))); };
    uint64_t content = 1000;
    std::map<RequestId, bool> cancelled;
    bool failures = false;
    for (int step = 0; step < 600; ++step) {
      switch (random.below(14)) {
        case 0:
        case 1: {
          Submit submit = some_submit(world.last_id, random);
          for (auto uses = random.below(4); uses > 0; --uses) submit.adapters.push_back({source_of(name_of()), 0.5f});
          world.submit(submit);
          break;
        }
        case 2:
          if (world.last_id == 0) break;
          cancelled[RequestId{world.last_id}] = true;
          world.cancel(RequestId{world.last_id}, static_cast<int32_t>(random.below(3)) - 1);
          break;
        case 3: {
          const std::string name = name_of();
          world.files.put("/" + name, ++content, static_cast<int64_t>(random.below(1500)));
          world.command(AdapterAction::kLoad, name, "/" + name, true);
          break;
        }
        case 4:
          if (random.below(4) != 0) break;
          failures = true;
          world.finish_upload(false);
          break;
        default:
          if (random.below(3) == 0) world.finish_upload();
          break;
      }
      if (!world.jobs.empty() && random.below(3) == 0) world.finish_load(random.below(world.jobs.size()));
      world.turn();
      ASSERT_FALSE(HasFailure());
      (void)world.executor.tier->bytes();  // CHECKs the bound
    }
    world.run(20000);
    int compared = 0;
    for (const auto& [id, submit] : world.submits) {
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        const World::Record& record = world.record(id, choice);
        ASSERT_NE(record.end, EndReason::kNone) << "request " << id.value << " never ended";
        if (record.end == EndReason::kError) {
          EXPECT_TRUE(record.last.error.code == ErrorCode::kTooLarge || failures) << record.last.error.message;
        } else if (record.end == EndReason::kCancelled) {
          EXPECT_EQ(cancelled.count(id), 1u);
        } else {
          world.expect_oracle(id, choice);
          ++compared;
        }
      }
    }
    EXPECT_GT(compared, 10);
    EXPECT_GT(world.executor.tier->uploads, 6);
    world.expect_nothing_held();
  }
}

}  // namespace
}  // namespace loralei
