// SPDX-License-Identifier: Apache-2.0
// Products of up to 64 rows with 16-bit weights on matrix units, bound by reading the
// weights: a fraction of the instructions that plain_gemv needs for eight rows. Weights
// are the left side (16 outputs), the input's rows the right one (8 rows).
//
// A lane loads 16 bytes, eight numbers side by side, of an output's weights and of a row.
// Of these a first product takes numbers 0 to 3, a second one 4 to 7: which inputs meet
// in a product is another order than memory's, but the same for both sides, so nothing
// passes through shared memory. Chunks of kChunk inputs go to the warps in turn, a warp
// adds its chunks in order, and the warps' sums are added in order. So every sum has one
// order whatever the rows.
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/targets.cuh"

namespace loralei::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kLoad = 8;                // numbers a lane loads at once
constexpr int kStep = 4 * kLoad;        // inputs that four lanes load: those of two products
constexpr int kSteps = 4;               // loaded before the first product
constexpr int kChunk = kStep * kSteps;  // 256 bytes of an output's weights
constexpr int kPieces = 4;              // sums of [16, 8] that pass through shared memory at a time
constexpr int kGroupQuads = 5;          // those of four lanes, a quad each; apart by what keeps banks apart
constexpr int kPieceQuads = 8 * kGroupQuads;

// d += w x for the inputs of one product.
DEVICE void multiply(BF16, float (&d)[4], const uint32_t (&w)[4], const uint32_t (&x)[2]) { mma_bf16(d, w, x); }

// f16 weights are taken exactly: as bf16 of their first eight bits, and bf16
// of the other three.
DEVICE void multiply(F16, float (&d)[4], const uint32_t (&w)[4], const uint32_t (&x)[2]) {
  constexpr uint32_t kTop = 0xFFFF0000u;
  uint32_t high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t first = __float_as_uint(f16_to_float(static_cast<uint16_t>(w[i])));
    const uint32_t second = __float_as_uint(f16_to_float(static_cast<uint16_t>(w[i] >> 16)));
    const float first_rest = __uint_as_float(first) - __uint_as_float(first & kTop);
    const float second_rest = __uint_as_float(second) - __uint_as_float(second & kTop);
    high[i] = first >> 16 | (second & kTop);
    low[i] = __float_as_uint(first_rest) >> 16 | (__float_as_uint(second_rest) & kTop);
  }
  mma_bf16(d, high, x);
  mma_bf16(d, low, x);
}

// A thread block takes kOutTiles * 16 outputs of one target, for all rows.
template <typename W, int kOutTiles, int kRowTiles>
KERNEL void BLOCK_LIMIT(kThreads) thin_gemm_kernel(const GRID_CONSTANT Targets<W> targets, const BF16* x,
                                                   int64_t x_stride, int rows, int in, bool accumulate) {
  constexpr int kTiles = kOutTiles * kRowTiles, kAtOnce = kTiles < kPieces ? kTiles : kPieces;
  SHARED_ARRAY(float4, parts, (kWarps * kAtOnce * kPieceQuads));
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = lane / 4, quarter = lane % 4;
  const int block = static_cast<int>(blockIdx.x);
  const Target<W>& to = targets.of(block);
  const int first = (block - to.first_block) * kOutTiles * 16;

  // Outputs and rows beyond the last are the last once more; nobody writes
  // what comes of them.
  int w_at[2 * kOutTiles], x_at[kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * kOutTiles; ++i) w_at[i] = min(8 * i + group, to.out - 1 - first) * (in / kLoad);
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) x_at[n] = min(8 * n + group, rows - 1) * static_cast<int>(x_stride / kLoad);
  const auto* w_lines = reinterpret_cast<const uint4*>(to.w + static_cast<int64_t>(first) * in) + quarter;
  const auto* x_lines = reinterpret_cast<const uint4*>(x) + quarter;
  float sums[kOutTiles][kRowTiles][4] = {};
  // The weights of a step to come take the place of those just multiplied, so that some
  // are always on their way. Beyond the last input they are zeros, and x is its first
  // numbers once more.
  constexpr int kAhead = kTiles < 16 ? kSteps : kSteps / 2, kLines = kStep / kLoad, kChunkLines = kChunk / kLoad;
  const int end = in / kLoad, my_end = end - quarter;
  uint4 weights[kAhead][2 * kOutTiles];
  const auto load = [&](int step, int from) {
#pragma unroll
    for (int i = 0; i < 2 * kOutTiles; ++i) {
      weights[step][i] = from < my_end ? load_once(w_lines + w_at[i] + from) : uint4{0, 0, 0, 0};
    }
  };
  const int begin = warp * kChunkLines;
#pragma unroll
  for (int step = 0; step < kAhead; ++step) load(step, begin + step * kLines);
  for (int chunk = begin; chunk < end; chunk += kWarps * kChunkLines) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int place = step % kAhead, at = chunk + step * kLines, next = at + kAhead * kLines;
      uint4 inputs[kRowTiles];
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) inputs[n] = __ldg(x_lines + x_at[n] + (at < my_end ? at : 0));
#pragma unroll
      for (int m = 0; m < kOutTiles; ++m) {
        const uint4 upper = weights[place][2 * m], lower = weights[place][2 * m + 1];
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          multiply(W{}, sums[m][n], {upper.x, lower.x, upper.y, lower.y}, {inputs[n].x, inputs[n].y});
          multiply(W{}, sums[m][n], {upper.z, lower.z, upper.w, lower.w}, {inputs[n].z, inputs[n].w});
        }
      }
      load(place, step + kAhead < kSteps ? next : next + (kWarps - 1) * kChunkLines);
    }
  }

#pragma unroll
  for (int done = 0; done < kTiles; done += kAtOnce) {
    if (done > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float(&sum)[4] = sums[(done + i) / kRowTiles][(done + i) % kRowTiles];
      parts[(warp * kAtOnce + i) * kPieceQuads + group * kGroupQuads + quarter] =
          float4{sum[0], sum[1], sum[2], sum[3]};
    }
    __syncthreads();
    for (int item = thread; item < kAtOnce * 128; item += kThreads) {
      const int o = item % 16, r = item / 16 % 8, i = item / 128;
      const auto* from =
          reinterpret_cast<const float*>(parts + i * kPieceQuads + o % 8 * kGroupQuads + r / 2) + o / 8 * 2 + r % 2;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += from[w * kAtOnce * kPieceQuads * 4];
      const int output = first + (done + i) / kRowTiles * 16 + o, row = (done + i) % kRowTiles * 8 + r;
      if (output >= to.out || row >= rows) continue;
      if (to.bias != nullptr) sum += to.bias[output];
      float* at = to.y + row * to.y_stride + output;
      *at = accumulate ? *at + sum : sum;
    }
  }
}

// Outputs of a launch from which thread blocks of 32 are enough to keep every
// multiprocessor of a large GPU busy. No bit depends on it.
constexpr int64_t kOutputsForPairs = 32 * 128;

template <typename W, int kOutTiles, int kRowTiles>
Status launch_tiles(CudaStream& stream, const ThinGemmArgs& args) {
  unsigned blocks = 0;
  const Targets<W> targets = targets_of<W>(args.targets, args.target_count, 16 * kOutTiles, &blocks);
  return launch("thin_gemm", thin_gemm_kernel<W, kOutTiles, kRowTiles>, {blocks, 1, 1}, {kThreads, 1, 1}, 0,
                stream.handle(), targets, static_cast<const BF16*>(args.x), args.x_stride, args.rows,
                args.targets[0].w.cols, args.accumulate);
}

// Pairs of tiles halve what is read of the input, which is as much as the
// weights for 16 rows.
template <typename W>
Status launch_thin(CudaStream& stream, const ThinGemmArgs& args) {
  int64_t outputs = 0;
  for (int i = 0; i < args.target_count; ++i) outputs += args.targets[i].w.rows;
  const bool pairs = outputs >= kOutputsForPairs;
  if (args.rows <= 8) return launch_tiles<W, 1, 1>(stream, args);
  if (args.rows <= 16) return launch_tiles<W, 1, 2>(stream, args);
  if (args.rows <= 32) return pairs ? launch_tiles<W, 2, 4>(stream, args) : launch_tiles<W, 1, 4>(stream, args);
  return pairs ? launch_tiles<W, 2, 8>(stream, args) : launch_tiles<W, 1, 8>(stream, args);
}

}  // namespace

bool has_thin_gemm(const DeviceWeight& w) {
  return w.layout == LayoutId::kPlain && (w.dtype == DType::kBF16 || w.dtype == DType::kF16) && w.cols >= kStep &&
         w.cols % kLoad == 0 && is_aligned(w.data);
}

Status thin_gemm(CudaStream& stream, const ThinGemmArgs& args) {
  CHECK(args.rows >= 1 && args.rows <= kThinRows && args.target_count >= 1 && args.target_count <= kProductTargets);
  CHECK(args.x_stride % kLoad == 0 && is_aligned(args.x));
  const DeviceWeight& first = args.targets[0].w;
  for (int i = 0; i < args.target_count; ++i) {
    const DeviceWeight& w = args.targets[i].w;
    CHECK(has_thin_gemm(w) && w.dtype == first.dtype && w.cols == first.cols);
  }
  return first.dtype == DType::kBF16 ? launch_thin<BF16>(stream, args) : launch_thin<F16>(stream, args);
}

}  // namespace loralei::cuda
