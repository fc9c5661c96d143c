// SPDX-License-Identifier: Apache-2.0
// Admission: the one order in which sequences that wait may join the steps.
//
//   begin(rooms); while (seq = next()) { try; leave(seq) or refused(seq, why); }
//
// Those that wait stand in queues, small requests in the first (sched/size_queues.h);
// with the other policies there is one. In a queue each client has a line
// (sched/waiting_line.h), and the client that has had least of the server is asked first
// (sched/virtual_tokens.h); where clients are not told apart there is one. In its line
// who has the lower priority number is first, then the lower rank, then the older; or for
// a while one that would miss its deadline.
//
//  1. Each queue from the smallest on: its first is asked, and the next, as long as they
//     fit into what is left of the queue's quota.
//  2. Then what is left of all quotas together is offered once more in the same order
//     (Chameleon, Algorithm 1). Not where somebody waits for tokens of its own queue that
//     others have borrowed: lent tokens are not lent anew while their owner waits.
//     Bound: so the first of a queue waits for those of its own queue and those that
//     borrow from it when it becomes the first, and for nobody who comes later.
//  3. Where the rows of a step are used up, the shortest prompts of the queue are asked,
//     of the client whose turn it is: rows go to the shortest remaining prompt first
//     (StepPlanner).
//  4. One that lacks its adapter's place (room that an older load waits for, an upload on
//     its way) is set aside until places have changed. Others pass it: any, or under
//     rooms.bypass only those that will have ended by when it is expected to have its
//     place. Then nobody of its queue goes first for a deadline.
//  5. Where KV or slots are used up, nobody else is asked: nobody is overtaken for them.
//     Bound: who lacks KV or a slot is the next of its queue to get what is given back,
//     but for deadlines and for clients that have had less by then.
//  6. A queue of several of which nobody has begun for longer than its wanted time, while
//     somebody waited, is late. Before anything else the first of each late queue is
//     asked, the one that is overdue longest before the others. So whatever the smaller
//     requests use up (slots, KV, offers), the larger ones have some of it.
//     Bound: let no request of a queue of n take longer than T from admission to its end,
//     and its wanted time be W. Then the last of them waits no longer than n (W + 6 T),
//     but for its adapter's place: to be late, for its own queue's quota, for what was
//     lent (rule 2), for the firsts of three others, and for those that run.
//
// A request that is larger than its queue's whole quota counts as large as that, so each
// is asked some time.
//
// Thread: one. Ownership: of its own lists alone; time is an argument where it matters.
// Cost: a planning asks kOffersMax sequences at most beside those that it sets aside and
// as many that it passes over, and each costs the logarithm of those that wait. So does
// what a client has had: one entry of a queue changes, however many of its requests wait.
// Nobody is asked twice for a place without places_changed() in between.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/ids.h"
#include "sched/size_groups.h"
#include "sched/virtual_tokens.h"
#include "sched/waiting_line.h"

namespace loralei {

enum class Lack : uint8_t { kRows, kMemory, kSlots, kAdapter };

// What the queues may still take, as a planning begins.
struct AdmissionRooms {
  struct Queue {
    int64_t quota = INT64_MAX;
    int64_t taken = 0;
    int64_t wanted_ns = INT64_MAX;  // rule 6
  };
  std::span<const Queue> queues;  // empty: one, which may take everything
  int64_t spare = INT64_MAX;      // of all quotas together; negative where requests became longer than was predicted
  bool bypass = false;            // rule 4
  int64_t now_ns = 0;             // for deadlines, bypass and rule 6
};

class Admission {
 public:
  static constexpr int32_t kOffersMax = 64;
  static constexpr int32_t kQueuesMax = kSizeGroupsMax;

  void arrive(const Waiting& waiting, int64_t served = 0);  // by its client so far
  // A client that waits has had so much by now.
  void set_served(ClientId client, int64_t served);
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
  // Those that would be asked first, in about the order: the first of each client of each
  // queue, the second of each, and so on; of the first kOffersMax clients of a queue.
  // `visit` may ask the same in turn.
  template <typename Visit>
  void for_first(size_t most, const Visit& visit) const {
    Lines lines;
    const size_t count = begin_visit(lines);
    for (bool more = true; more;) {
      more = false;
      for (size_t i = 0; i < count; ++i) {
        auto& [at, end] = lines[i];
        if (at == end) continue;
        if (most-- == 0) return;
        visit((at++)->id);
        more = true;
      }
    }
  }

  size_t size() const { return size_; }
  size_t size(int32_t queue) const { return queues_[static_cast<size_t>(queue)].size; }
  size_t set_aside() const { return aside_.size(); }  // of these
  size_t set_aside(int32_t queue) const { return queues_[static_cast<size_t>(queue)].places_ns.size(); }
  bool has(const Waiting& waiting) const;
  bool empty() const { return size_ == 0; }
  void check() const;

 private:
  enum class Stage : uint8_t { kLate, kQuota, kSpare, kOver };
  using InOrder = std::set<Waiting, WaitingLine::First>;
  using Lines = std::array<std::pair<InOrder::const_iterator, InOrder::const_iterator>, kQueuesMax * kOffersMax>;
  struct Aside {
    Waiting waiting;
    int64_t place_ns = 0;
    bool operator<(const Aside& other) const { return waiting.order < other.waiting.order; }
  };
  struct Client {
    int64_t served = 0;
    InOrder all;
    WaitingLine line;  // those that may be asked: all but those set aside
    // Of a planning: the last that were asked in the line's order, or passed over.
    uint64_t planning = 0;
    std::optional<Waiting> asked_first, asked_shortest;
  };
  enum class Rows : uint8_t { kLeft, kFew, kNone };
  struct Queue {
    std::map<ClientId, Client> clients;        // of which somebody waits here
    std::set<ClientTurn> turns, may_be_asked;  // all of them; those whose lines are not empty
    size_t size = 0;
    std::multiset<int64_t> places_ns;  // of those set aside
    // From one that begins to the next, while somebody waits: a moving average.
    double gap_ns = 0;
    std::optional<int64_t> began_ns;  // the last, if somebody has waited since
    int64_t unserved_ns = 0;          // since then, or since when somebody waits
    // Of the planning:
    int64_t quota = 0, left = 0;
    Rows rows = Rows::kLeft;  // kFew: the shortest are asked
  };
  Queue& queue_of(const Waiting& waiting);
  void put(Queue& queue, const Waiting& waiting);
  void take_out(Queue& queue, const Waiting& waiting);
  const Waiting* first_of(Queue& queue);
  size_t begin_visit(Lines& lines) const;
  void note_begun(Queue& queue);
  bool fits(const Queue& queue, const Waiting& waiting);
  bool waits_for_place(const Queue& queue) const { return bypass_ && !queue.places_ns.empty(); }
  bool may_pass(const Queue& queue, const Waiting& waiting) const;
  void next_queue();
  void find_late(const AdmissionRooms& rooms);

  size_t size_ = 0;
  std::set<Aside> aside_;
  std::array<Queue, kQueuesMax> queues_;

  // Of the planning:
  Stage stage_ = Stage::kOver;
  int32_t count_ = 1, at_ = 0;              // queues, and the one that is asked
  std::array<int32_t, kQueuesMax> late_{};  // queues, in the order in which they are asked
  int32_t late_count_ = 0, late_at_ = 0;
  bool late_asked_ = false;  // the first of this late queue
  bool lent_ = false;        // somebody waits for what others have borrowed
  bool short_ = false;
  bool bypass_ = false, passed_ = false;
  int64_t now_ns_ = 0, spare_ = 0;
  int32_t offers_ = 0, passed_over_ = 0;
  std::optional<Waiting> asked_;
  uint64_t planning_ = 0;
};

}  // namespace loralei
