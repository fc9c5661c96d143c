// SPDX-License-Identifier: Apache-2.0
// WaitingLine: those of one client that wait in one queue (sched/admission.h) and may be
// asked: in their own order, by their rows, and who goes first for its deadline.
//
// Their own order: the lower priority number, then the lower rank, then the older.
//
// One with a deadline goes before its line where all of this holds; of several that has
// the earliest deadline:
//
//   its deadline has not passed: nothing is gained by it else;
//   it would miss it otherwise: it is to be asked by latest_ns, and it waits about as
//   long as the first of the line has, and then for the next one to begin;
//   nobody in the line has waited to its until_ns.
//
// Bound: who has waited to its until_ns is passed for no deadline any more. It waits for
// those before it in the line's own order, whatever comes.
//
// Thread: one. Ownership: of its own lists; time is an argument. Cost: the logarithm of
// those in the line. No failure; who is taken out must be in the line (CHECK).
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "base/ids.h"
#include "sched/client_id.h"

namespace loralei {

inline constexpr int64_t kNoDeadline = INT64_MAX;

struct Waiting {
  SeqId id;
  uint64_t order = 0;  // of arrival, unique
  int32_t rows = 0;    // left to compute, as far as known: its text less the prefix that was cached
  int32_t priority = 0;
  double rank = 0;  // in its queue; 0: by age
  int32_t queue = 0;
  int64_t tokens = 0;  // of its queue's quota
  int64_t run_ns = 0;  // from admission to its end, as predicted
  ClientId client = {};
  int64_t since_ns = 0;               // when it began to wait
  int64_t until_ns = kNoDeadline;     // so long it may be passed for deadlines
  int64_t deadline_ns = kNoDeadline;  // of its first token
  int64_t latest_ns = kNoDeadline;    // when it is to be asked for that
};

class WaitingLine {
 public:
  struct First {
    bool operator()(const Waiting& a, const Waiting& b) const {
      if (a.priority != b.priority) return a.priority < b.priority;
      return a.rank != b.rank ? a.rank < b.rank : a.order < b.order;
    }
  };

  void put(const Waiting& waiting);
  void take_out(const Waiting& waiting);
  bool empty() const { return first_.empty(); }
  size_t size() const { return first_.size(); }
  bool has(const Waiting& waiting) const { return first_.count(waiting) != 0; }

  // Who comes first, behind `last` if that is given; null: nobody.
  const Waiting* first(const std::optional<Waiting>& last = {}) const { return behind(first_, last); }
  const Waiting* shortest(const std::optional<Waiting>& last = {}) const { return behind(shortest_, last); }
  // Who goes before all others for its deadline; null: nobody. `gap_ns`: from one that
  // begins to the next.
  const Waiting* urgent(int64_t now_ns, int64_t gap_ns) const;
  void check() const;

 private:
  struct Shorter {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.rows != b.rows ? a.rows < b.rows : a.order < b.order;
    }
  };
  struct Earlier {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.deadline_ns != b.deadline_ns ? a.deadline_ns < b.deadline_ns : a.order < b.order;
    }
  };
  template <typename Set>
  static const Waiting* behind(const Set& set, const std::optional<Waiting>& last) {
    const auto found = last ? set.upper_bound(*last) : set.begin();
    return found == set.end() ? nullptr : &*found;
  }

  std::set<Waiting, First> first_;
  std::set<Waiting, Shorter> shortest_;
  std::set<Waiting, Earlier> earliest_;  // of these: with a deadline
  std::multiset<int64_t> until_ns_;
};

}  // namespace loralei
