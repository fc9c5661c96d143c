// SPDX-License-Identifier: Apache-2.0
// Low-rank products. Shrink: a warp sums one rank's row of A with up to eight rows of x, which share what it reads.
// Expand: a thread takes two neighbouring outputs of up to eight rows that lie in the same segments and adds the
// segments in order. Both sum in one order whatever rows are together.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/lora_factors.h"

namespace loralei::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kExpandThreads = 128;

struct Targets {
  LoraTarget list[kLoraTargetsMax];
};

// Int8 factors have scales and rows of whole groups (ops/lora_factors.h), the others neither.
template <typename Factor>
constexpr bool kScaled = sizeof(Factor) == 1;
template <typename Factor>
DEVICE int64_t row_numbers(int count) {
  return kScaled<Factor> ? (static_cast<int64_t>(count) + kLoraQuantGroup - 1) / kLoraQuantGroup * kLoraQuantGroup
                         : count;
}

// Whether eight numbers at a time may be read: rows of n numbers begin at multiples of eight.
template <typename T>
DEVICE bool aligned_rows(const T* base, int64_t row) {
  return row % 8 == 0 && reinterpret_cast<uintptr_t>(base) % 16 == 0;
}

// sums[i] = A row . x row i over [0, in), in one order whether or not eight are read at a time: lane l takes the
// numbers whose place modulo 256 is in [8 l, 8 l + 8). `scales` of the row's groups: int8 alone.
template <typename X, typename A>
DEVICE void warp_dots(const A* a, const float* scales, const X* x, int64_t x_stride, int rows, int in, bool vectors,
                      float (&sums)[kLoraRunRows]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kLoraRunRows; ++i) sums[i] = 0;
  for (int at = lane * 8; at < in; at += 256) {
    float weights[8];
    const bool whole = vectors && at + 8 <= in;
    if (whole) {
      load_numbers<8>(a + at, weights);
    } else {
      for (int k = 0; k < 8; ++k) weights[k] = at + k < in ? to_float(a[at + k]) : 0.0f;
    }
    if constexpr (kScaled<A>) {
      const float scale = scales[at / kLoraQuantGroup];
#pragma unroll
      for (int k = 0; k < 8; ++k) weights[k] *= scale;
    }
#pragma unroll
    for (int i = 0; i < kLoraRunRows; ++i) {
      if (i >= rows) break;
      float numbers[8];
      if (whole) {
        load_numbers<8>(x + i * x_stride + at, numbers);
      } else {
        for (int k = 0; k < 8; ++k) numbers[k] = at + k < in ? to_float(x[i * x_stride + at + k]) : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[i] = fmaf(weights[k], numbers[k], sums[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kLoraRunRows; ++i) {
    if (i < rows) sums[i] = warp_sum(sums[i]);
  }
}

template <typename X, typename A>
DEVICE void shrink_rank(const DeviceLora& pair, int r, const X* x, int64_t x_stride, int rows, int in, float* v,
                        int64_t v_stride) {
  const int64_t stride = row_numbers<A>(in);
  const A* a = static_cast<const A*>(pair.a) + r * stride;
  const float* scales = kScaled<A> ? pair.a_scale + r * (stride / kLoraQuantGroup) : nullptr;
  const bool vectors = aligned_rows(a, stride) && aligned_rows(x, x_stride);
  float sums[kLoraRunRows];
  warp_dots<X, A>(a, scales, x, x_stride, rows, in, vectors, sums);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int i = 0; i < kLoraRunRows; ++i) {
    if (i < rows) v[i * v_stride + r] = sums[i];
  }
}

template <typename X>
DEVICE void shrink_rank(const DeviceLora& pair, int r, const X* x, int64_t x_stride, int rows, int in, float* v,
                        int64_t v_stride) {
  if (pair.dtype == DType::kBF16) {
    shrink_rank<X, BF16>(pair, r, x, x_stride, rows, in, v, v_stride);
  } else if (pair.dtype == DType::kF16) {
    shrink_rank<X, F16>(pair, r, x, x_stride, rows, in, v, v_stride);
  } else if (pair.dtype == DType::kI8) {
    shrink_rank<X, int8_t>(pair, r, x, x_stride, rows, in, v, v_stride);
  } else {
    shrink_rank<X, float>(pair, r, x, x_stride, rows, in, v, v_stride);
  }
}

// One of an embedding's factors, which are plain.
DEVICE float factor_at(const void* factors, DType dtype, int64_t i) {
  if (dtype == DType::kBF16) return bf16_to_float(static_cast<const uint16_t*>(factors)[i]);
  if (dtype == DType::kF16) return f16_to_float(static_cast<const uint16_t*>(factors)[i]);
  return static_cast<const float*>(factors)[i];
}

// grid (parts, ranks / kWarps, targets): blocks beyond a pair's rank leave at once.
template <typename X>
KERNEL void shrink_kernel(const X* x, int64_t x_stride, int in, LoraStep step, Targets targets, float* v, int entries,
                          int rank_max) {
  const DeviceLoraPart part = step.parts[blockIdx.x];
  if (part.row_count == 0) return;
  const DeviceLoraSegment segment = step.segments[part.segment];
  const DeviceLora& pair = targets.list[blockIdx.z].sources[segment.slot];
  const int r = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (pair.present == 0 || pair.delta != nullptr || r >= pair.rank) return;
  const int64_t entry = static_cast<int64_t>(blockIdx.z) * entries + segment.entry_begin + part.first;
  shrink_rank(pair, r, x + (segment.row_begin + part.first) * x_stride, x_stride, part.row_count, in,
              v + entry * rank_max, rank_max);
}

// The same for an embedding: v is a row of a table.
KERNEL void lookup_kernel(const int32_t* tokens, LoraStep step, Targets targets, float* v, int entries, int rank_max) {
  const DeviceLoraPart part = step.parts[blockIdx.x];
  if (part.row_count == 0) return;
  const DeviceLoraSegment segment = step.segments[part.segment];
  const DeviceLora& pair = targets.list[blockIdx.z].sources[segment.slot];
  if (pair.present == 0 || pair.delta != nullptr) return;
  const int64_t entry = static_cast<int64_t>(blockIdx.z) * entries + segment.entry_begin + part.first;
  for (int item = static_cast<int>(threadIdx.x); item < part.row_count * pair.rank; item += kThreads) {
    const int i = item / pair.rank, r = item % pair.rank;
    const int64_t token = tokens[segment.row_begin + part.first + i];
    v[(entry + i) * rank_max + r] = token < 0 ? 0.0f : factor_at(pair.a, pair.dtype, token * pair.rank + r);
  }
}

template <typename B>
DEVICE void expand_ranks(const DeviceLora& pair, const float* v, int64_t v_stride, int rows, int o, bool two,
                         float (&sums)[kLoraRunRows][2]) {
  const B* b = static_cast<const B*>(pair.b_t) + o;
  const int64_t stride = row_numbers<B>(pair.out);
  // Two outputs from an even one lie in one group.
  const float* scales = kScaled<B> ? pair.b_scale + static_cast<int64_t>(o / kLoraQuantGroup) * pair.rank : nullptr;
  for (int r = 0; r < pair.rank; ++r) {
    const B* at = b + r * stride;
    float low = to_float(at[0]), high = two ? to_float(at[1]) : 0.0f;
    if constexpr (kScaled<B>) low *= scales[r], high *= scales[r];
#pragma unroll
    for (int i = 0; i < kLoraRunRows; ++i) {
      if (i >= rows) break;
      const float number = v[i * v_stride + r];
      sums[i][0] = fmaf(number, low, sums[i][0]);
      sums[i][1] = fmaf(number, high, sums[i][1]);
    }
  }
}

// y of `rows` rows at outputs o, o + 1 gets one pair's part; v and delta are of the first of the rows.
DEVICE void expand_pair(const DeviceLora& pair, float scale, const float* v, int64_t v_stride, const float* delta,
                        int rows, int o, int out, float (&y)[kLoraRunRows][2]) {
  if (delta != nullptr) {
#pragma unroll
    for (int i = 0; i < kLoraRunRows; ++i) {
      for (int k = 0; k < 2; ++k) {
        if (i < rows && o + k < out) y[i][k] += delta[static_cast<int64_t>(i) * out + o + k];
      }
    }
    return;
  }
  if (o >= pair.out) return;
  const bool two = o + 1 < pair.out;
  float sums[kLoraRunRows][2] = {};
  if (pair.dtype == DType::kBF16) {
    expand_ranks<BF16>(pair, v, v_stride, rows, o, two, sums);
  } else if (pair.dtype == DType::kF16) {
    expand_ranks<F16>(pair, v, v_stride, rows, o, two, sums);
  } else if (pair.dtype == DType::kI8) {
    expand_ranks<int8_t>(pair, v, v_stride, rows, o, two, sums);
  } else {
    expand_ranks<float>(pair, v, v_stride, rows, o, two, sums);
  }
  const float factor = scale * pair.scaling;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (k == 1 && !two) break;
    const float bias = pair.b_bias != nullptr && pair.rank > 0 ? pair.b_bias[o + k] : 0.0f;
    const float extra = pair.bias_delta != nullptr ? pair.bias_delta[o + k] : 0.0f;
#pragma unroll
    for (int i = 0; i < kLoraRunRows; ++i) y[i][k] += factor * (sums[i][k] + bias) + extra;
  }
}

// grid (outputs / (2 threads), runs, targets).
KERNEL void BLOCK_LIMIT(kExpandThreads)
    expand_kernel(LoraStep step, Targets targets, const float* v, int entries, int rank_max) {
  const DeviceLoraRun run = step.runs[blockIdx.y];
  const LoraTarget& target = targets.list[blockIdx.z];
  const int o = 2 * static_cast<int>(blockIdx.x * kExpandThreads + threadIdx.x);
  if (run.row_count == 0 || o >= target.out) return;
  const bool two = o + 1 < target.out;
  bool any = false;
  for (int e = 0; e < run.count; ++e) {
    any = any || target.sources[step.segments[step.order[run.begin + e]].slot].present != 0;
  }
  if (!any) return;
  float* to = target.y + run.row_begin * target.y_stride + o;
  float y[kLoraRunRows][2] = {};
#pragma unroll
  for (int i = 0; i < kLoraRunRows; ++i) {
    if (i >= run.row_count) break;
    y[i][0] = to[i * target.y_stride];
    if (two) y[i][1] = to[i * target.y_stride + 1];
  }
  for (int e = 0; e < run.count; ++e) {
    const DeviceLoraSegment segment = step.segments[step.order[run.begin + e]];
    const DeviceLora& pair = target.sources[segment.slot];
    if (pair.present == 0) continue;
    const int first = run.row_begin - segment.row_begin;
    const int64_t entry = static_cast<int64_t>(blockIdx.z) * entries + segment.entry_begin + first;
    const float* delta = pair.delta != nullptr ? pair.delta + static_cast<int64_t>(first) * target.out : nullptr;
    expand_pair(pair, segment.scale, v + entry * rank_max, rank_max, delta, run.row_count, o, target.out, y);
  }
#pragma unroll
  for (int i = 0; i < kLoraRunRows; ++i) {
    if (i >= run.row_count) break;
    to[i * target.y_stride] = y[i][0];
    if (two) to[i * target.y_stride + 1] = y[i][1];
  }
}

// --- padded: grid (rows, ranks / kWarps, targets) and (outputs / (2 threads), rows, targets)

template <typename X>
KERNEL void padded_shrink_kernel(const X* x, int64_t x_stride, int in, int rank, const int32_t* slots, Targets targets,
                                 float* v) {
  const int64_t row = blockIdx.x;
  const int slot = slots[row], r = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (slot < 0 || r >= rank) return;
  const DeviceLora& pair = targets.list[blockIdx.z].sources[slot];
  if (pair.present == 0) return;
  shrink_rank(pair, r, x + row * x_stride, x_stride, 1, in,
              v + (static_cast<int64_t>(blockIdx.z) * gridDim.x + row) * rank, rank);
}

KERNEL void BLOCK_LIMIT(kExpandThreads)
    padded_expand_kernel(int rank, const int32_t* slots, const float* scales, Targets targets, const float* v) {
  const int64_t row = blockIdx.y;
  const int slot = slots[row], o = 2 * static_cast<int>(blockIdx.x * kExpandThreads + threadIdx.x);
  const LoraTarget& target = targets.list[blockIdx.z];
  if (slot < 0 || o >= target.out) return;
  DeviceLora pair = target.sources[slot];
  if (pair.present == 0) return;
  pair.rank = rank;
  const bool two = o + 1 < target.out;
  float* to = target.y + row * target.y_stride + o;
  float y[kLoraRunRows][2] = {};
  y[0][0] = to[0];
  if (two) y[0][1] = to[1];
  expand_pair(pair, scales[row], v + (static_cast<int64_t>(blockIdx.z) * gridDim.y + row) * rank, rank, nullptr, 1, o,
              target.out, y);
  to[0] = y[0][0];
  if (two) to[1] = y[0][1];
}

template <typename Args>
Targets targets_of(const Args& args) {
  CHECK(args.target_count <= kLoraTargetsMax);
  Targets targets;
  for (int32_t i = 0; i < args.target_count; ++i) targets.list[i] = args.targets[i];
  return targets;
}

template <typename Args>
int32_t widest(const Args& args) {
  int32_t out = 0;
  for (int32_t i = 0; i < args.target_count; ++i) out = args.targets[i].out > out ? args.targets[i].out : out;
  return out;
}

}  // namespace

Status lora_shrink(CudaStream& stream, const LoraArgs& args) {
  const Targets targets = targets_of(args);
  const auto parts = static_cast<unsigned>(args.step.part_count), count = static_cast<unsigned>(args.target_count);
  if (args.tokens != nullptr) {
    return launch(lookup_kernel, {parts, 1, count}, {kThreads, 1, 1}, 0, stream.handle(), args.tokens, args.step,
                  targets, args.v, args.entries, args.rank_max);
  }
  return for_plain("inputs of LoRA", args.x_dtype, [&](auto type) {
    using X = decltype(type);
    return launch(shrink_kernel<X>, {parts, blocks_for(args.rank_max, kWarps), count}, {kThreads, 1, 1}, 0,
                  stream.handle(), static_cast<const X*>(args.x), args.x_stride, args.in, args.step, targets, args.v,
                  args.entries, args.rank_max);
  });
}

Status lora_expand(CudaStream& stream, const LoraArgs& args) {
  return launch(expand_kernel,
                {blocks_for(widest(args), 2 * kExpandThreads), static_cast<unsigned>(args.step.run_count),
                 static_cast<unsigned>(args.target_count)},
                {kExpandThreads, 1, 1}, 0, stream.handle(), args.step, targets_of(args), args.v, args.entries,
                args.rank_max);
}

Status lora_padded_shrink(CudaStream& stream, const PaddedLoraArgs& args) {
  return for_plain("inputs of LoRA", args.x_dtype, [&](auto type) {
    using X = decltype(type);
    return launch(
        padded_shrink_kernel<X>,
        {static_cast<unsigned>(args.rows), blocks_for(args.rank, kWarps), static_cast<unsigned>(args.target_count)},
        {kThreads, 1, 1}, 0, stream.handle(), static_cast<const X*>(args.x), args.x_stride, args.in, args.rank,
        args.slots, targets_of(args), args.v);
  });
}

Status lora_padded_expand(CudaStream& stream, const PaddedLoraArgs& args) {
  return launch(padded_expand_kernel,
                {blocks_for(widest(args), 2 * kExpandThreads), static_cast<unsigned>(args.rows),
                 static_cast<unsigned>(args.target_count)},
                {kExpandThreads, 1, 1}, 0, stream.handle(), args.rank, args.slots, args.scales, targets_of(args),
                args.v);
}

}  // namespace loralei::cuda
