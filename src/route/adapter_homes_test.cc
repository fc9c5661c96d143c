// SPDX-License-Identifier: Apache-2.0
#include "route/adapter_homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kMiB = 1 << 20;

AdapterSourceId id(uint64_t value) { return AdapterSourceId{value}; }

class AdapterHomesTest : public testing::Test {
 protected:
  void ask(uint64_t adapter, int32_t rank, int times, double now_s, double tokens = 100) {
    for (int i = 0; i < times; ++i) placement_.asked(id(adapter), rank, rank * kMiB, tokens, now_s);
  }
  // Moves are done at once.
  std::vector<PlacementMove> plan(double now_s) {
    auto moves = placement_.plan(now_s, replicas_, [this](size_t replica, AdapterSourceId adapter) {
      if (elsewhere_.contains({replica, adapter.value})) return AdapterPlace::kNowhere;
      return there_.contains({replica, adapter.value}) ? AdapterPlace::kInMemory : AdapterPlace::kToBring;
    });
    for (const PlacementMove& move : moves) there_.insert({move.replica, move.adapter.value});
    return moves;
  }

  AdapterHomes placement_{HomesOptions{.hot_requests = 1.5}};
  std::vector<PlacedReplica> replicas_ = {
      {true, 1024 * kMiB, 0}, {true, 1024 * kMiB, 1}, {true, 1024 * kMiB, 2}, {true, 1024 * kMiB, 3}};
  std::set<std::pair<size_t, uint64_t>> there_, elsewhere_;
};

TEST_F(AdapterHomesTest, WhatIsAskedForMuchHasSeveralHomes) {
  ask(1, 8, 100, 0);
  for (uint64_t other = 2; other <= 31; ++other) ask(other, 8, 10, 0);
  plan(0);
  EXPECT_EQ(placement_.given_homes(id(1)).size(), 2u) << "100 of 400 on four replicas, at most half a part each";
  for (uint64_t other = 2; other <= 31; ++other) EXPECT_EQ(placement_.given_homes(id(other)).size(), 1u);
  EXPECT_TRUE(plan(1).empty()) << "all is there";
}

TEST_F(AdapterHomesTest, RanksThatSlowEachOtherAreApart) {
  for (uint64_t adapter = 1; adapter <= 40; ++adapter) ask(adapter, adapter % 2 == 0 ? 64 : 8, 10, 0);
  for (PlacedReplica& replica : replicas_) replica.bytes *= 10;
  plan(0);
  int mixed = 0;
  for (size_t replica = 0; replica < replicas_.size(); ++replica) {
    std::set<uint64_t> ranks;
    for (uint64_t adapter = 1; adapter <= 40; ++adapter) {
      const auto homes = placement_.given_homes(id(adapter));
      ASSERT_EQ(homes.size(), 1u);
      if (homes[0] == replica) ranks.insert(adapter % 2);
    }
    mixed += ranks.size() > 1 ? 1 : 0;
  }
  EXPECT_EQ(mixed, 0);
}

// It has a home by its number, and nobody is asked to bring it there.
TEST_F(AdapterHomesTest, WhatIsNothingSpecialHasOneHomeThatStays) {
  ask(1, 8, 1, 0);
  EXPECT_TRUE(plan(0).empty());
  EXPECT_TRUE(placement_.given_homes(id(1)).empty());
  std::vector<std::vector<size_t>> before;
  std::vector<int> of_each(4);
  for (uint64_t adapter = 1; adapter <= 1000; ++adapter) {
    before.push_back(placement_.homes(id(adapter), replicas_));
    ASSERT_EQ(before.back().size(), 1u);
    ++of_each[before.back()[0]];
  }
  for (const int count : of_each) EXPECT_NEAR(count, 250, 60);
  replicas_[1].up = false;
  for (uint64_t adapter = 1; adapter <= 1000; ++adapter) {
    const auto home = placement_.homes(id(adapter), replicas_);
    if (before[adapter - 1][0] != 1) {
      EXPECT_EQ(home, before[adapter - 1]);
    } else {
      EXPECT_NE(home[0], 1u);
    }
  }
  for (PlacedReplica& replica : replicas_) replica.up = false;
  EXPECT_TRUE(placement_.homes(id(1), replicas_).empty());
}

// Demand that goes up and down by a third moves nothing.
TEST_F(AdapterHomesTest, HomesStayWhileDemandSways) {
  Prng random(7);
  for (uint64_t adapter = 1; adapter <= 40; ++adapter) ask(adapter, 8, 20, 0);
  const size_t first = plan(0).size();
  EXPECT_EQ(first, 40u);
  size_t moved = 0;
  for (int step = 1; step <= 60; ++step) {
    for (uint64_t adapter = 1; adapter <= 40; ++adapter)
      ask(adapter, 8, 1 + static_cast<int>(random.below(2)), step * 5.0);
    moved += plan(step * 5.0).size();
  }
  EXPECT_LE(moved, 4u);
}

TEST_F(AdapterHomesTest, ANewMixIsFollowedAndTheOldOneGivenUp) {
  for (int step = 0; step < 20; ++step) {
    for (uint64_t adapter = 1; adapter <= 20; ++adapter) ask(adapter, 8, 5, step * 5.0);
    plan(step * 5.0);
  }
  size_t moved = 0;
  for (int step = 20; step < 180; ++step) {
    for (uint64_t adapter = 101; adapter <= 120; ++adapter) ask(adapter, 64, 5, step * 5.0);
    moved += plan(step * 5.0).size();
  }
  for (uint64_t adapter = 101; adapter <= 120; ++adapter) EXPECT_FALSE(placement_.given_homes(id(adapter)).empty());
  for (uint64_t adapter = 1; adapter <= 20; ++adapter) EXPECT_TRUE(placement_.given_homes(id(adapter)).empty());
  EXPECT_GE(moved, 20u);
  EXPECT_LE(moved, 40u);
}

TEST_F(AdapterHomesTest, AReplicaThatIsDownLosesItsHomesToOthers) {
  for (uint64_t adapter = 1; adapter <= 20; ++adapter) ask(adapter, 8, 10, 0);
  plan(0);
  replicas_[2].up = false;
  plan(1);
  for (uint64_t adapter = 1; adapter <= 20; ++adapter) {
    const auto homes = placement_.given_homes(id(adapter));
    ASSERT_EQ(homes.size(), 1u);
    EXPECT_NE(homes[0], 2u);
  }
  for (PlacedReplica& replica : replicas_) replica.up = false;
  EXPECT_TRUE(plan(2).empty());
}

TEST_F(AdapterHomesTest, APlanIsBounded) {
  for (PlacedReplica& replica : replicas_) replica.bytes = int64_t{100} << 30;
  for (uint64_t adapter = 1; adapter <= 500; ++adapter) ask(adapter, adapter <= 250 ? 8 : 64, 10, 0);
  size_t moved = 0;
  for (int step = 0; step < 60; ++step) {
    const auto moves = plan(step);
    int64_t bytes = 0;
    for (const PlacementMove& move : moves) bytes += move.bytes;
    EXPECT_LE(moves.size(), HomesOptions{}.moves_most);
    EXPECT_LE(bytes, HomesOptions{}.bytes_most);
    moved += moves.size();
  }
  EXPECT_EQ(moved, 500u) << "and goes on with the next one";
}

// Whatever is asked for: homes are of replicas that are up, each once, within their room.
TEST_F(AdapterHomesTest, AtRandomNobodyHasMoreThanItsRoom) {
  std::printf("seed 2026\n");
  Prng random(2026);
  std::vector<int32_t> ranks;
  for (int i = 0; i < 200; ++i) ranks.push_back(8 << random.below(4));
  for (PlacedReplica& replica : replicas_) replica.bytes = static_cast<int64_t>(200 + random.below(2000)) * kMiB;
  for (int step = 0; step < 400; ++step) {
    for (uint64_t count = random.below(40); count > 0; --count) {
      const uint64_t adapter = random.below(1 + random.below(200));
      placement_.asked(id(adapter), ranks[adapter], ranks[adapter] * kMiB, 1 + static_cast<double>(random.below(500)),
                       step * 3.0);
    }
    if (random.below(20) == 0) replicas_[random.below(4)].up ^= true;
    if (random.below(20) == 0) placement_.gone(id(random.below(200)));
    plan(step * 3.0);
    std::vector<int64_t> bytes(replicas_.size());
    for (uint64_t adapter = 0; adapter < 200; ++adapter) {
      const auto homes = placement_.given_homes(id(adapter));
      EXPECT_EQ(std::set<size_t>(homes.begin(), homes.end()).size(), homes.size());
      for (const size_t home : homes) bytes[home] += ranks[adapter] * kMiB;
    }
    const bool any_up =
        std::any_of(replicas_.begin(), replicas_.end(), [](const PlacedReplica& one) { return one.up; });
    for (size_t i = 0; any_up && i < replicas_.size(); ++i) {
      EXPECT_LE(bytes[i], replicas_[i].bytes) << "seed 2026, step " << step;
      EXPECT_TRUE(replicas_[i].up || bytes[i] == 0);
    }
  }
}

TEST_F(AdapterHomesTest, NobodyIsTheHomeOfWhatItCannotBring) {
  ask(1, 8, 100, 0);
  for (size_t replica : {0, 1, 2}) elsewhere_.insert({replica, 1});
  EXPECT_EQ(plan(0).size(), 1u);
  EXPECT_EQ(placement_.given_homes(id(1)), std::vector<size_t>{3});
  elsewhere_.insert({3, 1});
  elsewhere_.erase({0, 1});
  plan(1);
  EXPECT_EQ(placement_.given_homes(id(1)), std::vector<size_t>{0}) << "it was taken away there";
}

// A router that did not plan, with what one that did gave.
TEST_F(AdapterHomesTest, WhoTakesOverGoesOnFromWhatWasGiven) {
  AdapterHomes other(HomesOptions{.hot_requests = 1.5});
  for (uint64_t adapter = 1; adapter <= 30; ++adapter) {
    ask(adapter, 8, 100, 0);
    for (int i = 0; i < 100; ++i) other.asked(id(adapter), 8, 8 * kMiB, 100, 0);
  }
  plan(0);
  const std::vector<GivenHomes> given = placement_.given();
  ASSERT_EQ(given.size(), 30u);
  other.take_given(given, 1);
  EXPECT_EQ(other.given(), given);
  EXPECT_EQ(other.homes(id(7), replicas_), placement_.homes(id(7), replicas_));
  EXPECT_EQ(other.homes(id(77), replicas_), placement_.homes(id(77), replicas_)) << "by lot";
  const auto place_of = [](size_t, AdapterSourceId) { return AdapterPlace::kInMemory; };
  EXPECT_TRUE(other.plan(2, replicas_, place_of).empty());
  EXPECT_EQ(other.given(), given) << "who plans next moves nothing";
  AdapterHomes fresh(HomesOptions{.hot_requests = 1.5});
  fresh.take_given(given, 1);
  EXPECT_TRUE(fresh.plan(2, replicas_, place_of).empty());
  for (uint64_t adapter = 1; adapter <= 30; ++adapter) EXPECT_TRUE(fresh.homes(id(adapter), replicas_).size() == 1);
  EXPECT_EQ(fresh.given().size(), 30u) << "though it saw no request of all these";
  fresh.plan(200, replicas_, place_of);
  EXPECT_TRUE(fresh.given().empty()) << "and none came";
  other.take_given({}, 3);
  EXPECT_TRUE(other.given().empty());
  EXPECT_EQ(other.adapters(), 30u) << "what was asked for counts on";
  other.take_given({}, 1e5);
  EXPECT_EQ(other.adapters(), 0u) << "nobody asks for them any more";
}

// A router numbers its replicas as it comes to know them.
TEST_F(AdapterHomesTest, LotsAreDrawnByNumbersNotByPlaces) {
  std::vector<PlacedReplica> turned = replicas_;
  std::swap(turned[0], turned[3]);
  for (uint64_t adapter = 1; adapter <= 100; ++adapter) {
    EXPECT_EQ(replicas_[*home_by_lot(id(adapter), replicas_)].number, turned[*home_by_lot(id(adapter), turned)].number);
  }
  for (PlacedReplica& replica : turned) replica.up = false;
  EXPECT_FALSE(home_by_lot(id(1), turned).has_value());
}

}  // namespace
}  // namespace loralei
