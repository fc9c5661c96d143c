// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "ops/cuda/cuda_probe.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"

namespace loralei::cuda {
namespace {

constexpr int kThreads = 256, kLoads = 4;  // loads of 16 bytes that a thread has under way
constexpr int64_t kBlocksMax = 8192;

DEVICE uint32_t word_sum(const uint4& words) { return words.x + words.y + words.z + words.w; }

KERNEL void BLOCK_LIMIT(kThreads) read_words_kernel(const uint4* data, int64_t count, uint32_t* sum) {
  uint32_t total = 0;
  const int64_t sweep = static_cast<int64_t>(gridDim.x) * kThreads * kLoads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads * kLoads + threadIdx.x; at < count; at += sweep) {
    uint4 words[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t from = at + i * kThreads;
      words[i] = from < count ? data[from] : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) total += word_sum(words[i]);
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) total += __shfl_xor_sync(kFullWarp, total, bits);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}

}  // namespace

Status read_words(CudaStream& stream, const void* data, int64_t bytes, uint32_t* sum) {
  CHECK(bytes % static_cast<int64_t>(sizeof(uint4)) == 0);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  const unsigned blocks = blocks_for(std::min(count, kBlocksMax * kThreads * kLoads), kThreads * kLoads);
  return launch("read_words", read_words_kernel, Dim3{blocks, 1, 1}, Dim3{kThreads, 1, 1}, 0, stream.handle(),
                static_cast<const uint4*>(data), count, sum);
}

}  // namespace loralei::cuda
