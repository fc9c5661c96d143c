// SPDX-License-Identifier: Apache-2.0
// Low-rank products. Shrink: a warp sums one rank's row of A with up to eight rows of x,
// which share what it reads; of one or two rows a block's four warps do, a quarter of the
// row each. Expand: a thread takes eight neighbouring outputs of the rows that lie in the
// same segments and adds the segments in order. Several loads are under way at a time,
// and both sum in one order whatever rows are together and however the work is split.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/lora_factors.h"

namespace loralei::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kFewRows = 2;  // whose sums are shared by a block's warps
constexpr int kExpandThreads = 64, kExpandOuts = 8;
constexpr int kExpandRows = 4;  // of a run at a time

struct Targets {
  LoraTarget list[kLoraTargetsMax];
};

// Int8 factors have scales and rows of whole groups (ops/lora_factors.h),
// the others neither.
template <typename Factor>
constexpr bool kScaled = sizeof(Factor) == 1;
template <typename Factor>
DEVICE int64_t row_numbers(int count) {
  return kScaled<Factor> ? (static_cast<int64_t>(count) + kLoraQuantGroup - 1) / kLoraQuantGroup * kLoraQuantGroup
                         : count;
}

// Whether eight numbers at a time may be read: rows of n numbers begin at
// multiples of eight.
template <typename T>
DEVICE bool aligned_rows(const T* base, int64_t row) {
  return row % 8 == 0 && reinterpret_cast<uintptr_t>(base) % 16 == 0;
}

// kAhead times 256 numbers from `at` of the lane: sums[i] += its part of A row . x row i.
// Rows from `rows` on are row 0 again.
template <bool kVectors, int kAhead, int kRows, typename X, typename A>
DEVICE void add_dots(const A* a, const float* scales, const X* x, int64_t x_stride, int rows, int at, int in,
                     float (&sums)[kRows]) {
  float weights[kAhead][8];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    const int from = at + 256 * u;
    if constexpr (kVectors) {
      load_numbers<8>(a + from, weights[u]);
    } else {
      for (int k = 0; k < 8; ++k) weights[u][k] = from + k < in ? to_float(a[from + k]) : 0.0f;
    }
    if constexpr (kScaled<A>) {
      const float scale = scales[from / kLoraQuantGroup];
#pragma unroll
      for (int k = 0; k < 8; ++k) weights[u][k] *= scale;
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (kRows > kFewRows && i >= rows) break;
    const X* row = x + (i < rows ? i : 0) * x_stride;
    float numbers[kAhead][8];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int from = at + 256 * u;
      if constexpr (kVectors) {
        load_numbers<8>(row + from, numbers[u]);
      } else {
        for (int k = 0; k < 8; ++k) numbers[u][k] = from + k < in ? to_float(row[from + k]) : 0.0f;
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[i] = fmaf(weights[u][k], numbers[u][k], sums[i]);
    }
  }
}

// The lane's part of a quarter of A row . x row i: the numbers whose place modulo 256 is
// in [8 lane, 8 lane + 8). `scales` of the row's groups: int8 alone.
template <bool kVectors, int kRows, typename X, typename A>
DEVICE void quarter_dots(const A* a, const float* scales, const X* x, int64_t x_stride, int rows, int in, int quarter,
                         float (&sums)[kRows]) {
  constexpr int kAhead = !kVectors ? 1 : kRows <= kFewRows ? 4 : 2;
  const int each = (in + 1023) / 1024 * 256, end = min(in, (quarter + 1) * each);
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[i] = 0;
  int at = quarter * each + static_cast<int>(threadIdx.x % 32) * 8;
  for (; at + 256 * (kAhead - 1) < end; at += 256 * kAhead) {
    add_dots<kVectors, kAhead>(a, scales, x, x_stride, rows, at, in, sums);
  }
  for (; at < end; at += 256) add_dots<kVectors, 1>(a, scales, x, x_stride, rows, at, in, sums);
}

// One rank of a part by one warp, or by all warps of the block; `room`
// [kWarps][kFewRows][32] is the block's.
template <bool kVectors, typename X, typename A>
DEVICE void shrink_rank(const A* a, const float* scales, const X* x, int64_t x_stride, int rows, int in, float* v,
                        int64_t v_stride, bool split, float* room) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  if (!split) {
    float sums[kLoraRunRows], total[kLoraRunRows];
#pragma unroll
    for (int i = 0; i < kLoraRunRows; ++i) total[i] = 0;
    for (int quarter = 0; quarter < kWarps; ++quarter) {
      quarter_dots<kVectors>(a, scales, x, x_stride, rows, in, quarter, sums);
#pragma unroll
      for (int i = 0; i < kLoraRunRows; ++i) total[i] += sums[i];
    }
#pragma unroll
    for (int i = 0; i < kLoraRunRows; ++i) {
      if (i >= rows) break;
      const float sum = warp_sum(total[i]);
      if (lane == 0) v[i * v_stride] = sum;
    }
    return;
  }
  float sums[kFewRows];
  quarter_dots<kVectors>(a, scales, x, x_stride, rows, in, warp, sums);
#pragma unroll
  for (int i = 0; i < kFewRows; ++i) room[(warp * kFewRows + i) * 32 + lane] = sums[i];
  __syncthreads();
  if (warp >= rows) return;
  float total = 0;
  for (int quarter = 0; quarter < kWarps; ++quarter) total += room[(quarter * kFewRows + warp) * 32 + lane];
  total = warp_sum(total);
  if (lane == 0) v[warp * v_stride] = total;
}

template <typename A, typename X>
DEVICE void shrink_rank(const DeviceLora& pair, int r, const X* x, int64_t x_stride, int rows, int in, float* v,
                        int64_t v_stride, bool split, float* room) {
  const int64_t stride = row_numbers<A>(in);
  const A* a = static_cast<const A*>(pair.a) + r * stride;
  const float* scales = kScaled<A> ? pair.a_scale + r * (stride / kLoraQuantGroup) : nullptr;
  if (in % 8 == 0 && aligned_rows(a, stride) && aligned_rows(x, x_stride)) {
    shrink_rank<true>(a, scales, x, x_stride, rows, in, v + r, v_stride, split, room);
  } else {
    shrink_rank<false>(a, scales, x, x_stride, rows, in, v + r, v_stride, split, room);
  }
}

template <typename X>
DEVICE void shrink_pair(const DeviceLora& pair, int r, const X* x, int64_t x_stride, int rows, int in, float* v,
                        int64_t v_stride, bool split, float* room) {
  if (pair.dtype == DType::kBF16) {
    shrink_rank<BF16>(pair, r, x, x_stride, rows, in, v, v_stride, split, room);
  } else if (pair.dtype == DType::kF16) {
    shrink_rank<F16>(pair, r, x, x_stride, rows, in, v, v_stride, split, room);
  } else if (pair.dtype == DType::kI8) {
    shrink_rank<int8_t>(pair, r, x, x_stride, rows, in, v, v_stride, split, room);
  } else {
    shrink_rank<float>(pair, r, x, x_stride, rows, in, v, v_stride, split, room);
  }
}

// One of an embedding's factors, which are plain.
DEVICE float factor_at(const void* factors, DType dtype, int64_t i) {
  if (dtype == DType::kBF16) return bf16_to_float(static_cast<const uint16_t*>(factors)[i]);
  if (dtype == DType::kF16) return f16_to_float(static_cast<const uint16_t*>(factors)[i]);
  return static_cast<const float*>(factors)[i];
}

// grid (parts, ranks / kWarps, targets), with `spread` (parts, ranks, targets), where few
// rows have a block for a rank: blocks beyond a pair's rank leave at once.
template <typename X>
KERNEL void BLOCK_LIMIT(kThreads)
    shrink_kernel(const X* x, int64_t x_stride, int in, LoraStep step, GRID_CONSTANT const Targets targets, float* v,
                  int entries, int rank_max, bool spread) {
  SHARED_ARRAY(float, room, kWarps* kFewRows * 32);
  const DeviceLoraPart part = step.parts[blockIdx.x];
  if (part.row_count == 0) return;
  const DeviceLoraSegment segment = step.segments[part.segment];
  const DeviceLora& pair = targets.list[blockIdx.z].sources[segment.slot];
  const bool split = spread && part.row_count <= kFewRows;
  const int r = split ? static_cast<int>(blockIdx.y) : static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (pair.present == 0 || r >= pair.rank) return;
  const int64_t entry = static_cast<int64_t>(blockIdx.z) * entries + segment.entry_begin + part.first;
  shrink_pair(pair, r, x + (segment.row_begin + part.first) * x_stride, x_stride, part.row_count, in,
              v + entry * rank_max, rank_max, split, room);
}

// The same for an embedding: v is a row of a table.
KERNEL void lookup_kernel(const int32_t* tokens, LoraStep step, GRID_CONSTANT const Targets targets, float* v,
                          int entries, int rank_max) {
  const DeviceLoraPart part = step.parts[blockIdx.x];
  if (part.row_count == 0) return;
  const DeviceLoraSegment segment = step.segments[part.segment];
  const DeviceLora& pair = targets.list[blockIdx.z].sources[segment.slot];
  if (pair.present == 0) return;
  const int64_t entry = static_cast<int64_t>(blockIdx.z) * entries + segment.entry_begin + part.first;
  for (int item = static_cast<int>(threadIdx.x); item < part.row_count * pair.rank; item += kThreads) {
    const int i = item / pair.rank, r = item % pair.rank;
    const int64_t token = tokens[segment.row_begin + part.first + i];
    v[(entry + i) * rank_max + r] = token < 0 ? 0.0f : factor_at(pair.a, pair.dtype, token * pair.rank + r);
  }
}

// kAhead ranks from r on: sums[i][k] += v of row i times B's output o + k; `count`
// outputs there are. Rows from `rows` on are row 0 again.
template <bool kVectors, int kAhead, int kRows, typename B>
DEVICE void add_ranks(const B* b, int64_t stride, const float* scales, const float* v, int64_t v_stride, int rows,
                      int r, int count, float (&sums)[kRows][kExpandOuts]) {
  float numbers[kAhead][kExpandOuts], weights[kAhead][kRows];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    const B* from = b + (r + u) * stride;
    if constexpr (kVectors) {
      load_numbers<kExpandOuts>(from, numbers[u]);
    } else {
#pragma unroll
      for (int k = 0; k < kExpandOuts; ++k) numbers[u][k] = k < count ? to_float(from[k]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) weights[u][i] = v[(i < rows ? i : 0) * v_stride + r + u];
  }
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if constexpr (kScaled<B>) {
      const float scale = scales[r + u];
#pragma unroll
      for (int k = 0; k < kExpandOuts; ++k) numbers[u][k] *= scale;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int k = 0; k < kExpandOuts; ++k) sums[i][k] = fmaf(weights[u][i], numbers[u][k], sums[i][k]);
    }
  }
}

template <typename B, int kRows>
DEVICE void expand_ranks(const DeviceLora& pair, const float* v, int64_t v_stride, int rows, int o, int count,
                         float (&sums)[kRows][kExpandOuts]) {
  constexpr int kAhead = kRows == 1 ? 8 : 2;
  const B* b = static_cast<const B*>(pair.b_t) + o;
  const int64_t stride = row_numbers<B>(pair.out);
  // Eight outputs from a multiple of eight lie in one group.
  const float* scales = kScaled<B> ? pair.b_scale + static_cast<int64_t>(o / kLoraQuantGroup) * pair.rank : nullptr;
  int r = 0;
  if (count == kExpandOuts && aligned_rows(static_cast<const B*>(pair.b_t), stride)) {
    for (; r + kAhead <= pair.rank; r += kAhead) {
      add_ranks<true, kAhead>(b, stride, scales, v, v_stride, rows, r, count, sums);
    }
    for (; r < pair.rank; ++r) add_ranks<true, 1>(b, stride, scales, v, v_stride, rows, r, count, sums);
  }
  for (; r < pair.rank; ++r) add_ranks<false, 1>(b, stride, scales, v, v_stride, rows, r, count, sums);
}

// y of `rows` rows at outputs [o, o + kExpandOuts) gets one pair's part; v is of the
// first of the rows.
template <int kRows>
DEVICE void expand_pair(const DeviceLora& pair, float scale, const float* v, int64_t v_stride, int rows, int o,
                        float (&y)[kRows][kExpandOuts]) {
  if (o >= pair.out) return;
  const int count = min(kExpandOuts, pair.out - o);
  float sums[kRows][kExpandOuts] = {};
  if (pair.dtype == DType::kBF16) {
    expand_ranks<BF16>(pair, v, v_stride, rows, o, count, sums);
  } else if (pair.dtype == DType::kF16) {
    expand_ranks<F16>(pair, v, v_stride, rows, o, count, sums);
  } else if (pair.dtype == DType::kI8) {
    expand_ranks<int8_t>(pair, v, v_stride, rows, o, count, sums);
  } else {
    expand_ranks<float>(pair, v, v_stride, rows, o, count, sums);
  }
  const float factor = scale * pair.scaling;
#pragma unroll
  for (int k = 0; k < kExpandOuts; ++k) {
    if (k >= count) break;
    const float bias = pair.b_bias != nullptr && pair.rank > 0 ? pair.b_bias[o + k] : 0.0f;
    const float extra = pair.bias_delta != nullptr ? pair.bias_delta[o + k] : 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) y[i][k] += factor * (sums[i][k] + bias) + extra;
  }
}

// Outputs [o, o + kExpandOuts) of `rows` rows of a target in registers: add(y), which
// answers whether anything was.
template <int kRows, typename Add>
DEVICE void change_outputs(const LoraTarget& target, int64_t row, int rows, int o, Add&& add) {
  float* to = target.y + row * target.y_stride + o;
  const bool vectors =
      o + kExpandOuts <= target.out && target.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(target.y) % 16 == 0;
  float y[kRows][kExpandOuts] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i >= rows) break;
    if (vectors) {
      load_numbers<kExpandOuts>(to + i * target.y_stride, y[i]);
    } else {
#pragma unroll
      for (int k = 0; k < kExpandOuts; ++k) y[i][k] = o + k < target.out ? to[i * target.y_stride + k] : 0.0f;
    }
  }
  if (!add(y)) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i >= rows) break;
    float* at = to + i * target.y_stride;
    if (vectors) {
      reinterpret_cast<float4*>(at)[0] = float4{y[i][0], y[i][1], y[i][2], y[i][3]};
      reinterpret_cast<float4*>(at)[1] = float4{y[i][4], y[i][5], y[i][6], y[i][7]};
    } else {
#pragma unroll
      for (int k = 0; k < kExpandOuts; ++k) {
        if (o + k < target.out) at[k] = y[i][k];
      }
    }
  }
}

// Rows [first, first + rows) of a run.
template <int kRows>
DEVICE void expand_run(const LoraStep& step, const LoraTarget& target, const DeviceLoraRun& run, int first, int rows,
                       int o, const float* v, int64_t entries_before, int rank_max) {
  const int row = run.row_begin + first;
  change_outputs<kRows>(target, row, rows, o, [&](float(&y)[kRows][kExpandOuts]) {
    bool any = false;
    for (int e = 0; e < run.count; ++e) {
      const DeviceLoraSegment segment = step.segments[step.order[run.begin + e]];
      const DeviceLora& pair = target.sources[segment.slot];
      if (pair.present == 0) continue;
      any = true;
      const int64_t entry = entries_before + segment.entry_begin + (row - segment.row_begin);
      expand_pair(pair, segment.scale, v + entry * rank_max, rank_max, rows, o, y);
    }
    return any;
  });
}

// grid (outputs / (kExpandOuts threads), runs, targets).
KERNEL void BLOCK_LIMIT(kExpandThreads)
    expand_kernel(LoraStep step, GRID_CONSTANT const Targets targets, const float* v, int entries, int rank_max) {
  const DeviceLoraRun run = step.runs[blockIdx.y];
  const LoraTarget& target = targets.list[blockIdx.z];
  const int o = kExpandOuts * static_cast<int>(blockIdx.x * kExpandThreads + threadIdx.x);
  if (run.row_count == 0 || o >= target.out) return;
  const int64_t before = static_cast<int64_t>(blockIdx.z) * entries;
  if (run.row_count == 1) return expand_run<1>(step, target, run, 0, 1, o, v, before, rank_max);
  for (int first = 0; first < run.row_count; first += kExpandRows) {
    expand_run<kExpandRows>(step, target, run, first, min(kExpandRows, run.row_count - first), o, v, before, rank_max);
  }
}

// --- padded
// Grids: (rows, ranks / kWarps, targets) and (outputs / (kExpandOuts threads),
// rows, targets).

template <typename X>
KERNEL void padded_shrink_kernel(const X* x, int64_t x_stride, int in, int rank, const int32_t* slots,
                                 GRID_CONSTANT const Targets targets, float* v) {
  const int64_t row = blockIdx.x;
  const int slot = slots[row], r = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (slot < 0 || r >= rank) return;
  const DeviceLora& pair = targets.list[blockIdx.z].sources[slot];
  if (pair.present == 0) return;
  shrink_pair(pair, r, x + row * x_stride, x_stride, 1, in,
              v + (static_cast<int64_t>(blockIdx.z) * gridDim.x + row) * rank, rank, false, nullptr);
}

KERNEL void BLOCK_LIMIT(kExpandThreads) padded_expand_kernel(int rank, const int32_t* slots, const float* scales,
                                                             GRID_CONSTANT const Targets targets, const float* v) {
  const int64_t row = blockIdx.y;
  const int slot = slots[row], o = kExpandOuts * static_cast<int>(blockIdx.x * kExpandThreads + threadIdx.x);
  const LoraTarget& target = targets.list[blockIdx.z];
  if (slot < 0 || o >= target.out) return;
  DeviceLora pair = target.sources[slot];
  if (pair.present == 0) return;
  pair.rank = rank;
  const float* from = v + (static_cast<int64_t>(blockIdx.z) * gridDim.y + row) * rank;
  change_outputs<1>(target, row, 1, o, [&](float(&y)[1][kExpandOuts]) {
    expand_pair(pair, scales[row], from, rank, 1, o, y);
    return true;
  });
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
    return launch("lora_lookup", lookup_kernel, {parts, 1, count}, {kThreads, 1, 1}, 0, stream.handle(), args.tokens,
                  args.step, targets, args.v, args.entries, args.rank_max);
  }
  return for_plain("inputs of LoRA", args.x_dtype, [&](auto type) {
    using X = decltype(type);
    // Where most parts have few rows; a row's bits are the same either way.
    const bool spread = args.entries <= kFewRows * args.step.part_count;
    const unsigned ranks = spread ? static_cast<unsigned>(args.rank_max) : blocks_for(args.rank_max, kWarps);
    return launch("lora_shrink", shrink_kernel<X>, {parts, ranks, count}, {kThreads, 1, 1}, 0, stream.handle(),
                  static_cast<const X*>(args.x), args.x_stride, args.in, args.step, targets, args.v, args.entries,
                  args.rank_max, spread);
  });
}

Status lora_expand(CudaStream& stream, const LoraArgs& args) {
  return launch("lora_expand", expand_kernel,
                {blocks_for(widest(args), kExpandOuts * kExpandThreads), static_cast<unsigned>(args.step.run_count),
                 static_cast<unsigned>(args.target_count)},
                {kExpandThreads, 1, 1}, 0, stream.handle(), args.step, targets_of(args), args.v, args.entries,
                args.rank_max);
}

Status lora_padded_shrink(CudaStream& stream, const PaddedLoraArgs& args) {
  return for_plain("inputs of LoRA", args.x_dtype, [&](auto type) {
    using X = decltype(type);
    return launch(
        "lora_padded_shrink", padded_shrink_kernel<X>,
        {static_cast<unsigned>(args.rows), blocks_for(args.rank, kWarps), static_cast<unsigned>(args.target_count)},
        {kThreads, 1, 1}, 0, stream.handle(), static_cast<const X*>(args.x), args.x_stride, args.in, args.rank,
        args.slots, targets_of(args), args.v);
  });
}

Status lora_padded_expand(CudaStream& stream, const PaddedLoraArgs& args) {
  return launch("lora_padded_expand", padded_expand_kernel,
                {blocks_for(widest(args), kExpandOuts * kExpandThreads), static_cast<unsigned>(args.rows),
                 static_cast<unsigned>(args.target_count)},
                {kExpandThreads, 1, 1}, 0, stream.handle(), args.rank, args.slots, args.scales, targets_of(args),
                args.v);
}

}  // namespace loralei::cuda
