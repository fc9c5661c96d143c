// SPDX-License-Identifier: Apache-2.0
#include "parallel/thread_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "parallel/collective_twin.h"
#include "parallel/shard.h"

namespace loralei {
namespace {

constexpr int64_t kMs = 1'000'000;

// Calls body(rank's Collective) on a thread each.
template <typename Body>
void on_all(ThreadGroup& group, Body&& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.size(); ++rank) threads.emplace_back([&, rank] { body(group.rank(rank)); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadGroup, RandomOperationsAgreeWithANaiveTwin) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    for (const int size : {1, 2, 3, 4}) {
      ThreadGroup group(size);
      std::vector<std::string> wrong(static_cast<size_t>(size));
      on_all(group, [&](Collective& rank) {
        std::string& mine = wrong[static_cast<size_t>(rank.rank())];
        for (uint32_t operation = 0; operation < 200 && mine.empty(); ++operation) {
          mine = run_one_operation(rank, seed, operation, operation % 16 == 0 ? 60000 : 3000);
          if (!mine.empty()) rank.fail({ErrorCode::kInternal, mine});
        }
      });
      for (const std::string& one : wrong) EXPECT_EQ(one, "");
    }
  }
}

// The twin's numbers can tell orders apart, else the test above would say less.
TEST(ThreadGroup, TheOrderOfASumShows) {
  const auto a = given_numbers(1, 0, 0, 3000), b = given_numbers(1, 0, 1, 3000);
  const auto c = given_numbers(1, 0, 2, 3000);
  int differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ += (a[i] + b[i]) + c[i] != a[i] + (b[i] + c[i]) ? 1 : 0;
  EXPECT_GT(differ, 100);
}

TEST(ThreadGroup, WhatOneFailsOfAllFailOfForGood) {
  ThreadGroup group(3);
  std::vector<Status> ends(3), later(3);
  on_all(group, [&](Collective& rank) {
    const auto index = static_cast<size_t>(rank.rank());
    std::vector<float> values(100, 1.0f);
    ends[index] = rank.all_reduce_sum(values);
    if (rank.rank() == 1) {
      rank.fail({ErrorCode::kUnavailable, "rank 1 has run out of luck"});
      rank.fail({ErrorCode::kUnavailable, "and of more"});
    }
    if (ends[index].ok()) ends[index] = rank.all_reduce_sum(values);
    later[index] = rank.barrier();
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_FALSE(ends[rank].ok()) << rank;
    EXPECT_EQ(ends[rank].error().message, "rank 1 has run out of luck");
    ASSERT_FALSE(later[rank].ok()) << rank;
    EXPECT_EQ(later[rank].error().message, "rank 1 has run out of luck");
    EXPECT_FALSE(group.rank(static_cast<int>(rank)).health().ok());
  }
}

TEST(ThreadGroup, ARankThatIsLateEndsTheGroupWithItsNumber) {
  ThreadGroup group(3, {.late_ns = 50 * kMs});
  std::atomic<bool> ended{false};
  std::vector<Status> ends(3);
  on_all(group, [&](Collective& rank) {
    const auto index = static_cast<size_t>(rank.rank());
    if (rank.rank() == 2) {
      while (!ended) std::this_thread::yield();
    }
    ends[index] = rank.barrier();
    ended = true;
  });
  for (const Status& end : ends) {
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(end.error().message.find("Rank 2 of 3 did not come"), std::string::npos) << end.error().message;
  }
}

// Between steps nobody is late: the others wait for rank 0 as long as it takes.
TEST(ThreadGroup, AnIdleGroupIsNotLate) {
  ThreadGroup group(2, {.late_ns = 20 * kMs});
  on_all(group, [&](Collective& rank) {
    std::vector<std::byte> bytes(8, std::byte{static_cast<unsigned char>(rank.rank())});
    if (rank.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const Status status = rank.broadcast(bytes);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(bytes[7], std::byte{0});
  });
}

TEST(ThreadGroup, CountsWhatComesFromOthers) {
  ThreadGroup group(2);
  on_all(group, [&](Collective& rank) {
    std::vector<float> values(64);
    EXPECT_TRUE(rank.all_reduce_sum(values).ok());
    EXPECT_EQ(rank.totals().calls, 1u);
    EXPECT_EQ(rank.totals().bytes, 64 * 4);  // the other's vector
    values.resize(40000);
    EXPECT_TRUE(rank.all_reduce_sum(values).ok());
    EXPECT_EQ(rank.totals().bytes, 64 * 4 + 40000 * 4);  // half a vector to add up, half a vector of sums
  });
}

TEST(Shard, PartsCoverAllInOrder) {
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const int64_t count : {0, 1, 15, 16, 17, 100, 32000}) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const ShardPart part = tiled_part({rank, size}, count, 16);
        EXPECT_EQ(part.begin, next);
        EXPECT_GE(part.count, 0);
        EXPECT_TRUE(part.begin % 16 == 0 || part.count == 0);
        next = part.end();
      }
      EXPECT_EQ(next, count);
    }
  }
  EXPECT_EQ(even_part({2, 4}, 32).begin, 16);
}

}  // namespace
}  // namespace loralei
