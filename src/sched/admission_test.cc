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
  admission.for_oldest(3, [&](SeqId id) { oldest.push_back(id.value); });
  EXPECT_EQ(oldest, (std::vector<uint64_t>{1, 3, 4})) << "they are the oldest all the same";
  EXPECT_EQ(all_asked(admission, Lack::kRows), (std::vector<uint64_t>{5, 5}));
  admission.check();
  admission.places_changed();
  EXPECT_EQ(admission.set_aside(), 0u);
  EXPECT_EQ(all_asked(admission, Lack::kAdapter), (std::vector<uint64_t>{1, 3, 4, 5}));
  admission.check();
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
