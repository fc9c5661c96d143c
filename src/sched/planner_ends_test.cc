// SPDX-License-Identifier: Apache-2.0
// The planner where a step's rows of a prompt are to end at a position.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/prng.h"
#include "sched/step_planner.h"

namespace loralei {
namespace {

const std::vector<TokenId> kTokens(4000, 1);

SeqState text_of(int32_t tokens, int32_t computed, uint64_t order, int32_t rows_end = INT32_MAX) {
  SeqState state;
  state.id = SeqId{order};
  state.order = order;
  state.tokens = kTokens.data();
  state.known = tokens;
  state.computed = computed;
  state.blocks = state.blocks_held = state.blocks_exclusive = (computed + 15) / 16;
  state.rows_end = rows_end;
  return state;
}

TEST(PlannerEnds, APromptsRowsEndThereAndGoOnInTheNextStep) {
  StepPlanner planner({.step_tokens = 100, .logits_rows = 8, .max_sequences = 8});
  PlanOutput output;
  planner.begin({.blocks_available = 64, .blocks_total = 64});
  ASSERT_EQ(planner.offer(text_of(90, 0, 1, 80)), Fit::kAdmitted);
  planner.finish(output);
  planner.check();
  ASSERT_EQ(output.plan.groups.size(), 1u);
  EXPECT_EQ(output.plan.groups[0].row_count, 80);
  EXPECT_TRUE(output.plan.logits_rows.empty()) << "the last row is still to come";
  const std::vector<SeqState> running = {text_of(90, 80, 1)};
  planner.begin({.running = running, .blocks_available = 59, .blocks_total = 64});
  planner.finish(output);
  EXPECT_EQ(output.plan.groups[0].row_count, 10);
  EXPECT_EQ(output.plan.logits_rows.size(), 1u);
}

TEST(PlannerEnds, OthersHaveTheRowsThatItLeaves) {
  StepPlanner planner({.step_tokens = 100, .logits_rows = 8, .max_sequences = 8});
  PlanOutput output;
  const std::vector<SeqState> running = {text_of(200, 0, 1, 16), text_of(400, 0, 2)};
  planner.begin({.running = running, .blocks_available = 64, .blocks_total = 64});
  planner.finish(output);
  ASSERT_EQ(output.plan.groups.size(), 2u);
  EXPECT_EQ(output.plan.groups[0].row_count, 16);
  EXPECT_EQ(output.plan.groups[1].row_count, 84);
}

// However the steps are cut, each position of these ends one.
TEST(PlannerEnds, NoStepPassesAPosition) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    struct One {
      int32_t known = 0, computed = 0;
      std::vector<int32_t> ends;
      int32_t next() const {
        for (const int32_t end : ends)
          if (end > computed) return end;
        return INT32_MAX;
      }
    };
    std::map<uint64_t, One> all;
    for (uint64_t id = 1; id <= 5; ++id) {
      One one{.known = 2 + static_cast<int32_t>(random.below(300))};
      for (int32_t at = 0; random.below(3) != 0;) {
        at += 16 * (1 + static_cast<int32_t>(random.below(6)));
        if (at < one.known) one.ends.push_back(at);
      }
      all[id] = one;
    }
    StepPlanner planner(
        {.step_tokens = 5 + static_cast<int32_t>(random.below(120)), .logits_rows = 8, .max_sequences = 5});
    PlanOutput output;
    for (int step = 0; !all.empty() && step < 2000; ++step) {
      std::vector<SeqState> running;
      for (const auto& [id, one] : all) running.push_back(text_of(one.known, one.computed, id, one.next()));
      planner.begin({.running = running, .blocks_available = 1000, .blocks_total = 2000});
      planner.finish(output);
      planner.check();
      for (const PlanGroup& group : output.plan.groups) {
        One& one = all.at(group.seq.value);
        ASSERT_LE(one.computed + group.row_count, one.next());
        one.computed += group.row_count;
        if (one.computed == one.known) all.erase(group.seq.value);
      }
    }
    EXPECT_TRUE(all.empty());
  }
}

}  // namespace
}  // namespace loralei
