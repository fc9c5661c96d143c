// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most: memory read rate and arithmetic rates, measured in
// a few hundred milliseconds. The bounds of `loralei bench`.
//
// Thread: called by one thread, alone (nothing else should run); uses the given pool.
// Ownership: its buffer lives for the call.
// Invariant: every figure is the best of several rounds, because noise only ever
// makes a round slower.
// Failure: the buffer cannot be allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "device/host/arena.h"
#include "device/host/thread_pool.h"
#include "tensor/dtype.h"

namespace loralei {

struct ProbeOptions {
  int64_t buffer_bytes = int64_t{1} << 30;  // must exceed the caches by far; cut to half of what the caller can spare
  int rounds = 5;
  PageSize pages = PageSize::kHuge;
};

// GB/s (1e9 bytes) of all threads of the pool reading disjoint parts of one buffer,
// in the fastest way known: in order, or as two streams a thread asked for ahead, which
// reads up to a fifth more.
Result<double> probe_read_gb_s(ThreadPool& pool, const Clock& clock, const ProbeOptions& options);

// 1e9 f32 operations a second (a fused multiply-add counts as two) of all threads
// together, from registers.
double probe_f32_gflop_s(ThreadPool& pool, const Clock& clock, int rounds = 5);

// 1e9 int8 operations a second (a multiply and an add each count), with the best
// dot-product instruction on vectors (AVX-512 VNNI, else AVX-VNNI, else multiply-add
// pairs of AVX-512 or AVX2); 0 where there is none. `bits`: of the weights, 4 .. 8.
// Where bytes are multiplied in pairs alone, the fewer they are the more pairs are added
// in 16 bits, which is up to 1.8 times as fast (ops/cpu/dots/madd_in_order.inl.h);
// elsewhere they make no difference.
double probe_int8_gop_s(ThreadPool& pool, const Clock& clock, int rounds = 5, int bits = 8);
// The bits to give it for weights of a format; always 8 where they make no difference
// on this machine.
int int8_bits(DType weights);

// The same by kind of instruction ("avx512", "avx512_vnni", "avx_vnni", "avx2",
// "scalar"), the preferred one first.
struct KindRate {
  std::string kind;
  double gop_s = 0;
};
std::vector<KindRate> probe_f32_kinds(ThreadPool& pool, const Clock& clock, int rounds = 5);
std::vector<KindRate> probe_int8_kinds(ThreadPool& pool, const Clock& clock, int rounds = 5, int bits = 8);

// 1e9 operations a second with dot products of bf16 pairs (AVX512_BF16), a multiply and
// an add each counted; 0 where the processor has none.
double probe_bf16_gflop_s(ThreadPool& pool, const Clock& clock, int rounds = 5);

// 1e9 int8 operations a second in AMX tiles; 0 where processor or system refuse them.
// Asks the system for the tiles (sys/cpu.h), which stays granted.
double probe_amx_int8_gop_s(ThreadPool& pool, const Clock& clock, int rounds = 5);

// Microseconds from handing a job to a sleeping pool until every thread has run a part of
// it: median of many.
double probe_wake_us(ThreadPool& pool, const Clock& clock);

// Nanoseconds from one thread's writing of a cache line until another one, which waits
// for it, has seen it: some 30 where both cores share a last-level cache, 100 and more
// where they do not. On a shared host this changes while one measures, and much changes
// with it. 0 with one thread.
double probe_line_ns(ThreadPool& pool, const Clock& clock);

}  // namespace loralei
