// SPDX-License-Identifier: Apache-2.0
#include "http/query.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

TEST(Query, FindsWholeNames) {
  EXPECT_EQ(query_value("a=1&bb=2&b=3", "b"), "3");
  EXPECT_EQ(query_value("a=1&a=2", "a"), "1");
  EXPECT_EQ(query_value("b=x=y", "b"), "x=y");
  EXPECT_EQ(query_value("b", "b"), std::nullopt);
  EXPECT_EQ(query_value("ab=1&&", "b"), std::nullopt);
  EXPECT_EQ(query_value("", "b"), std::nullopt);
}

TEST(Query, AnEmptyValueIsThere) {
  const auto value = query_value("b=&c=1", "b");
  ASSERT_TRUE(value);
  EXPECT_EQ(*value, "");
}

}  // namespace
}  // namespace loralei
