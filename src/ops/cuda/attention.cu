// SPDX-License-Identifier: Apache-2.0
// kv_store and attention of any rows (split over positions, combined in order):
// a kernel for heads of 64 and 128 numbers, which are what most models have, and
// one for all others.
#include "base/limits.h"
#include "ops/cuda/attention.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"

namespace loralei::cuda {
namespace {

// A number of a vector over the vector's scale, and the largest there is, as
// quantise_vector (tensor/codec.h).
DEVICE void put_scaled(int8_t* at, float x) {
  constexpr float kRound = 12582912.0f;
  *at = static_cast<int8_t>(__float_as_int(add_rn(x, kRound)) - __float_as_int(kRound));
}
DEVICE void put_scaled(F8* at, float x) { at->bits = float_to_fp8(x); }
DEVICE float largest_of(int8_t) { return 127.0f; }
DEVICE float largest_of(F8) { return 448.0f; }

// One warp stores one vector: grid (rows, ceil(kv_heads / 4), k|v), four warps a block.
template <typename T>
KERNEL void kv_store_kernel(const float* k, const float* v, int64_t stride, DeviceKv kv, int layer, StepRows rows) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  const int head = static_cast<int>(blockIdx.y * 4 + threadIdx.x / 32), which = static_cast<int>(blockIdx.z);
  const int table = rows.tables[row];
  if (table < 0 || head >= kv.kv_heads) return;
  const int position = rows.positions[row], slot = position % kKvBlockTokens;
  std::byte* at = kv_head_at(kv, rows.blocks[table + position / kKvBlockTokens], layer, which, head);
  const float* from = (which == 0 ? k : v) + row * stride + static_cast<int64_t>(head) * kv.head_dim;
  T* to = reinterpret_cast<T*>(at) + static_cast<int64_t>(slot) * kv.head_dim;
  if constexpr (sizeof(T) == 1) {
    // As vector_scale and quantise_vector (tensor/codec.h): NaN where a number is not
    // finite, zeros then and for tiny ones.
    float largest = 0, poison = 0;
    for (int d = lane; d < kv.head_dim; d += 32) {
      largest = fmaxf(largest, fabs(from[d]));
      poison += from[d] * 0.0f;
    }
    largest = warp_max(largest);
    poison = warp_sum(poison);
    float scale = largest / largest_of(T{});
    scale = (scale < 1.17549435e-38f ? 0.0f : scale) + poison;
    for (int d = lane; d < kv.head_dim; d += 32) {
      if (scale > 0) {
        put_scaled(to + d, from[d] / scale);
      } else {
        to[d] = T{};
      }
    }
    if (lane == 0) kv_scales(kv, at)[slot] = scale;
  } else {
    for (int d = lane; d < kv.head_dim; d += 32) put(to + d, from[d]);
  }
}

constexpr int kSplitThreads = 128, kSplitPages = kAttentionSplit / kKvBlockTokens;
constexpr int kGroupMax = 8;  // query heads that share one reading of K and V

// Floats before the split's results: of one (row, head, split) the largest score, the sum
// of weights, then [head_dim].
DEVICE float* split_result(float* scratch, int64_t row, int heads, int head, int splits, int split, int head_dim) {
  return scratch + ((row * heads + head) * splits + split) * (head_dim + 2);
}

// What a block of grid (splits, kv_heads * groups of query heads, rows) computes.
struct SplitPlace {
  int row, kv_head, head_begin, heads;  // query heads from head_begin on, of those that share a KV head
  int origin;                           // of the split
  Seen seen;                            // of its positions
  const int* blocks;
};
template <int kGroup>
DEVICE bool find_place(const StepRows& rows, int window, int group_heads, SplitPlace& place) {
  place.row = static_cast<int>(blockIdx.z);
  const int table = rows.tables[place.row];
  if (table < 0) return false;
  const int last = rows.positions[place.row], first = window > 0 ? max(0, last - window + 1) : 0;
  place.origin = static_cast<int>(blockIdx.x) * kAttentionSplit;
  place.seen = {max(first, place.origin), min(last + 1, place.origin + kAttentionSplit)};
  place.blocks = rows.blocks + table;
  const int groups = (group_heads + kGroup - 1) / kGroup, in_group = static_cast<int>(blockIdx.y) % groups * kGroup;
  place.kv_head = static_cast<int>(blockIdx.y) / groups;
  place.head_begin = place.kv_head * group_heads + in_group;
  place.heads = min(kGroup, group_heads - in_group);
  return place.seen.begin < place.seen.end;
}

// Heads of kDim numbers: all of the split's K and V is asked for at once, right
// behind the indices of its pages. kLanes threads read a position side by side,
// kSide positions are read at a time. Shared memory: q [kGroup][kDim] scaled, weights
// [kGroup][kAttentionSplit], partial sums [kSide][kGroup][kDim].
template <typename T, int kGroup, int kDim>
struct FixedSplit {
  static constexpr int kNumbers = sizeof(T) == 4 ? 4 : 8, kLanes = kDim / kNumbers, kSide = kSplitThreads / kLanes;
  static constexpr int kTurns = kAttentionSplit / kSide;
  static constexpr size_t kSharedBytes = sizeof(float) * kGroup * (kDim + kAttentionSplit + kSide * kDim);
  static_assert(kLanes <= 32 && kDim % kNumbers == 0 && kKvBlockTokens % kSide == 0);  // a turn reads of one page
};
template <typename T, int kGroup, int kDim>
KERNEL void BLOCK_LIMIT(kSplitThreads)
    fixed_split_kernel(const float* q, int64_t q_stride, DeviceKv kv, int layer, int heads, int group_heads,
                       float scale, int window, float* scratch, int splits, StepRows rows) {
  using Shape = FixedSplit<T, kGroup, kDim>;
  constexpr int kNumbers = Shape::kNumbers, kLanes = Shape::kLanes, kSide = Shape::kSide, kTurns = Shape::kTurns;
  constexpr bool kScaled = sizeof(T) == 1, kBoth = sizeof(T) <= 2;  // f32: V after K, for want of registers
  SplitPlace place;
  if (!find_place<kGroup>(rows, window, group_heads, place)) return;
  const int thread = static_cast<int>(threadIdx.x), part = thread % kLanes, side = thread / kLanes;
  float* q_shared = reinterpret_cast<float*>(shared_bytes());
  float* weights = q_shared + kGroup * kDim;
  float* partial = weights + kGroup * kAttentionSplit;
  SHARED_ARRAY(float, largest, kGroup);
  SHARED_ARRAY(float, total, kGroup);

  Raw<T, kNumbers> keys[kTurns], values[kTurns];
  float key_scales[kTurns], value_scales[kTurns];
  Pages<kSplitPages> pages;
  pages.load(place.blocks, place.origin, place.seen);
  constexpr int kQTurns = (kGroup * kDim + kSplitThreads - 1) / kSplitThreads;
  float q_mine[kQTurns];
#pragma unroll
  for (int turn = 0; turn < kQTurns; ++turn) {
    const int i = turn * kSplitThreads + thread, head = min(i / kDim, place.heads - 1);  // the last once more
    q_mine[turn] = q[place.row * q_stride + static_cast<int64_t>(place.head_begin + head) * kDim + i % kDim];
  }
  const std::byte* const k_head = kv_head_at(kv, 0, layer, 0, place.kv_head);
  const auto load = [&](const std::byte* head, Raw<T, kNumbers>(&to)[kTurns], float(&scales)[kTurns]) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int in_page = turn * kSide % kKvBlockTokens + side;
      const std::byte* at = head + pages.block[turn * kSide / kKvBlockTokens] * kv.block_stride_bytes;
      const bool wanted = place.seen.has(place.origin + turn * kSide + side);
      if (wanted) to[turn].load(reinterpret_cast<const T*>(at) + in_page * kDim + part * kNumbers);
      if constexpr (kScaled) {
        scales[turn] = wanted ? reinterpret_cast<const float*>(at + kKvBlockTokens * kDim)[in_page] : 0.0f;
      }
    }
  };
  load(k_head, keys, key_scales);
  if constexpr (kBoth) load(k_head + kv.kv_stride_bytes, values, value_scales);
#pragma unroll
  for (int turn = 0; turn < kQTurns; ++turn) {
    const int i = turn * kSplitThreads + thread;
    if (i < kGroup * kDim) q_shared[i] = i / kDim < place.heads ? q_mine[turn] * scale : 0.0f;
  }
  __syncthreads();

#pragma unroll 1
  for (int g = 0; g < kGroup; ++g) {
    float mine[kNumbers];
    load_numbers<kNumbers>(q_shared + g * kDim + part * kNumbers, mine);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = turn * kSide + side, p = place.origin + i;
      float dot = 0;
#pragma unroll
      for (int k = 0; k < kNumbers; ++k) dot = fmaf(mine[k], keys[turn].number(k), dot);
      if constexpr (kScaled) dot *= key_scales[turn];
#pragma unroll
      for (int bits = kLanes / 2; bits > 0; bits /= 2) dot += __shfl_xor_sync(kFullWarp, dot, bits);
      if (part == turn % kLanes) {
        weights[g * kAttentionSplit + i] = place.seen.has(p) ? dot : -INFINITY;
      }
    }
  }
  __syncthreads();
  if constexpr (!kBoth) load(k_head + kv.kv_stride_bytes, values, value_scales);

  // Weights: a warp takes a head. Lanes own positions by their absolute number, and what
  // is not seen adds nothing.
  for (int g = thread / 32; g < kGroup; g += kSplitThreads / 32) {
    float* const mine = weights + g * kAttentionSplit;
    float most = -INFINITY, sum = 0;
    for (int i = thread % 32; i < kAttentionSplit; i += 32) most = fmaxf(most, mine[i]);
    most = warp_max(most);
    for (int i = thread % 32; i < kAttentionSplit; i += 32) {
      const float weight = mine[i] == -INFINITY ? 0.0f : __expf(mine[i] - most);
      mine[i] = weight;
      sum += weight;
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) {
      largest[g] = most;
      total[g] = sum;
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int g = 0; g < kGroup; ++g) {
    float sums[kNumbers] = {};
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      float weight = weights[g * kAttentionSplit + turn * kSide + side];
      if constexpr (kScaled) weight *= value_scales[turn];
#pragma unroll
      for (int k = 0; k < kNumbers; ++k) sums[k] = fmaf(weight, values[turn].number(k), sums[k]);
    }
#pragma unroll
    for (int k = 0; k < kNumbers; k += 4) {
      *reinterpret_cast<float4*>(partial + (side * kGroup + g) * kDim + part * kNumbers + k) =
          float4{sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
    }
  }
  __syncthreads();
  for (int i = thread; i < place.heads * kDim; i += kSplitThreads) {
    const int g = i / kDim, d = i % kDim;
    float sum = 0;
#pragma unroll
    for (int from = 0; from < kSide; ++from) sum += partial[(from * kGroup + g) * kDim + d];
    float* result =
        split_result(scratch, place.row, heads, place.head_begin + g, splits, static_cast<int>(blockIdx.x), kDim);
    result[2 + d] = sum;
    if (d == 0) {
      result[0] = largest[g];
      result[1] = total[g];
    }
  }
}

// Heads of any size. Shared memory: q [kGroup][head_dim] scaled, weights
// [kGroup][kAttentionSplit], then partial sums [position lanes][kGroup][head_dim].
// kVector numbers of a position are read at a time: eight where head_dim
// allows, else one.
template <typename T, int kGroup, int kVector>
KERNEL void BLOCK_LIMIT(kSplitThreads)
    split_kernel(const float* q, int64_t q_stride, DeviceKv kv, int layer, int heads, int group_heads, float scale,
                 int window, float* scratch, int splits, StepRows rows) {
  SplitPlace place;
  if (!find_place<kGroup>(rows, window, group_heads, place)) return;
  const int row = place.row, split = static_cast<int>(blockIdx.x), begin = place.seen.begin, end = place.seen.end;
  const int kv_head = place.kv_head, head_begin = place.head_begin, used = place.heads;
  const int dim = kv.head_dim, thread = static_cast<int>(threadIdx.x);
  float* q_shared = reinterpret_cast<float*>(shared_bytes());
  float* weights = q_shared + kGroup * ((dim + 3) / 4 * 4);
  float* partial = weights + kGroup * kAttentionSplit;
  SHARED_ARRAY(float, largest, kGroup);
  SHARED_ARRAY(float, total, kGroup);
  SHARED_ARRAY(int, pages, kSplitPages);
  const int q_row = (dim + 3) / 4 * 4;

  if (thread < kSplitPages) {
    Pages<1> mine;
    mine.load(place.blocks, place.origin + thread * kKvBlockTokens, place.seen);
    pages[thread] = mine.block[0];
  }
  for (int i = thread; i < kGroup * dim; i += kSplitThreads) {
    const int head = i / dim, d = i % dim;
    q_shared[head * q_row + d] =
        head < used ? q[row * q_stride + static_cast<int64_t>(head_begin + head) * dim + d] * scale : 0.0f;
  }
  __syncthreads();

  // Scores: eight lanes share a position, so that a warp reads four positions'
  // numbers side by side.
  const auto page_of = [&](int which, int p) {
    return kv_head_at(kv, pages[(p - place.origin) / kKvBlockTokens], layer, which, kv_head);
  };
  const int part = thread % 8;
  for (int base = begin; base < end; base += kSplitThreads / 8) {
    const int p = base + thread / 8;
    const bool valid = p < end;
    float dots[kGroup] = {};
    if (valid) {
      const std::byte* at = page_of(0, p);
      const T* key = reinterpret_cast<const T*>(at) + static_cast<int64_t>(p % kKvBlockTokens) * dim;
      for (int d = part * kVector; d < dim; d += 8 * kVector) {
        float numbers[kVector];
        load_numbers<kVector>(key + d, numbers);
#pragma unroll
        for (int g = 0; g < kGroup; ++g) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) dots[g] = fmaf(q_shared[g * q_row + d + i], numbers[i], dots[g]);
        }
      }
      if constexpr (sizeof(T) == 1) {
        const float key_scale = kv_scales(kv, at)[p % kKvBlockTokens];
#pragma unroll
        for (int g = 0; g < kGroup; ++g) dots[g] *= key_scale;
      }
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
#pragma unroll
      for (int bits = 4; bits > 0; bits /= 2) dots[g] += __shfl_xor_sync(kFullWarp, dots[g], bits);
      if (valid && part == g % 8) weights[g * kAttentionSplit + p - place.origin] = dots[g];
    }
  }
  __syncthreads();

  // Weights: a warp takes a head.
  const int from = begin - place.origin, to = end - place.origin;
  for (int g = thread / 32; g < kGroup; g += kSplitThreads / 32) {
    float most = -INFINITY, sum = 0;
    for (int i = from + thread % 32; i < to; i += 32) most = fmaxf(most, weights[g * kAttentionSplit + i]);
    most = warp_max(most);
    // Lanes own positions by their absolute number, so that a window's start does
    // not move the sum.
    for (int i = thread % 32; i < kAttentionSplit; i += 32) {
      if (i < from || i >= to) continue;
      const float weight = __expf(weights[g * kAttentionSplit + i] - most);
      weights[g * kAttentionSplit + i] = weight;
      sum += weight;
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) {
      largest[g] = most;
      total[g] = sum;
    }
  }
  __syncthreads();

  // Values: a thread takes kVector numbers of every n-th position; then the n
  // are added in order.
  const int pieces = (dim + kVector - 1) / kVector;
  const int lanes = max(1, min(kSplitThreads / pieces, 8));  // positions side by side
  const int per_pass = min(pieces, kSplitThreads);
  for (int piece_begin = 0; piece_begin < pieces; piece_begin += per_pass) {
    const int piece = piece_begin + thread % per_pass, lane = thread / per_pass;
    if (lane < lanes && piece < pieces) {
      float sums[kGroup][kVector] = {};
      // The lane's first position that is seen; four are asked for before
      // the first is used.
      const int skipped = from > lane ? (from - lane + lanes - 1) / lanes * lanes : 0;
#pragma unroll 4
      for (int i = lane + skipped; i < to; i += lanes) {
        const int p = place.origin + i;
        const std::byte* at = page_of(1, p);
        const T* value = reinterpret_cast<const T*>(at) + static_cast<int64_t>(p % kKvBlockTokens) * dim;
        float numbers[kVector];
        load_numbers<kVector>(value + piece * kVector, numbers);
        float value_scale = 1.0f;
        if constexpr (sizeof(T) == 1) value_scale = kv_scales(kv, at)[p % kKvBlockTokens];
#pragma unroll
        for (int g = 0; g < kGroup; ++g) {
          const float weight = weights[g * kAttentionSplit + i] * value_scale;
#pragma unroll
          for (int k = 0; k < kVector; ++k) sums[g][k] = fmaf(weight, numbers[k], sums[g][k]);
        }
      }
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) partial[(lane * kGroup + g) * dim + piece * kVector + k] = sums[g][k];
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < used * dim; i += kSplitThreads) {
    const int g = i / dim, d = i % dim;
    float sum = 0;
    for (int lane = 0; lane < lanes; ++lane) sum += partial[(lane * kGroup + g) * dim + d];
    float* result = split_result(scratch, row, heads, head_begin + g, splits, split, dim);
    result[2 + d] = sum;
    if (d == 0) {
      result[0] = largest[g];
      result[1] = total[g];
    }
  }
}

// grid (heads, rows): softmax over the splits' parts, in order of their positions.
template <typename Y>
KERNEL void combine_kernel(float* scratch, int splits, int dim, Y* out, int64_t out_stride, int window, StepRows rows) {
  const int head = static_cast<int>(blockIdx.x), heads = static_cast<int>(gridDim.x);
  const int64_t row = blockIdx.y;
  Y* to = out + row * out_stride + static_cast<int64_t>(head) * dim;
  const bool idle = rows.tables[row] < 0;
  const int last = idle ? -1 : rows.positions[row], first = window > 0 ? max(0, last - window + 1) : 0;
  const int begin = first / kAttentionSplit, end = idle ? begin : last / kAttentionSplit + 1;
  float most = -INFINITY;
#pragma unroll 8
  for (int s = begin; s < end; ++s) most = fmaxf(most, split_result(scratch, row, heads, head, splits, s, dim)[0]);
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += static_cast<int>(blockDim.x)) {
    float sum = 0, weights = 0;
#pragma unroll 8
    for (int s = begin; s < end; ++s) {
      const float* part = split_result(scratch, row, heads, head, splits, s, dim);
      const float factor = __expf(part[0] - most);
      weights = fmaf(factor, part[1], weights);
      sum = fmaf(factor, part[2 + d], sum);
    }
    put(to + d, idle ? 0.0f : sum / weights);
  }
}

// Of shared memory, what every GPU from compute capability 8.0 on gives a block that asks
// (8.6 and 8.9: 99 KiB), less the kernel's own arrays and what the driver keeps.
constexpr size_t kSharedMost = 96 * 1024;

int32_t splits_of(int32_t positions_max) { return (positions_max + kAttentionSplit - 1) / kAttentionSplit; }

template <typename T, int kGroup>
Status launch_split(CudaStream& stream, const AttentionArgs& args) {
  const int32_t group_heads = args.heads / args.kv.kv_heads, dim = args.kv.head_dim;
  const int32_t groups = (group_heads + kGroup - 1) / kGroup, splits = splits_of(args.positions_max);
  const auto launch_as = [&](auto kernel, size_t bytes) {
    return launch("attention_split", kernel,
                  {static_cast<unsigned>(splits), static_cast<unsigned>(args.kv.kv_heads * groups),
                   static_cast<unsigned>(args.rows.rows)},
                  {kSplitThreads, 1, 1}, bytes, stream.handle(), args.q, args.q_stride, args.kv, args.layer, args.heads,
                  group_heads, args.scale, args.window, args.scratch, splits, args.rows);
  };
  if (dim == 64) return launch_as(fixed_split_kernel<T, kGroup, 64>, FixedSplit<T, kGroup, 64>::kSharedBytes);
  if (dim == 128) return launch_as(fixed_split_kernel<T, kGroup, 128>, FixedSplit<T, kGroup, 128>::kSharedBytes);
  const int32_t vector = dim % 8 == 0 ? 8 : 1;
  const int32_t pieces = (dim + vector - 1) / vector;
  const int32_t lanes = std::max(1, std::min(kSplitThreads / pieces, 8));
  const size_t bytes = sizeof(float) * static_cast<size_t>(kGroup) *
                       static_cast<size_t>((dim + 3) / 4 * 4 + kAttentionSplit + lanes * dim);
  if (bytes > kSharedMost) {
    return unsupported("GPU attention takes heads of fewer than " + std::to_string(dim) + " numbers: they need " +
                       std::to_string(bytes) + " bytes of shared memory, a GPU may have " +
                       std::to_string(kSharedMost) + ". Run this model with --device cpu.");
  }
  return launch_as(dim % 8 == 0 ? split_kernel<T, kGroup, 8> : split_kernel<T, kGroup, 1>, bytes);
}

template <typename T>
Status launch_group(CudaStream& stream, const AttentionArgs& args) {
  const int32_t group_heads = args.heads / args.kv.kv_heads;
  if (group_heads == 1) return launch_split<T, 1>(stream, args);
  if (group_heads == 2) return launch_split<T, 2>(stream, args);
  if (group_heads <= 4) return launch_split<T, 4>(stream, args);
  return launch_split<T, kGroupMax>(stream, args);
}

}  // namespace

Status kv_store(CudaStream& stream, const KvStoreArgs& args) {
  CHECK(is_aligned(args.kv) && args.rows.rows <= kRowsMax);
  const Dim3 grid{static_cast<unsigned>(args.rows.rows), blocks_for(args.kv.kv_heads, 4), 2};
  return for_cache(args.kv.dtype, [&](auto type) {
    return launch("kv_store", kv_store_kernel<decltype(type)>, grid, {128, 1, 1}, 0, stream.handle(), args.k, args.v,
                  args.stride, args.kv, args.layer, args.rows);
  });
}

int64_t attention_scratch_floats(int32_t rows, int32_t heads, int32_t head_dim, int32_t positions_max) {
  return int64_t{rows} * heads * splits_of(positions_max) * (head_dim + 2);
}

Status attention(CudaStream& stream, const AttentionArgs& args) {
  CHECK(is_aligned(args.kv) && args.rows.rows <= kRowsMax && args.heads <= kRowsMax &&
        args.heads % args.kv.kv_heads == 0);
  TRY(for_cache(args.kv.dtype, [&](auto type) { return launch_group<decltype(type)>(stream, args); }));
  return for_plain("attention's results", args.out_dtype, [&](auto type) {
    using Y = decltype(type);
    return launch("attention_combine", combine_kernel<Y>,
                  {static_cast<unsigned>(args.heads), static_cast<unsigned>(args.rows.rows), 1}, {128, 1, 1}, 0,
                  stream.handle(), args.scratch, splits_of(args.positions_max), args.kv.head_dim,
                  static_cast<Y*>(args.out), args.out_stride, args.window, args.rows);
  });
}

}  // namespace loralei::cuda
