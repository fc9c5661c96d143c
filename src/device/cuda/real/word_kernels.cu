// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/real/word_kernels.h"

#include <cuda_runtime.h>

namespace loralei::cuda_runtime {
namespace {

constexpr unsigned kNapNs = 500;  // between two looks, so that the bus has others, too

__global__ void write_word_kernel(volatile unsigned* word, unsigned value) {
  __threadfence_system();
  *word = value;
}

__global__ void wait_for_word_kernel(const volatile long long* word, long long at_least) {
  while (*word - at_least < 0) __nanosleep(kNapNs);
  __threadfence_system();
}

}  // namespace

cudaError_t launch_write_word(cudaStream_t stream, void* word, uint32_t value) {
  write_word_kernel<<<1, 1, 0, stream>>>(static_cast<volatile unsigned*>(word), value);
  return cudaGetLastError();
}

cudaError_t launch_wait_for_word(cudaStream_t stream, const void* word, uint64_t at_least) {
  wait_for_word_kernel<<<1, 1, 0, stream>>>(static_cast<const volatile long long*>(word),
                                            static_cast<long long>(at_least));
  return cudaGetLastError();
}

}  // namespace loralei::cuda_runtime
