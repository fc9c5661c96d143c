// SPDX-License-Identifier: Apache-2.0
// Products with few rows. Bound by memory: each weight is read once, and enough warps are
// under way to keep it busy.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/targets.cuh"

namespace loralei::cuda {
namespace {

// --- rounding
// A warp a block of 32 numbers, eight blocks a thread block; grid (in / 256, rows).

constexpr int kBlock = 32;

KERNEL void round_rows_kernel(const float* x, int64_t x_stride, int in, RoundedRows to) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int block = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32);
  if (block * kBlock >= in) return;
  const int64_t row = blockIdx.y;
  const float number = x[row * x_stride + block * kBlock + lane];
  const bool finite = fabs(number) <= 3.402823466e38f;
  const bool all_finite = __ballot_sync(kFullWarp, finite) == kFullWarp;
  const float largest = warp_max(finite ? fabs(number) : 0.0f);
  int q = 0;
  float d = 0;
  if (!all_finite) {
    d = NAN;
  } else if (largest >= 1e-30f) {
    d = largest / 127.0f;
    constexpr float kRound = 12582912.0f;  // leaves no room for a fraction: nearest, ties to even
    q = __float_as_int(add_rn(mul_rn(number, 127.0f / largest), kRound)) - __float_as_int(kRound);
  }
  int sum = q;
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(kFullWarp, sum, bits);
  to.q[row * in + block * kBlock + lane] = static_cast<int8_t>(q);
  if (lane == 0) {
    to.d[row * (in / kBlock) + block] = d;
    to.sums[row * (in / kBlock) + block] = mul_rn(d, static_cast<float>(sum));
  }
}

// --- tiles
// A thread block takes one tile of sixteen outputs; its warps take its blocks in turn.
// Of a warp, lanes r and r + 16 have output r, each with half of every group of words,
// so that a load is 64 bytes side by side twice. Some blocks of a warp are always on
// their way: a block's registers take its next one when it has been multiplied.

constexpr int kTileWarps = 8, kTileThreads = 32 * kTileWarps;

// A row that there is: of kRows = 1, 2, 4, 8 the least that holds all, so that half
// of them are sure.
template <int kRows>
DEVICE bool row_exists(int row, int rows) {
  return row <= kRows / 2 || row < rows;
}

// A lane's half of one block of its output.
template <DType kType>
struct LaneBlock {
  using Shape = BlockShape<kType>;
  using Tile = TileBlock<kType>;
  static constexpr int kQuants = Shape::kQuantWords / 2, kGroup = kQuants < 4 ? kQuants : 4;
  static constexpr int kHigh = Shape::kFive ? 1 : Shape::kHighWords / 2;
  static constexpr int kInFlight = Shape::kElems == 32 ? 4 : 2;  // blocks of a warp: 1 KiB at least
  uint16_t halves[Shape::kHalves];
  uint32_t scales[Shape::kScaleWords + 1], high[kHigh + 1], quants[kQuants];  // one more: none may have none
  DEVICE void load(const Tile& block, int half) {
#pragma unroll
    for (int i = 0; i < Shape::kHalves; ++i) halves[i] = load_once(block.half_at(i));
#pragma unroll
    for (int i = 0; i < Shape::kScaleWords; ++i) scales[i] = load_once(block.word_at(Tile::kScaleAt, i));
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
      high[i] = load_once(block.word_at(Tile::kHighAt, Shape::kFive ? 0 : (i / 4 * 2 + half) * 4 + i % 4));
    }
#pragma unroll
    for (int i = 0; i < kQuants; ++i) {
      quants[i] = load_once(block.word_at(Tile::kQuantAt, (i / kGroup * 2 + half) * kGroup + i % kGroup));
    }
  }
};

// The words of x that belong to words [word, word + kWords) of 32 numbers.
template <int kWords>
DEVICE int dot_words(const uint32_t (&w)[kWords], const int8_t* x, int word, int acc) {
  if constexpr (kWords == 4) {
    const int4 four = *reinterpret_cast<const int4*>(x + 4 * word);
    acc = __dp4a(static_cast<int>(w[0]), four.x, acc);
    acc = __dp4a(static_cast<int>(w[1]), four.y, acc);
    acc = __dp4a(static_cast<int>(w[2]), four.z, acc);
    return __dp4a(static_cast<int>(w[3]), four.w, acc);
  } else {
    const int2 two = *reinterpret_cast<const int2*>(x + 4 * word);
    acc = __dp4a(static_cast<int>(w[0]), two.x, acc);
    return __dp4a(static_cast<int>(w[1]), two.y, acc);
  }
}

// The lowest four bits, each as the fifth bit of its byte.
DEVICE uint32_t fifth_bits(uint32_t bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4; }

// Adds one block of one output, this lane's half of it, to the sums of all rows.
template <DType kType, int kRows>
DEVICE void add_block(const LaneBlock<kType>& block, int half, int64_t index, const RoundedRows& x, int in, int rows,
                      float (&sums)[kRows]) {
  const float d = f16_to_float(block.halves[0]);
  const int blocks32 = in / kBlock;
  if constexpr (kType == DType::kQ8_0) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = block.quants[i];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (!row_exists<kRows>(row, rows)) break;
      const int sum = dot_words<4>(w, x.q + static_cast<int64_t>(row) * in + index * 32, 4 * half, 0);
      sums[row] = fmaf(static_cast<float>(sum), mul_rn(d, x.d[row * blocks32 + index]), sums[row]);
    }
  } else if constexpr (BlockShape<kType>::kElems == 32) {  // four or five bits, a zero point or a minimum
    constexpr bool kMinimum = BlockShape<kType>::kHalves == 2, kFive = BlockShape<kType>::kFive;
    constexpr int kZero = kFive ? 16 : 8;
    uint32_t low[2], high[2];
    constexpr uint32_t kOnes[2] = {0x01010101u, 0x01010101u};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = block.quants[i];
      low[i] = word & 0x0F0F0F0Fu;
      high[i] = word >> 4 & 0x0F0F0F0Fu;
      if constexpr (kFive) {
        const uint32_t fifths = block.high[0] >> 4 * (2 * half + i);
        low[i] |= fifth_bits(fifths);
        high[i] |= fifth_bits(fifths >> 16);
      }
    }
    float m = 0;
    if constexpr (kMinimum) m = f16_to_float(block.halves[1]);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (!row_exists<kRows>(row, rows)) break;
      const int8_t* from = x.q + static_cast<int64_t>(row) * in + index * 32;
      int sum = dot_words<2>(high, from, 4 + 2 * half, dot_words<2>(low, from, 2 * half, 0));
      if constexpr (!kMinimum) {
        sum -= kZero * dot_words<2>(kOnes, from, 4 + 2 * half, dot_words<2>(kOnes, from, 2 * half, 0));
      }
      sums[row] = fmaf(static_cast<float>(sum), mul_rn(d, x.d[row * blocks32 + index]), sums[row]);
      if constexpr (kMinimum) {
        if (half == 0) sums[row] = fmaf(m, x.sums[row * blocks32 + index], sums[row]);
      }
    }
  } else if constexpr (BlockShape<kType>::kK) {
    const float dmin = f16_to_float(block.halves[1]);
    const uint32_t s0 = block.scales[0], s1 = block.scales[1], s2 = block.scales[2];
    uint32_t fifths[4] = {};
    if constexpr (kType == DType::kQ5_K) {
#pragma unroll
      for (int i = 0; i < 4; ++i) fifths[i] = block.high[i];
    }
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = block.quants[4 * group + i];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int sub = 2 * group + side;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w[i] = (words[i] >> 4 * side & 0x0F0F0F0Fu) | (fifths[i] >> sub & 0x01010101u) << 4;
        }
        int scale, minimum;
        k_scale_min(s0, s1, s2, sub, &scale, &minimum);
        const float ds = mul_rn(d, static_cast<float>(scale)), m = -mul_rn(dmin, static_cast<float>(minimum));
        const int64_t at = index * 8 + sub;
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          if (!row_exists<kRows>(row, rows)) break;
          const int sum = dot_words<4>(w, x.q + static_cast<int64_t>(row) * in + at * 32, 4 * half, 0);
          sums[row] = fmaf(static_cast<float>(sum), mul_rn(ds, x.d[row * blocks32 + at]), sums[row]);
          if (half == 0) sums[row] = fmaf(m, x.sums[row * blocks32 + at], sums[row]);
        }
      }
    }
  } else {  // q6_k: sixteen numbers share a scale: this lane's four words of each 32
    static_assert(kType == DType::kQ6_K);
    constexpr uint32_t kOnes[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
#pragma unroll
    for (int sub = 0; sub < 8; ++sub) {
      const int part = sub % 4, upper = sub / 4;
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = block.quants[8 * upper + 4 * (part & 1) + i] >> 4 * (part / 2) & 0x0F0F0F0Fu;
        const uint32_t high = block.high[4 * upper + i] >> 2 * part & 0x03030303u;
        w[i] = low | high << 4;
      }
      const int s = 2 * sub + half;  // in word sub / 2
      const float ds = mul_rn(d, static_cast<float>(static_cast<int8_t>(block.scales[sub / 2] >> 8 * (s % 4))));
      const int64_t at = index * 8 + sub;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (!row_exists<kRows>(row, rows)) break;
        const int8_t* from = x.q + static_cast<int64_t>(row) * in + at * 32;
        const int sum = dot_words<4>(w, from, 4 * half, 0) - 32 * dot_words<4>(kOnes, from, 4 * half, 0);
        sums[row] = fmaf(static_cast<float>(sum), mul_rn(ds, x.d[row * blocks32 + at]), sums[row]);
      }
    }
  }
}

template <DType kType, int kRows>
KERNEL void BLOCK_LIMIT(kTileThreads)
    tile_gemv_kernel(const GRID_CONSTANT Targets<uint8_t> targets, RoundedRows x, int rows, int in, bool accumulate) {
  SHARED_ARRAY(float, parts, kTileWarps * 16 * kRows);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int output = lane % 16, half = lane / 16;
  const Target<uint8_t>& to = targets.of(static_cast<int>(blockIdx.x));
  const int blocks = in / BlockShape<kType>::kElems, tile_row = (static_cast<int>(blockIdx.x) - to.first_block) * 16;
  constexpr int kInFlight = LaneBlock<kType>::kInFlight;
  LaneBlock<kType> ring[kInFlight];
  const auto load = [&](int place, int index) {
    if (index < blocks) ring[place].load(block_at<kType, true>(to.w, tile_row + output, blocks, index), half);
  };
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) load(i, warp + i * kTileWarps);
  float sums[kRows] = {};
  for (int base = warp; base < blocks; base += kInFlight * kTileWarps) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int index = base + i * kTileWarps;
      if (index >= blocks) break;
      add_block<kType, kRows>(ring[i], half, index, x, in, rows, sums);
      load(i, index + kInFlight * kTileWarps);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (!row_exists<kRows>(row, rows)) break;
    sums[row] += __shfl_xor_sync(kFullWarp, sums[row], 16);
    if (half == 0) parts[(warp * kRows + row) * 16 + output] = sums[row];
  }
  __syncthreads();
  for (int item = static_cast<int>(threadIdx.x); item < 16 * rows; item += kTileThreads) {
    const int row = item / 16, o = tile_row + item % 16;
    if (o >= to.out) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) sum += parts[(w * kRows + row) * 16 + item % 16];
    if (to.bias != nullptr) sum += to.bias[o];
    float* at = to.y + row * to.y_stride + o;
    *at = accumulate ? *at + sum : sum;
  }
}

// --- plain formats: a warp an output

constexpr int kPlainWarps = 4;

template <typename W, typename X, int kRows>
KERNEL void BLOCK_LIMIT(32 * kPlainWarps)
    plain_gemv_kernel(const X* x, int64_t x_stride, int rows, int in, const W* weights, int out, const float* bias,
                      const int32_t* columns, float* y, int64_t y_stride, bool accumulate, bool vectors) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int o = static_cast<int>(blockIdx.x * kPlainWarps + threadIdx.x / 32);
  if (o >= out) return;
  const W* row_of_w = weights + static_cast<int64_t>(o) * in;
  float sums[kRows] = {};
  for (int at = lane * 8; at < in; at += 256) {
    float w[8];
    const bool whole = vectors && at + 8 <= in;
    if (whole) {
      load_numbers<8>(row_of_w + at, w);
    } else {
      for (int k = 0; k < 8; ++k) w[k] = at + k < in ? to_float(row_of_w[at + k]) : 0.0f;
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows) break;
      float numbers[8];
      const X* from = x + row * x_stride + at;
      if (whole) {
        load_numbers<8>(from, numbers);
      } else {
        for (int k = 0; k < 8; ++k) numbers[k] = at + k < in ? to_float(from[k]) : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[row] = fmaf(w[k], numbers[k], sums[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (row >= rows) break;
    float sum = warp_sum(sums[row]);
    if (lane != 0) continue;
    if (bias != nullptr) sum += bias[o];
    float* to = y + row * y_stride + (columns != nullptr ? columns[o] : o);
    *to = accumulate ? *to + sum : sum;
  }
}

template <int kRows>
struct RowsTag {
  static constexpr int kValue = kRows;
};

// run(RowsTag<n>{}) with n the least of 1, 2, 4, 8 that holds the rows.
template <typename Run>
Status for_rows(int32_t rows, Run run) {
  CHECK(rows >= 1 && rows <= kGemvRows);
  if (rows == 1) return run(RowsTag<1>{});
  if (rows == 2) return run(RowsTag<2>{});
  if (rows <= 4) return run(RowsTag<4>{});
  return run(RowsTag<8>{});
}

template <DType kType>
Status launch_tiles(CudaStream& stream, const TileGemvArgs& args) {
  const DeviceWeight& first = args.targets[0].w;
  for (int32_t i = 0; i < args.target_count; ++i) {
    const DeviceWeight& w = args.targets[i].w;
    CHECK(w.layout == LayoutId::kTile16 && w.dtype == kType && w.cols == first.cols && fits_blocks(kType, w.cols) &&
          is_aligned(w.data));
  }
  unsigned blocks = 0;
  const Targets<uint8_t> targets = targets_of<uint8_t>(args.targets, args.target_count, kRowTile, &blocks);
  return for_rows(args.rows, [&](auto rows) {
    return launch("tile_gemv", tile_gemv_kernel<kType, decltype(rows)::kValue>, {blocks, 1, 1}, {kTileThreads, 1, 1}, 0,
                  stream.handle(), targets, args.x, args.rows, first.cols, args.accumulate);
  });
}

}  // namespace

Status round_rows(CudaStream& stream, const RoundRowsArgs& args) {
  CHECK(args.in % kBlock == 0);
  return launch("round_rows", round_rows_kernel, {blocks_for(args.in, 256), static_cast<unsigned>(args.rows), 1},
                {256, 1, 1}, 0, stream.handle(), args.x, args.x_stride, args.in, args.to);
}

Status tile_gemv(CudaStream& stream, const TileGemvArgs& args) {
  CHECK(args.target_count >= 1 && args.target_count <= kProductTargets && is_aligned(args.x.q));
  return for_quantised("products of few rows with tiles", args.targets[0].w.dtype,
                       [&](auto tag) { return launch_tiles<decltype(tag)::kValue>(stream, args); });
}

Status plain_gemv(CudaStream& stream, const PlainGemvArgs& args) {
  CHECK(args.w.layout == LayoutId::kPlain);
  const auto with_inputs = [&](auto x_type) {
    using X = decltype(x_type);
    return for_plain("weights", args.w.dtype, [&](auto w_type) {
      using W = decltype(w_type);
      // Eight numbers at a time where every row begins at a multiple of eight; the sum's
      // order is the same.
      const bool vectors =
          args.w.cols % 8 == 0 && args.x_stride % 8 == 0 && is_aligned(args.x) && is_aligned(args.w.data);
      return for_rows(args.rows, [&](auto rows) {
        return launch("plain_gemv", plain_gemv_kernel<W, X, decltype(rows)::kValue>,
                      {blocks_for(args.w.rows, kPlainWarps), 1, 1}, {32 * kPlainWarps, 1, 1}, 0, stream.handle(),
                      static_cast<const X*>(args.x), args.x_stride, args.rows, args.w.cols,
                      static_cast<const W*>(args.w.data), args.w.rows, args.bias, args.columns, args.y, args.y_stride,
                      args.accumulate, vectors);
      });
    });
  };
  if (args.x_dtype == DType::kF32) return with_inputs(float{});
  if (args.x_dtype == DType::kBF16) return with_inputs(BF16{});
  return no_kernel("inputs of products", args.x_dtype);
}

}  // namespace loralei::cuda
