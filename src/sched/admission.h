// SPDX-License-Identifier: Apache-2.0
// Admission: the one order in which sequences that wait may join the steps.
//
//   begin(rooms); while (seq = next()) { try; leave(seq) or refused(seq, why); }
//
// Those that wait stand in queues, small requests in the first (sched/size_queues.h);
// with the other policies there is one. In a queue who has the lower priority number is first,
// then the lower rank, then the older.
//
//  1. Each queue from the smallest on: its first is asked, and the next, as long as they
//     fit into what is left of the queue's quota.
//  2. Then what is left of all quotas together is offered once more in the same order
//     (Chameleon, Algorithm 1). Not where somebody waits for tokens of its own queue that
//     others have borrowed: lent tokens are not lent anew while their owner waits.
//     Bound: so the first of a queue waits for those of its own queue and those that
//     borrow from it when it becomes the first, and for nobody who comes later.
//  3. Where the rows of a step are used up, the shortest prompts of the queue are asked:
//     rows go to the shortest remaining prompt first (StepPlanner).
//  4. One that lacks its adapter's place (room that an older load waits for, an upload on
//     its way) is set aside until places have changed. Others pass it: any, or under
//     rooms.bypass only those that will have ended by when it is expected to have its
//     place.
//  5. Where KV or slots are used up, nobody else is asked: nobody is overtaken for them.
//     Bound: who lacks KV or a slot is the next to get what is given back.
//
// A request that is larger than its queue's whole quota counts as large as that, so each
// is asked some time.
//
// Thread: one. Ownership: of its own lists alone; time is an argument where it matters.
// Cost: a planning asks kOffersMax sequences at most beside those that it sets aside and
// as many that it passes over, and each costs the logarithm of those that wait. Nobody is
// asked twice for a place without places_changed() in between.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>

#include "base/ids.h"
#include "sched/size_groups.h"

namespace loralei {

struct Waiting {
  SeqId id;
  uint64_t order = 0;  // of arrival, unique
  int32_t rows = 0;    // left to compute, as far as known: its text less the prefix that was cached
  int32_t priority = 0;
  double rank = 0;  // in its queue; 0: by age
  int32_t queue = 0;
  int64_t tokens = 0;  // of its queue's quota
  int64_t run_ns = 0;  // from admission to its end, as predicted
};

enum class Lack : uint8_t { kRows, kMemory, kSlots, kAdapter };

// What the queues may still take, as a planning begins.
struct AdmissionRooms {
  struct Queue {
    int64_t quota = INT64_MAX;
    int64_t taken = 0;
  };
  std::span<const Queue> queues;  // empty: one, which may take everything
  int64_t spare = INT64_MAX;      // of all quotas together; negative where requests became longer than was predicted
  bool bypass = false;            // rule 4
  int64_t now_ns = 0;             // where there is bypass
};

class Admission {
 public:
  static constexpr int32_t kOffersMax = 64;
  static constexpr int32_t kQueuesMax = kSizeGroupsMax;

  void arrive(const Waiting& waiting);
  void leave(const Waiting& waiting);  // as it arrived

  void begin(const AdmissionRooms& rooms = {});
  std::optional<SeqId> next();
  // Of the last that next() gave; one that is not refused leaves before next() is called.
  // kAdapter: it is expected to have its place at place_ns.
  void refused(Lack lack, int64_t place_ns = INT64_MAX);
  // next() gave the last because that is younger than one that was set aside, and rule 4
  // let it pass.
  bool passed() const { return passed_; }
  // Somebody was not asked because its queue, or all of them together, have taken what
  // they may.
  bool short_of_quota() const { return short_; }
  // Adapters have other places than before: those set aside are asked again, from the
  // next planning on.
  void places_changed();
  // The queues are others: `place` gives everybody its own (queue, tokens, rank).
  void lay_out(const std::function<void(Waiting&)>& place);
  // Those that would be asked first, in about the order: the first of each queue, the
  // second of each, and so on.
  template <typename Visit>
  void for_first(size_t most, const Visit& visit) const {
    std::array<std::set<Waiting, First>::const_iterator, kQueuesMax> at;
    for (size_t queue = 0; queue < kQueuesMax; ++queue) at[queue] = in_order_[queue].begin();
    for (bool more = true; more;) {
      more = false;
      for (size_t queue = 0; queue < kQueuesMax; ++queue) {
        if (at[queue] == in_order_[queue].end()) continue;
        if (most-- == 0) return;
        visit((at[queue]++)->id);
        more = true;
      }
    }
  }

  size_t size() const { return size_; }
  size_t size(int32_t queue) const { return in_order_[static_cast<size_t>(queue)].size(); }
  size_t set_aside() const { return aside_.size(); }  // of these
  size_t set_aside(int32_t queue) const { return queues_[static_cast<size_t>(queue)].places_ns.size(); }
  bool has(const Waiting& waiting) const { return in_order_[static_cast<size_t>(waiting.queue)].count(waiting) != 0; }
  bool empty() const { return size_ == 0; }
  void check() const;

 private:
  enum class Stage : uint8_t { kQuota, kSpare, kOver };
  struct First {
    bool operator()(const Waiting& a, const Waiting& b) const {
      if (a.priority != b.priority) return a.priority < b.priority;
      return a.rank != b.rank ? a.rank < b.rank : a.order < b.order;
    }
  };
  struct Shorter {
    bool operator()(const Waiting& a, const Waiting& b) const {
      return a.rows != b.rows ? a.rows < b.rows : a.order < b.order;
    }
  };
  struct Older {
    bool operator()(const Waiting& a, const Waiting& b) const { return a.order < b.order; }
  };
  struct Aside {
    Waiting waiting;
    int64_t place_ns = 0;
    bool operator<(const Aside& other) const { return waiting.order < other.waiting.order; }
  };
  // Those that may be asked: all but those set aside.
  struct Queue {
    std::set<Waiting, First> first;
    std::set<Waiting, Shorter> shortest;
    std::multiset<int64_t> places_ns;  // of those set aside
    // Of the planning:
    int64_t quota = 0, left = 0;
    bool no_rows = false;
    std::optional<Waiting> asked_first, asked_shortest;  // the last
  };
  template <typename Set>
  static const Waiting* behind(const Set& set, const std::optional<Waiting>& last);
  bool fits(const Queue& queue, const Waiting& waiting);
  bool may_pass(const Queue& queue, const Waiting& waiting) const;
  void put(const Waiting& waiting);
  void next_queue();

  std::array<std::set<Waiting, First>, kQueuesMax> in_order_;  // all
  size_t size_ = 0;
  std::set<Aside> aside_;
  std::array<Queue, kQueuesMax> queues_;

  // Of the planning:
  Stage stage_ = Stage::kOver;
  int32_t count_ = 1, at_ = 0;  // queues, and the one that is asked
  bool by_rows_ = false;        // the shortest of it
  bool lent_ = false;           // somebody waits for what others have borrowed
  bool short_ = false;
  bool bypass_ = false, passed_ = false;
  int64_t now_ns_ = 0, spare_ = 0;
  int32_t offers_ = 0, passed_over_ = 0;
  std::optional<Waiting> asked_;
};

}  // namespace loralei
