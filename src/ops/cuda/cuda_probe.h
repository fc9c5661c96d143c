// SPDX-License-Identifier: Apache-2.0
// What a GPU can do at most: bytes read a second, operations of a large bf16 product
// a second, bytes a second from pinned host memory. The bounds of `loralei bench` on a
// device; the twin of ops/probe.h.
//
// Thread: one; makes the device its own.
// Ownership: one piece of device memory (bytes()) and one of pinned host memory
// for the call, beside whatever a model holds: nothing else should run.
// Invariants: every figure is the best of several rounds, because noise only ever makes
// a round slower; memory holds random numbers (zeros would let a GPU run faster than it
// does at work) and is larger than the caches.
// Failure: no room, no cuBLASLt, or the driver refuses.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/result.h"
#include "device/cuda/cuda_stream.h"
#include "device/device_rates.h"

namespace loralei::cuda {

struct CudaProbeSizes {
  int64_t read_bytes = int64_t{1} << 30;  // a multiple of 16
  int32_t product = 8192;                 // rows, inputs and outputs
  int64_t upload_bytes = int64_t{256} << 20;
  int calls = 4, rounds = 12;  // in a round; measured, after one that warms up

  // Of device memory; what is read, multiplied and uploaded to share it.
  int64_t bytes() const { return std::max({read_bytes, int64_t{8} * product * product, upload_bytes}); }
};
Result<DeviceRates> probe_cuda(int ordinal, const CudaProbeSizes& sizes = {});

// Reads `bytes` (a multiple of 16) as the probe does: adds the sum of their 32-bit words,
// mod 2^32, to *sum.
Status read_words(CudaStream& stream, const void* data, int64_t bytes, uint32_t* sum);

}  // namespace loralei::cuda
