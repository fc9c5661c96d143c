// SPDX-License-Identifier: Apache-2.0
#include "device/emulated/link.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

constexpr int64_t kMs = 1'000'000;

// 1 GB/s is a byte a nanosecond.
LinkTimes byte_a_ns(int64_t latency_ns) { return LinkTimes({.bytes_per_s = 1e9, .latency_ns = latency_ns}); }

TEST(LinkTimes, ACopyTakesItsBytesAndTheLatency) {
  EXPECT_EQ(byte_a_ns(0).copy_ns(0), 0);
  EXPECT_EQ(byte_a_ns(7).copy_ns(0), 7);
  EXPECT_EQ(byte_a_ns(7).copy_ns(5000), 5007);
  EXPECT_EQ(LinkTimes({.bytes_per_s = 4e9, .latency_ns = 0}).copy_ns(4001), 1001) << "never too early";
  EXPECT_EQ(LinkTimes({.bytes_per_s = 1e6, .latency_ns = 0}).copy_ns(int64_t{1} << 40), 1'099'511'627'776'000);
}

TEST(LinkTimes, CopiesFollowEachOtherAndAnIdleLinkBeginsAtOnce) {
  ManualClock clock;
  clock.advance_ns(100);
  LinkTimes times = byte_a_ns(10);
  EXPECT_EQ(times.deliver_ns(clock.now_ns(), 50), 160);
  EXPECT_EQ(times.deliver_ns(clock.now_ns(), 50), 220) << "behind the one under way";
  clock.advance_ns(119);  // 219: the last but one nanosecond
  EXPECT_EQ(times.deliver_ns(clock.now_ns(), 1), 231);
  clock.advance_ns(81);  // 300: it has been idle since 231
  EXPECT_EQ(times.deliver_ns(clock.now_ns(), 1), 311);
}

// Of what was asked for together, how late the thread wakes takes nothing.
TEST(LinkTimes, WhoWakesLateLosesNothing) {
  LinkTimes times = byte_a_ns(0);
  for (int64_t copy = 1; copy <= 100; ++copy) EXPECT_EQ(times.deliver_ns(1000, 30), 1000 + 30 * copy);
}

TEST(LinkTimes, RandomCopiesAreThoseOfANaiveLink) {
  const uint64_t seed = 5;
  SCOPED_TRACE("seed 5");
  Prng random(seed);
  LinkTimes times = byte_a_ns(3);
  int64_t asked_ns = 0, free_ns = 0;
  for (int i = 0; i < 2000; ++i) {
    asked_ns += static_cast<int64_t>(random.below(60));
    const auto bytes = static_cast<int64_t>(random.below(50));
    if (free_ns < asked_ns) free_ns = asked_ns;
    for (int64_t byte = 0; byte < bytes + 3; ++byte) ++free_ns;
    ASSERT_EQ(times.deliver_ns(asked_ns, bytes), free_ns);
  }
}

TEST(ThrottledLink, BringsAllParts) {
  ManualClock clock;
  clock.advance_ns(1000 * kMs);  // long after all of it is due
  ThrottledLink link({.bytes_per_s = 1e9, .latency_ns = 10}, clock);
  std::vector<std::byte> from(100), to(100);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i + 1);
  const std::vector<LinkPart> parts = {{from.data(), to.data() + 40, 60}, {from.data() + 60, to.data(), 40}};
  ASSERT_TRUE(link.copy(parts, 0, {}).ok());
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(to[i], from[i < 40 ? 60 + i : i - 40]) << i;
}

// A clock that stands still is a copy that is never delivered.
TEST(ThrottledLink, GivesUpWhenItIsAskedToStop) {
  const ManualClock clock;
  ThrottledLink link({.bytes_per_s = 1e6, .latency_ns = 3600 * 1000 * kMs}, clock);
  const std::byte from{7};
  std::byte to{0};
  const LinkPart part{&from, &to, 1};
  std::stop_source stop;
  Status status;
  std::thread copying([&] { status = link.copy({&part, 1}, 0, stop.get_token()); });
  stop.request_stop();
  copying.join();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(to, std::byte{0}) << "what the link has not delivered is not there";
}

}  // namespace
}  // namespace loralei
