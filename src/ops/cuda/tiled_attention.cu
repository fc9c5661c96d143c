// SPDX-License-Identifier: Apache-2.0
// Attention of runs of rows on matrix units, after FlashAttention-2 (Dao, arXiv
// 2307.08691, algorithm 1): a warp keeps sixteen rows' running maxima and sums
// while tiles of positions go by. Tiles of positions lie at absolute multiples of
// kTilePositions and what does not concern a row adds exactly nothing to it, so a row's
// result is the same in any tile of rows.
#include "ops/cuda/attention.cuh"
#include "ops/cuda/cuda_ops.h"

namespace loralei::cuda {
namespace {

constexpr int kTilePositions = 64, kWarps = kAttentionTileRows / 16, kThreads = 32 * kWarps;
constexpr int kTilePages = kTilePositions / kKvBlockTokens;
constexpr int kPad = 8;  // halves: eight rows of a matrix lie in different banks

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

// K or V of 64 positions on their way to shared memory [kTilePositions][kDim + kPad]:
// begin() asks for all of it before the products that hide the way, end() is for the
// barrier behind which it is read. Numbers of 16 bits go there themselves, others wait
// in registers to become halves. A thread takes 16 bytes here and there of every page,
// where a head's positions lie side by side. Positions nobody may see become zeros (their
// bytes can be anything).
template <typename T, int kDim>
struct Incoming {
  static constexpr bool kScaled = sizeof(T) == 1, kAsTheyAre = sizeof(T) == 2;
  static constexpr int kNumbers = 16 / static_cast<int>(sizeof(T)), kRowPieces = kDim / kNumbers;
  static constexpr int kPagePieces = kKvBlockTokens * kRowPieces, kTurns = (kPagePieces + kThreads - 1) / kThreads;
  static constexpr int kRow = kDim + kPad;
  static_assert(kDim % kNumbers == 0 && kTilePositions <= kThreads);
  uint4 raw[kAsTheyAre ? 1 : kTilePages * kTurns];
  float scale;

  // Of turn `turn` of a page: the thread's piece, and where it goes in the page's rows.
  DEVICE static bool piece_of(int turn, int* piece, int* row, int* column) {
    *piece = turn * kThreads + static_cast<int>(threadIdx.x);
    *row = *piece / kRowPieces;
    *column = *piece % kRowPieces * kNumbers;
    return kPagePieces % kThreads == 0 || *piece < kPagePieces;
  }
  // `first` is where the head begins in cache block 0.
  DEVICE void begin(const std::byte* first, int64_t block_stride, const Pages<kTilePages>& pages, int base,
                    const Seen& seen, uint16_t* halves) {
#pragma unroll
    for (int page = 0; page < kTilePages; ++page) {
      const std::byte* from = first + pages.block[page] * block_stride;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        int piece, row, column;
        if (!piece_of(turn, &piece, &row, &column)) continue;
        row += page * kKvBlockTokens;
        const bool wanted = seen.has(base + row);
        const auto* line = reinterpret_cast<const uint4*>(from) + piece;
        if constexpr (kAsTheyAre) {
          copy_async(halves + row * kRow + column, line, wanted);
        } else {
          raw[page * kTurns + turn] = wanted ? *line : uint4{0, 0, 0, 0};
        }
      }
      if constexpr (kScaled) {
        const int p = static_cast<int>(threadIdx.x) - page * kKvBlockTokens;
        if (p < 0 || p >= kKvBlockTokens) continue;
        const auto* scales = reinterpret_cast<const float*>(from + kKvBlockTokens * kDim);
        scale = seen.has(base + page * kKvBlockTokens + p) ? scales[p] : 0.0f;
      }
    }
  }
  DEVICE void end(uint16_t* halves, float* scales) {
    if constexpr (kAsTheyAre) {
      await_copies();
    } else {
#pragma unroll
      for (int page = 0; page < kTilePages; ++page) {
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
          int piece, row, column;
          if (!piece_of(turn, &piece, &row, &column)) continue;
          Raw<T, kNumbers> numbers;
          numbers.take(raw[page * kTurns + turn]);
          uint32_t pairs[kNumbers / 2];
#pragma unroll
          for (int i = 0; i < kNumbers / 2; ++i)
            pairs[i] = pack_pair<T>(numbers.number(2 * i), numbers.number(2 * i + 1));
          uint16_t* to = halves + (page * kKvBlockTokens + row) * kRow + column;
          if constexpr (kNumbers == 4) {
            *reinterpret_cast<uint2*>(to) = uint2{pairs[0], pairs[1]};
          } else {
#pragma unroll
            for (int i = 0; i < kNumbers / 2; i += 4) {
              reinterpret_cast<uint4*>(to)[i / 4] = uint4{pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]};
            }
          }
        }
      }
      if constexpr (kScaled) {
        if (threadIdx.x < kTilePositions) scales[threadIdx.x] = scale;
      }
    }
  }
};

// grid (heads, tiles). Shared memory: K and V, each [kTilePositions][kDim + kPad];
// the scales of both (int8, fp8). While K meets q, V is on its way, and while V meets the
// weights, the next tile's K.
template <typename T, int kDim, typename Y>
KERNEL void BLOCK_LIMITS(kThreads, (sizeof(T) == 2 ? 3 : 2))
    tiled_kernel(const float* q, int64_t q_stride, Y* out, int64_t out_stride, DeviceKv kv, int layer, int group_heads,
                 float scale, int window, const AttentionTile* tiles, StepRows rows) {
  constexpr bool kScaled = sizeof(T) == 1;
  constexpr int kRow = kDim + kPad;
  const AttentionTile tile = tiles[gridDim.y - 1 - blockIdx.y];  // a prompt's last tiles see most: they begin first
  if (tile.row_count <= 0) return;
  const int head = static_cast<int>(blockIdx.x), kv_head = head / group_heads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = lane / 4, quarter = lane % 4;

  auto* k_shared = reinterpret_cast<uint16_t*>(shared_bytes());
  auto* v_shared = k_shared + kTilePositions * kRow;
  SHARED_ARRAY(float, k_scale, kTilePositions);
  SHARED_ARRAY(float, v_scale, kTilePositions);

  const int position = rows.positions[tile.row_begin];  // of the tile's first row
  const int* blocks = rows.blocks + rows.tables[tile.row_begin];
  const Seen seen{window > 0 ? max(0, position - window + 1) : 0, position + tile.row_count};
  const int my_row[2] = {warp * 16 + group, warp * 16 + group + 8};  // in the tile
  const int first = seen.begin / kTilePositions * kTilePositions;
  Pages<kTilePages> pages;
  pages.load(blocks, first, seen);
  const std::byte* const k_head = kv_head_at(kv, 0, layer, 0, kv_head);
  Incoming<T, kDim> keys, values;
  keys.begin(k_head, kv.block_stride_bytes, pages, first, seen, k_shared);

  // The lanes' parts of q, scaled before they are rounded. All are asked for before the
  // first is used: rows beyond the tile's last are read as its last and count as zeros.
  uint32_t q_part[kDim / 16][4];
  {
    float2 q_raw[kDim / 16][4];
    const float* q_row[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      q_row[r] = q + (tile.row_begin + min(my_row[r], tile.row_count - 1)) * q_stride +
                 static_cast<int64_t>(head) * kDim + quarter * 2;
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q_raw[step][i] = *reinterpret_cast<const float2*>(q_row[i % 2] + step * 16 + i / 2 * 8);
      }
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = pack_pair<T>(q_raw[step][i].x * scale, q_raw[step][i].y * scale);
        q_part[step][i] = my_row[i % 2] < tile.row_count ? pair : 0;
      }
    }
  }
  float sums[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  // The last position a row sees, below all of them for rows beyond the tile's; how many
  // it sees up to there.
  const int last[2] = {my_row[0] < tile.row_count ? position + my_row[0] : -1,
                       my_row[1] < tile.row_count ? position + my_row[1] : -1};
  const unsigned reach = window > 0 ? static_cast<unsigned>(window) : 0x80000000u;
  // Where the lane's row of the four matrices begins that feed two products: positions
  // n * 8 and (n + 1) * 8 of K, each two halves of a step's 16 numbers; of V two halves
  // of a step's 16 positions, each numbers n * 8 and (n + 1) * 8.
  const uint16_t* k_lane = k_shared + (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
  const uint16_t* v_lane = v_shared + (lane / 8 % 2 * 8 + lane % 8) * kRow + lane / 16 * 8;

  for (int base = first; base < seen.end; base += kTilePositions) {
    keys.end(k_shared, k_scale);
    __syncthreads();
    values.begin(k_head + kv.kv_stride_bytes, kv.block_stride_bytes, pages, base, seen, v_shared);
    pages.load(blocks, base + kTilePositions, seen);

    // Scores [16 rows, 64 positions]: the lane has rows group, group + 8 and, of every
    // eight positions, two.
    float scores[kTilePositions / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kTilePositions / 8; n += 2) {
        uint32_t b[4];
        load_matrices(b, k_lane + n * 8 * kRow + step * 16);
        Half<T>::mma(scores[n], q_part[step], {b[0], b[1]});
        Half<T>::mma(scores[n + 1], q_part[step], {b[2], b[3]});
      }
    }
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < kTilePositions / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int p = n * 8 + quarter * 2 + i % 2, back = last[i / 2] - base - p;  // from the row's own position
        if constexpr (kScaled) scores[n][i] *= k_scale[p];
        if (static_cast<unsigned>(back) >= reach) scores[n][i] = -INFINITY;
        most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
      }
    }
    values.end(v_shared, v_scale);
    __syncthreads();
    if (base + kTilePositions < seen.end) {
      keys.begin(k_head, kv.block_stride_bytes, pages, base + kTilePositions, seen, k_shared);
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
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, v_lane + step * 16 * kRow + n * 8);
        Half<T>::mma(sums[n], a, {b[0], b[1]});
        Half<T>::mma(sums[n + 1], a, {b[2], b[3]});
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
  constexpr size_t kBytes = sizeof(uint16_t) * 2 * kTilePositions * (kDim + kPad);
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
  const AttentionArgs& a = args.attention;
  CHECK(is_aligned(a.kv) && is_aligned(a.q) && a.q_stride % 4 == 0 && args.tile_count <= kRowsMax &&
        a.heads % a.kv.kv_heads == 0);
  const int32_t head_dim = a.kv.head_dim;
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
