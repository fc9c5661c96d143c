// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/numbers.cuh"

namespace loralei::cuda {
namespace {

constexpr int kThreads = 256;

// One block a vector [dim]: grid (rows, vectors).
template <typename Y, int kBlock>
KERNEL void BLOCK_LIMIT(kBlock)
    rms_norm_kernel(const float* x, int64_t x_stride, Y* y, int64_t y_stride, const float* weight, int dim, float eps) {
  SHARED_ARRAY(float, room, kBlock / 32);
  const int64_t at = static_cast<int64_t>(blockIdx.y) * dim;
  x += blockIdx.x * x_stride + at;
  y += blockIdx.x * y_stride + at;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kBlock) sum = fmaf(x[i], x[i], sum);
  sum = block_sum<kBlock>(sum, room);
  const float inverse = rsqrtf(sum / static_cast<float>(dim) + eps);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kBlock) put(y + i, x[i] * inverse * weight[i]);
}

// The same for vectors of up to 4 kWide kEach numbers at addresses of whole fours: each
// is read once, with its weight, and stays in registers.
constexpr int kWide = 1024;
template <typename Y, int kEach>
KERNEL void BLOCK_LIMIT(kWide) wide_norm_kernel(const float* x, int64_t x_stride, Y* y, int64_t y_stride,
                                                const float* weight, int dim, float eps) {
  SHARED_ARRAY(float, room, kWide / 32);
  const int64_t at = static_cast<int64_t>(blockIdx.y) * dim;
  x += blockIdx.x * x_stride + at;
  y += blockIdx.x * y_stride + at;
  float numbers[kEach][4] = {}, weights[kEach][4] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = 4 * (e * kWide + static_cast<int>(threadIdx.x));
    if (i >= dim) continue;
    load_numbers<4>(x + i, numbers[e]);
    load_numbers<4>(weight + i, weights[e]);
  }
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sum = fmaf(numbers[e][k], numbers[e][k], sum);
  }
  sum = block_sum<kWide>(sum, room);
  const float inverse = rsqrtf(sum / static_cast<float>(dim) + eps);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = 4 * (e * kWide + static_cast<int>(threadIdx.x));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i < dim) put(y + i + k, numbers[e][k] * inverse * weights[e][k]);
    }
  }
}

// grid (rows, heads / kTurnedHeads). The angle is reduced in double, so that far
// positions turn exactly; all heads of a block share it. Shared memory: sines and cosines
// [head_dim / 2] each.
constexpr int kTurnedHeads = 4;
KERNEL void rope_kernel(float* x, int64_t stride, int heads, int head_dim, const int32_t* positions,
                        const float* inv_freq, float attention_scale) {
  const int half = head_dim / 2, first = static_cast<int>(blockIdx.y) * kTurnedHeads;
  float* const sines = reinterpret_cast<float*>(shared_bytes());
  float* const cosines = sines + half;
  const double position = positions[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
    constexpr double kTurn = 6.283185307179586476925;
    double angle = position * static_cast<double>(inv_freq[i]);
    angle -= kTurn * floor(angle / kTurn + 0.5);
    float s, c;
    sincosf(static_cast<float>(angle), &s, &c);
    sines[i] = s * attention_scale;
    cosines[i] = c * attention_scale;
  }
  __syncthreads();
  float* row = x + blockIdx.x * stride + static_cast<int64_t>(first) * head_dim;
  const int items = min(kTurnedHeads, heads - first) * half;
  for (int item = static_cast<int>(threadIdx.x); item < items; item += static_cast<int>(blockDim.x)) {
    const int i = item % half;
    float* at = row + static_cast<int64_t>(item / half) * head_dim + i;
    const float x1 = at[0], x2 = at[half];
    at[0] = x1 * cosines[i] - x2 * sines[i];
    at[half] = x2 * cosines[i] + x1 * sines[i];
  }
}

// grid (pieces of dim, rows) for what goes number by number.
template <typename Y>
KERNEL void swiglu_kernel(const float* gate, const float* up, int64_t stride, Y* y, int64_t y_stride, int dim) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= dim) return;
  const float g = gate[blockIdx.y * stride + i];
  put(y + blockIdx.y * y_stride + i, g / (1.0f + __expf(-g)) * up[blockIdx.y * stride + i]);
}

KERNEL void add_kernel(const float* x, int64_t x_stride, float* y, int64_t y_stride, int dim) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < dim) y[blockIdx.y * y_stride + i] += x[blockIdx.y * x_stride + i];
}

template <typename Y>
KERNEL void gather_kernel(const float* x, int64_t x_stride, const int32_t* from, const int32_t* to, Y* y,
                          int64_t y_stride, int dim) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= dim) return;
  const int64_t row = from != nullptr ? from[blockIdx.y] : static_cast<int64_t>(blockIdx.y);
  const int64_t place = to != nullptr ? to[blockIdx.y] : static_cast<int64_t>(blockIdx.y);
  put(y + place * y_stride + i, row >= 0 ? x[row * x_stride + i] : 0.0f);
}

template <typename W>
KERNEL void embed_kernel(const int32_t* tokens, const W* table, float* y, int64_t y_stride, int dim) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= dim) return;
  const int64_t token = tokens[blockIdx.y];
  y[blockIdx.y * y_stride + i] = token >= 0 ? to_float(table[token * dim + i]) : 0.0f;
}

template <DType kType, bool kTiled>
KERNEL void embed_blocks_kernel(const int32_t* tokens, const uint8_t* table, float* y, int64_t y_stride, int dim) {
  const int i = 4 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= dim) return;
  constexpr int kElems = BlockShape<kType>::kElems;
  const int64_t token = tokens[blockIdx.y];
  float four[4] = {};
  if (token >= 0) decode_four<kType>(block_at<kType, kTiled>(table, token, dim / kElems, i / kElems), i % kElems, four);
  for (int k = 0; k < 4; ++k) y[blockIdx.y * y_stride + i + k] = four[k];
}

// Every thread decodes 32 numbers of one row; neighbouring threads take neighbouring rows
// of a tile, whose words lie side by side.
template <DType kType, bool kTiled, typename Y>
KERNEL void decode_kernel(const uint8_t* data, Y* y, int64_t rows, int cols) {
  constexpr int kElems = BlockShape<kType>::kElems;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, pieces = cols / 32;
  const int64_t row = item / (16 * pieces) * 16 + item % 16, piece = item / 16 % pieces;
  if (row >= rows) return;
  const int e = static_cast<int>(piece * 32);
  const auto block = block_at<kType, kTiled>(data, row, cols / kElems, e / kElems);
  Y* to = y + row * cols + e;
  alignas(16) Y out[32];
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    float four[4];
    decode_four<kType>(block, e % kElems + i, four);
    for (int k = 0; k < 4; ++k) put(out + i + k, four[k]);
  }
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(out)) / 16; ++i) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(out)[i];
  }
}

template <typename W, typename Y>
KERNEL void convert_kernel(const W* x, Y* y, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) put(y + i, to_float(x[i]));
}

Dim3 row_grid(int32_t dim, int32_t rows) { return {blocks_for(dim, kThreads), static_cast<unsigned>(rows), 1}; }

}  // namespace

Status rms_norm(CudaStream& stream, const RmsNormArgs& args) {
  if (args.rows <= 0) return {};
  const auto fours = [](const void* address, int64_t stride) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0 && stride % 4 == 0;
  };
  const bool wide = args.dim <= 16 * kWide && fours(args.x, args.x_stride) && fours(args.weight, args.dim);
  const Dim3 grid{static_cast<unsigned>(args.rows), static_cast<unsigned>(args.vectors), 1};
  return for_plain("normalised rows", args.y_dtype, [&](auto type) {
    using Y = decltype(type);
    if (args.dim <= 256) {
      return launch("rms_norm", rms_norm_kernel<Y, 32>, grid, {32, 1, 1}, 0, stream.handle(), args.x, args.x_stride,
                    static_cast<Y*>(args.y), args.y_stride, args.weight, args.dim, args.eps);
    }
    if (wide) {
      const auto kernel = args.dim <= 4 * kWide   ? wide_norm_kernel<Y, 1>
                          : args.dim <= 8 * kWide ? wide_norm_kernel<Y, 2>
                                                  : wide_norm_kernel<Y, 4>;
      return launch("wide_norm", kernel, grid, {kWide, 1, 1}, 0, stream.handle(), args.x, args.x_stride,
                    static_cast<Y*>(args.y), args.y_stride, args.weight, args.dim, args.eps);
    }
    return launch("rms_norm", rms_norm_kernel<Y, kThreads>, grid, {kThreads, 1, 1}, 0, stream.handle(), args.x,
                  args.x_stride, static_cast<Y*>(args.y), args.y_stride, args.weight, args.dim, args.eps);
  });
}

Status rope(CudaStream& stream, const RopeArgs& args) {
  if (args.rows <= 0) return {};
  return launch("rope", rope_kernel, {static_cast<unsigned>(args.rows), blocks_for(args.heads, kTurnedHeads), 1},
                {kThreads, 1, 1}, sizeof(float) * static_cast<size_t>(args.head_dim), stream.handle(), args.x,
                args.stride, args.heads, args.head_dim, args.positions, args.inv_freq, args.attention_scale);
}

Status swiglu(CudaStream& stream, const SwigluArgs& args) {
  if (args.rows <= 0) return {};
  return for_plain("swiglu", args.y_dtype, [&](auto type) {
    using Y = decltype(type);
    return launch("swiglu", swiglu_kernel<Y>, row_grid(args.dim, args.rows), {kThreads, 1, 1}, 0, stream.handle(),
                  args.gate, args.up, args.stride, static_cast<Y*>(args.y), args.y_stride, args.dim);
  });
}

Status add(CudaStream& stream, const AddArgs& args) {
  if (args.rows <= 0) return {};
  return launch("add", add_kernel, row_grid(args.dim, args.rows), {kThreads, 1, 1}, 0, stream.handle(), args.x,
                args.x_stride, args.y, args.y_stride, args.dim);
}

Status gather_rows(CudaStream& stream, const GatherArgs& args) {
  if (args.rows <= 0) return {};
  return for_plain("gathered rows", args.y_dtype, [&](auto type) {
    using Y = decltype(type);
    return launch("gather", gather_kernel<Y>, row_grid(args.dim, args.rows), {kThreads, 1, 1}, 0, stream.handle(),
                  args.x, args.x_stride, args.from, args.to, static_cast<Y*>(args.y), args.y_stride, args.dim);
  });
}

Status embed(CudaStream& stream, const EmbedArgs& args) {
  if (args.rows <= 0) return {};
  const int32_t dim = args.w.cols;
  if (!is_quantised(args.w.dtype)) {
    return for_plain("embeddings", args.w.dtype, [&](auto type) {
      using W = decltype(type);
      return launch("embed", embed_kernel<W>, row_grid(dim, args.rows), {kThreads, 1, 1}, 0, stream.handle(),
                    args.tokens, static_cast<const W*>(args.w.data), args.y, args.y_stride, dim);
    });
  }
  return for_quantised("embeddings", args.w.dtype, [&](auto tag) {
    constexpr DType kType = decltype(tag)::kValue;
    const auto kernel =
        args.w.layout == LayoutId::kTile16 ? embed_blocks_kernel<kType, true> : embed_blocks_kernel<kType, false>;
    return launch("embed_blocks", kernel, row_grid(dim / 4, args.rows), {kThreads, 1, 1}, 0, stream.handle(),
                  args.tokens, static_cast<const uint8_t*>(args.w.data), args.y, args.y_stride, dim);
  });
}

Status decode_weights(CudaStream& stream, const DecodeArgs& args) {
  const int64_t count = int64_t{args.w.rows} * args.w.cols;
  if (count == 0) return {};
  return for_plain("decoded weights", args.y_dtype, [&](auto type) {
    using Y = decltype(type);
    if (!is_quantised(args.w.dtype)) {
      return for_plain("weights", args.w.dtype, [&](auto from) {
        using W = decltype(from);
        return launch("convert", convert_kernel<W, Y>, {blocks_for(count, kThreads), 1, 1}, {kThreads, 1, 1}, 0,
                      stream.handle(), static_cast<const W*>(args.w.data), static_cast<Y*>(args.y), count);
      });
    }
    return for_quantised("weights", args.w.dtype, [&](auto tag) {
      constexpr DType kType = decltype(tag)::kValue;
      const auto kernel =
          args.w.layout == LayoutId::kTile16 ? decode_kernel<kType, true, Y> : decode_kernel<kType, false, Y>;
      const int64_t items = (int64_t{args.w.rows} + 15) / 16 * 16 * (args.w.cols / 32);
      return launch("decode", kernel, {blocks_for(items, kThreads), 1, 1}, {kThreads, 1, 1}, 0, stream.handle(),
                    static_cast<const uint8_t*>(args.w.data), static_cast<Y*>(args.y), int64_t{args.w.rows},
                    args.w.cols);
    });
  });
}

}  // namespace loralei::cuda
