// SPDX-License-Identifier: Apache-2.0
// The planner where layers attend to windows: what of the pool a text needs.
#include <gtest/gtest.h>

#include <vector>

#include "sched/step_planner.h"

namespace loralei {
namespace {

constexpr int32_t kRows = 32, kWindow = 64;
const KvTables kAllSlide{0, 1, 1, kWindow, kRows}, kMixed{1, 2, 1, kWindow, kRows};
const std::vector<TokenId> kTokens(4000, 1);

// Nobody has anything of it.
SeqState text_of(int32_t tokens, uint64_t order) {
  SeqState state;
  state.id = SeqId{order};
  state.order = order;
  state.tokens = kTokens.data();
  state.known = tokens;
  return state;
}

// That has computed so many and passed the window.
SeqState running(const KvTables& tables, int32_t tokens, int32_t computed, uint64_t order) {
  SeqState state = text_of(tokens, order);
  state.computed = computed;
  state.blocks = (computed + 15) / 16;
  const int32_t in_window = state.blocks - tables.first_read(computed);
  state.blocks_held = state.blocks_exclusive = tables.full * state.blocks + tables.sliding * in_window;
  return state;
}

PlanInput input_of(const KvTables& tables, int32_t total, std::span<const SeqState> running) {
  PlanInput input{.running = running, .blocks_total = total, .tables = tables};
  input.blocks_available = total;
  for (const SeqState& one : running) input.blocks_available -= one.blocks_held;
  return input;
}

TEST(PlannerWindows, ALongTextNeedsItsWindowsAndAStep) {
  StepPlanner planner({.step_tokens = kRows, .logits_rows = 8, .max_sequences = 8});
  planner.begin(input_of(kAllSlide, 18, {}));
  EXPECT_EQ(kAllSlide.blocks_most(1600), 7);
  EXPECT_EQ(planner.offer(text_of(1600, 1)), Fit::kAdmitted);
  EXPECT_EQ(planner.offer(text_of(40, 2)), Fit::kAdmitted);    // three blocks, and a spare one for each
  EXPECT_EQ(planner.offer(text_of(1600, 3)), Fit::kNoBlocks);  // seven, beside ten and two
  PlanOutput output;
  planner.finish(output);
  planner.check();
}

TEST(PlannerWindows, OfFullLayersAllMustFit) {
  for (const int32_t total : {109, 110, 111}) {
    StepPlanner planner({.step_tokens = kRows, .logits_rows = 8, .max_sequences = 8});
    planner.begin(input_of(kMixed, total, {}));
    EXPECT_EQ(kMixed.blocks_least(1600), 100 + 2 * 5);
    EXPECT_EQ(planner.offer(text_of(1600, 1)), total < 110 ? Fit::kImpossible : Fit::kAdmitted) << total;
  }
}

// With the least blocks a text is computed to its end, a block of text a step.
TEST(PlannerWindows, AloneItNeedsNoMoreThanTheLeast) {
  for (const KvTables& tables : {kAllSlide, kMixed}) {
    constexpr int32_t kKnown = 400;
    const auto total = static_cast<int32_t>(tables.blocks_least(kKnown));
    StepPlanner planner({.step_tokens = kRows, .logits_rows = 8, .max_sequences = 8});
    PlanOutput output;
    int32_t computed = 0, steps = 0;
    for (; computed < kKnown; ++steps) {
      ASSERT_LT(steps, kKnown);
      std::vector<SeqState> states;
      if (computed > 0) states.push_back(running(tables, kKnown, computed, 1));
      const PlanInput input = input_of(tables, total, states);
      planner.begin(input);
      if (computed == 0) {
        ASSERT_EQ(planner.offer(text_of(kKnown, 1)), Fit::kAdmitted);
      }
      planner.finish(output);
      planner.check();
      ASSERT_EQ(output.plan.groups.size(), 1u) << computed;
      computed += output.plan.groups[0].row_count;
      const int32_t more = (computed + 15) / 16 - (states.empty() ? 0 : states[0].blocks);
      ASSERT_LE(more * tables.count(), input.blocks_available);
    }
    EXPECT_GE(steps, kKnown / 32);
  }
}

// What the youngest has of the pool goes to those before it.
TEST(PlannerWindows, TheYoungestIsPreemptedWhenBlocksOfAnyTableRunOut) {
  const std::vector<SeqState> both = {running(kMixed, 161, 160, 1), running(kMixed, 161, 160, 2)};
  const int32_t held = both[0].blocks_held + both[1].blocks_held;
  for (const int32_t spare : {0, 2, 3, 6}) {
    StepPlanner planner({.step_tokens = kRows, .logits_rows = 8, .max_sequences = 8});
    planner.begin(input_of(kMixed, held + spare, both));
    PlanOutput output;
    planner.finish(output);
    planner.check();
    EXPECT_EQ(output.preempted.size(), spare < 6 ? 1u : 0u) << spare;
    EXPECT_EQ(output.plan.groups.size(), spare < 6 ? 1u : 2u) << spare;
    EXPECT_EQ(output.plan.groups[0].seq, SeqId{1});
  }
}

}  // namespace
}  // namespace loralei
