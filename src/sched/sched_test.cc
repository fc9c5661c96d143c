// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/limits.h"
#include "base/prng.h"
#include "kv/block_count.h"
#include "sched/admission.h"
#include "sched/step_planner.h"

namespace loralei {
namespace {

// A sequence and its blocks as plain counts; no sharing.
struct Naive {
  SeqId id;
  std::vector<TokenId> tokens;
  std::vector<SeqAdapter> adapters;
  int32_t prompt = 0, wanted = 0;  // final length
  int32_t computed = 0, blocks = 0;
  bool running = false;
  int32_t logits_end = 0;
  int32_t borrowed = 0, begin_layer = 0;
  std::vector<TokenId> draft;
};

struct World {
  PlanOptions options;
  int32_t blocks_total = 0;
  std::vector<std::unique_ptr<Naive>> sequences;  // by arrival
  std::unique_ptr<StepPlanner> planner;           // made for the options of its first step
  Admission admission;
  PrefillRows rows;
  PlanOutput output;
  std::vector<SeqId> impossible;
  uint64_t step = 0;
  int preemptions = 0, drafted = 0, offers = 0;
  Prng accepts{7};  // how much of a draft is right

  int32_t used() const {
    int32_t sum = 0;
    for (const auto& seq : sequences) sum += seq->blocks;
    return sum;
  }
  Naive* find(SeqId id) {
    for (auto& seq : sequences) {
      if (seq->id == id) return seq.get();
    }
    return nullptr;
  }
  SeqState state(const Naive& seq) const {
    SeqState value;
    value.id = seq.id;
    value.order = seq.id.value;
    value.tokens = seq.tokens.data();
    value.known = static_cast<int32_t>(seq.tokens.size());
    value.computed = seq.computed;
    value.blocks = value.blocks_exclusive = seq.blocks;
    value.adapters = seq.adapters;
    value.logits_end = seq.logits_end;
    value.borrowed = seq.borrowed;
    value.begin_layer = seq.begin_layer;
    if (seq.running && value.known - value.computed == 1) value.draft = seq.draft;
    return value;
  }

  // Offers in the order of admission. Answers who was found impossible.
  static std::vector<SeqId> plan(StepPlanner& planner, const PlanInput& input, Admission& admission,
                                 const std::map<SeqId, SeqState>& waiting, PlanOutput& output, int& offers) {
    std::vector<SeqId> impossible, gone;
    planner.begin(input);
    admission.begin();
    while (const auto next = admission.next()) {
      ++offers;
      const SeqState& candidate = waiting.at(*next);
      const Fit fit = planner.offer(candidate);
      if (fit == Fit::kNoRows) admission.refused(Lack::kRows);
      if (fit == Fit::kNoBlocks) admission.refused(Lack::kMemory);
      if (fit == Fit::kNoSlots) admission.refused(Lack::kSlots);
      if (fit == Fit::kImpossible) impossible.push_back(*next);
      if (fit == Fit::kAdmitted || fit == Fit::kImpossible) admission.leave(waiting_of(candidate));
    }
    admission.check();
    planner.finish(output);
    planner.check();
    return impossible;
  }
  static Waiting waiting_of(const SeqState& state) { return {state.id, state.order, state.known}; }

  // A draft takes nothing from anybody: without it the plan is the same but for the
  // draft's rows.
  void expect_same_without_drafts(PlanInput input, const std::vector<SeqState>& running,
                                  const std::map<SeqId, SeqState>& waiting, Admission before) {
    std::vector<SeqState> plain = running;
    for (SeqState& state : plain) state.draft = {};
    input.running = plain;
    StepPlanner other_planner(options);
    PlanOutput other;
    int other_offers = 0;
    const std::vector<SeqId> other_impossible = plan(other_planner, input, before, waiting, other, other_offers);
    ASSERT_EQ(output.admitted, other.admitted);
    ASSERT_EQ(output.preempted, other.preempted);
    ASSERT_EQ(impossible, other_impossible);
    ASSERT_EQ(output.plan.groups.size(), other.plan.groups.size());
    for (size_t i = 0; i < other.plan.groups.size(); ++i) {
      const PlanGroup &with = output.plan.groups[i], &without = other.plan.groups[i];
      ASSERT_EQ(with.seq, without.seq);
      ASSERT_EQ(with.position, without.position);
      ASSERT_EQ(with.provisional, with.row_count > without.row_count);
      ASSERT_FALSE(without.provisional);
    }
  }

  // The oldest prompt has its quarter, and no prompt has rows that a shorter one wants:
  // unless logits, segments or blocks keep them from it.
  void expect_rows_shared(const std::vector<SeqState>& running, const std::map<SeqId, SeqState>& waiting) {
    if (!output.preempted.empty()) return;
    std::map<SeqId, int32_t> rows;
    for (const PlanGroup& group : output.plan.groups) rows[group.seq] = group.row_count;
    std::vector<const SeqState*> prompts;
    int32_t prompt_rows = 0;
    for (const SeqState& state : running)
      if (state.remaining() > 1) prompts.push_back(&state);
    for (const SeqId id : output.admitted) prompts.push_back(&waiting.at(id));
    for (const SeqState* prompt : prompts) {
      if (prompt->logits_end > prompt->logits_begin || !prompt->adapters.empty() || prompt->borrowed > 0) return;
      prompt_rows += rows[prompt->id];
    }
    if (prompts.empty() || static_cast<int32_t>(output.plan.logits_rows.size()) == options.logits_rows) return;
    const auto older = [](const SeqState* a, const SeqState* b) { return a->order < b->order; };
    const SeqState* oldest = *std::min_element(prompts.begin(), prompts.end(), older);
    ASSERT_GE(4 * rows[oldest->id], std::min(4 * oldest->remaining(), prompt_rows));
    for (const SeqState* a : prompts) {
      for (const SeqState* b : prompts) {
        if (b == oldest || a == oldest) continue;
        if (a->remaining() < b->remaining() && rows[b->id] > 0) {
          ASSERT_EQ(rows[a->id], a->remaining());
        }
      }
    }
  }

  // Each row of the group begins where it is to, and its adapters are those of its
  // position, from their layers on.
  void expect_layers(const PlanGroup& group, const Naive& seq) const {
    const bool lent = group.position < seq.borrowed;
    ASSERT_EQ(group.begin_layer, lent ? seq.begin_layer : 0);
    if (lent) {
      ASSERT_LE(group.position + group.row_count, seq.borrowed);
    }
    using Applied = std::vector<std::pair<uint64_t, int32_t>>;
    for (int32_t row = group.row_begin; row < group.row_begin + group.row_count; ++row) {
      const int32_t position = group.position + row - group.row_begin;
      Applied want, got;
      for (const SeqAdapter& adapter : seq.adapters) {
        if (adapter.first_position <= position && position < adapter.end_position)
          want.emplace_back(adapter.version.value, adapter.first_layer);
      }
      for (const PlanSegment& segment : output.plan.segments) {
        if (segment.row_begin <= row && row < segment.row_begin + segment.row_count)
          got.emplace_back(segment.adapter.value, segment.first_layer);
      }
      ASSERT_EQ(got, want);
    }
  }

  // Plans, checks every promise of the planner, and carries the plan out.
  void run_step() {
    std::vector<SeqState> running;
    std::map<SeqId, SeqState> waiting;
    for (const auto& seq : sequences) {
      if (seq->running) {
        running.push_back(state(*seq));
      } else {
        waiting[seq->id] = state(*seq);
      }
    }
    if (planner == nullptr) planner = std::make_unique<StepPlanner>(options);
    const PlanInput input{.step = ++step,
                          .running = running,
                          .blocks_available = blocks_total - used(),
                          .blocks_total = blocks_total,
                          .rows = rows};
    const Admission before = admission;
    offers = 0;
    impossible = plan(*planner, input, admission, waiting, output, offers);
    ASSERT_EQ(check_step_plan(output.plan), "");
    ASSERT_LE(offers, Admission::kOffersMax);
    expect_same_without_drafts(input, running, waiting, before);
    expect_rows_shared(running, waiting);
    ASSERT_LE(output.plan.tokens.size(), static_cast<size_t>(options.step_tokens));
    ASSERT_LE(output.plan.logits_rows.size(), static_cast<size_t>(options.logits_rows));
    ASSERT_LE(output.plan.segments.size(), static_cast<size_t>(options.segments));
    for (const SeqId id : output.preempted) {
      Naive* seq = find(id);
      ASSERT_TRUE(seq->running);
      seq->running = false;
      seq->computed = seq->blocks = 0;
      admission.arrive(waiting_of(state(*seq)));
      ++preemptions;
    }
    for (const SeqId id : output.admitted) {
      ASSERT_FALSE(find(id)->running);
      find(id)->running = true;
    }
    int32_t running_count = 0;
    for (const auto& seq : sequences) running_count += seq->running;
    ASSERT_LE(running_count, options.max_sequences);
    for (const PlanGroup& group : output.plan.groups) {
      Naive* seq = find(group.seq);
      ASSERT_TRUE(seq->running);
      ASSERT_EQ(group.position, seq->computed);
      expect_layers(group, *seq);
      const int32_t drafted_rows = group.provisional ? group.row_count - 1 : 0;
      for (int32_t i = 0; i < group.row_count; ++i) {
        const bool known = i < group.row_count - drafted_rows;
        ASSERT_EQ(
            output.plan.tokens[static_cast<size_t>(group.row_begin + i)],
            known ? seq->tokens[static_cast<size_t>(group.position + i)] : seq->draft[static_cast<size_t>(i - 1)]);
      }
      if (group.provisional) {
        ASSERT_EQ(group.logits_count, group.row_count);
      }
      seq->blocks = std::max(seq->blocks, (seq->computed + group.row_count + kKvBlockTokens - 1) / kKvBlockTokens);
      seq->computed += group.row_count - drafted_rows;
      drafted += drafted_rows;
      const auto accepted = static_cast<int32_t>(accepts.below(static_cast<uint64_t>(drafted_rows) + 1));
      for (int32_t i = 0; i < accepted; ++i) seq->tokens.push_back(seq->draft[static_cast<size_t>(i)]);
      seq->computed += accepted;
      if (seq->computed == static_cast<int32_t>(seq->tokens.size()))
        seq->tokens.push_back(static_cast<TokenId>(seq->tokens.size()));
    }
    ASSERT_LE(used(), blocks_total);
    std::erase_if(sequences, [](const auto& seq) { return static_cast<int32_t>(seq->tokens.size()) > seq->wanted; });
  }

  void add(uint64_t id, int32_t prompt, int32_t output_tokens, std::vector<SeqAdapter> adapters = {}) {
    auto seq = std::make_unique<Naive>();
    seq->id = SeqId{id};
    seq->prompt = prompt;
    seq->wanted = prompt + output_tokens;
    for (int32_t i = 0; i < prompt; ++i) seq->tokens.push_back(static_cast<TokenId>(id * 1000) + i);
    seq->adapters = std::move(adapters);
    admission.arrive(waiting_of(state(*seq)));
    sequences.push_back(std::move(seq));
  }
};

TEST(Planner, ALongQueueIsLookedAtAsFarAsTheRowsGo) {
  World world;
  world.options.step_tokens = 512;
  world.blocks_total = 100000;
  for (uint64_t id = 1; id <= 64; ++id) world.add(id, 1000, 1);
  world.run_step();
  EXPECT_EQ(world.output.admitted.size(), 1u);
  EXPECT_EQ(world.offers, 3) << "the first, the second, and the shortest, which is the second";
  world.run_step();
  EXPECT_EQ(world.output.admitted.size(), 1u);
  EXPECT_EQ(world.offers, 3) << "the first needs 488 rows more, another takes the rest";
}

TEST(Planner, AShortPromptComputesInTheNextStep) {
  World world;
  world.options.step_tokens = 512;
  world.blocks_total = 100000;
  for (uint64_t id = 1; id <= 4; ++id) world.add(id, 1500, 1);
  world.run_step();
  world.add(5, 20, 0);
  world.run_step();
  ASSERT_EQ(world.find(SeqId{5}), nullptr) << "it has ended";
  ASSERT_EQ(world.output.plan.groups.size(), 2u);
  EXPECT_EQ(world.output.plan.groups[0].row_count, 492);
  EXPECT_EQ(world.find(SeqId{1})->computed, 512 + 492);
}

// However many shorter ones come, the oldest has its quarter of every step: 1500 rows by
// 64 in 24 steps.
TEST(Planner, TheOldestPromptKeepsAQuarter) {
  World world;
  world.options.step_tokens = 256;
  world.blocks_total = 100000;
  world.add(1, 1500, 0);
  int steps = 0;
  for (uint64_t id = 2; world.find(SeqId{1}) != nullptr; ++steps) {
    ASSERT_LT(steps, 100);
    for (int i = 0; i < 16; ++i) world.add(id++, 100, 0);
    world.run_step();
    ASSERT_GE(world.output.plan.groups[0].row_count, std::min(64, 1500 - 64 * steps));
  }
  EXPECT_LE(steps, 24);
}

// Long prompts of a queue of their own get their share of a step however many short ones
// there are, and what a queue does not need goes to the others.
TEST(Planner, QueuesShareTheRowsOfAStep) {
  const std::vector<TokenId> text(1000, 1);
  const auto prompt = [&](uint64_t id, int32_t known, int32_t queue) {
    SeqState state;
    state.id = SeqId{id};
    state.order = id;
    state.tokens = text.data();
    state.known = known;
    state.queue = queue;
    return state;
  };
  StepPlanner planner({.step_tokens = 100, .logits_rows = 64, .max_sequences = 16});
  const double shares[] = {0.7, 0.3};
  const auto rows = [&](const std::vector<SeqState>& running) {
    PlanOutput output;
    planner.begin({.running = running, .blocks_available = 1000, .blocks_total = 1000, .row_shares = shares});
    planner.finish(output);
    planner.check();
    std::map<uint64_t, int32_t> by_id;
    for (const PlanGroup& group : output.plan.groups) by_id[group.seq.value] = group.row_count;
    return by_id;
  };
  using Rows = std::map<uint64_t, int32_t>;
  // In the first queue the oldest has a quarter of 70, the shortest the rest; in the
  // other one both are one.
  EXPECT_EQ(rows({prompt(1, 90, 0), prompt(2, 50, 0), prompt(3, 1000, 1)}), (Rows{{1, 20}, {2, 50}, {3, 30}}));
  EXPECT_EQ(rows({prompt(1, 10, 0), prompt(3, 1000, 1)}), (Rows{{1, 10}, {3, 90}})) << "spare rows are others'";
  EXPECT_EQ(rows({prompt(1, 500, 0), prompt(2, 10, 1)}), (Rows{{1, 90}, {2, 10}}));
  // Who is offered joins where its queue has rows, or others leave some.
  PlanOutput output;
  const std::vector<SeqState> running = {prompt(1, 90, 0), prompt(2, 70, 0)};
  planner.begin({.running = running, .blocks_available = 1000, .blocks_total = 1000, .row_shares = shares});
  EXPECT_EQ(planner.offer(prompt(3, 90, 0)), Fit::kNoRows);
  EXPECT_EQ(planner.offer(prompt(4, 90, 1)), Fit::kAdmitted);
  planner.finish(output);
  planner.check();
}

// As long as others are there a step has fewer rows than the server's budget; who is
// alone may have more of them.
TEST(Planner, RowsAreBoundedByTimeUnlessOneIsAlone) {
  World world;
  world.options.step_tokens = 512;
  world.blocks_total = 100000;
  world.rows = {.shared = 60, .alone = 120};
  world.add(1, 1500, 10);
  world.run_step();
  EXPECT_EQ(world.output.plan.tokens.size(), 120u);
  world.add(2, 1000, 10);
  world.run_step();
  EXPECT_EQ(world.output.plan.tokens.size(), 60u);
  EXPECT_EQ(world.find(SeqId{2})->computed, 45);
  world.add(3, 20, 10);
  world.run_step();
  EXPECT_EQ(world.find(SeqId{3})->computed, 20);
  EXPECT_EQ(world.find(SeqId{2})->computed, 45 + 25);
  world.run_step();
  EXPECT_EQ(world.output.plan.tokens.size(), 61u) << "rows that decode come beside them";
}

TEST(Planner, DecodeRowsComeBeforeChunksAndTheBudgetHolds) {
  World world;
  world.options = {.step_tokens = 32, .logits_rows = 8, .max_sequences = 8};
  world.blocks_total = 100;
  world.add(1, 10, 20);
  world.run_step();
  world.add(2, 100, 4);
  for (int i = 0; i < 3; ++i) {
    world.run_step();
    ASSERT_EQ(world.output.plan.tokens.size(), 32u);
    EXPECT_EQ(world.output.plan.groups[0].row_count, 1);  // sequence 1 decodes in every step
    EXPECT_EQ(world.output.plan.groups[1].row_count, 31);
    EXPECT_EQ(world.output.plan.logits_rows.size(), 1u);
  }
}

TEST(Planner, RowsOfOneAdapterAreAdjacentAndBaseRowsComeFirst) {
  World world;
  world.options = {.step_tokens = 64, .logits_rows = 16, .max_sequences = 16};
  world.blocks_total = 100;
  const SeqAdapter a{AdapterVersionId{7}, 1.0f, 0}, b{AdapterVersionId{3}, 1.0f, 0}, late{AdapterVersionId{3}, 1.0f, 3};
  world.add(1, 4, 2, {a});
  world.add(2, 4, 2);
  world.add(3, 4, 2, {b});
  world.add(4, 4, 2, {a});
  world.add(5, 4, 2, {b, a});
  world.add(6, 4, 2);
  world.add(7, 4, 2, {late});
  world.run_step();
  std::vector<uint64_t> ids;
  for (const PlanGroup& group : world.output.plan.groups) ids.push_back(group.seq.value);
  EXPECT_EQ(ids, (std::vector<uint64_t>{2, 6, 3, 7, 5, 1, 4}));
  const auto& segments = world.output.plan.segments;
  ASSERT_EQ(segments.size(), 6u);
  EXPECT_EQ(segments[1].row_begin, 15);  // activated from its fourth token on
  EXPECT_EQ(segments[1].row_count, 1);
  EXPECT_EQ(segments[2].row_begin,
            segments[3].row_begin);  // a weighted sum: two segments over the same rows, in the request's order
  EXPECT_EQ(segments[2].adapter.value, 3u);
}

TEST(Planner, TheYoungestIsPreemptedWhenBlocksRunOut) {
  World world;
  world.options = {.step_tokens = 64, .logits_rows = 8, .max_sequences = 8};
  world.blocks_total = 8;
  world.add(1, 30, 60);
  world.add(2, 30, 60);
  bool second_preempted = false;
  for (int i = 0; i < 400 && !world.sequences.empty(); ++i) {
    world.run_step();
    for (const SeqId id : world.output.preempted) {
      EXPECT_EQ(id.value, 2u);
      second_preempted = true;
    }
  }
  EXPECT_TRUE(second_preempted);
  EXPECT_TRUE(world.sequences.empty());
}

// Who joins others has the blocks that are for new ones, however many are free; one alone
// has what there is.
TEST(Planner, WhoJoinsHasNoMoreThanIsForNewOnes) {
  const std::vector<TokenId> tokens(200, 1);
  const auto sequence = [&](uint64_t id, int32_t known, int32_t computed) {
    SeqState state;
    state.id = SeqId{id};
    state.order = id;
    state.tokens = tokens.data();
    state.known = known;
    state.computed = computed;
    state.blocks = state.blocks_exclusive = kv_blocks_for(computed);
    return state;
  };
  const std::vector<SeqState> running = {sequence(1, 17, 16)};
  StepPlanner planner({.step_tokens = 64});
  PlanOutput output;
  planner.begin({.running = running, .blocks_available = 50, .blocks_total = 51, .blocks_for_new = 5});
  EXPECT_EQ(planner.offer(sequence(2, 31, 0)), Fit::kAdmitted);  // two blocks
  EXPECT_EQ(planner.offer(sequence(3, 63, 0)), Fit::kNoBlocks);  // four
  planner.finish(output);
  planner.begin({.blocks_available = 51, .blocks_total = 51, .blocks_for_new = 0});
  EXPECT_EQ(planner.offer(sequence(2, 31, 0)), Fit::kAdmitted) << "nobody else runs";
  EXPECT_EQ(planner.offer(sequence(3, 31, 0)), Fit::kNoBlocks);
  planner.finish(output);
}

TEST(Planner, ASequenceLargerThanTheCacheIsImpossible) {
  World world;
  world.options = {.step_tokens = 64, .logits_rows = 8, .max_sequences = 8};
  world.blocks_total = 2;
  world.add(1, 33, 1);
  world.add(2, 8, 2);
  world.run_step();
  ASSERT_EQ(world.impossible.size(), 1u);
  EXPECT_EQ(world.impossible[0].value, 1u);
  std::erase_if(world.sequences, [](const auto& seq) { return seq->id == SeqId{1}; });
  EXPECT_EQ(world.output.admitted.size(), 1u);
}

TEST(Planner, PromptLogprobsChunksRespectTheLogitsBudget) {
  World world;
  world.options = {.step_tokens = 64, .logits_rows = 4, .max_sequences = 4};
  world.blocks_total = 20;
  world.add(1, 5, 30);
  world.run_step();
  world.add(2, 20, 2);
  world.sequences.back()->logits_end = 19;
  world.run_step();
  ASSERT_EQ(world.output.plan.groups.size(), 2u);
  EXPECT_EQ(world.output.plan.groups[1].row_count, 3);
  EXPECT_EQ(world.output.plan.groups[1].logits_count, 3);
}

// A chunk that stops before the prompt's end needs no logits.
TEST(Planner, APromptIsAdmittedWhereNoLogitsAreLeft) {
  World world;
  world.options = {.step_tokens = 64, .logits_rows = 4, .max_sequences = 4};
  world.blocks_total = 20;
  world.add(1, 20, 2);
  world.sequences.back()->logits_end = 19;
  world.add(2, 30, 2);
  world.run_step();
  ASSERT_EQ(world.output.plan.groups.size(), 2u);
  EXPECT_EQ(world.output.plan.groups[0].logits_count, 4);
  EXPECT_EQ(world.output.plan.groups[1].row_count, 29);
  EXPECT_EQ(world.output.plan.groups[1].logits_count, 0);
}

TEST(Planner, DraftsTakeWhatIsLeftOver) {
  World world;
  world.options = {.step_tokens = 32, .logits_rows = 8, .max_sequences = 4};
  world.blocks_total = 100;
  world.add(1, 10, 60);
  world.add(2, 10, 60);
  world.run_step();
  for (auto& seq : world.sequences) seq->draft = {1, 2, 3, 4, 5};
  world.run_step();
  ASSERT_EQ(world.output.plan.groups.size(), 2u);
  EXPECT_EQ(world.output.plan.groups[0].row_count, 6);  // the oldest first
  EXPECT_EQ(world.output.plan.groups[1].row_count, 2);  // eight rows of logits in all
  EXPECT_TRUE(world.output.plan.groups[0].provisional && world.output.plan.groups[1].provisional);
  world.add(3, 100, 4);  // a prompt takes the rows
  world.run_step();
  EXPECT_FALSE(world.output.plan.groups[0].provisional || world.output.plan.groups[1].provisional);
  EXPECT_EQ(world.output.plan.tokens.size(), 32u);
}

TEST(Planner, ADraftLeavesEverySequenceABlockToGrowInto) {
  for (const int32_t blocks : {3, 6, 7}) {
    World world;
    world.options = {.step_tokens = 64, .logits_rows = 32, .max_sequences = 4};
    world.blocks_total = blocks;
    world.add(1, 15, 30);
    world.add(2, 15, 3);
    world.run_step();
    ASSERT_EQ(world.output.admitted.size(), 2u);
    world.sequences[0]->draft = {1, 2, 3, 4, 5};
    world.run_step();
    // Each holds one block, wants another for its next token and keeps one to grow into;
    // the draft may have the seventh.
    EXPECT_EQ(world.output.plan.groups[0].row_count, blocks == 7 ? 6 : 1) << blocks;
  }
}

TEST(CheckStepPlan, SaysWhatIsWrong) {
  StepPlan plan;
  EXPECT_EQ(check_step_plan(plan), "");
  plan.tokens = {1, 2, 3};
  EXPECT_NE(check_step_plan(plan), "");
  plan.groups.push_back(
      {.seq = SeqId{1}, .position = 0, .row_begin = 0, .row_count = 3, .logits_begin = 0, .logits_count = 1});
  EXPECT_NE(check_step_plan(plan), "");
  plan.logits_rows = {2};
  EXPECT_EQ(check_step_plan(plan), "");
  plan.groups[0].provisional = true;
  EXPECT_NE(check_step_plan(plan).find("every row"), std::string::npos);
  plan.groups[0].provisional = false;
  plan.segments = {{1, 3, AdapterVersionId{1}, 1.0f}};
  EXPECT_NE(check_step_plan(plan), "");
}

// Random traffic until everybody finishes, half of it with drafts: every plan is sound,
// and nobody waits for ever.
TEST(Planner, RandomTrafficAlwaysFinishes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    World world;
    world.options.max_sequences = 1 + static_cast<int32_t>(random.below(12));
    world.options.step_tokens = world.options.max_sequences + static_cast<int32_t>(random.below(60));
    const bool drafts = seed % 2 == 0;
    world.options.logits_rows = world.options.max_sequences + static_cast<int32_t>(random.below(5) * (drafts ? 4 : 1));
    world.options.segments = 2 + static_cast<int32_t>(random.below(8));
    world.blocks_total = 8 + static_cast<int32_t>(random.below(20));
    world.rows.shared = 1 + static_cast<int32_t>(random.below(60));
    world.rows.alone = world.rows.shared + static_cast<int32_t>(random.below(60));
    const int32_t tokens_max = world.blocks_total * kKvBlockTokens;
    uint64_t next_id = 1;
    int steps = 0;
    while (next_id <= 60 || !world.sequences.empty()) {
      ASSERT_LT(++steps, 30000);
      if (next_id <= 60 && random.below(3) == 0) {
        const auto prompt = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(tokens_max - 1)));
        const auto output =
            1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(std::min(40, tokens_max - prompt))));
        std::vector<SeqAdapter> adapters;
        for (auto count = random.below(3); count > 0; --count) {
          adapters.push_back({AdapterVersionId{1 + random.below(4)}, random.below(2) == 0 ? 1.0f : 0.5f,
                              static_cast<int32_t>(random.below(2) * random.below(30))});
        }
        std::sort(adapters.begin(), adapters.end(),
                  [](const SeqAdapter& a, const SeqAdapter& b) { return a.first_position < b.first_position; });
        const bool borrows = prompt > 20 && random.below(3) == 0;
        const int32_t until = (prompt - 3) / kKvBlockTokens * kKvBlockTokens;
        const auto layer = static_cast<int32_t>(1 + random.below(3));
        if (borrows) {
          const AdapterVersionId version{1 + random.below(4)};
          adapters = {{version, 1.0f, 0, until, layer}, {version, 1.0f, until}};
        }
        world.add(next_id++, prompt, output, adapters);
        if (borrows) {
          world.sequences.back()->begin_layer = layer;
          world.sequences.back()->borrowed =
              static_cast<int32_t>(random.below(static_cast<uint64_t>(until / kKvBlockTokens) + 1)) * kKvBlockTokens;
        } else if (random.below(4) == 0) {
          world.sequences.back()->logits_end = prompt - 1;
        }
      }
      for (auto& seq : world.sequences) {
        const auto room = static_cast<size_t>(seq->wanted) - seq->tokens.size();
        seq->draft.resize(drafts ? std::min<size_t>(room, random.below(9)) : 0, 5);
      }
      world.run_step();
      ASSERT_FALSE(HasFatalFailure());
      if (!world.sequences.empty()) {
        ASSERT_FALSE(world.output.plan.empty());
      }
    }
    EXPECT_EQ(world.drafted > 0, drafts);
  }
}

// One that waits for something of its own gets no rows, holds nobody up, and gives its
// blocks like any other.
TEST(Planner, WhoWaitsGetsNoRowsAndMayBePreempted) {
  const std::vector<TokenId> text(40, 1);
  const auto state_of = [&](uint64_t id, int32_t computed, bool waits) {
    SeqState state;
    state.id = SeqId{id};
    state.order = id;
    state.tokens = text.data();
    state.known = computed + 1;
    state.computed = computed;
    state.blocks = state.blocks_exclusive = (computed + 15) / 16;
    state.waits = waits;
    return state;
  };
  StepPlanner planner({});
  PlanOutput output;
  const std::vector<SeqState> running{state_of(1, 5, true), state_of(2, 16, false), state_of(3, 16, true)};
  planner.begin({.running = running, .blocks_available = 1, .blocks_total = 4});
  planner.finish(output);
  ASSERT_EQ(output.plan.groups.size(), 1u);
  EXPECT_EQ(output.plan.groups[0].seq, SeqId{2});
  EXPECT_TRUE(output.preempted.empty());
  planner.begin({.running = running, .blocks_available = 0, .blocks_total = 3});
  planner.finish(output);
  ASSERT_EQ(output.plan.groups.size(), 1u);
  EXPECT_EQ(output.preempted, std::vector<SeqId>{SeqId{3}});
}

}  // namespace
}  // namespace loralei
