// SPDX-License-Identifier: Apache-2.0
// The oracle itself: mistakes that a GPU would turn into wrong numbers now and then
// fail here each time.
#include "device/cuda/emulated/emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/stream_gate.h"
#include "ops/cuda/dialect.cuh"

namespace loralei::cuda {
namespace {

enum class Mistake {
  kNone,
  kNoBarrier,
  kDivergentBarrier,
  kTwoBarriers,
  kPastTheEnd,
  kPastTheArray,
  kNoSyncWarp,
  kLaneLeft
};

// out[i] = the neighbour's number, through shared memory.
template <Mistake kMistake>
KERNEL void neighbour_kernel(const float* in, float* out) {
  SHARED_ARRAY(float, numbers, 64);
  const unsigned i = threadIdx.x;
  numbers[i] = in[blockIdx.x * 64 + i];
  if constexpr (kMistake == Mistake::kDivergentBarrier) {
    if (i < 40) __syncthreads();
  } else if constexpr (kMistake == Mistake::kTwoBarriers) {
    if (i < 40) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if constexpr (kMistake == Mistake::kLaneLeft) {
    if (i == 5) return;
    __syncwarp();
  } else if constexpr (kMistake != Mistake::kNoBarrier) {
    __syncthreads();
  }
  if constexpr (kMistake == Mistake::kPastTheEnd) reinterpret_cast<float*>(shared_bytes())[i + 1] = 0;
  if constexpr (kMistake == Mistake::kPastTheArray) numbers[i + 1] = 0;
  out[blockIdx.x * 64 + i] = numbers[i ^ 1];
}

struct Outcome {
  std::string failure;
  bool right = true;
};

template <Mistake kMistake>
Outcome run() {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer in = DeviceBuffer::allocate(256 * 4).value(), out = DeviceBuffer::allocate(256 * 4).value();
  std::vector<float> numbers(256), got(256);
  for (size_t i = 0; i < 256; ++i) numbers[i] = static_cast<float>(i);
  EXPECT_TRUE(copy_to_device(in.data(), numbers.data(), 1024, stream).ok());
  EXPECT_TRUE(launch("neighbour", neighbour_kernel<kMistake>, {4}, {64}, 256, stream.handle(),
                     reinterpret_cast<const float*>(in.data()), reinterpret_cast<float*>(out.data()))
                  .ok());
  EXPECT_TRUE(std::isnan(reinterpret_cast<const float*>(out.data())[0])) << "work ran before it was waited for";
  EXPECT_TRUE(copy_to_host(got.data(), out.data(), 1024, stream).ok());
  (void)stream.synchronize();
  Outcome outcome{cuda_emulated::take_failure()};
  for (size_t i = 0; i < 256; ++i) outcome.right = outcome.right && got[i] == numbers[i ^ 1];
  return outcome;
}

TEST(CudaEmulator, RunsARightKernel) {
  const Outcome outcome = run<Mistake::kNone>();
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.right);
}

TEST(CudaEmulator, AMissingBarrierReadsNothingSensible) { EXPECT_FALSE(run<Mistake::kNoBarrier>().right); }

TEST(CudaEmulator, ADivergentBarrierIsReportedAndDoesNotHang) {
  EXPECT_EQ(run<Mistake::kDivergentBarrier>().failure, "");  // the others have left: as on a GPU, they do not count
  EXPECT_NE(run<Mistake::kTwoBarriers>().failure.find("divergent barrier"), std::string::npos);
  EXPECT_NE(run<Mistake::kLaneLeft>().failure.find("divergent barrier"), std::string::npos);
}

TEST(CudaEmulator, WritesPastSharedMemoryAreReported) {
  EXPECT_NE(run<Mistake::kPastTheEnd>().failure.find("dynamic shared memory"), std::string::npos);
  EXPECT_NE(run<Mistake::kPastTheArray>().failure.find("static shared memory"), std::string::npos);
}

// One warp's upper lanes wait at the block's barrier, its lower lanes for them.
KERNEL void stuck_kernel(int* out) {
  if (threadIdx.x < 48) {
    __shfl_sync(kFullWarp, 1, 0);
  } else {
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = 1;
}

TEST(CudaEmulator, CollectivesThatDoNotMeetAreReported) {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer out = DeviceBuffer::allocate(4).value();
  EXPECT_TRUE(launch("stuck", stuck_kernel, {1}, {64}, 0, stream.handle(), reinterpret_cast<int*>(out.data())).ok());
  EXPECT_FALSE(stream.synchronize().ok());
  EXPECT_NE(cuda_emulated::take_failure().find("divergent barrier"), std::string::npos);
}

// A kernel's failure is told by name, by whatever waits next, and by every
// call from then on.
TEST(CudaEmulator, AFailedKernelIsNamedAndLosesTheDevice) {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer out = DeviceBuffer::allocate(4).value();
  const auto launch_stuck = [&] {
    return launch("stuck", stuck_kernel, {1}, {64}, 0, stream.handle(), reinterpret_cast<int*>(out.data()));
  };
  EXPECT_TRUE(launch_stuck().ok());
  const Status done = stream.synchronize();
  ASSERT_TRUE(is_device_lost(done));
  EXPECT_NE(done.error().message.find("kernel stuck: divergent barrier"), std::string::npos) << done.error().message;
  EXPECT_NE(done.error().message.find("start it again"), std::string::npos) << done.error().message;
  EXPECT_TRUE(is_device_lost(launch_stuck()));
  EXPECT_TRUE(is_device_lost(fill_on_device(out.data(), 0, 4, stream)));
  EXPECT_TRUE(is_device_lost(stream.synchronize()));
  EXPECT_EQ(DeviceBuffer::allocate(4).error().code, ErrorCode::kUnavailable);
  cuda_emulated::take_failure();
  EXPECT_TRUE(DeviceBuffer::allocate(4).ok());
}

// C = A B with the lanes' parts as PTX describes them: A [16, 16] and B [16, 8] row
// by row, out [16, 8].
KERNEL void mma_kernel(const float* a, const float* b, float* out) {
  const unsigned group = threadIdx.x / 4, quarter = threadIdx.x % 4;
  const auto pair = [](float low, float high) {
    return float_to_bf16(low) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
  };
  uint32_t fa[4], fb[2];
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = group + i % 2 * 8, k = quarter * 2 + i / 2 * 8;
    fa[i] = pair(a[row * 16 + k], a[row * 16 + k + 1]);
  }
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned k = quarter * 2 + i * 8;
    fb[i] = pair(b[k * 8 + group], b[(k + 1) * 8 + group]);
  }
  float c[4] = {};
  mma_bf16(c, fa, fb);
  for (unsigned i = 0; i < 4; ++i) out[(group + i / 2 * 8) * 8 + quarter * 2 + i % 2] = c[i];
}

TEST(CudaEmulator, MatrixFragmentsLieWhereTheManualSays) {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer a = DeviceBuffer::allocate(1024).value(), b = DeviceBuffer::allocate(512).value(),
               c = DeviceBuffer::allocate(512).value();
  std::vector<float> x(256), y(128), got(128);
  for (size_t i = 0; i < 256; ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 19) - 9);
  for (size_t i = 0; i < 128; ++i) y[i] = static_cast<float>(static_cast<int>(i * 29 % 23) - 11);
  EXPECT_TRUE(copy_to_device(a.data(), x.data(), 1024, stream).ok());
  EXPECT_TRUE(copy_to_device(b.data(), y.data(), 512, stream).ok());
  EXPECT_TRUE(launch("mma", mma_kernel, {1}, {32}, 0, stream.handle(), reinterpret_cast<const float*>(a.data()),
                     reinterpret_cast<const float*>(b.data()), reinterpret_cast<float*>(c.data()))
                  .ok());
  EXPECT_TRUE(copy_to_host(got.data(), c.data(), 512, stream).ok());
  ASSERT_TRUE(stream.synchronize().ok());
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      float sum = 0;
      for (size_t k = 0; k < 16; ++k) sum += x[row * 16 + k] * y[k * 8 + column];
      ASSERT_EQ(got[row * 8 + column], sum) << row << " " << column;
    }
  }
}

// Four matrices [8, 8] lie one after another in shared memory, a number for each place;
// out [32 lanes][2][4].
KERNEL void load_matrices_kernel(uint32_t* out) {
  SHARED_ARRAY(uint16_t, numbers, 256);
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) numbers[i] = static_cast<uint16_t>(i);
  __syncthreads();
  uint32_t plain[4], transposed[4];
  load_matrices(plain, numbers + lane * 8);
  load_matrices_transposed(transposed, numbers + lane * 8);
  for (unsigned i = 0; i < 4; ++i) out[lane * 8 + i] = plain[i], out[lane * 8 + 4 + i] = transposed[i];
}

TEST(CudaEmulator, LoadedMatricesLieWhereTheManualSays) {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer out = DeviceBuffer::allocate(1024).value();
  std::vector<uint32_t> got(256);
  EXPECT_TRUE(launch("load_matrices", load_matrices_kernel, {1}, {32}, 0, stream.handle(),
                     reinterpret_cast<uint32_t*>(out.data()))
                  .ok());
  EXPECT_TRUE(copy_to_host(got.data(), out.data(), 1024, stream).ok());
  ASSERT_TRUE(stream.synchronize().ok());
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t row = lane / 4, column = lane % 4 * 2;
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      const uint32_t at = matrix * 64 + row * 8 + column, across = matrix * 64 + column * 8 + row;
      EXPECT_EQ(got[lane * 8 + matrix], at | (at + 1) << 16) << lane;
      EXPECT_EQ(got[lane * 8 + 4 + matrix], across | (across + 8) << 16) << lane;
    }
  }
}

enum class Wait { kNone, kTooLate, kInTime };

// out[4 i ...] = in[4 i ...], by way of shared memory; zeros for the last thread.
template <Wait kWait>
KERNEL void copy_async_kernel(const float* in, float* out) {
  SHARED_ARRAY(float4, lines, 32);
  const unsigned i = threadIdx.x;
  lines[i] = float4{1, 1, 1, 1};
  copy_async(lines + i, in + 4 * i, i != 31);
  if constexpr (kWait == Wait::kInTime) await_copies();
  __syncthreads();
  reinterpret_cast<float4*>(out)[i] = lines[i];
  if constexpr (kWait == Wait::kTooLate) await_copies();
}

template <Wait kWait>
Outcome run_copies() {
  CudaStream stream = CudaStream::create().value();
  DeviceBuffer in = DeviceBuffer::allocate(512).value(), out = DeviceBuffer::allocate(512).value();
  std::vector<float> numbers(128), got(128);
  for (size_t i = 0; i < 128; ++i) numbers[i] = static_cast<float>(i + 1);
  EXPECT_TRUE(copy_to_device(in.data(), numbers.data(), 512, stream).ok());
  EXPECT_TRUE(launch("copy_async", copy_async_kernel<kWait>, {1}, {32}, 0, stream.handle(),
                     reinterpret_cast<const float*>(in.data()), reinterpret_cast<float*>(out.data()))
                  .ok());
  EXPECT_TRUE(copy_to_host(got.data(), out.data(), 512, stream).ok());
  (void)stream.synchronize();
  Outcome outcome{cuda_emulated::take_failure()};
  for (size_t i = 0; i < 128; ++i) outcome.right = outcome.right && got[i] == (i < 124 ? numbers[i] : 0.0f);
  return outcome;
}

TEST(CudaEmulator, CopiesArriveWhenTheyAreWaitedFor) {
  const Outcome outcome = run_copies<Wait::kInTime>();
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.right);
  EXPECT_FALSE(run_copies<Wait::kTooLate>().right);
  EXPECT_NE(run_copies<Wait::kNone>().failure.find("without waiting for its copies"), std::string::npos);
}

// Streams that run by themselves keep their own order and no other, but for what events
// order.
TEST(CudaEmulator, StreamsRunByThemselvesEachInItsOrder) {
  constexpr size_t kStreams = 3;
  constexpr int kPieces = 200;
  const StreamGates gates = StreamGates::create(1).value();
  std::vector<CudaStream> streams(kStreams);
  for (CudaStream& stream : streams) stream = CudaStream::create().value();
  CudaEvent event = CudaEvent::create().value();
  std::vector<std::pair<size_t, int>> ran;
  {
    const cuda_emulated::RunningStreams running(7, 50);
    for (int number = 0; number < kPieces; ++number)
      for (size_t i = 0; i < kStreams; ++i)
        cuda_emulated::enqueue(streams[i].handle(), [&ran, i, number] { ran.emplace_back(i, number); });
    ASSERT_TRUE(streams[0].record(event).ok());
    ASSERT_TRUE(streams[1].wait_for(event).ok());
    ASSERT_TRUE(streams[1].write(gates[0].there, 1).ok());
    while (!gates[0].has(1)) {  // nobody waits for them
    }
    ASSERT_TRUE(streams[2].synchronize().ok());
  }
  std::vector<int> next(kStreams, 0);
  bool in_turns = true;
  for (size_t i = 0; i < ran.size(); ++i) {
    EXPECT_EQ(ran[i].second, next[ran[i].first]++);
    in_turns = in_turns && ran[i].first == i % kStreams;
  }
  EXPECT_EQ(next, std::vector<int>(kStreams, kPieces));
  EXPECT_FALSE(in_turns);
  ASSERT_TRUE(streams[0].write(gates[0].there, 2).ok());
  EXPECT_FALSE(gates[0].has(2)) << "they run late again";
  ASSERT_TRUE(streams[0].synchronize().ok());
  EXPECT_TRUE(gates[0].has(2));
}

}  // namespace
}  // namespace loralei::cuda
