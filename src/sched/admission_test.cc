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

// The small ones use up what is given back, and have quota left: the large ones' turn
// comes when they are late, before the small ones', but one at a time.
TEST(Admission, TheFirstOfAQueueThatIsLateIsAskedBeforeAllOthers) {
  Admission admission;
  AdmissionRooms::Queue queues[] = {{.quota = 30, .wanted_ns = 50}, {.quota = 40}, {.quota = 50, .wanted_ns = 100}};
  for (uint64_t order = 1; order <= 9; ++order) {
    Waiting one = request(order, order <= 3 ? 0 : order <= 6 ? 1 : 2, 10);
    one.since_ns = 1000;
    admission.arrive(one);
  }
  const auto asked = [&](int64_t now_ns) {
    std::vector<uint64_t> ids;
    admission.begin({.queues = queues, .spare = 120, .now_ns = now_ns});
    while (const auto next = admission.next()) {
      ids.push_back(next->value);
      admission.refused(ids.size() < 3 ? Lack::kAdapter : Lack::kSlots);
    }
    admission.places_changed();
    admission.check();
    return ids;
  };
  EXPECT_EQ(asked(1050), (std::vector<uint64_t>{1, 2, 3})) << "nobody is late yet";
  EXPECT_EQ(asked(1100), (std::vector<uint64_t>{1, 2, 3})) << "the first queue comes first anyway";
  EXPECT_EQ(asked(1101), (std::vector<uint64_t>{1, 7, 2})) << "the first queue is overdue for longer";
  queues[0].wanted_ns = 100'000;
  EXPECT_EQ(asked(1101), (std::vector<uint64_t>{7, 1, 2}));
  admission.begin({.queues = queues, .spare = 120, .now_ns = 1200});
  ASSERT_EQ(admission.next(), SeqId{7});
  Waiting seventh = request(7, 2, 10);
  seventh.since_ns = 1000;
  admission.leave(seventh);
  EXPECT_EQ(admission.next(), SeqId{1});
  admission.refused(Lack::kSlots);
  EXPECT_EQ(asked(1300), (std::vector<uint64_t>{1, 2, 3})) << "one of the last queue began at 1200";
  EXPECT_EQ(asked(1301), (std::vector<uint64_t>{8, 1, 2}));
}

// A server whose slots and KV are short before any quota is, and more small requests than
// it can do, always.
struct ShortServer {
  struct Running {
    Waiting waiting;
    int64_t kv = 0, end_ns = 0;
  };
  Prng random;
  Admission admission;
  std::vector<AdmissionRooms::Queue> queues;
  int64_t longest_ns = 0, kv_left = 0, spare = 0, now_ns = 0;
  size_t slots = 0;
  std::map<uint64_t, Waiting> waiting;
  std::map<uint64_t, int64_t> bound_ns;  // rule 6
  std::vector<Running> running;
  uint64_t order = 0;
  int64_t begun_large = 0;

  explicit ShortServer(uint64_t seed) : random(seed), queues(2 + random.below(3)) {
    longest_ns = 5 + below(30);
    slots = 1 + random.below(6);
    kv_left = 40 + below(200);
    for (auto& queue : queues) {
      queue.quota = 40 + below(1000);
      queue.wanted_ns = 20 + below(100);
      spare += queue.quota;
    }
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(limit))); }
  int32_t large() const { return static_cast<int32_t>(queues.size()) - 1; }
  AdmissionRooms::Queue& queue_of(const Waiting& one) { return queues[static_cast<size_t>(one.queue)]; }
  void arrive(int32_t queue) {
    Waiting one = request(++order, queue, 1 + below(queue == 0 ? 4 : 40));
    one.since_ns = now_ns;
    admission.arrive(one);
    waiting[order] = one;
    bound_ns[order] = static_cast<int64_t>(admission.size(queue)) * (queue_of(one).wanted_ns + 6 * longest_ns);
  }
  void end_some() {
    for (const Running& one : running) {
      if (one.end_ns > now_ns) continue;
      kv_left += one.kv;
      spare += one.waiting.tokens;
      queue_of(one.waiting).taken -= one.waiting.tokens;
    }
    std::erase_if(running, [&](const Running& one) { return one.end_ns <= now_ns; });
  }
  void plan() {
    admission.begin({.queues = queues, .spare = spare, .now_ns = now_ns});
    while (const auto next = admission.next()) {
      const Waiting one = waiting.at(next->value);
      if (running.size() == slots || one.tokens > kv_left) {
        admission.refused(running.size() == slots ? Lack::kSlots : Lack::kMemory);
        continue;
      }
      admission.leave(one);
      waiting.erase(next->value);
      kv_left -= one.tokens;
      spare -= one.tokens;
      queue_of(one).taken += one.tokens;
      running.push_back({one, one.tokens, now_ns + 1 + below(longest_ns)});
      begun_large += one.queue == large() ? 1 : 0;
    }
  }
  void step() {
    ++now_ns;
    end_some();
    while (admission.size(0) < 80) arrive(0);
    for (int32_t queue = 1; queue <= large(); ++queue)
      if (admission.size(queue) < 3 && random.below(20) == 0) arrive(queue);
    plan();
  }
};

TEST(Admission, WhateverIsShortNobodyWaitsLongerThanTheBound) {
  double closest = 0;  // of all waits of the largest to their bounds
  int64_t begun_large = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ShortServer server(seed);
    for (int step = 0; step < 3000; ++step) {
      server.step();
      for (const auto& [id, one] : server.waiting) {
        const double part =
            static_cast<double>(server.now_ns - one.since_ns) / static_cast<double>(server.bound_ns.at(id));
        ASSERT_LE(part, 1) << "queue " << one.queue;
        if (one.queue == server.large()) closest = std::max(closest, part);
      }
    }
    begun_large += server.begun_large;
  }
  EXPECT_GT(begun_large, 600);
  EXPECT_GT(closest, 0.1) << "the bound says something";
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
