// SPDX-License-Identifier: Apache-2.0
// Attention of runs of rows on matrix units, after FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1): a warp keeps
// sixteen rows' running maxima and sums while tiles of positions go by. Tiles of positions lie at absolute multiples of
// kTilePositions and what does not concern a row adds exactly nothing to it, so a row's result is the same in any tile
// of rows.
#include "ops/cuda/attention.cuh"
#include "ops/cuda/cuda_ops.h"

namespace loralei::cuda {
namespace {

constexpr int kTilePositions = 64, kWarps = kAttentionTileRows / 16, kThreads = 32 * kWarps;
constexpr int kPad = 8;  // halves: rows of shared memory begin four banks apart

// How numbers of the cache enter products: f16 as they are, all others as bf16.
template <typename T>
struct Half {
  DEVICE static uint16_t of(float x) { return float_to_bf16(x); }
  DEVICE static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_bf16(d, a, b); }
};
template <>
struct Half<F16> {
  DEVICE static uint16_t of(float x) { return float_to_f16(x); }
  DEVICE static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_f16(d, a, b); }
};
template <typename T>
DEVICE uint32_t pack_pair(float low, float high) {
  return Half<T>::of(low) | static_cast<uint32_t>(Half<T>::of(high)) << 16;
}

// grid (heads, tiles). Shared memory: K [kTilePositions][kDim + kPad], V transposed [kDim][kTilePositions + kPad]; the
// scales of both (int8, fp8).
template <typename T, int kDim, typename Y>
KERNEL void BLOCK_LIMIT(kThreads)
    tiled_kernel(const float* q, int64_t q_stride, Y* out, int64_t out_stride, DeviceKv kv, int layer, int group_heads,
                 float scale, int window, const AttentionTile* tiles, StepRows rows) {
  constexpr bool kScaled = sizeof(T) == 1;
  constexpr int kKRow = kDim + kPad, kVRow = kTilePositions + kPad;
  const AttentionTile tile = tiles[gridDim.y - 1 - blockIdx.y];  // a prompt's last tiles see most: they begin first
  if (tile.row_count <= 0) return;
  const int head = static_cast<int>(blockIdx.x), kv_head = head / group_heads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = lane / 4, quarter = lane % 4;

  auto* k_shared = reinterpret_cast<uint16_t*>(shared_bytes());
  auto* v_shared = k_shared + kTilePositions * kKRow;
  SHARED_ARRAY(float, k_scale, kTilePositions);
  SHARED_ARRAY(float, v_scale, kTilePositions);

  const int position = rows.positions[tile.row_begin];  // of the tile's first row
  const int* blocks = rows.blocks + rows.tables[tile.row_begin];
  const int end = position + tile.row_count;                         // behind the last position read
  const int begin = window > 0 ? max(0, position - window + 1) : 0;  // the first
  const int my_row[2] = {warp * 16 + group, warp * 16 + group + 8};  // in the tile

  // The lanes' parts of q, scaled before they are rounded.
  uint32_t q_part[kDim / 16][4];
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = my_row[i % 2], d = step * 16 + quarter * 2 + i / 2 * 8;
      const float* from = q + (tile.row_begin + r) * q_stride + static_cast<int64_t>(head) * kDim + d;
      q_part[step][i] = r < tile.row_count ? pack_pair<T>(from[0] * scale, from[1] * scale) : 0;
    }
  }
  float sums[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};

  for (int base = begin / kTilePositions * kTilePositions; base < end; base += kTilePositions) {
    __syncthreads();
    // Two positions and eight numbers a turn; positions nobody may see become zeros (their bytes can be anything).
    for (int item = thread; item < kTilePositions / 2 * (kDim / 8); item += kThreads) {
      const int p = item % (kTilePositions / 2) * 2, d = item / (kTilePositions / 2) * 8;
      float k[2][8] = {}, v[2][8] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = base + p + i;
        if (at < begin || at >= end) continue;
        const int64_t in_head = static_cast<int64_t>(at % kKvBlockTokens) * kDim + d;
        const int block = blocks[at / kKvBlockTokens];
        load_numbers<8>(reinterpret_cast<const T*>(kv_head_at(kv, block, layer, 0, kv_head)) + in_head, k[i]);
        load_numbers<8>(reinterpret_cast<const T*>(kv_head_at(kv, block, layer, 1, kv_head)) + in_head, v[i]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        *reinterpret_cast<uint32_t*>(v_shared + (d + i) * kVRow + p) = pack_pair<T>(v[0][i], v[1][i]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4 eight{pack_pair<T>(k[i][0], k[i][1]), pack_pair<T>(k[i][2], k[i][3]), pack_pair<T>(k[i][4], k[i][5]),
                    pack_pair<T>(k[i][6], k[i][7])};
        *reinterpret_cast<uint4*>(k_shared + (p + i) * kKRow + d) = eight;
      }
    }
    if constexpr (kScaled) {
      for (int p = thread; p < kTilePositions; p += kThreads) {
        const int at = base + p;
        const bool seen = at >= begin && at < end;
        const int block = seen ? blocks[at / kKvBlockTokens] : 0;
        k_scale[p] = seen ? kv_scales(kv, kv_head_at(kv, block, layer, 0, kv_head))[at % kKvBlockTokens] : 0.0f;
        v_scale[p] = seen ? kv_scales(kv, kv_head_at(kv, block, layer, 1, kv_head))[at % kKvBlockTokens] : 0.0f;
      }
    }
    __syncthreads();

    // Scores [16 rows, 64 positions]: the lane has rows group, group + 8 and, of every eight positions, two.
    float scores[kTilePositions / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kTilePositions / 8; ++n) {
        const uint16_t* from = k_shared + (n * 8 + group) * kKRow + step * 16 + quarter * 2;
        const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(from), *reinterpret_cast<const uint32_t*>(from + 8)};
        Half<T>::mma(scores[n], q_part[step], b);
      }
    }
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kTilePositions / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int p = n * 8 + quarter * 2 + i % 2, at = base + p, last = position + my_row[i / 2];
        if constexpr (kScaled) scores[n][i] *= k_scale[p];
        const bool seen = at <= last && (window <= 0 || at > last - window) && my_row[i / 2] < tile.row_count;
        if (!seen) scores[n][i] = -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(kFullWarp, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(kFullWarp, most[r], 2));
    }
    float factor[2], added[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = most[r] == largest[r] ? 1.0f : __expf(largest[r] - most[r]);
      largest[r] = most[r];
    }
#pragma unroll
    for (int n = 0; n < kTilePositions / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = scores[n][i] == -INFINITY ? 0.0f : __expf(scores[n][i] - most[i / 2]);
        added[i / 2] += weight;
        scores[n][i] = weight;
        if constexpr (kScaled) scores[n][i] *= v_scale[n * 8 + quarter * 2 + i % 2];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      added[r] += __shfl_xor_sync(kFullWarp, added[r], 1);
      added[r] += __shfl_xor_sync(kFullWarp, added[r], 2);
      total[r] = total[r] * factor[r] + added[r];
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= factor[i / 2];
    }
    // The weights are where the next product wants its left side.
#pragma unroll
    for (int step = 0; step < kTilePositions / 16; ++step) {
      const float(&low)[4] = scores[2 * step];
      const float(&high)[4] = scores[2 * step + 1];
      const uint32_t a[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]), pack_pair<T>(high[0], high[1]),
                             pack_pair<T>(high[2], high[3])};
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const uint16_t* from = v_shared + (n * 8 + group) * kVRow + step * 16 + quarter * 2;
        const uint32_t b[2] = {*reinterpret_cast<const uint32_t*>(from), *reinterpret_cast<const uint32_t*>(from + 8)};
        Half<T>::mma(sums[n], a, b);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = my_row[i / 2];
      if (r >= tile.row_count) continue;
      put(out + (tile.row_begin + r) * out_stride + static_cast<int64_t>(head) * kDim + n * 8 + quarter * 2 + i % 2,
          sums[n][i] / total[i / 2]);
    }
  }
}

template <typename T, int kDim>
Status launch_tiled(CudaStream& stream, const TiledAttentionArgs& args) {
  const AttentionArgs& a = args.attention;
  constexpr size_t kBytes = sizeof(uint16_t) * (kTilePositions * (kDim + kPad) + kDim * (kTilePositions + kPad));
  return for_plain("attention's results", a.out_dtype, [&](auto type) {
    using Y = decltype(type);
    return launch("tiled_attention", tiled_kernel<T, kDim, Y>,
                  {static_cast<unsigned>(a.heads), static_cast<unsigned>(args.tile_count), 1}, {kThreads, 1, 1}, kBytes,
                  stream.handle(), a.q, a.q_stride, static_cast<Y*>(a.out), a.out_stride, a.kv, a.layer,
                  a.heads / a.kv.kv_heads, a.scale, a.window, args.tiles, a.rows);
  });
}

}  // namespace

bool has_tiled_attention(int32_t head_dim) { return head_dim == 64 || head_dim == 96 || head_dim == 128; }

Status tiled_attention(CudaStream& stream, const TiledAttentionArgs& args) {
  const int32_t head_dim = args.attention.kv.head_dim;
  return for_cache(args.attention.kv.dtype, [&](auto type) -> Status {
    using T = decltype(type);
    if (head_dim == 64) return launch_tiled<T, 64>(stream, args);
    if (head_dim == 96) return launch_tiled<T, 96>(stream, args);
    if (head_dim == 128) return launch_tiled<T, 128>(stream, args);
    return unsupported("There is no tiled GPU attention for heads of " + std::to_string(head_dim) +
                       " numbers: use attention(), which takes any.");
  });
}

}  // namespace loralei::cuda
