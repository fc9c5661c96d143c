// SPDX-License-Identifier: Apache-2.0
// What ranks do together on memory of their GPUs, against a naive twin, and how a group
// ends: on emulated GPUs (cuda_ranks_emulated_test) with a stand-in for NCCL, or on real
// ones (cuda_ranks_test, which skips what there are too few of).
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "model/cuda/staged_device_group.h"
#include "parallel/collective_twin.h"
#include "parallel/thread_group.h"
#include "support/nccl_group.h"

#ifdef LORALEI_CUDA_EMULATION
#include "device/cuda/emulated/device_memory.h"
#include "device/cuda/emulated/emulator.h"
#endif

namespace loralei::test {
namespace {

constexpr int64_t kChunk = 100, kMost = 350;  // floats: several chunks, and less than one
constexpr int64_t kSoonNs = 200'000'000;

int devices() {
#ifdef LORALEI_CUDA_EMULATION
  static const bool made = [] {
    cuda_emulated::set_device_count(4);
    return true;
  }();
  (void)made;
#endif
  return static_cast<int>(cuda_devices().list.size());
}

// Every rank on a thread and a GPU of its own, as far as there are as many.
void on_ranks(ThreadGroup& hosts, const std::function<void(int rank, Collective& hosts)>& body) {
  const int count = devices();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < hosts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const Status chosen = set_cuda_device(rank % count);
      EXPECT_TRUE(chosen.ok()) << chosen.error().message;
      body(rank, hosts.rank(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A rank's numbers on its GPU.
class Numbers {
 public:
  Numbers() : stream(CudaStream::create().value()) {
    memory_ = DeviceBuffer::allocate(kMost * 4 * static_cast<int64_t>(sizeof(float))).value();
  }
  float* put(const std::vector<float>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    EXPECT_TRUE(copy_to_device(memory_.data(), values.data(), bytes, stream).ok());
    EXPECT_TRUE(stream.synchronize().ok());
    return reinterpret_cast<float*>(memory_.data());
  }
  std::vector<float> get(size_t count) {
    std::vector<float> values(count);
    EXPECT_TRUE(copy_to_host(values.data(), memory_.data(), static_cast<int64_t>(count * sizeof(float)), stream).ok());
    EXPECT_TRUE(stream.synchronize().ok());
    return values;
  }
  float* all() { return reinterpret_cast<float*>(memory_.data()); }

  CudaStream stream;

 private:
  DeviceBuffer memory_;
};

// The twin of run_one_operation. Answers what was wrong, empty if nothing.
std::string operate(DeviceGroup& group, Numbers& numbers, uint64_t seed, uint32_t operation) {
  Prng random(derived_seed(seed, operation));  // the same in every rank
  const bool sums = random.below(2) == 0, in_place = random.below(2) == 0;
  const size_t count = random.below(8) == 0 ? 0 : 1 + random.below(kMost);
  const std::string what = "operation " + std::to_string(operation) + " of rank " + std::to_string(group.rank());
  const auto of = [&](int rank) { return given_numbers(seed, operation, rank, count); };
  const auto floats = static_cast<int64_t>(count);
  Numbers apart;
  float* const own = (sums || in_place ? numbers : apart).put(of(group.rank()));
  Status status;
  std::vector<float> want = of(0);
  if (sums) {
    for (int rank = 1; rank < group.size(); ++rank) {
      const std::vector<float> more = of(rank);
      for (size_t i = 0; i < count; ++i) want[i] += more[i];
    }
    status = group.all_reduce_sum(numbers.stream, own, floats);
  } else {
    for (int rank = 1; rank < group.size(); ++rank) {
      const std::vector<float> part = of(rank);
      want.insert(want.end(), part.begin(), part.end());
    }
    status = group.gather(numbers.stream, own, floats, group.rank() == 0 ? numbers.all() : nullptr);
  }
  if (status.ok()) status = group.finish(numbers.stream);
  if (!status.ok()) return what + ": " + status.error().message;
  if (!sums && group.rank() > 0) return "";
  return same_numbers(numbers.get(want.size()), want) ? "" : what + (sums ? ": another sum" : ": other parts");
}

using MakeGroup = std::function<Result<std::unique_ptr<DeviceGroup>>(Collective& hosts)>;

Result<std::unique_ptr<DeviceGroup>> staged(Collective& hosts) {
  TRY_ASSIGN(std::unique_ptr<StagedDeviceGroup> group, StagedDeviceGroup::create(hosts, {.chunk_floats = kChunk}));
  return std::unique_ptr<DeviceGroup>(std::move(group));
}

void are_the_twins(int ranks, uint64_t seed, uint32_t operations, const MakeGroup& make) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", ranks " + std::to_string(ranks));
  ThreadGroup hosts(ranks);
  std::vector<std::unique_ptr<DeviceGroup>> groups(static_cast<size_t>(ranks));  // until all threads have ended
  on_ranks(hosts, [&](int rank, Collective& own_host) {
    auto made = make(own_host);
    ASSERT_TRUE(made.ok()) << made.error().message;
    DeviceGroup& group = *(groups[static_cast<size_t>(rank)] = std::move(*made));
    EXPECT_EQ(group.shard(), (Shard{rank, ranks}));
    Numbers numbers;
    for (uint32_t operation = 0; operation < operations; ++operation) {
      const std::string wrong = operate(group, numbers, seed, operation);
      if (wrong.empty()) continue;
      own_host.fail(internal_error(wrong));
      ADD_FAILURE() << wrong;
      return;
    }
  });
}

MakeGroup nccl(int64_t late_ns = int64_t{600} * 1'000'000'000) {
  return [late_ns](Collective& hosts) {
    NcclDeviceGroup::Options options = nccl_options();
    options.chunk_floats = kChunk;
    options.late_ns = late_ns;
    return nccl_group(hosts, options);
  };
}

class DeviceGroups : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (devices() == 0) GTEST_SKIP() << cuda_devices().reason;
  }
};

TEST_P(DeviceGroups, StagedIsTheTwin) { are_the_twins(GetParam(), 401, 60, staged); }

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceGroups, testing::Values(1, 2, 3, 4));

TEST(StagedGroup, ARankThatFailsEndsTheGroupForAll) {
  if (devices() == 0) GTEST_SKIP() << cuda_devices().reason;
  ThreadGroup hosts(3);
  std::vector<std::unique_ptr<DeviceGroup>> groups(3);
  on_ranks(hosts, [&](int rank, Collective& own_host) {
    DeviceGroup& group = *(groups[static_cast<size_t>(rank)] = std::move(*staged(own_host)));
    Numbers numbers;
    float* const own = numbers.put(given_numbers(402, 0, rank, 200));
    for (int sum = 0; group.all_reduce_sum(numbers.stream, own, 200).ok(); ++sum) {
      if (rank == 1 && sum == 3) group.fail({ErrorCode::kIo, "rank 1 met a broken GPU"});
      ASSERT_LE(sum, 4) << "the group goes on";
    }
    for (int again = 0; again < 2; ++again) {
      const Status summed = group.all_reduce_sum(numbers.stream, own, 200);
      ASSERT_FALSE(summed.ok());
      EXPECT_EQ(summed.error().message, "rank 1 met a broken GPU");
      EXPECT_FALSE(group.gather(numbers.stream, own, 20, numbers.all()).ok());
      EXPECT_EQ(group.finish(numbers.stream).error().message, "rank 1 met a broken GPU");
    }
  });
}

TEST(NcclGroup, AMissingLibraryIsASentenceForAll) {
  if (devices() == 0) GTEST_SKIP() << cuda_devices().reason;
  ThreadGroup hosts(2);
  on_ranks(hosts, [&](int rank, Collective& own_host) {
    NcclDeviceGroup::Options options = nccl_options();
    options.chunk_floats = kChunk;
    if (rank == 1) options.library = "libnccl-that-is-not-there.so.2";
    const auto made = NcclDeviceGroup::create(own_host, options);
    ASSERT_FALSE(made.ok());
    if (rank == 0 && made.error().message.find("not-there") == std::string::npos) {
      EXPECT_NE(made.error().message.find("install NCCL"), std::string::npos) << made.error().message;
      return;  // its own is missing, too
    }
    EXPECT_NE(made.error().message.find("Ranks on several GPUs need libnccl-that-is-not-there.so.2 of NVIDIA's NCCL"),
              std::string::npos)
        << made.error().message;
    EXPECT_NE(made.error().message.find("name its folder in LD_LIBRARY_PATH"), std::string::npos);
  });
}

#ifndef LORALEI_CUDA_EMULATION

TEST(NcclGroup, IsTheTwin) {
  if (!has_nccl(2)) GTEST_SKIP() << "NCCL needs a GPU for every rank, and there are " << devices() << ".";
  are_the_twins(std::min(devices(), 4), 403, 200, nccl());
}

#else

class NcclGroups : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    fake_nccl_state().reset();
    devices();
  }
};

TEST_P(NcclGroups, IsTheTwin) {
  are_the_twins(GetParam(), 404, 60, nccl());
  EXPECT_EQ(fake_nccl_state().connected, GetParam());
  EXPECT_EQ(fake_nccl_state().aborted, GetParam()) << "nobody waits for others at the end";
  EXPECT_GT(fake_nccl_state().gathers, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclGroups, testing::Values(1, 2, 3, 4));

// Streams that run by themselves, in any order.
TEST(NcclGroup, OrderOfStreamsChangesNothing) {
  fake_nccl_state().reset();
  devices();
  const cuda_emulated::RunningStreams running(405, 200);
  are_the_twins(3, 405, 30, nccl());
  are_the_twins(2, 406, 30, staged);
}

// Sums until something ends the group, then once more; `told`: what each rank is.
void sum_until_end(int ranks, int64_t late_ns, const std::function<void(int, DeviceGroup&)>& before_sum,
                   std::vector<std::string>& told) {
  ThreadGroup hosts(ranks);
  told.assign(static_cast<size_t>(ranks), "");
  on_ranks(hosts, [&](int rank, Collective& own_host) {
    std::string& mine = told[static_cast<size_t>(rank)];
    auto made = nccl(late_ns)(own_host);
    if (!made.ok()) {
      mine = made.error().message;
      return;
    }
    Numbers numbers;
    float* const own = numbers.put(given_numbers(407, 0, rank, 50));
    Status ended;
    for (int i = 0; i < 10 && ended.ok(); ++i) {
      if (before_sum) before_sum(i, **made);
      ended = (*made)->all_reduce_sum(numbers.stream, own, 50);
      const Status finished = (*made)->finish(numbers.stream);
      if (ended.ok()) ended = finished;
    }
    ASSERT_FALSE(ended.ok());
    mine = ended.error().message;
    const Status again = (*made)->gather(numbers.stream, own, 5, numbers.all());
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().message, mine);
    EXPECT_EQ((*made)->finish(numbers.stream).error().message, mine);
    EXPECT_EQ((*made)->health().error().message, mine);
  });
}

void expect_told(const std::vector<std::string>& told, const std::string& words) {
  for (const std::string& one : told) {
    EXPECT_EQ(one, told[0]) << "ranks are told different things";
    EXPECT_NE(one.find(words), std::string::npos) << one;
  }
}

constexpr int64_t kNeverNs = int64_t{600} * 1'000'000'000;

TEST(NcclGroup, WhatNcclRefusesEndsTheGroupWithItsWords) {
  std::vector<std::string> told;
  fake_nccl_state().reset();
  fake_nccl_state().faulty_rank = 1;
  fake_nccl_state().gathers_before = 3;
  fake_nccl_state().answer_to_gather = 6;
  sum_until_end(3, kNeverNs, {}, told);
  expect_told(told, "NCCL could not exchange numbers at rank 1 of 3 (a fake remote error), which ends");
  EXPECT_EQ(fake_nccl_state().aborted, 3) << "every rank lets its stream go";
}

TEST(NcclGroup, AnErrorBehindACallEndsTheGroup) {
  std::vector<std::string> told;
  fake_nccl_state().reset();
  fake_nccl_state().faulty_rank = 2;
  fake_nccl_state().gathers_before = 2;
  fake_nccl_state().error_behind = 6;
  sum_until_end(3, kNeverNs, {}, told);
  expect_told(told, "at rank 2 of 3 (a fake remote error), which ends");
}

TEST(NcclGroup, NobodyWaitsForEver) {
  std::vector<std::string> told;
  fake_nccl_state().reset();
  fake_nccl_state().faulty_rank = 1;
  fake_nccl_state().gathers_before = 2;
  fake_nccl_state().answer_to_gather = 7;  // its stream goes on, the others' stand
  fake_nccl_state().error_behind = 7;      // as of a call that NCCL goes on with
  sum_until_end(2, kSoonNs, {}, told);
  expect_told(told, "ms for the other GPUs to finish a step, which ends the tensor-parallel group");
}

TEST(NcclGroup, ARankThatFailsEndsTheGroupForAll) {
  std::vector<std::string> told;
  fake_nccl_state().reset();
  const auto fails = [](int sum, DeviceGroup& group) {
    if (sum == 4 && group.rank() == 0) group.fail({ErrorCode::kIo, "rank 0 met a broken GPU"});
  };
  sum_until_end(3, kNeverNs, fails, told);
  expect_told(told, "rank 0 met a broken GPU");
}

TEST(NcclGroup, ConnectingFailsForAllWhereItFailsForOne) {
  std::vector<std::string> told;
  fake_nccl_state().reset();
  fake_nccl_state().faulty_rank = 1;
  fake_nccl_state().answer_to_connect = 5;
  sum_until_end(3, kNeverNs, {}, told);
  expect_told(told, "NCCL could not connect the ranks at rank 1 of 3 (a fake error)");
  fake_nccl_state().reset();
  fake_nccl_state().faulty_rank = 0;
  fake_nccl_state().answer_to_connect = 7;
  sum_until_end(2, kSoonNs, {}, told);
  expect_told(told, "ms for the other GPUs to connect the ranks");
  EXPECT_EQ(fake_nccl_state().aborted, 2);
}

TEST(NcclGroup, AnOldLibraryIsRefusedWithBothVersions) {
  fake_nccl_state().reset();
  fake_nccl_state().version = 2'13'04;
  const auto opened = NcclLibrary::open(LORALEI_FAKE_NCCL);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("is NCCL 2.13.4: install 2.14.0 or later"), std::string::npos)
      << opened.error().message;
}

TEST(NcclGroup, AnotherLibraryIsRefused) {
  const auto opened = NcclLibrary::open("libm.so.6");
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("libm.so.6 has no ncclGetVersion"), std::string::npos)
      << opened.error().message;
}

TEST(DeviceGroupMemory, IsWhatItSays) {
  devices();
  ThreadGroup hosts(1);
  fake_nccl_state().reset();
  const NcclDeviceGroup::Options options{.library = LORALEI_FAKE_NCCL, .chunk_floats = 256};
  const int64_t before = cuda_emulated::allocated_bytes();
  const auto group = NcclDeviceGroup::create(hosts.rank(0), options);
  ASSERT_TRUE(group.ok()) << group.error().message;
  EXPECT_EQ(cuda_emulated::allocated_bytes() - before, NcclDeviceGroup::device_bytes(1, options));
  EXPECT_EQ(StagedDeviceGroup::pinned_bytes({0, 2}, {.chunk_floats = 256}), 3 * 1024);
  EXPECT_EQ(StagedDeviceGroup::pinned_bytes({1, 2}, {.chunk_floats = 256}), 1024);
}

#endif

}  // namespace
}  // namespace loralei::test
