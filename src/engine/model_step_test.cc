// SPDX-License-Identifier: Apache-2.0
#include "engine/model_step.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

constexpr ModelLimits kLimits{.rows_max = 4, .logits_rows_max = 4};

// A batch of one row that applies one version.
struct OneRow {
  explicit OneRow(uint64_t version) : version_{version} {
    batch.tokens = {&token_, 1};
    batch.positions = {&position_, 1};
    batch.blocks = {&block_, 1};
    batch.groups = {&group_, 1};
    batch.segments = {&segment_, 1};
    batch.adapters = {&version_, 1};
    batch.replaced = {&replaced_, 1};
    replaced_.version = version_;
  }
  StepBatch batch;

 private:
  const TokenId token_ = 3;
  const int32_t position_ = 0, block_ = 7;
  const BatchGroup group_{.row_count = 1, .blocks_count = 1};
  const LoraSegment segment_{0, 1, 0, 1.0f};
  const AdapterVersionId version_;
  VersionRows replaced_{.row_count = 1};
};

Adapter adapter_of(uint64_t version, size_t module) {
  Adapter adapter;
  adapter.version = AdapterVersionId{version};
  adapter.pairs.resize(kLayerModules + 2);
  adapter.pairs[module].rank = 4;
  return adapter;
}

TEST(ModelStep, AnAddressThatIsUsedAgainIsAnotherVersions) {
  Ledger ledger(1 << 20);
  ModelStep step(kLimits, {.hidden = 8, .layers = 1}, ledger);
  Adapter adapter = adapter_of(1, 0);
  step.announce(adapter);
  const OneRow one(1), two(2);
  const ModelBatch& first = step.fill(one.batch);
  EXPECT_EQ(first.sources[0].pair, &adapter.pairs[0]);
  EXPECT_EQ(first.sources[1].pair, nullptr);
  EXPECT_EQ(first.overrides[0].saved, &adapter.saved);
  EXPECT_EQ(first.groups[0].blocks[0], 7);
  step.withdraw(AdapterVersionId{1});
  adapter = adapter_of(2, 1);
  step.announce(adapter);
  const ModelBatch& second = step.fill(two.batch);
  EXPECT_EQ(second.sources[0].pair, nullptr);
  EXPECT_EQ(second.sources[1].pair, &adapter.pairs[1]);
}

TEST(ModelStep, GroupsHaveTheStatesOfTheirSlots) {
  Ledger ledger(1 << 20);
  ModelStep step(kLimits, {.hidden = 8, .layers = 1}, ledger);
  const std::vector<TokenId> tokens = {1, 2};
  const std::vector<int32_t> positions = {0, 0}, blocks = {0, 1};
  const std::vector<BatchGroup> groups = {
      {.row_begin = 0, .row_count = 1, .blocks_count = 1, .state = 2},
      {.row_begin = 1, .row_count = 1, .blocks_begin = 1, .blocks_count = 1, .state = 0}};
  StepBatch batch;
  batch.tokens = tokens;
  batch.positions = positions;
  batch.blocks = blocks;
  batch.groups = groups;
  EXPECT_TRUE(step.fill(batch).states.empty()) << "the model keeps none";
  std::vector<float> floats(3 * 16);
  step.use_states({.base = floats.data(), .stride = 16, .slots = 3});
  const std::span<float* const> states = step.fill(batch).states;
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0], floats.data() + 32);
  EXPECT_EQ(states[1], floats.data());
}

TEST(ModelStepDeathTest, AVersionThatWasWithdrawnIsADefect) {
  Ledger ledger(1 << 20);
  ModelStep step(kLimits, {.hidden = 8, .layers = 1}, ledger);
  const Adapter adapter = adapter_of(1, 0);
  step.announce(adapter);
  const OneRow one(1);
  step.fill(one.batch);
  step.withdraw(AdapterVersionId{1});
  EXPECT_DEATH(step.fill(one.batch), "");
}

}  // namespace
}  // namespace loralei
