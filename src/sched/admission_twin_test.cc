// SPDX-License-Identifier: Apache-2.0
// Admission's whole order against a list that is searched from end to end: its rules are
// said once more here, as plainly as they can be.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sched/admission.h"

namespace loralei {
namespace {

class Twin {
 public:
  std::vector<Waiting> waiting;
  std::map<uint64_t, int64_t> aside;  // by order: when it is expected to have its place
  std::map<ClientId, int64_t> served;

  void arrive(const Waiting& one) {
    const bool alone =
        std::none_of(waiting.begin(), waiting.end(), [&](const Waiting& other) { return other.queue == one.queue; });
    if (alone) unserved_ns_[one.queue] = one.since_ns;
    waiting.push_back(one);
  }
  void begin(const AdmissionRooms& rooms) {
    rooms_ = rooms;
    queues_.assign(rooms.queues.begin(), rooms.queues.end());
    rows_.assign(queues_.size(), 0);
    passed_first_.clear();
    passed_shortest_.clear();
    again_ = over_ = lent_ = began_quotas_ = false;
    at_ = 0;
    offers_ = passed_over_ = 0;
    spare_ = rooms.spare;
    late_.clear();
    for (size_t at = 0; at < queues_.size() && queues_.size() > 1; ++at) {
      const int64_t overdue_ns = rooms.now_ns - unserved_ns_[static_cast<int32_t>(at)] - queues_[at].wanted_ns;
      const bool somebody = std::any_of(waiting.begin(), waiting.end(),
                                        [&](const Waiting& one) { return static_cast<size_t>(one.queue) == at; });
      if (somebody && overdue_ns > 0) late_.push_back({-overdue_ns, at});
    }
    std::sort(late_.rbegin(), late_.rend());  // the last goes first
  }
  const Waiting* next() {
    while (!late_.empty()) {
      at_ = late_.back().second;
      late_.pop_back();
      const Waiting* const one = first();
      if (one != nullptr && fits(*one) && may_pass(*one)) {
        ++offers_;
        return one;
      }
    }
    if (!std::exchange(began_quotas_, true)) at_ = 0;
    while (!over_ && offers_ < Admission::kOffersMax) {
      const Waiting* const one = first();
      if (one == nullptr || !fits(*one)) {
        next_queue();
      } else if (!may_pass(*one)) {
        (rows_[at_] == 0 ? passed_first_ : passed_shortest_).insert(one->order);
        over_ = ++passed_over_ == Admission::kOffersMax;
      } else {
        ++offers_;
        return one;
      }
    }
    return nullptr;
  }
  void left(const Waiting& one) {
    queues_[at_].taken += std::min(one.tokens, queues_[at_].quota);
    spare_ -= one.tokens;
    unserved_ns_[one.queue] = rooms_.now_ns;
  }
  void refused(const Waiting& one, Lack lack, int64_t place_ns) {
    if (lack == Lack::kMemory || lack == Lack::kSlots) {
      over_ = true;
      late_.clear();
    }
    if (lack == Lack::kAdapter) {
      aside[one.order] = place_ns;
      --offers_;
    }
    if (lack != Lack::kRows) return;
    rows_[at_] = rows_[at_] == 0 && !again_ ? 1 : 2;
    if (rows_[at_] == 2) next_queue();
  }

 private:
  // 0: there are rows; 1: the shortest are asked; 2: nobody of this queue.
  const Waiting* first() const {
    if (rows_[at_] == 2) return nullptr;
    const Waiting* best = nullptr;
    const auto before = [&](const Waiting& a, const Waiting& b) {
      const auto x = std::pair(served.at(a.client), a.client), y = std::pair(served.at(b.client), b.client);
      if (x != y) return x < y;
      if (rows_[at_] == 1) return std::pair(a.rows, a.order) < std::pair(b.rows, b.order);
      return std::tuple(a.priority, a.rank, a.order) < std::tuple(b.priority, b.rank, b.order);
    };
    for (const Waiting& one : waiting) {
      const bool passed = (rows_[at_] == 0 ? passed_first_ : passed_shortest_).count(one.order) != 0;
      if (static_cast<size_t>(one.queue) != at_ || aside.count(one.order) != 0 || passed) continue;
      if (best == nullptr || before(one, *best)) best = &one;
    }
    return best;
  }
  bool fits(const Waiting& one) {
    const int64_t need = std::min(one.tokens, queues_[at_].quota);
    if (again_) return need <= spare_;
    const bool own = need <= queues_[at_].quota - queues_[at_].taken;
    lent_ = lent_ || (own && need > spare_);
    return own && need <= spare_;
  }
  bool may_pass(const Waiting& one) const {
    int64_t place_ns = INT64_MAX;
    for (const Waiting& other : waiting)
      if (other.queue == one.queue && aside.count(other.order) != 0)
        place_ns = std::min(place_ns, aside.at(other.order));
    return !rooms_.bypass || place_ns == INT64_MAX || one.run_ns <= place_ns - rooms_.now_ns;
  }
  void next_queue() {
    if (++at_ < queues_.size()) return;
    at_ = 0;
    over_ = again_ || queues_.size() == 1 || lent_;
    again_ = true;
  }

  AdmissionRooms rooms_;
  std::vector<AdmissionRooms::Queue> queues_;
  std::vector<int> rows_;
  std::set<uint64_t> passed_first_, passed_shortest_;
  std::map<int32_t, int64_t> unserved_ns_;
  std::vector<std::pair<int64_t, size_t>> late_;
  bool began_quotas_ = false;
  bool again_ = false, over_ = true, lent_ = false;
  size_t at_ = 0;
  int32_t offers_ = 0, passed_over_ = 0;
  int64_t spare_ = 0;
};

Waiting some_request(uint64_t order, size_t queues, int64_t now_ns, Prng& random) {
  Waiting waiting{.id = SeqId{order * 3 + 1}, .order = order, .rows = 1 + static_cast<int32_t>(random.below(9))};
  waiting.priority = static_cast<int32_t>(random.below(2));
  waiting.rank = static_cast<double>(random.below(4));
  waiting.queue = static_cast<int32_t>(random.below(queues));
  waiting.tokens = 1 + static_cast<int64_t>(random.below(40));
  waiting.run_ns = static_cast<int64_t>(random.below(600));
  waiting.client = ClientId{random.below(3)};
  waiting.since_ns = now_ns;
  return waiting;
}

// Everybody is asked until nobody is left to ask, with fates at random.
void plan(Admission& admission, Twin& twin, int64_t now_ns, Prng& random) {
  while (const auto next = admission.next()) {
    const Waiting* const expected = twin.next();
    ASSERT_TRUE(expected != nullptr && expected->id == *next);
    const Waiting asked = *expected;
    const uint64_t fate = random.below(20);
    if (fate < 12) {
      admission.leave(asked);
      twin.left(asked);
      std::erase_if(twin.waiting, [&](const Waiting& one) { return one.order == asked.order; });
      twin.served[asked.client] += static_cast<int64_t>(random.below(3));
      admission.set_served(asked.client, twin.served[asked.client]);
      continue;
    }
    const Lack lack = fate < 15 ? Lack::kAdapter : fate < 18 ? Lack::kRows : fate < 19 ? Lack::kMemory : Lack::kSlots;
    const int64_t place_ns = random.below(4) == 0 ? INT64_MAX : now_ns + static_cast<int64_t>(random.below(800));
    admission.refused(lack, place_ns);
    twin.refused(asked, lack, place_ns);
  }
  ASSERT_EQ(twin.next(), nullptr);
}

TEST(AdmissionTwin, AsksTheSameInTheSameOrder) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Admission admission;
    Twin twin;
    for (uint64_t client = 0; client < 3; ++client) twin.served[ClientId{client}] = 0;
    std::vector<AdmissionRooms::Queue> queues(1 + random.below(4));
    uint64_t order = 0;
    int64_t now_ns = 1000;
    for (int round = 0; round < 60; ++round, now_ns += static_cast<int64_t>(random.below(50))) {
      for (auto count = random.below(12); count > 0; --count) {
        const Waiting one = some_request(++order, queues.size(), now_ns, random);
        twin.arrive(one);
        admission.arrive(one, twin.served[one.client]);
      }
      if (!twin.waiting.empty() && random.below(3) == 0) {
        const auto index = static_cast<int64_t>(random.below(twin.waiting.size()));
        admission.leave(twin.waiting[static_cast<size_t>(index)]);
        twin.aside.erase(twin.waiting[static_cast<size_t>(index)].order);
        twin.waiting.erase(twin.waiting.begin() + index);
      }
      if (random.below(3) == 0) {
        admission.places_changed();
        twin.aside.clear();
      }
      int64_t total = 0, taken = 0;
      for (auto& queue : queues) {
        queue = {.quota = static_cast<int64_t>(random.below(80)),
                 .taken = static_cast<int64_t>(random.below(80)),
                 .wanted_ns = random.below(3) == 0 ? INT64_MAX : static_cast<int64_t>(random.below(300))};
        total += queue.quota;
        taken += queue.taken;
      }
      const AdmissionRooms rooms{
          .queues = queues, .spare = total - taken, .bypass = random.below(2) == 0, .now_ns = now_ns};
      admission.begin(rooms);
      twin.begin(rooms);
      plan(admission, twin, now_ns, random);
      ASSERT_FALSE(HasFatalFailure());
      admission.check();
      ASSERT_EQ(admission.size(), twin.waiting.size());
      ASSERT_EQ(admission.set_aside(), twin.aside.size());
    }
  }
}

}  // namespace
}  // namespace loralei
