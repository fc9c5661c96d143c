// SPDX-License-Identifier: Apache-2.0
// Admission: the one order in which sequences that wait may join the steps (fifo).
//
//   begin(); while (seq = next()) { try; admitted(seq) or refused(seq, why); }
//
//  1. The oldest is asked first.
//  2. Where the rows of a step are used up, the shortest prompts are asked: rows go to
//     the shortest remaining prompt first (StepPlanner), so a short one can have some.
//  3. One that lacks its adapter's place (room that an older load waits for, an upload on
//     its way) is set aside until places have changed: others use what is there.
//  4. Where KV or slots are used up, nobody else is asked: nobody is overtaken for them.
//     Bound: who lacks KV or a slot is the next to get what is given back. Who lacks rows
//     is overtaken by shorter prompts alone, and no longer than until those older than it
//     are computed: then it is the oldest, which StepPlanner gives a quarter of the rows.
//
// Thread: one. Ownership: of its own lists alone; time is an argument where it matters.
// Cost: a planning asks kOffersMax sequences at most beside those that it sets aside, and
// each costs the logarithm of those that wait. Nobody is asked twice for a place without
// places_changed() in between.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "base/ids.h"

namespace loralei {

struct Waiting {
  SeqId id;
  uint64_t order = 0;  // of arrival, unique
  int32_t rows = 0;    // left to compute, as far as known: its text less the prefix that was cached
};

enum class Lack : uint8_t { kRows, kMemory, kSlots, kAdapter };

class Admission {
 public:
  static constexpr int32_t kOffersMax = 64;

  void arrive(const Waiting& waiting);
  void leave(const Waiting& waiting);  // as it arrived

  void begin();
  std::optional<SeqId> next();
  // Of the last that next() gave; one that is not refused leaves before next() is called.
  void refused(Lack lack);
  // Adapters have other places than before: those set aside are asked again, from the
  // next planning on.
  void places_changed();
  // Those that would be asked first, in order.
  template <typename Visit>
  void for_oldest(size_t most, const Visit& visit) const {
    for (auto waiting = all_.begin(); waiting != all_.end() && most > 0; ++waiting, --most) visit(waiting->id);
  }

  size_t size() const { return all_.size(); }
  size_t set_aside() const { return aside_.size(); }  // of these
  bool has(const Waiting& waiting) const { return all_.count(waiting) != 0; }
  bool empty() const { return all_.empty(); }
  void check() const;

 private:
  enum class Stage : uint8_t { kOldest, kShortest, kOver };
  struct Older {
    bool operator()(const Waiting& a, const Waiting& b) const { return a.order < b.order; }
  };
  struct Shorter {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.rows != b.rows ? a.rows < b.rows : a.order < b.order;
    }
  };

  std::set<Waiting, Older> all_, aside_;
  std::set<Waiting, Older> by_order_;   // all but those set aside
  std::set<Waiting, Shorter> by_rows_;  // the same
  Stage stage_ = Stage::kOver;
  int32_t offers_ = 0;
  std::optional<Waiting> asked_oldest_, asked_shortest_;  // the last
};

}  // namespace loralei
