// SPDX-License-Identifier: Apache-2.0
// MaskWork: makes the masks of grammars between steps, within a budget of time.
// A sequence whose mask is not there gets no rows and waits, alone; who runs beside it is
// slowed by the budget and no more.
//
// Budget: a tenth of what the last step took (kShare), counted in nanoseconds or, should
// that be more, in work; what exceeds it is taken from the next. Where only sequences
// with grammars could run, cheap masks get as long as a step: these sequences share what
// they cost, as they share the step. Where nobody could run at all, work goes on, with
// a look at the inbox every few milliseconds.
//
// Order: by classes of what a mask has taken so far, the cheap first, and in a class
// first come, first served; of dear ones one at a time, so that one such walk takes
// memory. A sequence that was never admitted and moves up a class gives its walk up and
// begins it anew when it is its turn: only the first ones of a long queue take memory,
// and what is made twice is a small part. A mask that takes more than kMaxMaskWork in all
// ends its sequence (sampling/grammar.h), and so does one whose memory is not granted:
// were it to wait, those that wait could have all of it.
//
// Thread: the engine's, which takes the pool's along.
// Ownership: borrows sequences for a run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "device/host/thread_pool.h"
#include "engine/request.h"

namespace loralei {

// The sequence samples, by a grammar whose mask is not there yet.
bool waits_for_mask(const Sequence& sequence);

// Its mask has taken what no usual one takes.
bool has_dear_mask(const Sequence& sequence);

class MaskWork {
 public:
  // Who could be computed while masks are made.
  enum class Beside : uint8_t { kOthers, kGrammars, kNobody };

  // `memory`: of the grammars' states; null: all there is.
  MaskWork(const Clock& clock, ThreadPool* pool, std::shared_ptr<ByteBudget> memory = {})
      : clock_(clock), pool_(pool), memory_(std::move(memory)) {}

  // Of the last step; gives the budget of the next run.
  void step_took(int64_t ns);
  // What masks cost elsewhere (drafts), in work.
  void charge(int64_t work) { left_ns_ -= work * kUsualWorkNs; }
  // What one row of a draft may cost of it, if there are so many.
  int64_t work_for_draft(int64_t step_ns, size_t rows) const;
  // Sequences whose masks are wanted; those that are ready again may be planned.
  void run(std::span<Sequence* const> wanted, Beside beside);
  int64_t work() const { return work_; }  // of all runs

 private:
  static constexpr int64_t kLeastWorkNs = 10, kUsualWorkNs = 20;
  int64_t spent_ns(int64_t begin_ns, int64_t work) const;
  bool choose(bool cheap_only);
  int64_t work_on(Sequence& sequence) const;  // makes the next slice; answers what it took
  bool has_memory(Sequence& sequence) const;
  int64_t work_on_chosen();

  const Clock& clock_;
  ThreadPool* const pool_;
  const std::shared_ptr<ByteBudget> memory_;
  int64_t step_ns_ = 0;
  int64_t left_ns_ = 0;  // of the budget; below 0: owed
  int64_t work_ = 0;
  uint64_t arrivals_ = 0;
  std::vector<Sequence*> wanted_, chosen_;  // reused
};

}  // namespace loralei
