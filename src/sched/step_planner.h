// SPDX-License-Identifier: Apache-2.0
// StepPlanner: which rows the next step computes, who joins it and who is preempted.
// Plain values in and out, no clock, no side effect: the engine commits what it says.
//
//   begin(input)
//   offer(candidate)    for each that Admission gives, until it gives no more
//   finish(output)
//
// Thread: one; inputs are borrowed until finish(). It allocates nothing once its lists
// have grown.
//
//  1. Decode rows come first (one token each), oldest sequence first.
//  2. Rows of prompts share what input.rows and step_tokens leave (P rows). The oldest
//     prompt gets a quarter of P, if it has so many left. The rest goes to the prompt
//     with the fewest rows left, then the next; of one length the older first. So a short
//     prompt computes in the next step, whatever long ones are under way, and nobody
//     starves.
//     Bound: the oldest prompt of r rows is computed after 4 r / P steps at most. Another
//     waits for the rows of shorter ones: ceil((shorter + r) / (3/4 P)) steps.
//     Where requests stand in queues, each queue has its share of P, and all this holds
//     of the share; what a queue does not need goes to the prompts of all others with
//     the fewest rows left.
//  3. A running sequence that finds no KV block takes those of the youngest, which is
//     preempted (recomputed later). The youngest preempts itself; a prompt that is the
//     youngest computes fewer rows or waits instead.
//  4. A candidate is admitted where there is a slot, at least one row under rule 2, and
//     KV for its whole known text beside what all that run still need of theirs and a
//     spare block for each. So it does not cause a preemption right away. Nobody is
//     admitted in a step that preempts. Who joins others has no more than blocks_for_new.
//     Of a layer that attends to a window a text needs the window and what a step writes.
//  5. Draft rows (speculation) come last and take what is left of rows, logits and
//     blocks, oldest sequence first. New blocks only where nobody waits for some and all
//     could still grow: a guess preempts and defers nobody.
//  6. Rows are ordered by the layer at which they begin, then by adapters, then by age:
//     rows without adapter together, rows of one adapter adjacent. Those of one sequence
//     begin at one layer in a step.
//  7. A step's rows of a sequence end at its rows_end, if they get there.
//  8. A running sequence that waits (for something of its own: a grammar's mask) gets no
//     rows and holds nobody up.
//
// Invariants: check_step_plan(plan) is empty; rows <= step_tokens; logits rows <=
// logits_rows; segments <= options.segments; running <= max_sequences; the blocks wanted
// fit. No decode row is left out for want of rows, logits or segments as long as
// max_sequences <= min(step_tokens, logits_rows) and segments hold what every sequence
// may use, which the engine sees to at start; with fewer segments the youngest wait until
// older ones end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "ops/kv_tables.h"
#include "sched/seq_state.h"
#include "sched/step_plan.h"
#include "sched/step_times.h"

namespace loralei {

struct PlanOptions {
  int32_t step_tokens = 512;
  int32_t logits_rows = 256;
  int32_t max_sequences = 256;
  int32_t segments = 1024;  // LoRA segments of a step; at least those of one sequence
};

struct PlanInput {
  uint64_t step = 0;
  std::span<const SeqState> running;  // oldest first
  int32_t blocks_available = 0;       // of the pool, free or evictable
  int32_t blocks_total = 0;
  KvTables tables = {};                // what so many blocks of text take of the pool
  int32_t blocks_for_new = INT32_MAX;  // of those available, for who joins now
  PrefillRows rows;
  std::span<const double> row_shares;  // by SeqState::queue, of P; empty: one queue
};

struct PlanOutput {
  StepPlan plan;
  std::vector<SeqId> admitted;   // in the order of their offers
  std::vector<SeqId> preempted;  // youngest first
};

enum class Fit : uint8_t {
  kAdmitted,
  kNoRows,      // now
  kNoBlocks,    // now: KV is short
  kNoSlots,     // now: max_sequences run
  kImpossible,  // ever: it needs more blocks than there are
};

class StepPlanner {
 public:
  explicit StepPlanner(const PlanOptions& options)
      : options_(options),
        tokens_left_(options.step_tokens),
        logits_left_(options.logits_rows),
        segments_left_(options.segments) {}

  const PlanOptions& options() const { return options_; }
  void begin(const PlanInput& input);
  // `candidate` need not outlive the call, but what it points to must live until
  // finish().
  Fit offer(const SeqState& candidate);
  void finish(PlanOutput& output);
  // Of the last finish(), while what begin() was given still lives.
  void check() const;

 private:
  struct Entry {
    const SeqState* seq = nullptr;
    int32_t quota = 0;  // rows of a prompt, by rule 2
    int32_t rows = 0;
    int32_t blocks = 0;  // new blocks of the pool that the rows need
    int32_t logits = 0;
    bool preempted = false;
    bool admitted = false;  // in this step
  };

  int32_t held_by(const SeqState& seq) const;
  int32_t pool_blocks(int32_t more) const;
  int32_t whole_need(const SeqState& seq) const;
  int32_t alone_need(const SeqState& seq) const;
  bool is_prompt(const Entry& entry) const;
  int32_t rows_in_time() const;
  int32_t rows_for(const SeqState& candidate) const;
  int32_t rows_among(const SeqState& candidate, int32_t total) const;
  int32_t rows_of_queue(int32_t queue, int32_t total) const;
  int32_t rows_within_budget(const SeqState& seq, int32_t rows_max) const;
  void give(Entry& entry, int32_t rows, int32_t blocks);
  void schedule(Entry& entry, int32_t rows_max);
  bool preempt_youngest(const Entry& needy);
  int32_t give_shortest(std::span<Entry*> shortest_first, int32_t rows);
  void share_prompt_rows();
  void speculate();
  void emit(StepPlan& plan);

  const PlanOptions options_;
  PlanInput input_;
  std::vector<Entry> entries_;      // running, oldest first; then the admitted
  std::vector<SeqState> admitted_;  // never more than max_sequences, so they do not move
  std::vector<SeqId> preempted_;
  std::vector<Entry*> prompts_, rows_;
  int32_t tokens_left_, logits_left_, segments_left_;
  int32_t blocks_left_ = 0;
  int32_t alive_ = 0;         // running or admitted, and not preempted
  int32_t prompt_rows_ = 0;   // given
  int32_t promised_ = 0;      // blocks that sequences will still ask for
  int32_t left_for_new_ = 0;  // of PlanInput::blocks_for_new
  bool deferred_ = false;     // somebody waits for KV
};

}  // namespace loralei
