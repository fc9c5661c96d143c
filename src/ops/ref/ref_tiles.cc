// SPDX-License-Identifier: Apache-2.0
// The integer products as ops/args.h defines them, number by number.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/ref/ref_table.h"
#include "ops/tiles.h"
#include "tensor/codec.h"
#include "tensor/small_blocks.h"
#include "tensor/tile_layout.h"

namespace loralei {
namespace {

constexpr int kBlockBytesMax = 210;

struct RoundedBlock {
  int8_t q[kActivationBlock];
  float d;
};

// Adding and taking away 1.5 * 2^23 leaves no room for a fraction; |x| is
// at most 127 or so.
float nearest_even(float x) {
  volatile float shifted = x + 12582912.0f;
  return shifted - 12582912.0f;
}

RoundedBlock round_block(const float* x) {
  RoundedBlock out{};
  float largest = 0;
  bool finite = true;
  for (int i = 0; i < kActivationBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, std::fabs(x[i]));
  }
  out.d = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  if (!finite || largest < kActivationMin) return out;
  out.d = largest / 127.0f;
  const float inverse = 127.0f / largest;
  for (int i = 0; i < kActivationBlock; ++i) out.q[i] = static_cast<int8_t>(nearest_even(x[i] * inverse));
  return out;
}

// 32 weights of one row: integers without their zero point, the scale and the minimum's
// term of each half.
struct WeightBlock {
  int w[kActivationBlock];
  float d[2];
  float m[2];
  bool has_min = false;
  bool halves = false;  // that have scales of their own
};

float half_at(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return f16_to_f32(bits);
}
int byte_at(const std::byte* p, int i) { return static_cast<int>(p[i]); }
int bit_at(const std::byte* p, int i) { return byte_at(p, i / 8) >> (i % 8) & 1; }

void k_scale(const std::byte* packed, int j, int& scale, int& min) {
  if (j < 4) {
    scale = byte_at(packed, j) & 63;
    min = byte_at(packed, j + 4) & 63;
  } else {
    scale = (byte_at(packed, j + 4) & 15) | (byte_at(packed, j - 4) >> 6) << 4;
    min = (byte_at(packed, j + 4) >> 4) | (byte_at(packed, j) >> 6) << 4;
  }
}

// Of q2_k and q3_k, whose numbers have two bits side by side; weight_block().
WeightBlock two_bit_block(DType dtype, const std::byte* block, int sub) {
  const bool three = dtype == DType::kQ3_K;
  const int half = sub / 4, part = sub % 4;
  const std::byte* quants = block + (three ? 32 : 16) + 32 * half;
  const float d = half_at(block + (three ? 108 : 80));
  WeightBlock out{};
  out.halves = true;
  out.has_min = !three;
  for (int i = 0; i < 32; ++i) {
    out.w[i] = byte_at(quants, i) >> 2 * part & 3;
    if (three) out.w[i] += (byte_at(block, i) >> sub & 1) * 4 - 4;
  }
  for (int e = 0; e < 2; ++e) {
    const int j = 2 * sub + e;
    out.d[e] = d * static_cast<float>(three ? q3_k_scale(block + 96, j) : byte_at(block, j) & 15);
    if (!three) out.m[e] = -(half_at(block + 82) * static_cast<float>(byte_at(block, j) >> 4));
  }
  return out;
}

int nibble(const std::byte* p, int i) { return i < 16 ? byte_at(p, i) & 15 : byte_at(p, i - 16) >> 4; }

// Where a nibble means what a table says.
WeightBlock table_block(const std::byte* quants, const int8_t (&values)[16], float d) {
  WeightBlock out{};
  for (int i = 0; i < 32; ++i) out.w[i] = values[nibble(quants, i)];
  out.d[0] = d;
  return out;
}

WeightBlock with_zero_point(WeightBlock block, float zero) {
  block.has_min = true;
  block.m[0] = -(block.d[0] * zero);
  return block;
}

// Sub-block `sub` of 32 numbers of a block in the file's format.
WeightBlock weight_block(DType dtype, const std::byte* block, int sub) {
  WeightBlock out{};
  out.d[0] = half_at(block);
  switch (dtype) {
    case DType::kQ8_0:
      for (int i = 0; i < 32; ++i) out.w[i] = static_cast<int8_t>(block[2 + i]);
      break;
    case DType::kQ4_0:
      for (int i = 0; i < 32; ++i) out.w[i] = nibble(block + 2, i) - 8;
      break;
    case DType::kQ4_1:
    case DType::kInt4G:
      for (int i = 0; i < 32; ++i) out.w[i] = nibble(block + 4, i);
      break;
    case DType::kQ5_0:
      for (int i = 0; i < 32; ++i) out.w[i] = (nibble(block + 6, i) | bit_at(block + 2, i) << 4) - 16;
      break;
    case DType::kQ5_1:
      for (int i = 0; i < 32; ++i) out.w[i] = nibble(block + 8, i) | bit_at(block + 4, i) << 4;
      break;
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const bool five = dtype == DType::kQ5_K;
      const std::byte* quants = block + (five ? 48 : 16) + 32 * (sub / 2);
      for (int i = 0; i < 32; ++i) {
        out.w[i] = sub % 2 == 0 ? byte_at(quants, i) & 15 : byte_at(quants, i) >> 4;
        if (five) out.w[i] |= (byte_at(block + 16, i) >> sub & 1) << 4;
      }
      int scale, min;
      k_scale(block + 4, sub, scale, min);
      out.d[0] *= static_cast<float>(scale);
      out.m[0] = -(half_at(block + 2) * static_cast<float>(min));
      break;
    }
    case DType::kQ6_K: {
      const int half = sub / 4, part = sub % 4;
      const float d = half_at(block + 208);
      for (int i = 0; i < 32; ++i) {
        const int low = byte_at(block + 64 * half + 32 * (part % 2), i);
        out.w[i] = ((part < 2 ? low & 15 : low >> 4) | (byte_at(block + 128 + 32 * half, i) >> 2 * part & 3) << 4) - 32;
      }
      for (int e = 0; e < 2; ++e) {
        out.d[e] = d * static_cast<float>(static_cast<int8_t>(block[192 + 2 * sub + e]));
      }
      out.halves = true;
      return out;
    }
    case DType::kQ2_K:
    case DType::kQ3_K:
      return two_bit_block(dtype, block, sub);
    case DType::kIQ4_NL:
      return table_block(block + 2, kIq4Values, out.d[0]);
    case DType::kIQ4_XS:
      return table_block(block + 8 + 16 * sub, kIq4Values, out.d[0] * static_cast<float>(iq4_xs_scale(block, sub)));
    case DType::kMXFP4:
      return table_block(block + 1, kMxfp4Values, mxfp4_scale(static_cast<uint8_t>(block[0])));
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI8:
    case DType::kF8:
    case DType::kF8G:
      CHECK(false);
  }
  out.d[1] = out.d[0];
  out.has_min = dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K || dtype == DType::kQ5_K;
  if (dtype == DType::kQ4_1 || dtype == DType::kQ5_1) out.m[0] = half_at(block + 2);
  return dtype == DType::kInt4G ? with_zero_point(out, half_at(block + 2)) : out;
}

float add_block(const WeightBlock& weights, const RoundedBlock& x, float acc) {
  const int parts = weights.halves ? 2 : 1, numbers = kActivationBlock / parts;
  for (int e = 0; e < parts; ++e) {
    int sum = 0, total = 0;
    for (int i = e * numbers; i < (e + 1) * numbers; ++i) {
      sum += weights.w[i] * x.q[i];
      total += x.q[i];
    }
    acc = std::fma(static_cast<float>(sum), weights.d[e] * x.d, acc);
    if (weights.has_min) acc = std::fma(weights.m[e], x.d * static_cast<float>(total), acc);
  }
  return acc;
}

// Outputs of one tile row for all rows of the input.
void product_row(const TileMatmulArgs& args, const TileProduct& product, const std::byte* row, int64_t output) {
  const DTypeInfo info = dtype_info(product.w.dtype);
  const int subs = info.block_elems / kActivationBlock;
  for (int32_t i = 0; i < args.rows; ++i) {
    const float* x = args.x + i * args.x_stride;
    float acc = 0;
    for (int64_t k = 0; k < product.w.cols; k += kActivationBlock) {
      const std::byte* block = row + k / info.block_elems * info.block_bytes;
      const WeightBlock weights = weight_block(product.w.dtype, block, static_cast<int>(k / kActivationBlock) % subs);
      acc = add_block(weights, round_block(x + k), acc);
    }
    if (product.bias != nullptr) acc += product.bias[output];
    float& y = product.y[i * product.y_stride + output];
    y = args.accumulate ? y + acc : acc;
  }
}

}  // namespace

void ref_matmul_tiles(OpContext& ctx, const TileMatmulArgs& args) {
  if (args.rows <= 0 || args.products.empty()) return;
  ++ctx.op_count;
  const int64_t part = static_cast<int64_t>(ctx.scratch.size()) / ctx.pool->threads() / 64 * 64;
  for (const TileProduct& product : args.products) {
    CHECK(row_bytes(product.w.dtype, product.w.cols) <= part);
    ctx.pool->parallel_for(tile_count(product.w), 1, [&](int64_t begin, int64_t end, int worker) {
      std::byte* row = ctx.scratch.data() + part * worker;
      for (int64_t item = begin; item < end; ++item) {
        const RowTile tile = row_tile(product.w, item);
        for (int r = 0; r < tile.count; ++r) {
          unpack_tile_row(product.w.dtype, tile.data, r, product.w.cols, row);
          product_row(args, product, row, tile.output + r);
        }
      }
    });
  }
}

void ref_matmul_tile_runs(OpContext& ctx, const TileRunsArgs& args) {
  for (const TileRows& run : args.runs) {
    ref_matmul_tiles(ctx, {.x = args.x + run.row_begin * args.x_stride,
                           .x_stride = args.x_stride,
                           .rows = run.row_count,
                           .products = run.products});
  }
}

}  // namespace loralei
