// SPDX-License-Identifier: Apache-2.0
#include "base/byte_budget.h"

#include <gtest/gtest.h>

#include "base/fixed_byte_budget.h"

namespace loralei {
namespace {

TEST(ByteShare, GrowsShrinksAndGivesBackOnce) {
  auto budget = std::make_shared<FixedByteBudget>(100);
  {
    ByteShare one(budget);
    EXPECT_TRUE(one.grow_to(60));
    EXPECT_TRUE(one.grow_to(10));  // has it
    EXPECT_EQ(one.bytes(), 60);
    ByteShare two(budget);
    EXPECT_FALSE(two.grow_to(41));
    EXPECT_EQ(two.bytes(), 0);
    one.shrink_to(50);
    EXPECT_TRUE(two.grow_to(50));
    EXPECT_EQ(budget->taken_bytes(), 100);
    ByteShare moved(std::move(one));
    EXPECT_EQ(one.bytes(), 0);
    one = std::move(two);
    EXPECT_EQ(one.bytes() + moved.bytes(), 100);
    moved = ByteShare();
    EXPECT_EQ(budget->taken_bytes(), 50);
  }
  EXPECT_EQ(budget->taken_bytes(), 0);
}

TEST(FixedByteBudget, RefusesWhatItCouldNeverHave) {
  FixedByteBudget budget(100);
  EXPECT_FALSE(budget.try_take(INT64_MAX));
  EXPECT_TRUE(budget.try_take(100));
  EXPECT_FALSE(budget.try_take(1));
  budget.give_back(100);
  EXPECT_TRUE(budget.try_take(1));
  EXPECT_EQ(budget.most_bytes(), 100);
}

TEST(ByteShare, OfNothingHasNothing) {
  ByteShare share;
  EXPECT_FALSE(share.grow_to(1));
  EXPECT_TRUE(share.grow_to(0));
  share.release();
}

}  // namespace
}  // namespace loralei
