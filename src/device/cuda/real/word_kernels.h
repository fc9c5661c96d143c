// SPDX-License-Identifier: Apache-2.0
// Kernels of one thread that write a word of pinned memory and wait for one: for devices
// whose streams may not do so themselves (runtime.h, write_word).
//
// Thread: as the CUDA runtime. Ownership: none.
// Invariant: a wait ends when whoever brings the word does, or lets all waits pass; the
// host sees to that (StreamGate).
// Failure: what the launch answers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace loralei::cuda_runtime {

cudaError_t launch_write_word(cudaStream_t stream, void* word, uint32_t value);
cudaError_t launch_wait_for_word(cudaStream_t stream, const void* word, uint64_t at_least);

}  // namespace loralei::cuda_runtime
