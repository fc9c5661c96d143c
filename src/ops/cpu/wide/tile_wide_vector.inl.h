// SPDX-License-Identifier: Apache-2.0
// Wide blocks (tile_wide.inl.h) times groups of rows with vector dot products of 512 bits
// (wide_dots). No include guard: see target.h.
//
// Up to sixteen vectors of integer sums of a block of 32 inputs live in registers
// (kWideRows rows of two tiles, or four where a block has two halves), so that an
// input word once broadcast serves two products: with one, the loads would take as
// long as the products.

// A run of rows of one group as its blocks show it; `step` from block to block.
struct WideRows {
  const std::byte* q = nullptr;  // int8 [rows][32]
  const std::byte* d = nullptr;  // f32 [rows]
  const std::byte* n = nullptr;  // s or z, and of the second half n_step bytes behind
  int64_t n_step = 0;
  int64_t step = 0;
};
LORALEI_INLINE WideRows wide_rows(const std::byte* group, int size, int row, WideKind kind) {
  WideRows rows;
  rows.q = group + row * kActivationBlock;
  rows.d = group + group_d_at(size) + 4 * row;
  rows.n = group + group_s_at(size) + 4 * row;
  rows.n_step = 4 * size;
  rows.step = group_block_bytes(size, kind == WideKind::kHalves);
  return rows;
}
// sums [kTiles][kGroupRows][16] (from row `row` of the group on) += the blocks' products
// with kRows rows.
template <WideKind kKind, class Weights, int kRows, int kTiles>
void wide_product(const std::byte* wide, int64_t blocks, const std::byte* group, int size, int row, FetchAhead& ahead,
                  float* sums) {
  WideRows x = wide_rows(group, size, row, kKind);
  constexpr bool kHalves = kKind == WideKind::kHalves;
  F acc[kRows][kTiles];
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kTiles; ++v) acc[i][v] = load(sums + v * kWideSums + i * kRowTile);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    ahead.fetch<1>();
    I dots[kRows][kTiles], high[kRows][kTiles];
    if constexpr (kHalves) {
      wide_dots<Weights, 0, 4>(wide, x.q, x.n, dots);
      wide_dots<Weights, 4, 4>(wide, x.q, x.n + x.n_step, high);
    } else {
      wide_dots<Weights, 0, 8>(wide, x.q, kKind == WideKind::kPlain ? x.n : nullptr, dots);
    }
    F first[kTiles], second[kTiles];
    LORALEI_UNROLL
    for (int v = 0; v < kTiles; ++v) {
      const float* const scales = reinterpret_cast<const float*>(wide + v * kWideTileBytes + kWideScalesAt);
      first[v] = load(scales);
      if constexpr (kKind != WideKind::kPlain) second[v] = load(scales + kLanes);
    }
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LORALEI_UNROLL
      for (int v = 0; v < kTiles; ++v) {
        F& total = acc[i][v];
        total = fma(to_float(dots[i][v]), times_broadcast(first[v], x.d + 4 * i), total);
        if constexpr (kKind == WideKind::kMin) total = plus_times_broadcast(total, second[v], x.n + 4 * i);
        if constexpr (kHalves) total = fma(to_float(high[i][v]), times_broadcast(second[v], x.d + 4 * i), total);
      }
    }
    wide += wide_block_bytes(kKind);
    x.q += x.step;
    x.d += x.step;
    x.n += x.step;
  }
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kTiles; ++v) store(sums + v * kWideSums + i * kRowTile, acc[i][v]);
  }
}

// Rows of a group that go through a block together: as many as registers hold the sums
// of, and a divisor of its size.
constexpr int wide_pass(WideKind kind, int size) {
  const int most = kind == WideKind::kHalves ? 4 : kWideRows;
  return size % most == 0 ? most : most * 3 / 4;
}
// How often wide_group() calls fetch().
int64_t wide_fetches(WideKind kind, int size, int64_t blocks) { return size / wide_pass(kind, size) * blocks; }

template <WideKind kKind, class Weights, int kTiles>
void wide_group_of(const std::byte* wide, int64_t blocks, const std::byte* group, int size, FetchAhead& ahead,
                   float* sums) {
  constexpr int kMost = wide_pass(kKind, 8), kFew = wide_pass(kKind, 6);
  const int pass = wide_pass(kKind, size);
  for (int row = 0; row < size; row += pass, sums += pass * kRowTile) {
    if (pass == kMost) {
      wide_product<kKind, Weights, kMost, kTiles>(wide, blocks, group, size, row, ahead, sums);
    } else {
      wide_product<kKind, Weights, kFew, kTiles>(wide, blocks, group, size, row, ahead, sums);
    }
  }
}
template <class Format>
void wide_group_tiles(int tiles, const std::byte* wide, int64_t blocks, const std::byte* group, int size,
                      FetchAhead& ahead, float* sums) {
  constexpr WideKind kKind = wide_kind_of<Format>();
  using Weights = WideWeights<Format>;
  if (tiles == 2) {
    wide_group_of<kKind, Weights, 2>(wide, blocks, group, size, ahead, sums);
  } else {
    wide_group_of<kKind, Weights, 1>(wide, blocks, group, size, ahead, sums);
  }
}
// Adds the products of `blocks` wide blocks of one or two tiles with a group of `size`
// rows to sums [tiles][kWideSums].
void wide_group(const WideFormat& format, int tiles, const std::byte* wide, int64_t blocks, const std::byte* group,
                int size, FetchAhead& ahead, float* sums) {
  switch (format.dtype) {
    case DType::kQ8_0:
      return wide_group_tiles<TileQ8_0>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ4_0:
      return wide_group_tiles<TileQ4_0>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ4_1:
      return wide_group_tiles<TileQ4_1>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kInt4G:
      return wide_group_tiles<TileInt4G>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ5_0:
      return wide_group_tiles<TileQ5_0>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ5_1:
      return wide_group_tiles<TileQ5_1>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ4_K:
      return wide_group_tiles<TileQ4_K>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ5_K:
      return wide_group_tiles<TileQ5_K>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ6_K:
      return wide_group_tiles<TileQ6_K>(tiles, wide, blocks, group, size, ahead, sums);
    default:
      CHECK(false);
  }
}
