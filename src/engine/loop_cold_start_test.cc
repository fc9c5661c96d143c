// SPDX-License-Identifier: Apache-2.0
// Requests that begin while their adapters are on their way to a device.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/loop_traffic_test_util.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int64_t kBytes = 1000;        // of an adapter
constexpr int32_t kLayers = 4;          // in which it comes, and one piece behind them
constexpr int64_t kStepNs = 1'000'000;  // that steps take here

class ColdStartTest : public testing::Test {
 protected:
  // A world in which it is known how long steps and uploads take.
  void open(ColdStart way, int64_t upload_ns, int32_t blocks = WorldOptions().blocks) {
    world_ = std::make_unique<World>(
        WorldOptions{.blocks = blocks,
                     .device_bytes = 10 * kBytes,
                     .device_layers = kLayers,
                     .cold_start = way,
                     .on_step = [this](const StepRecord& record) { records_.push_back(record); }});
    World& world = *world_;
    world.executor.clock = &world.clock;
    world.executor.step_ns = kStepNs;
    world.executor.tier->ns_per_byte = upload_ns / kBytes;
    for (const char name : std::string("abcdefgh")) {
      world.files.put(path_of(name), static_cast<uint64_t>(name), kBytes);
      world.command(AdapterAction::kLoad, std::string(1, name), path_of(name));
    }
    world.run();
    for (int i = 0; i < 4; ++i) {
      world.submit(request('h', 12));
      world.run();
    }
    before_ = world.stats().cold_starts;
    world.executor.early_steps = 0;
  }
  static std::string path_of(char name) { return std::string("/") + name; }
  static Submit request(char adapter, int output = 10, int prompt = 20) {
    return simple(prompt, output, ++salt_, {{source_of(std::string(1, adapter)), 1.0f}});
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) world_->turn();
  }
  // Until the time has come at which somebody may begin.
  void wake() {
    EngineOutput output;
    const Next next = world_->next(output);
    world_->take(output);
    ASSERT_EQ(next.step, nullptr);
    ASSERT_NE(next.wake_at_ns, Next::kNever);
    world_->clock.advance_ns(std::max<int64_t>(0, next.wake_at_ns - world_->clock.now_ns()));
  }
  size_t tokens_of(RequestId id) { return world_->record(id).tokens.size(); }
  uint64_t began(ColdStart way) const {
    const auto index = static_cast<size_t>(way);
    return world_->stats().cold_starts.requests[index] - before_.requests[index];
  }

  static inline int salt_ = 0;
  std::vector<StepRecord> records_;
  std::unique_ptr<World> world_;
  ColdStarts before_;
};

// Layers come faster than they are needed: the first is waited for, and no more.
TEST_F(ColdStartTest, ItBeginsWhenEveryLayerWillBeThereInTimeAndAnswersWhenAllAre) {
  open(ColdStart::kLayered, kStepNs / 2);
  const RequestId id = world_->submit(request('a'));
  turns(1);
  EXPECT_EQ(world_->stats().running, 0);
  EXPECT_TRUE(world_->loop->idle());
  wake();
  turns(1);
  EXPECT_EQ(world_->stats().running, 0) << "the first layer has not come";
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  wake();
  turns(1);
  EXPECT_EQ(world_->executor.early_steps, 1);
  EXPECT_EQ(tokens_of(id), 1u);
  EXPECT_EQ(began(ColdStart::kLayered), 1u);
  turns(5);
  EXPECT_EQ(tokens_of(id), 1u) << "more is computed with all of the adapter alone";
  EXPECT_TRUE(world_->finish_upload());
  world_->run();
  world_->expect_oracle(id);
  EXPECT_EQ(world_->executor.early_steps, 1);
  EXPECT_GT(world_->stats().cold_starts.hidden_s, before_.hidden_s);
  world_->expect_nothing_held();
}

TEST_F(ColdStartTest, ItWaitsAsLongAsLayersWouldComeTooLate) {
  open(ColdStart::kLayered, 10 * kStepNs);
  const RequestId id = world_->submit(request('a'));
  turns(1);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(world_->executor.tier->bring_layer());
    wake();
    turns(1);
    EXPECT_EQ(world_->stats().running, 0) << "a pass takes half as long as a layer";
  }
  ASSERT_TRUE(world_->finish_upload());
  world_->run();
  world_->expect_oracle(id);
  EXPECT_EQ(began(ColdStart::kOndemand), 1u);
  EXPECT_EQ(world_->executor.early_steps, 0);
}

// Who has no room is asked in every turn, and what it holds then is nothing new.
TEST_F(ColdStartTest, AnEngineInWhichAllWaitSleepsThoughOthersWaitForRoom) {
  open(ColdStart::kLayered, kStepNs / 2, 6);
  const RequestId cold = world_->submit(request('a'));
  turns(1);
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  wake();
  turns(1);
  ASSERT_EQ(tokens_of(cold), 1u);
  const RequestId warm = world_->submit(request('h', 4, 84));
  turns(4);
  EXPECT_EQ(tokens_of(warm), 0u) << "there are not blocks enough";
  EXPECT_TRUE(world_->loop->idle());
  EXPECT_TRUE(world_->finish_upload());
  world_->run();
  for (const RequestId each : {cold, warm}) world_->expect_oracle(each);
  world_->expect_nothing_held();
}

TEST_F(ColdStartTest, OnDemandNobodyBeginsEarly) {
  open(ColdStart::kOndemand, kStepNs / 100);
  const RequestId id = world_->submit(request('a'));
  turns(1);
  for (int32_t piece = 0; piece <= kLayers; ++piece) ASSERT_TRUE(world_->executor.tier->bring_layer());
  turns(3);
  EXPECT_EQ(world_->stats().running, 0);
  EXPECT_TRUE(world_->loop->idle());
  world_->run();
  world_->expect_oracle(id);
  EXPECT_EQ(began(ColdStart::kOndemand), 1u);
  EXPECT_EQ(world_->executor.early_steps, 0);
}

// There is time to spare: rows of others are in the same step.
TEST_F(ColdStartTest, WhereLayersComeEarlyEnoughStepsAreShared) {
  open(ColdStart::kLayered, kStepNs * 3 / 10);
  const RequestId base = world_->submit(simple(20, 60, 77));
  turns(5);
  const RequestId id = world_->submit(request('a'));
  turns(1);
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  const size_t before = tokens_of(base);
  turns(4);
  EXPECT_EQ(tokens_of(id), 1u);
  EXPECT_EQ(tokens_of(base), before + 4) << "a token in every step";
  world_->run();
  for (const RequestId each : {base, id}) world_->expect_oracle(each);
}

// The first layer comes 4 % of a pass from now. Without that step it would wait for one
// of the others', or they for one of its own.
TEST_F(ColdStartTest, BesideOthersAStepMayWaitForASmallPartOfIt) {
  open(ColdStart::kLayered, kStepNs / 5);
  const RequestId base = world_->submit(simple(20, 60, 76));
  turns(5);
  world_->executor.layers_ns = kStepNs / 25;
  const size_t before = tokens_of(base), records = records_.size();
  const RequestId id = world_->submit(request('a'));
  turns(1);
  EXPECT_EQ(world_->executor.early_steps, 1);
  EXPECT_EQ(tokens_of(id), 1u);
  EXPECT_EQ(tokens_of(base), before + 1);
  ASSERT_EQ(records_.size(), records + 1);
  EXPECT_EQ(records_.back().waited_ns, kStepNs / 25);
  EXPECT_EQ(records_.back().own_ns(), kStepNs);
  world_->run();
  for (const RequestId each : {base, id}) world_->expect_oracle(each);
}

// The last piece would come just in time, so others do not compute beside it, and have
// the next step.
TEST_F(ColdStartTest, WhereItIsCloseStepsAreTakenInTurns) {
  open(ColdStart::kLayered, kStepNs * 5 / 4);
  Submit cold = request('a', 10, 30);
  const RequestId base = world_->submit(simple(20, 60, 78));
  turns(5);
  const RequestId id = world_->submit(cold);
  turns(1);
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  size_t others = tokens_of(base);
  int alone = 0;
  for (int turn = 0; turn < 8 && tokens_of(id) == 0; ++turn) {
    const int64_t early = world_->executor.early_steps;
    turns(1);
    const bool was_alone = world_->executor.early_steps > early;
    EXPECT_EQ(tokens_of(base), others + (was_alone ? 0 : 1)) << "turn " << turn;
    others = tokens_of(base);
    alone += was_alone ? 1 : 0;
  }
  EXPECT_EQ(alone, 1);
  EXPECT_EQ(tokens_of(id), 1u);
  turns(3);
  EXPECT_EQ(tokens_of(base), others + 3) << "who waits for its adapter holds nobody up";
  world_->run();
  for (const RequestId each : {base, id}) world_->expect_oracle(each);
}

TEST_F(ColdStartTest, ALateLayerEndsItsStepAndNobodyLosesAnything) {
  open(ColdStart::kLayered, kStepNs * 3 / 10);
  const RequestId base = world_->submit(simple(20, 60, 79)), warm = world_->submit(request('h', 60));
  turns(5);
  world_->executor.layers_come = [](AdapterVersionId) { return Error{ErrorCode::kUnavailable, "late"}; };
  const RequestId id = world_->submit(request('a'));
  turns(1);
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  for (int turn = 0; turn < 10 && world_->stats().cold_starts.given_up == 0; ++turn) turns(1);
  EXPECT_EQ(world_->stats().cold_starts.given_up, 1u);
  const size_t before = tokens_of(base);
  turns(4);
  EXPECT_EQ(tokens_of(base), before + 4) << "the others go on";
  EXPECT_EQ(tokens_of(id), 0u);
  EXPECT_EQ(world_->stats().cold_starts.given_up, 1u) << "it waits for all of it now";
  world_->run();
  for (const RequestId each : {base, warm, id}) world_->expect_oracle(each);
  world_->expect_nothing_held();
}

TEST_F(ColdStartTest, WhatWillNotComeEndsItsRequestsWithTheSentence) {
  open(ColdStart::kLayered, kStepNs * 3 / 10);
  const RequestId base = world_->submit(simple(20, 60, 80));
  turns(5);
  bool failed = false;
  world_->executor.layers_come = [&](AdapterVersionId) -> Status {
    failed = world_->finish_upload(false);
    return internal_error("the copy was refused");
  };
  const RequestId id = world_->submit(request('a'));
  turns(1);
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  for (int turn = 0; turn < 10 && !failed; ++turn) turns(1);
  ASSERT_TRUE(failed);
  turns(2);
  EXPECT_EQ(world_->record(id).end, EndReason::kError);
  const std::string& said = world_->record(id).last.error.message;
  EXPECT_NE(said.find("adapter \"a\" could not be brought to the device"), std::string::npos) << said;
  EXPECT_NE(said.find("the copy was refused"), std::string::npos) << said;
  world_->executor.layers_come = {};
  const RequestId again = world_->submit(request('a'));
  world_->run();
  for (const RequestId each : {base, again}) world_->expect_oracle(each);
  world_->expect_nothing_held();
}

TEST_F(ColdStartTest, ACancelledOneLeavesItsPlaceAndItsUpload) {
  open(ColdStart::kLayered, kStepNs / 10);
  const RequestId id = world_->submit(request('a'));
  turns(1);
  ASSERT_TRUE(world_->executor.tier->bring_layer());
  wake();
  turns(1);
  ASSERT_EQ(tokens_of(id), 1u);
  world_->cancel(id);
  turns(1);
  EXPECT_EQ(world_->executor.tier->holds(), 0);
  const RequestId other = world_->submit(request('b')), same = world_->submit(request('a'));
  world_->run();
  for (const RequestId each : {other, same}) world_->expect_oracle(each);
  world_->expect_nothing_held();
}

// On a device with little memory, to which layers come at any time, or late, or not at
// all.
class ColdTraffic : public RandomTraffic {
 public:
  static ColdTraffic of(uint64_t seed) {
    Prng random(seed);
    const WorldOptions setup{.blocks = 10 + static_cast<int32_t>(random.below(30)),
                             .max_sequences = 1 + static_cast<int32_t>(random.below(6)),
                             .step_tokens = 8 + static_cast<int32_t>(random.below(40)),
                             .max_model_len = 160,
                             .device_bytes = 3 * kBytes,
                             .device_layers = 1 + static_cast<int32_t>(random.below(6)),
                             .cold_start = seed % 7 == 0 ? ColdStart::kOndemand : ColdStart::kLayered};
    return ColdTraffic(random, setup);
  }

  void turn() {
    switch (below(20)) {
      case 0:
      case 1:
        submit();
        break;
      case 2:
      case 3:
        disturb();
        break;
      case 4:
        if (below(4) == 0) replace_one();
        break;
      case 5:
        if (below(3) == 0) world.resize(10 + static_cast<int32_t>(below(31)));
        break;
      case 6:
      case 7:
        world.finish_upload(below(6) != 0);
        break;
      case 8:
      case 9:
      case 10:
        world.executor.tier->bring_layer();
        break;
      case 11:
        world.clock.advance_ns(static_cast<int64_t>(below(3 * kStepNs)));
        break;
      default:
        break;
    }
    if (!world.jobs.empty() && below(3) == 0) world.finish_load(below(world.jobs.size()));
    world.turn();
  }
  void finish() {
    world.executor.layers_come = {};
    RandomTraffic::finish();
  }

 private:
  ColdTraffic(Prng random, const WorldOptions& setup) : RandomTraffic(random, setup, kBytes) {
    world.executor.clock = &world.clock;
    world.executor.step_ns = kStepNs;
    world.executor.tier->ns_per_byte = static_cast<int64_t>(1 + below(2000));
    world.executor.layers_come = [this](AdapterVersionId version) { return what_becomes_of(version); };
  }
  Status what_becomes_of(AdapterVersionId version) {
    const uint64_t kind = below(8);
    if (kind == 0) return Error{ErrorCode::kUnavailable, "late"};
    if (kind != 1) return {};
    if (auto done = world.executor.tier->end_upload(false, version)) world.messages.emplace_back(std::move(*done));
    return internal_error("the copy was refused");
  }
};

// Everything at once: requests are cancelled and held, adapters replaced, KV is short,
// uploads fail.
TEST(ColdStarts, RandomTrafficKeepsEveryPromise) {
  uint64_t early = 0, given_up = 0, waited = 0;
  for (uint64_t seed = 1; seed <= 60 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ColdTraffic traffic = ColdTraffic::of(seed);
    for (int turn = 0; turn < 900 && !testing::Test::HasFailure(); ++turn) traffic.turn();
    traffic.finish();
    EXPECT_TRUE(traffic.world.setup_.cold_start == ColdStart::kLayered ||
                (traffic.world.executor.early_steps == 0 && traffic.began(ColdStart::kLayered) == 0));
    early += traffic.began(ColdStart::kLayered);
    waited += traffic.began(ColdStart::kOndemand);
    given_up += traffic.world.stats().cold_starts.given_up;
  }
  EXPECT_GT(early, 200u);
  EXPECT_GT(given_up, 20u);
  EXPECT_GT(waited, 200u);
}

}  // namespace
}  // namespace loralei
