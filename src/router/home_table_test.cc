// SPDX-License-Identifier: Apache-2.0
#include "router/home_table.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

using Demand = std::unordered_map<uint32_t, double>;

class HomeTableTest : public testing::Test {
 protected:
  HomeTableTest() {
    for (size_t i = 0; i < 3; ++i) {
      table.add_replica(i, 100 + i);
      table.set_up(i, true);
    }
  }
  std::vector<size_t> homes(uint32_t adapter) const {
    std::vector<size_t> found = {77};
    table.homes_of(adapter, 1000 + adapter, found);
    return found;
  }
  HomeTable table;
};

TEST_F(HomeTableTest, WhatWasGivenCountsAndElseTheLot) {
  const std::vector<size_t> lot = homes(5);
  ASSERT_EQ(lot.size(), 1u);
  const size_t other = (lot[0] + 1) % 3, third = (lot[0] + 2) % 3;
  table.give({{5, {other, third}}});
  EXPECT_EQ(homes(5), (std::vector<size_t>{other, third}));
  table.set_up(other, false);
  EXPECT_EQ(homes(5), std::vector<size_t>{third});
  table.set_up(third, false);
  EXPECT_EQ(homes(5), lot) << "no home of it is up";
  table.set_up(lot[0], false);
  EXPECT_TRUE(homes(5).empty());
}

TEST_F(HomeTableTest, APlaceThatIsAnothersHasNothingOfWhoLeft) {
  table.give({{5, {0, 1}}});
  table.begin_uses(0);
  table.end_uses(0);
  table.count_uses(0, 5, 3);
  table.forget_replica(0);
  EXPECT_EQ(homes(5), std::vector<size_t>{1});
  table.add_replica(0, 500);
  table.set_up(0, true);
  EXPECT_EQ(homes(5), std::vector<size_t>{1}) << "it was not given to this one";
  table.forget_adapter(5);
  EXPECT_TRUE(table.take_demand().empty());
  EXPECT_EQ(table.memory_bytes(), 0);
}

TEST_F(HomeTableTest, DemandIsWhatReportsCountSinceTheyWereLookedAt) {
  table.begin_uses(0);
  table.count_uses(0, 1, 10);
  table.count_uses(0, 2, 0);
  table.end_uses(0);
  EXPECT_TRUE(table.take_demand().empty()) << "that was before";
  table.count_uses(0, 1, 12);
  table.count_uses(0, 2, 5);
  table.count_uses(1, 1, 4);
  EXPECT_EQ(table.take_demand(), (Demand{{1, 2.0}, {2, 5.0}})) << "a replica's first report is not read yet";
  table.end_uses(1);
  table.count_uses(1, 1, 5);
  table.count_uses(0, 1, 12);
  table.asked(9);
  table.asked(9);
  EXPECT_EQ(table.take_demand(), (Demand{{1, 1.0}, {9, 2.0}}));
  table.count_uses(0, 1, 3);
  EXPECT_EQ(table.take_demand(), (Demand{{1, 3.0}})) << "it was registered anew";
  table.begin_uses(0);
  table.count_uses(0, 1, 50);
  EXPECT_TRUE(table.take_demand().empty());
}

}  // namespace
}  // namespace loralei
