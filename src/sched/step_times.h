// SPDX-License-Identifier: Apache-2.0
// StepTimes: how long a step takes, learned from the steps of this server, and how many
// rows of prompts a step may have so that nobody waits long for its end.
//
//   seconds = a + b * rows + c * attended
//
// where `attended` is the sum of the positions that the rows attend to.
// The line is fitted, with relative errors, to one moving average for every power of two
// of rows, so that many small steps do not drown what few large ones have told. Whoever
// arrives or decodes waits for the step under way: its length is the floor of everybody's
// latency.
//
// The bound of a step is --step-time. By default it is kStepTimeNs, or more where that
// would make rows too dear: a prompt may cost kDearer times what it costs in steps of all
// the rows there are. No more, though, than kStepTimeMostNs, or kFloorsMost times what a
// step takes without rows. (Where weights are streamed a step costs its reading: the
// engine asks for no bound.) A prompt that is alone on the server may take steps
// kAloneFactor times as long: who arrives then waits for one of them, and for one of
// usual length in which it is computed. Where rows that decode take most of the bound,
// prompts get kPromptShare of the step's time all the same. Where a request that decodes
// wants shorter times between its tokens the bound is that, and prompts get what the rows
// that decode leave of it, or kTpotShare of the step's time if that is more: nobody can
// stop everybody's prompts.
//
// While more rows of prompts wait than fit, the default grows, so that what decodes takes
// less of the time: up to a step in which all of them are computed, to one of which they
// take kBacklogShare, and to kBacklogMost times itself. That is what those that decode
// wait for their next token then; it falls back with the backlog. A bound that was stated
// stays.
//
// Thread: one. A plain value; no clock, no allocation. Invariants: prefill rows are at
// least kPrefillRowsMin, so that every step makes progress, and at most rows_max; they
// grow from kFirstRows no faster than kGrowth times the largest step learned so far.
#pragma once

#include <array>
#include <cstdint>

namespace loralei {

struct StepLoad {
  int32_t rows = 0;
  int64_t attended = 0;
};

// Rows of prompts that a step may have, beside its decode rows.
struct PrefillRows {
  int32_t shared = INT32_MAX;  // somebody else decodes or computes a prompt, too
  int32_t alone = INT32_MAX;
};

class StepTimes {
 public:
  static constexpr int64_t kStepTimeNs = 100'000'000;
  static constexpr int64_t kStepTimeMostNs = 150'000'000;
  static constexpr double kFloorsMost = 3, kDearer = 1.1, kAloneFactor = 3, kPromptShare = 0.25, kTpotShare = 0.1;
  static constexpr double kBacklogMost = 4, kBacklogShare = 0.75;
  static constexpr int32_t kPrefillRowsMin = 4, kFirstRows = 128, kGrowth = 4;

  // bound_ns: of a step; 0: the default. rows_max: of a step.
  StepTimes(int64_t bound_ns, int32_t rows_max) : bound_ns_(bound_ns), rows_max_(rows_max) {}

  void learn(const StepLoad& load, int64_t ns);
  double predicted_s(const StepLoad& load) const;
  double prompt_row_s() const;  // of a row of a prompt of some length, in a step of many
  // Beside `decode` rows. `context`: positions that the prompts' next rows attend to,
  // each. `backlog`: rows of prompts that wait or are under way. `tpot_ns`: the shortest
  // time between tokens that is wanted beside.
  PrefillRows prefill_rows(const StepLoad& decode, int32_t context, int64_t backlog = 0,
                           int64_t tpot_ns = INT64_MAX) const;
  int64_t bound_ns() const;  // of a step, as learned so far, without a backlog

 private:
  struct Average {
    double rows = 0, attended = 0, seconds = 0;
    bool known = false;
  };
  void fit();
  double bound_s(double decode_s, double backlog_s) const;
  int32_t rows_within(double seconds, const StepLoad& decode, int32_t context, double prompt_share) const;

  int64_t bound_ns_ = 0;
  int32_t rows_max_ = 0, rows_learned_ = 0;  // of the largest step
  std::array<Average, 16> averages_{};       // by the power of two of the rows
  double a_ = 0, b_ = 0, c_ = 0;             // none of them negative
};

}  // namespace loralei
