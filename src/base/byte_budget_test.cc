// SPDX-License-Identifier: Apache-2.0
#include "base/byte_budget.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

class Fixed final : public ByteBudget {
 public:
  bool try_take(int64_t bytes) override {
    if (bytes > left) return false;
    left -= bytes;
    return true;
  }
  void give_back(int64_t bytes) override { left += bytes; }
  int64_t most_bytes() const override { return 100; }
  int64_t left = 100;
};

TEST(ByteShare, GrowsShrinksAndGivesBackOnce) {
  auto budget = std::make_shared<Fixed>();
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
    EXPECT_EQ(budget->left, 0);
    ByteShare moved(std::move(one));
    EXPECT_EQ(one.bytes(), 0);
    one = std::move(two);
    EXPECT_EQ(one.bytes() + moved.bytes(), 100);
    moved = ByteShare();
    EXPECT_EQ(budget->left, 50);
  }
  EXPECT_EQ(budget->left, 100);
}

TEST(ByteShare, OfNothingHasNothing) {
  ByteShare share;
  EXPECT_FALSE(share.grow_to(1));
  EXPECT_TRUE(share.grow_to(0));
  share.release();
}

}  // namespace
}  // namespace loralei
