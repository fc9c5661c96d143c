// SPDX-License-Identifier: Apache-2.0
// plan_step: which rows the next step computes, whom it admits and whom it preempts. A pure function of plain values:
// no clock, no memory of its own, no side effect; the engine commits what it says. The same function runs under the
// simulator.
//
// Thread: any; inputs are borrowed for the call, outputs are reused (no allocation once they have grown). Policy:
//   1. decode rows first (one token each), oldest sequence first; then chunks of running prefills; then admissions; all
//   within one
//      token budget, so a long prompt delays decoding by at most one step's budget.
//   2. A running sequence that finds no KV block takes those of the youngest running sequence, which is preempted
//   (recomputed later);
//      the youngest preempts itself; a prefill that is the youngest computes a shorter chunk or waits instead.
//   3. Admission follows the waiting order (fifo: arrival) and stops at the first sequence that does not fit: nobody is
//   overtaken. It wants
//      room for the whole known text and one spare block for every running sequence, so that it does not cause a
//      preemption right away. Granted: listed in `admitted`. Deferred: not listed. Impossible: needs more blocks than
//      there are; listed in `impossible`.
//   4. Draft rows (speculation) come last and take what is left of rows, logits and blocks, oldest sequence first.
//      New blocks only where nobody waits for some and all could still grow: a guess preempts and defers nobody.
//   5. Rows are ordered by adapters, then by age: rows without adapter together, rows of one adapter adjacent.
//   6. A running sequence that waits (for something of its own: a grammar's mask) gets no rows and holds nobody up.
// Invariants: check_step_plan(plan) is empty; rows <= step_tokens; logits rows <= logits_rows; segments <=
// options.segments; running <= max_sequences; the blocks wanted fit. Nobody who runs is left out of a step for want of
// rows, logits or segments as long as max_sequences <= min(step_tokens, logits_rows) and segments hold what every
// sequence may use, which the engine sees to at start; with fewer segments the youngest wait until older ones end.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/ids.h"
#include "sched/step_plan.h"

namespace loralei {

// An adapter of a sequence: applied with `scale` to the tokens from first_position on.
struct SeqAdapter {
  AdapterVersionId version;
  float scale = 1.0f;
  int32_t first_position = 0;
};

enum class HiddenRows : uint8_t { kNone, kLast, kAll };

// What the planner may know of a sequence.
struct SeqState {
  SeqId id;
  uint64_t order = 0;  // arrival; smaller is older
  const TokenId* tokens = nullptr;
  int32_t known = 0;     // tokens whose ids are known: prompt and output
  int32_t computed = 0;  // running: positions with KV; waiting: positions that the prefix cache offers
  int32_t blocks = 0;    // running: blocks held; waiting: blocks offered
  int32_t blocks_exclusive =
      0;  // running: blocks that preempting it would give back; waiting: offered blocks that count as available now
  // Scale 0 left out; by first_position, so that a row's adapters are summed in one order whatever the chunks.
  std::span<const SeqAdapter> adapters;
  std::span<const TokenId> draft;            // guessed to follow; only where one known token is left to compute
  bool waits = false;                        // running: gets no rows in this step, but may be preempted
  bool sample = true;                        // wants logits at the last known token
  int32_t logits_begin = 0, logits_end = 0;  // further positions that want logits (prompt logprobs)
  HiddenRows hidden = HiddenRows::kNone;
};

// Fills `order` with indices into `waiting`, in the order of admission. The seam for other policies.
using AdmissionOrder = void (*)(std::span<const SeqState> waiting, std::vector<int32_t>& order);
void fifo_order(std::span<const SeqState> waiting, std::vector<int32_t>& order);

struct PlanOptions {
  int32_t step_tokens = 512;
  int32_t logits_rows = 256;
  int32_t max_sequences = 256;
  int32_t segments = 1024;  // LoRA segments of a step; at least those of one sequence
  AdmissionOrder admission = &fifo_order;
};

struct PlanInput {
  uint64_t step = 0;
  std::span<const SeqState> running;  // oldest first
  std::span<const SeqState> waiting;  // those whose adapters are ready; any order
  int32_t blocks_available = 0;       // free or evictable
  int32_t blocks_total = 0;
};

struct PlanOutput {
  StepPlan plan;
  std::vector<SeqId> admitted;    // in order
  std::vector<SeqId> preempted;   // youngest first
  std::vector<SeqId> impossible;  // waiting sequences that need more blocks than exist
  bool deferred = false;          // somebody waits for KV room
};

// Reused from step to step.
struct PlanScratch {
  struct Entry {
    const SeqState* seq = nullptr;
    int32_t rows = 0;
    int32_t blocks = 0;  // new blocks that the rows need
    int32_t logits = 0;
    bool preempted = false;
  };
  std::vector<Entry> running;
  std::vector<Entry> admitted;
  std::vector<const Entry*> rows;
  std::vector<int32_t> order;
};

// For whoever gathers `waiting`, oldest first: the rows that admissions may find in a step, at most, and those that an
// admitted sequence takes of them, at least. Once these have used up the former, nobody behind them is admitted.
int32_t rows_to_admit(std::span<const SeqState> running, const PlanOptions& options);
int32_t rows_if_admitted(const SeqState& waiting, int32_t blocks_total);

void plan_step(const PlanInput& input, const PlanOptions& options, PlanScratch& scratch, PlanOutput& output);

}  // namespace loralei
