// SPDX-License-Identifier: Apache-2.0
#include "device/host/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "device/host/arena.h"
#include "sys/no_threads.h"

namespace loralei {
namespace {

TEST(ThreadPool, EveryIndexIsHandedOutExactlyOnce) {
  const uint64_t seed = 20261120;
  Prng prng(seed);
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 2000; ++round) {
      const auto count = static_cast<int64_t>(prng.below(round % 10 == 0 ? 5000 : 40));
      const auto grain = static_cast<int64_t>(prng.below(20)) - 1;  // below 1 counts as 1
      std::vector<int> hits(static_cast<size_t>(count), 0);  // plain ints: a double hand-out is a race for tsan too
      std::atomic<int64_t> chunks_too_long = 0, bad_workers = 0;
      pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
        if (end - begin > (grain < 1 ? 1 : grain) || begin >= end) ++chunks_too_long;
        if (worker < 0 || worker >= threads) ++bad_workers;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (int hit : hits) ASSERT_EQ(hit, 1) << "seed " << seed << " round " << round;
      ASSERT_EQ(chunks_too_long, 0);
      ASSERT_EQ(bad_workers, 0);
    }
  }
}

TEST(ThreadPool, HasFewerThreadsWhereTheSystemGivesNoMore) {
  const NoThreads none;
  ThreadPool pool(4);
  EXPECT_EQ(pool.threads(), 1);
  int64_t sum = 0;
  pool.parallel_for(100, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  EXPECT_EQ(sum, 4950);
}

TEST(ThreadPool, OneWorkerIndexIsNeverUsedByTwoThreadsAtOnce) {
  ThreadPool pool(4);
  std::vector<std::unique_ptr<std::atomic<int>>> inside;
  for (int i = 0; i < 4; ++i) inside.push_back(std::make_unique<std::atomic<int>>(0));
  std::atomic<int> clashes = 0;
  for (int round = 0; round < 500; ++round) {
    pool.parallel_for(64, 1, [&](int64_t, int64_t, int worker) {
      if (inside[static_cast<size_t>(worker)]->fetch_add(1) != 0) ++clashes;
      inside[static_cast<size_t>(worker)]->fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, ResultsOfOneCallAreSeenByTheNext) {
  ThreadPool pool(3);
  std::vector<int64_t> values(1000, 0);
  for (int round = 0; round < 1000; ++round) {
    pool.parallel_for(1000, 7, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++values[static_cast<size_t>(i)];
    });
    for (int64_t value : values) ASSERT_EQ(value, round + 1);
  }
}

TEST(ThreadPool, TwoPoolsLiveSideBySideAndDieIdle) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool a(2), b(3, /*pin=*/true);
    std::atomic<int64_t> sum = 0;
    a.parallel_for(10, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
    b.parallel_for(10, 3, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
    EXPECT_EQ(sum, 20);
  }
}

TEST(HostBuffer, AReservedOneGrowsAndShrinksInPlace) {
  constexpr int64_t kCapacity = (int64_t{9} << 20) + 5;
  HostBuffer buffer = HostBuffer::reserve(kCapacity).value();
  std::byte* const data = buffer.data();
  EXPECT_EQ(buffer.size_bytes(), 0);
  int64_t written = 0;
  for (const int64_t bytes :
       {int64_t{1}, int64_t{5000}, kCapacity, int64_t{4097}, int64_t{3} << 20, int64_t{0}, kCapacity}) {
    ASSERT_TRUE(buffer.resize(bytes).ok());
    EXPECT_EQ(buffer.data(), data);
    EXPECT_EQ(buffer.size_bytes(), bytes);
    for (int64_t i = 0; i < bytes; i += 509) {
      if (i < written) {
        EXPECT_EQ(data[i], std::byte{0x5A}) << i << " of " << bytes;
      }
      data[i] = std::byte{0x5A};
    }
    written = bytes;
  }
  EXPECT_EQ(HostBuffer::reserve(INT64_MAX).error().code, ErrorCode::kOverloaded);
}

TEST(HostBuffer, IsAlignedZeroedAndMovable) {
  for (int64_t bytes : {int64_t{1}, int64_t{4097}, (int64_t{5} << 20) + 3}) {
    Result<HostBuffer> buffer = HostBuffer::allocate(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->size_bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
    EXPECT_EQ(buffer->data()[0], std::byte{0});
    buffer->bytes()[static_cast<size_t>(bytes - 1)] = std::byte{7};
    HostBuffer moved = std::move(*buffer);
    EXPECT_EQ(moved.bytes()[static_cast<size_t>(bytes - 1)], std::byte{7});
    EXPECT_EQ(buffer->data(), nullptr);
    moved = HostBuffer();
    EXPECT_EQ(moved.size_bytes(), 0);
  }
  EXPECT_EQ(HostBuffer::allocate(0)->data(), nullptr);
  EXPECT_EQ(HostBuffer::allocate(INT64_MAX).error().code, ErrorCode::kOverloaded);
}

}  // namespace
}  // namespace loralei
