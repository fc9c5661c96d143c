// SPDX-License-Identifier: Apache-2.0
// StepPlan: what one step computes, as a plain value of ids and offsets (mechanisms
// "Words"). It can be logged, replayed, costed by a simulator and sent to other ranks; it
// holds no pointer and owns nothing outside itself.
//
//   tokens   | s1 prefill chunk ........ | s2 decode | s3 speculated . . | one a row
//   groups   | group 0                   | group 1   | group 2           | one a sequence
//   segments |--- adapter A ---|         | adapter B |
//
// Rows may lie in several segments or in none.
//
// Invariants (check_step_plan): groups are contiguous, non-empty and cover all rows in
// order, those that begin at a higher layer behind the others; segments lie within one
// group each and are sorted by row, those of equal rows in the order of their sum; logits
// rows lie within their group; a "from previous step" token names a row of the previous
// step's samples; a provisional group wants logits at every row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace loralei {

// A literal id (>= 0), or the token sampled at logits row r of the previous step, written
// as -1 - r.
using PlanToken = int32_t;
constexpr PlanToken from_previous_step(int32_t row) { return -1 - row; }

struct PlanGroup {
  SeqId seq;
  int32_t position = 0;     // absolute position of the first row
  int32_t begin_layer = 0;  // its rows are computed from here on
  int32_t row_begin = 0;    // into StepPlan::tokens
  int32_t row_count = 0;
  int32_t logits_begin = 0;  // into StepPlan::logits_rows
  int32_t logits_count = 0;  // logits wanted at any of the group's rows
  bool want_hidden = false;  // final-norm hidden states of all rows (embeddings)
  bool provisional = false;  // rows after the first are a draft: their KV counts only as far as the samples agree

  // Of the token that the logits at a row of the step predict.
  int32_t predicted_position(int32_t row) const { return position + row - row_begin + 1; }
};

struct PlanSegment {
  int32_t row_begin = 0;
  int32_t row_count = 0;
  AdapterVersionId adapter;
  float scale = 1.0f;
  int32_t first_layer = 0;  // below it changes nothing
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<PlanToken> tokens;  // [rows]
  std::vector<PlanGroup> groups;
  std::vector<PlanSegment> segments;
  std::vector<int32_t> logits_rows;  // absolute row indices
  bool empty() const { return tokens.empty(); }
  void clear();  // keeps capacity: plans are reused
};

// Empty when the plan is sound, else what is wrong (tests, replay tools).
std::string check_step_plan(const StepPlan& plan);

}  // namespace loralei
