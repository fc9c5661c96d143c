// SPDX-License-Identifier: Apache-2.0
// The engine loop over a KV cache of layers that attend to windows. The fake executor
// CHECKs of every row that all positions of its window are in the blocks it is given, and
// what they should be.
#include <gtest/gtest.h>

#include <map>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "engine/loop_test_world.h"

namespace loralei {
namespace {

using namespace testing_support;

constexpr int32_t kWindow = 24;

// One layer a table.
KvTables tables_of(int32_t full, int32_t rows) { return {full, full == 0 ? 1 : 3, 1, kWindow, rows}; }

class LoopWindow : public testing::TestWithParam<int32_t> {
 protected:
  // Room for one sequence of the longest, and a little.
  WorldOptions tight(int32_t max_model_len) const {
    WorldOptions setup{.max_sequences = 6, .step_tokens = 24, .max_model_len = max_model_len};
    setup.tables = tables_of(GetParam(), setup.step_tokens);
    setup.blocks = static_cast<int32_t>(setup.tables.blocks_most(max_model_len)) + 2 * setup.tables.count();
    return setup;
  }
};
INSTANTIATE_TEST_SUITE_P(Full, LoopWindow, testing::Values(0, 1, 2));

TEST_P(LoopWindow, PreemptionIsInvisible) {
  for (const bool prefix_cache : {true, false}) {
    WorldOptions setup = tight(120);
    setup.prefix_cache = prefix_cache;
    World world(setup);
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) ids.push_back(world.submit(simple(20, 80, i)));
    // Where all layers slide, who is admitted has all that it will ever need: until there
    // are fewer blocks.
    for (int turn = 0; GetParam() == 0 && turn < 40; ++turn) {
      world.turn();
      if (turn % 8 == 7)
        world.resize(turn % 16 == 7 ? static_cast<int32_t>(setup.tables.places_least()) : setup.blocks);
    }
    if (GetParam() == 0) world.resize(setup.blocks);
    world.run();
    EXPECT_GT(world.stats().preemptions, 0u);
    for (const RequestId id : ids) {
      world.expect_oracle(id);
      EXPECT_EQ(world.record(id).tokens.size(), 80u);
    }
    world.expect_nothing_held();
  }
}

TEST_P(LoopWindow, AFoundPrefixIsAColdOne) {
  WorldOptions setup{.blocks = 400, .step_tokens = 64, .max_model_len = 400};
  setup.tables = tables_of(GetParam(), setup.step_tokens);
  World world(setup);
  for (const int length : {200, 200, 90, 350, 60}) {
    const RequestId id = world.submit(simple(length, 20, 0));
    world.run();
    world.expect_oracle(id);
  }
  EXPECT_GT(world.stats().prefix_hits, 400);
  world.expect_nothing_held();
}

// Many windows in room for one sequence: as many blocks as are set aside, no more.
TEST_P(LoopWindow, ALongTextHasTheWindowAndAStep) {
  WorldOptions setup{.max_sequences = 1, .step_tokens = 16, .max_model_len = 400};
  setup.tables = tables_of(GetParam(), setup.step_tokens);
  setup.blocks = static_cast<int32_t>(setup.tables.blocks_most(setup.max_model_len));
  World world(setup);
  const RequestId id = world.submit(simple(320, 80, 3));
  ASSERT_LT(setup.blocks, setup.tables.count() * 25) << "blocks of the whole text";
  EXPECT_EQ(world.stats().kv_blocks_total, 25) << "told as of texts of this length";
  world.run();
  world.expect_oracle(id);
  EXPECT_EQ(world.record(id).tokens.size(), 80u);
  EXPECT_EQ(world.stats().preemptions, 0u);
  world.expect_nothing_held();
}

TEST_P(LoopWindow, ATextThatIsLongerThanAllBlocksIsRefused) {
  if (GetParam() == 0) return;  // any length fits
  WorldOptions setup{.max_sequences = 2, .step_tokens = 16, .max_model_len = 400};
  setup.tables = tables_of(GetParam(), setup.step_tokens);
  setup.blocks = static_cast<int32_t>(setup.tables.blocks_most(300));
  World world(setup);
  EXPECT_GE(world.max_model_len(), 300);
  EXPECT_LT(world.max_model_len(), 400);
}

TEST_P(LoopWindow, ADecodeStepAllocatesNothing) {
  WorldOptions setup{.blocks = 400, .step_tokens = 64, .max_model_len = 400, .speculate = Speculation::kOff};
  setup.tables = tables_of(GetParam(), setup.step_tokens);
  World world(setup);
  for (int i = 0; i < 8; ++i) {
    Submit submit = simple(20, 370, i);
    submit.ignore_eos = true;
    world.submit(submit);
  }
  for (int i = 0; i < 100; ++i) world.turn();
  ASSERT_EQ(world.stats().running, 8);
  EngineOutput output;
  output.tokens.reserve(4000);
  start_counting_allocations();
  for (int i = 0; i < 60; ++i) {
    world.clock.advance_ns(1000);
    world.turn(output);
  }
  const int64_t allocations = stop_counting_allocations().count;
  EXPECT_EQ(output.tokens.size(), 480u);
  EXPECT_EQ(allocations, 0);
}

// Arrivals, cancels, holds, drafts, choices and a cache that shrinks and grows.
TEST_P(LoopWindow, RandomTrafficGetsWhatItWouldAlone) {
  uint64_t preemptions = 0, accepted = 0;
  int64_t hits = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    WorldOptions setup = tight(160);
    setup.max_sequences = 1 + static_cast<int32_t>(random.below(8));
    setup.step_tokens = setup.max_sequences + static_cast<int32_t>(random.below(40));
    setup.tables = tables_of(GetParam(), setup.step_tokens);
    const auto least = static_cast<int32_t>(setup.tables.blocks_most(setup.max_model_len));
    const int32_t spare = 12 * setup.tables.count();
    setup.blocks = least + static_cast<int32_t>(random.below(static_cast<uint64_t>(spare)));
    setup.blocks_max = least + spare;
    setup.prefix_cache = random.below(4) != 0;
    if (seed % 2 == 0) setup.speculate = Speculation::kLookup;
    if (seed % 2 == 0) setup.draft_rows = 1 + static_cast<int32_t>(random.below(20));
    if (seed % 3 == 0) setup.kv_eviction = KvEviction::kDensity;
    if (seed % 3 == 1) setup.kv_eviction = KvEviction::kUtility;
    World world(setup);
    std::map<RequestId, bool> disturbed;
    for (int step = 0; step < 600; ++step) {
      const uint64_t choice = random.below(16);
      if (choice < 2) {
        Submit submit = simple(1 + static_cast<int>(random.below(100)), 1 + static_cast<int>(random.below(50)),
                               static_cast<int>(random.below(3)));
        submit.choices = 1 + static_cast<int32_t>(random.below(3) * random.below(2));
        submit.prompt_logprobs = random.below(6) == 0;
        if (seed % 2 == 0) submit.sampling.logit_bias.emplace_back(static_cast<TokenId>(random.below(6)), 50.0f);
        world.submit(submit);
      } else if (choice == 2 && world.last_id > 0) {
        const RequestId id{1 + random.below(world.last_id)};
        disturbed[id] = true;
        world.cancel(id);
      } else if (choice == 3) {
        world.resize(least + static_cast<int32_t>(random.below(static_cast<uint64_t>(spare) + 1)));
      } else if (choice == 4 && world.last_id > 0) {
        world.hold(RequestId{1 + random.below(world.last_id)}, random.below(3) == 0);
      }
      world.turn();
      ASSERT_FALSE(HasFailure());
    }
    for (uint64_t id = 1; id <= world.last_id; ++id) world.hold(RequestId{id}, false);
    world.run(20000);
    for (const auto& [id, submit] : world.submits) {
      for (int32_t choice = 0; choice < submit.choices; ++choice) {
        if (disturbed.count(id) == 0) world.expect_oracle(id, choice);
      }
    }
    world.expect_nothing_held();
    const EngineStats stats = world.stats();
    preemptions += stats.preemptions;
    accepted += stats.accepted_tokens;
    hits += static_cast<int64_t>(stats.prefix_hits);
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(accepted, 200u);
  EXPECT_GT(hits, 5000);
}

// KV and adapters that share a memory: KV gives and takes whole extents.
TEST_P(LoopWindow, AJointMemoryGrowsAndShrinks) {
  const ModelConfig config = fake_config();
  WorldOptions setup{.max_sequences = 6, .step_tokens = 24, .max_model_len = 160};
  setup.tables = tables_of(GetParam(), setup.step_tokens);
  setup.blocks = static_cast<int32_t>(setup.tables.blocks_most(160));
  setup.blocks_max = 20 * setup.blocks;
  setup.joint = true;
  setup.adapter_bytes = 110000;
  const int64_t block_bytes =
      kv_block_bytes({config.layers, config.kv_heads, config.head_dim, DType::kF32, {}, setup.tables});
  setup.memory_bytes = setup.blocks * block_bytes + setup.adapter_bytes;
  setup.adapter_floor_bytes = setup.adapter_bytes / 10;
  World world(setup);
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(world.submit(simple(60, 60, i % 4)));
  world.run();
  for (const RequestId id : ids) world.expect_oracle(id);
  EXPECT_GT(world.stats().kv_blocks_total, 10);  // of which it had room for one of the longest
  world.expect_nothing_held();
}

}  // namespace
}  // namespace loralei
