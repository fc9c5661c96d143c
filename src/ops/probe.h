// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most: memory read rate and arithmetic rates, measured in a few hundred milliseconds. The
// bounds of `loralei bench`.
//
// Thread: called by one thread, alone (nothing else should run); uses the given pool. Ownership: its buffer lives for
// the call. Invariant: every figure is the best of several rounds, because noise only ever makes a round slower.
// Failure: the buffer cannot be allocated.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/result.h"
#include "device/host/thread_pool.h"

namespace loralei {

struct ProbeOptions {
  int64_t buffer_bytes = int64_t{1} << 30;  // must exceed the caches by far; cut to half of what the caller can spare
  int rounds = 5;
};

// GB/s (1e9 bytes) of all threads of the pool reading disjoint parts of one buffer.
Result<double> probe_read_gb_s(ThreadPool& pool, const Clock& clock, const ProbeOptions& options);

// 1e9 f32 operations a second (a fused multiply-add counts as two) of all threads together, from registers.
double probe_f32_gflop_s(ThreadPool& pool, const Clock& clock, int rounds = 5);

// 1e9 int8 operations a second (a multiply and an add each count), with the best dot-product instruction there is
// (AVX-512 VNNI, else multiply-add pairs of AVX-512BW or AVX2); 0 where there is none.
double probe_int8_gop_s(ThreadPool& pool, const Clock& clock, int rounds = 5);

// Microseconds from handing a job to a sleeping pool until every thread has run a part of it: median of many.
double probe_wake_us(ThreadPool& pool, const Clock& clock);

}  // namespace loralei
