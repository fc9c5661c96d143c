// SPDX-License-Identifier: Apache-2.0
// Requests that begin while their adapters are being read into memory.
#include <gtest/gtest.h>

#include "engine/loop_traffic_test_util.h"

namespace loralei {
namespace {

using namespace testing_support;

// What becomes of a load that fails: the system's fault, or files that changed.
Error failure_of(uint64_t kind) {
  if (kind % 2 == 0) return {ErrorCode::kIo, "the fake disk was told to fail"};
  return {ErrorCode::kUnavailable, "the files changed while they were read"};
}

// Adapters are read in pieces, fail, are late, are replaced and unloaded.
class EarlyTraffic : public RandomTraffic {
 public:
  // `states`: sequences have one each (loop_states_test.cc), of which a step that ends
  // early leaves nothing to go on with.
  static EarlyTraffic of(uint64_t seed, bool states = false) {
    Prng random(seed);
    WorldOptions setup{.blocks = 10 + static_cast<int32_t>(random.below(20)),
                       .max_sequences = 1 + static_cast<int32_t>(random.below(6)),
                       .step_tokens = 8 + static_cast<int32_t>(random.below(30)),
                       .adapter_bytes = 3000,
                       .prefix_cache = random.below(4) != 0,
                       .max_model_len = 160,
                       .early_loads = true,
                       .cold_start = seed % 9 == 0 ? ColdStart::kOndemand : ColdStart::kLayered};
    if (states) setup.states = setup.max_sequences + static_cast<int32_t>(seed % 4);
    return EarlyTraffic(random, setup);
  }

  void turn() {
    switch (below(16)) {
      case 0:
      case 1:
        submit();
        break;
      case 2:
      case 3:
        disturb();
        break;
      case 4:
        if (below(3) == 0)
          add_one_anew();
        else if (below(2) == 0)
          replace_one();
        break;
      case 5:
        if (below(3) == 0) world.resize(10 + static_cast<int32_t>(below(21)));
        break;
      case 6:
      case 7:
        world.bring_piece();
        break;
      case 8:
        end_some();
        break;
      case 9:
        world.clock.advance_ns(static_cast<int64_t>(below(3'000'000)));
        break;
      default:
        break;
    }
    const size_t index = world.jobs.empty() ? 0 : below(world.jobs.size());
    if (!world.jobs.empty() && below(2) == 0 && !world.begin_load(index)) world.finish_load(index);
    world.turn();
  }
  void finish() {
    failing_ = false;
    RandomTraffic::finish();
  }

 private:
  EarlyTraffic(Prng random, const WorldOptions& setup) : RandomTraffic(random, setup, 1000) {
    world.executor.clock = &world.clock;
    world.executor.step_ns = 1'000'000;
    world.executor.layers_come = [this](AdapterVersionId version) { return what_becomes_of(version); };
  }
  void end_some() {
    if (below(5) != 0) {
      world.end_load();
    } else {
      world.fail_load(failure_of(below(2)));
    }
  }
  Status what_becomes_of(AdapterVersionId version) {
    const uint64_t kind = failing_ ? below(6) : 2;
    if (kind == 0) return Error{ErrorCode::kUnavailable, "late"};
    if (kind != 1) return world.end_load(version) ? Status() : internal_error("nobody reads it");
    const Error error = failure_of(below(2));
    world.fail_load(error, version);
    return error;
  }

  bool failing_ = true;
};

TEST(EarlyLoads, RandomTrafficKeepsEveryPromise) {
  uint64_t early = 0, given_up = 0, waited = 0, cached = 0;
  for (uint64_t seed = 1; seed <= 70 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EarlyTraffic traffic = EarlyTraffic::of(seed);
    for (int turn = 0; turn < 900 && !testing::Test::HasFailure(); ++turn) traffic.turn();
    traffic.finish();
    EXPECT_TRUE(traffic.world.setup_.cold_start == ColdStart::kLayered || traffic.began(ColdStart::kLayered) == 0);
    early += traffic.began(ColdStart::kLayered);
    waited += traffic.began(ColdStart::kOndemand);
    given_up += traffic.world.stats().cold_starts.given_up;
    cached += traffic.world.stats().cached_tokens;
  }
  EXPECT_GT(early, 200u);
  EXPECT_GT(given_up, 20u);
  EXPECT_GT(waited, 200u);
  EXPECT_GT(cached, 1000u);
}

TEST(EarlyLoads, AStepThatIsGivenUpLeavesNoStateToGoOnWith) {
  uint64_t early = 0, given_up = 0;
  for (uint64_t seed = 1; seed <= 70 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EarlyTraffic traffic = EarlyTraffic::of(seed, true);
    for (int turn = 0; turn < 600 && !testing::Test::HasFailure(); ++turn) traffic.turn();
    traffic.finish();
    early += traffic.began(ColdStart::kLayered);
    given_up += traffic.world.stats().cold_starts.given_up;
  }
  EXPECT_GT(early, 200u);
  EXPECT_GT(given_up, 20u);
}

}  // namespace
}  // namespace loralei
