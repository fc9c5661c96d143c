// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/prng.h"
#include "base/result.h"
#include "base/units.h"

namespace loralei {
namespace {

TEST(Result, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code < kErrorCodeCount; ++code) names.insert(error_code_name(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kErrorCodeCount));
}

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_argument("odd");
  return value / 2;
}
Result<int> quarter(int value) {
  TRY_ASSIGN(const int first, half(value));
  return half(first);
}

TEST(Result, TryPassesValueAndError) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "odd");
}

TEST(Units, ParsesWhatUsersType) {
  EXPECT_EQ(parse_bytes("2GiB").value(), 2 * kGiB);
  EXPECT_EQ(parse_bytes("1.5GB").value(), 1500000000);
  EXPECT_EQ(parse_bytes("512M").value(), 512 * kMiB);
  EXPECT_EQ(parse_bytes("17").value(), 17);
  for (const char* bad : {"", "x", "-1", "1Q", "1GBB", "inf", "nan", "1e30"})
    EXPECT_FALSE(parse_bytes(bad).ok()) << bad;
  EXPECT_EQ(parse_bytes("1024TiB").value(), kMaxStatedBytes);
  for (const char* beyond : {"1025TiB", "9e18", "1126e12"}) {
    EXPECT_EQ(parse_bytes(beyond).error().message,
              "'" + std::string(beyond) + "' is more than any machine has; the most is 1024TiB.");
  }
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
}

// Known-answer vectors of Philox4x32-10 from the authors' Random123 distribution
// (kat_vectors).
TEST(Prng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(BoundedQueue, RefusesWhenFullAndKeepsTheValue) {
  BoundedQueue<std::string> queue(1);
  std::string a = "a", b = "b";
  EXPECT_TRUE(queue.try_push(std::move(a)));
  EXPECT_FALSE(queue.try_push(std::move(b)));
  EXPECT_EQ(b, "b");
  EXPECT_EQ(*queue.pop(), "a");
}

TEST(BoundedQueue, CloseWakesAWaiterAndDrains) {
  BoundedQueue<int> queue(4);
  std::thread producer([&] {
    for (int i = 0; i < 3; ++i) (void)queue.try_push(int{i});
    queue.close();
  });
  int count = 0;
  while (queue.pop()) ++count;
  producer.join();
  EXPECT_EQ(count, 3);
  EXPECT_FALSE(queue.try_push(1));
}

}  // namespace
}  // namespace loralei
