// SPDX-License-Identifier: Apache-2.0
#include "sched/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

std::vector<uint64_t> all_asked(Admission& admission, Lack always) {
  std::vector<uint64_t> asked;
  admission.begin();
  while (const auto next = admission.next()) {
    asked.push_back(next->value);
    admission.refused(always);
  }
  return asked;
}

TEST(Admission, TheOldestIsAskedFirstAndForMemoryNobodyElse) {
  Admission admission;
  admission.arrive({SeqId{7}, 3, 10});
  admission.arrive({SeqId{8}, 1, 1000});
  admission.arrive({SeqId{9}, 2, 5});
  EXPECT_EQ(all_asked(admission, Lack::kMemory), (std::vector<uint64_t>{8}));
  EXPECT_EQ(all_asked(admission, Lack::kSlots), (std::vector<uint64_t>{8}));
  admission.begin();
  EXPECT_EQ(admission.next(), SeqId{8});
  admission.leave({SeqId{8}, 1, 1000});
  EXPECT_EQ(admission.next(), SeqId{9}) << "once it was admitted the next oldest";
}

TEST(Admission, WhereRowsAreUsedUpTheShortestIsAsked) {
  Admission admission;
  admission.arrive({SeqId{1}, 1, 1000});
  admission.arrive({SeqId{2}, 2, 900});
  admission.arrive({SeqId{3}, 3, 20});
  admission.arrive({SeqId{4}, 4, 10});
  admission.begin();
  EXPECT_EQ(admission.next(), SeqId{1});
  admission.refused(Lack::kRows);
  EXPECT_EQ(admission.next(), SeqId{4});
  admission.leave({SeqId{4}, 4, 10});
  EXPECT_EQ(admission.next(), SeqId{3});
  admission.refused(Lack::kRows);
  EXPECT_EQ(admission.next(), std::nullopt) << "longer ones get none, either";
  EXPECT_EQ(all_asked(admission, Lack::kRows), (std::vector<uint64_t>{1, 3}));
}

TEST(Admission, APlanningAsksABoundedNumber) {
  Admission admission;
  for (uint64_t id = 1; id <= 1000; ++id) admission.arrive({SeqId{id}, id, 1});
  admission.begin();
  uint64_t asked = 0;
  while (const auto next = admission.next()) {
    EXPECT_EQ(next->value, ++asked);
    admission.leave({*next, next->value, 1});
  }
  EXPECT_EQ(asked, static_cast<uint64_t>(Admission::kOffersMax));
}

TEST(Admission, HoweverManyAreSetAsideThoseBehindThemAreAsked) {
  Admission admission;
  for (uint64_t id = 1; id <= 1000; ++id) admission.arrive({SeqId{id}, id, 1});
  admission.begin();
  for (uint64_t id = 1; id < 1000; ++id) {
    ASSERT_EQ(admission.next(), SeqId{id});
    admission.refused(Lack::kAdapter);
  }
  EXPECT_EQ(admission.next(), SeqId{1000});
}

TEST(Admission, WhoIsSetAsideIsAskedAgainWhenPlacesHaveChanged) {
  Admission admission;
  for (uint64_t id = 1; id <= 4; ++id) admission.arrive({SeqId{id}, id, static_cast<int32_t>(10 - id)});
  EXPECT_EQ(all_asked(admission, Lack::kAdapter), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(all_asked(admission, Lack::kAdapter), (std::vector<uint64_t>{})) << "nothing has changed";
  EXPECT_EQ(admission.set_aside(), 4u);
  admission.leave({SeqId{2}, 2, 8});
  admission.arrive({SeqId{5}, 5, 1});
  std::vector<uint64_t> oldest;
  admission.for_first(3, [&](SeqId id) { oldest.push_back(id.value); });
  EXPECT_EQ(oldest, (std::vector<uint64_t>{1, 3, 4})) << "they are the oldest all the same";
  EXPECT_EQ(all_asked(admission, Lack::kRows), (std::vector<uint64_t>{5, 5}));
  admission.check();
  admission.places_changed();
  EXPECT_EQ(admission.set_aside(), 0u);
  EXPECT_EQ(all_asked(admission, Lack::kAdapter), (std::vector<uint64_t>{1, 3, 4, 5}));
  admission.check();
}

// Three queues as in Figure 9 of the paper: quotas 30, 40 and 50.
constexpr AdmissionRooms::Queue kQuotas[] = {{.quota = 30}, {.quota = 40}, {.quota = 50}};

Waiting request(uint64_t order, int32_t queue, int64_t tokens) {
  return {.id = SeqId{order}, .order = order, .rows = static_cast<int32_t>(tokens), .queue = queue, .tokens = tokens};
}

// Whoever is asked is admitted.
std::vector<uint64_t> all_admitted(Admission& admission, std::vector<Waiting>& waiting, const AdmissionRooms& rooms) {
  std::vector<uint64_t> admitted;
  admission.begin(rooms);
  while (const auto next = admission.next()) {
    admitted.push_back(next->value);
    const auto found =
        std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& one) { return one.id == *next; });
    admission.leave(*found);
    waiting.erase(found);
  }
  admission.check();
  return admitted;
}

TEST(Admission, EachQueueHasItsQuotaSmallRequestsFirst) {
  Admission admission;
  std::vector<Waiting> waiting = {request(1, 2, 50), request(2, 2, 50), request(3, 1, 20),
                                  request(4, 1, 20), request(5, 1, 20), request(6, 0, 10),
                                  request(7, 0, 10), request(8, 0, 10), request(9, 0, 10)};
  for (const Waiting& one : waiting) admission.arrive(one);
  EXPECT_EQ(all_admitted(admission, waiting, {.queues = kQuotas, .spare = 120}),
            (std::vector<uint64_t>{6, 7, 8, 3, 4, 1}));
}

TEST(Admission, WhatIsSpareIsOfferedOnceMoreSmallRequestsFirst) {
  Admission admission;
  std::vector<Waiting> waiting = {request(1, 2, 50), request(2, 2, 50), request(6, 0, 10), request(7, 0, 10),
                                  request(8, 0, 10), request(9, 0, 10), request(10, 0, 10)};
  for (const Waiting& one : waiting) admission.arrive(one);
  EXPECT_EQ(all_admitted(admission, waiting, {.queues = kQuotas, .spare = 120}),
            (std::vector<uint64_t>{6, 7, 8, 1, 9, 10}))
      << "of the 40 of the second queue; 20 are left, too few for another large one";
}

TEST(Admission, LentTokensAreNotLentAnewWhileTheirOwnerWaits) {
  Admission admission;
  std::vector<Waiting> waiting = {request(1, 2, 50), request(2, 0, 10), request(3, 0, 10)};
  for (const Waiting& one : waiting) admission.arrive(one);
  // The first queue has borrowed 70 beside its own 30; 20 are left.
  const AdmissionRooms::Queue borrowed[] = {{.quota = 30, .taken = 100}, {.quota = 40}, {.quota = 50}};
  EXPECT_EQ(all_admitted(admission, waiting, {.queues = borrowed, .spare = 20}), std::vector<uint64_t>{});
  const AdmissionRooms::Queue given_back[] = {{.quota = 30, .taken = 70}, {.quota = 40}, {.quota = 50}};
  EXPECT_EQ(all_admitted(admission, waiting, {.queues = given_back, .spare = 50}), std::vector<uint64_t>{1});
}

TEST(Admission, WhoIsLargerThanItsQueuesQuotaIsAskedAllTheSame) {
  Admission admission;
  std::vector<Waiting> waiting = {request(1, 0, 1000), request(2, 2, 1000)};
  for (const Waiting& one : waiting) admission.arrive(one);
  EXPECT_EQ(all_admitted(admission, waiting, {.queues = kQuotas, .spare = 120}), std::vector<uint64_t>{1})
      << "it takes more than there is: nobody else";
  EXPECT_EQ(all_admitted(admission, waiting, {.queues = kQuotas, .spare = 120}), std::vector<uint64_t>{2});
}

TEST(Admission, PriorityComesBeforeRankAndRankBeforeAge) {
  Admission admission;
  std::vector<Waiting> waiting = {{.id = SeqId{1}, .order = 1, .rows = 1, .rank = 5},
                                  {.id = SeqId{2}, .order = 2, .rows = 1, .rank = 3},
                                  {.id = SeqId{3}, .order = 3, .rows = 1, .rank = 5},
                                  {.id = SeqId{4}, .order = 4, .rows = 1, .priority = 1, .rank = 0},
                                  {.id = SeqId{5}, .order = 5, .rows = 1, .priority = -1, .rank = 9}};
  for (const Waiting& one : waiting) admission.arrive(one);
  EXPECT_EQ(all_admitted(admission, waiting, {}), (std::vector<uint64_t>{5, 2, 1, 3, 4}));
}

TEST(Admission, OnlyThoseThatWillHaveEndedPassOneThatWaitsForItsPlace) {
  Admission admission;
  std::vector<Waiting> waiting = {{.id = SeqId{1}, .order = 1, .rows = 1, .run_ns = 1},
                                  {.id = SeqId{2}, .order = 2, .rows = 1, .run_ns = 600},
                                  {.id = SeqId{3}, .order = 3, .rows = 1, .run_ns = 500},
                                  {.id = SeqId{4}, .order = 4, .rows = 1, .run_ns = 400}};
  for (const Waiting& one : waiting) admission.arrive(one);
  admission.begin({.bypass = true, .now_ns = 1000});
  ASSERT_EQ(admission.next(), SeqId{1});
  EXPECT_FALSE(admission.passed());
  admission.refused(Lack::kAdapter, 1500);
  ASSERT_EQ(admission.next(), SeqId{3});
  EXPECT_TRUE(admission.passed());
  admission.leave(waiting[2]);
  ASSERT_EQ(admission.next(), SeqId{4});
  admission.refused(Lack::kAdapter, 1300);
  EXPECT_EQ(admission.next(), std::nullopt);
  admission.begin({.bypass = true, .now_ns = 1000});  // and in later plannings
  EXPECT_EQ(admission.next(), std::nullopt);
  admission.begin({.bypass = false});
  EXPECT_EQ(admission.next(), SeqId{2});
  admission.check();
  admission.places_changed();
  admission.begin({.bypass = true, .now_ns = 1000});
  EXPECT_EQ(admission.next(), SeqId{1});
  admission.check();
}

Waiting of_client(uint64_t order, uint64_t client, int32_t queue = 0) {
  Waiting waiting = request(order, queue, 10);
  waiting.client = ClientId{client};
  return waiting;
}

TEST(Admission, TheClientThatHasHadLeastIsAskedFirst) {
  Admission admission;
  for (const uint64_t order : {1, 2, 3}) admission.arrive(of_client(order, 7), 30);
  for (const uint64_t order : {4, 5}) admission.arrive(of_client(order, 8), 10);
  std::vector<uint64_t> first;
  admission.for_first(4, [&](SeqId id) { first.push_back(id.value); });
  EXPECT_EQ(first, (std::vector<uint64_t>{4, 1, 5, 2}));
  admission.begin();
  ASSERT_EQ(admission.next(), SeqId{4});
  admission.leave(of_client(4, 8));
  admission.set_served(ClientId{8}, 40);
  ASSERT_EQ(admission.next(), SeqId{1});
  admission.leave(of_client(1, 7));
  admission.set_served(ClientId{7}, 35);
  ASSERT_EQ(admission.next(), SeqId{2});
  admission.refused(Lack::kMemory);
  EXPECT_EQ(admission.next(), std::nullopt) << "nobody of another client, either";
  admission.check();
}

TEST(Admission, TheShortestIsThatOfTheClientWhoseTurnItIs) {
  Admission admission;
  std::vector<Waiting> waiting = {of_client(1, 7), of_client(2, 7), of_client(3, 8)};
  waiting[0].rows = 100;
  waiting[1].rows = 50;
  waiting[2].rows = 1;
  for (const Waiting& one : waiting) admission.arrive(one, one.client == ClientId{7} ? 0 : 1);
  EXPECT_EQ(all_asked(admission, Lack::kRows), (std::vector<uint64_t>{1, 2}));
}

TEST(Admission, ClientsKeepTheirTurnsWhereTheQueuesAreLaidOutAnew) {
  Admission admission;
  admission.arrive(of_client(1, 7), 30);
  admission.arrive(of_client(2, 8), 10);
  admission.lay_out([](Waiting& waiting) { waiting.queue = 1; });
  admission.check();
  admission.set_served(ClientId{7}, 5);
  std::vector<uint64_t> asked;
  admission.begin({.queues = kQuotas, .spare = 120});
  while (const auto next = admission.next()) {
    asked.push_back(next->value);
    admission.refused(Lack::kAdapter);
  }
  EXPECT_EQ(asked, (std::vector<uint64_t>{1, 2}));
  admission.set_served(ClientId{7}, 50);
  admission.places_changed();
  admission.check();
  admission.begin({.queues = kQuotas, .spare = 120});
  EXPECT_EQ(admission.next(), SeqId{2}) << "what a client has had counts while all of its requests are set aside, too";
}

// Whatever the quotas: nobody takes more than there is, the order in a queue is kept, and
// whoever is left does not fit.
TEST(Admission, QuotasAreKeptAndNothingThatFitsIsLeft) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Admission admission;
    std::vector<Waiting> waiting;
    std::vector<AdmissionRooms::Queue> queues(1 + random.below(4));
    int64_t total = 0, taken = 0;
    for (auto& queue : queues) {
      queue.quota = static_cast<int64_t>(random.below(100));
      total += queue.quota;
    }
    for (auto& queue : queues) {
      queue.taken = static_cast<int64_t>(random.below(static_cast<uint64_t>(std::max<int64_t>(1, total - taken))));
      taken += queue.taken;
    }
    const auto count = random.below(30);
    for (uint64_t order = 1; order <= count; ++order) {
      waiting.push_back(request(order, static_cast<int32_t>(random.below(queues.size())),
                                1 + static_cast<int64_t>(random.below(60))));
      admission.arrive(waiting.back());
    }
    const std::vector<Waiting> before = waiting;
    const auto asked = all_admitted(admission, waiting, {.queues = queues, .spare = total - taken});
    int64_t spare = total - taken;
    std::vector<int64_t> left;
    for (const auto& queue : queues) left.push_back(queue.quota - queue.taken);
    bool again = false, lent = false;
    int32_t at = 0;
    std::vector<uint64_t> last(queues.size());
    for (const uint64_t order : asked) {
      const Waiting& one = before[order - 1];
      const auto queue = static_cast<size_t>(one.queue);
      if (one.queue < at) {
        ASSERT_FALSE(again) << "the queues are gone through twice at most";
        again = true;
      }
      at = one.queue;
      ASSERT_GT(order, last[queue]) << "the older first";
      last[queue] = order;
      const int64_t need = std::min(one.tokens, queues[queue].quota);
      ASSERT_LE(need, spare);
      if (need > left[queue]) again = true;
      left[queue] -= need;
      spare -= one.tokens;
    }
    for (size_t queue = 0; queue < queues.size(); ++queue) {
      const auto first = std::find_if(waiting.begin(), waiting.end(),
                                      [&](const Waiting& one) { return static_cast<size_t>(one.queue) == queue; });
      if (first == waiting.end()) continue;
      const int64_t need = std::min(first->tokens, queues[queue].quota);
      ASSERT_TRUE(need > left[queue] || need > spare) << "of its own quota";
      lent = lent || (need <= left[queue] && need > spare);
    }
    if (lent || queues.size() == 1) continue;
    for (const Waiting& one : waiting) {
      const bool is_first = std::none_of(waiting.begin(), waiting.end(), [&](const Waiting& other) {
        return other.queue == one.queue && other.order < one.order;
      });
      ASSERT_TRUE(!is_first || std::min(one.tokens, queues[static_cast<size_t>(one.queue)].quota) > spare);
    }
  }
}

// Against a list that is searched from end to end.
TEST(Admission, AgreesWithANaiveTwin) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    Admission admission;
    std::vector<Waiting> twin, aside;
    uint64_t next_id = 1;
    for (int round = 0; round < 200; ++round) {
      for (uint64_t arrivals = random.below(4); arrivals > 0; --arrivals, ++next_id) {
        const Waiting waiting{SeqId{1000 - next_id % 7 + next_id * 8}, next_id,
                              1 + static_cast<int32_t>(random.below(9))};
        admission.arrive(waiting);
        twin.push_back(waiting);
      }
      if (!twin.empty() && random.below(3) == 0) {
        const auto index = static_cast<int64_t>(random.below(twin.size()));
        admission.leave(twin[static_cast<size_t>(index)]);
        twin.erase(twin.begin() + index);
      }
      const auto by_order = [](const Waiting& a, const Waiting& b) { return a.order < b.order; };
      const auto by_rows = [](const Waiting& a, const Waiting& b) {
        return a.rows != b.rows ? a.rows < b.rows : a.order < b.order;
      };
      if (!aside.empty() && random.below(4) == 0) {
        admission.places_changed();
        twin.insert(twin.end(), aside.begin(), aside.end());
        aside.clear();
      }
      if (!aside.empty() && random.below(4) == 0) {
        admission.leave(aside.back());
        aside.pop_back();
      }
      admission.begin();
      bool shortest = false;
      while (const auto next = admission.next()) {
        const auto expected = shortest ? std::min_element(twin.begin(), twin.end(), by_rows)
                                       : std::min_element(twin.begin(), twin.end(), by_order);
        ASSERT_EQ(*next, expected->id);
        const uint64_t fate = random.below(6);
        if (fate < 3) {
          admission.leave(*expected);
          twin.erase(expected);
        } else if (fate == 5) {
          admission.refused(Lack::kAdapter);
          aside.push_back(*expected);
          twin.erase(expected);
        } else if (fate == 3 && !shortest) {
          admission.refused(Lack::kRows);
          shortest = true;
        } else {
          admission.refused(fate == 3 ? Lack::kRows : Lack::kMemory);
          ASSERT_EQ(admission.next(), std::nullopt);
          break;
        }
      }
      admission.check();
      ASSERT_EQ(admission.size(), twin.size() + aside.size());
    }
  }
}

}  // namespace
}  // namespace loralei
