// SPDX-License-Identifier: Apache-2.0
#include "base/arrivals.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace loralei {
namespace {

constexpr int64_t kLongNs = 20'000'000'000;

TEST(Arrivals, PiecesAreReadAsSoonAsTheyAreThere) {
  constexpr int32_t kPieces = 200;
  Arrivals arrivals(kPieces);
  std::vector<int> pieces(kPieces, 0);
  std::thread brings([&] {
    for (int32_t i = 0; i < kPieces; ++i) {
      pieces[static_cast<size_t>(i)] = i + 1;
      arrivals.advance();
    }
  });
  for (int32_t i = 0; i < kPieces; ++i) {
    ASSERT_TRUE(arrivals.wait(i + 1, kLongNs));
    ASSERT_EQ(pieces[static_cast<size_t>(i)], i + 1);
  }
  brings.join();
  EXPECT_TRUE(arrivals.whole());
  EXPECT_TRUE(arrivals.status().ok());
}

TEST(Arrivals, AFailureWakesWhoWaitsAndLeavesWhatIsThere) {
  Arrivals arrivals(3);
  arrivals.advance();
  std::thread brings([&] {
    arrivals.fail(internal_error("torn"));
    arrivals.fail(internal_error("torn again"));
  });
  EXPECT_FALSE(arrivals.wait(2, kLongNs));
  brings.join();
  EXPECT_TRUE(arrivals.wait(1, 0));
  EXPECT_TRUE(arrivals.failed());
  EXPECT_FALSE(arrivals.whole());
  EXPECT_EQ(arrivals.status().error().message, "torn");
}

TEST(Arrivals, WaitingIsBounded) {
  const Arrivals arrivals(1);
  EXPECT_FALSE(arrivals.wait(1, 1'000'000));
  EXPECT_TRUE(arrivals.status().ok());
}

}  // namespace
}  // namespace loralei
