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
  rows.step = group_block_bytes(size, wide_halves(kind));
  return rows;
}
// sums [kTiles][kGroupRows][16] (from row `row` of the group on) += the blocks' products
// with kRows rows.
template <WideKind kKind, class Weights, int kRows, int kTiles>
void wide_product(const std::byte* wide, int64_t blocks, const std::byte* group, int size, int row, FetchAhead& ahead,
                  float* sums) {
  WideRows x = wide_rows(group, size, row, kKind);
  constexpr bool kHalves = wide_halves(kKind), kMin = wide_min(kKind);
  constexpr int kNumbers = wide_numbers_of(kKind);
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
      wide_dots<Weights, 0, 4>(wide, x.q, kMin ? nullptr : x.n, dots);
      wide_dots<Weights, 4, 4>(wide, x.q, kMin ? nullptr : x.n + x.n_step, high);
    } else {
      wide_dots<Weights, 0, 8>(wide, x.q, kMin ? nullptr : x.n, dots);
    }
    F numbers[kNumbers][kTiles];
    const auto &scale = numbers[0], &min = numbers[kMin ? wide_min_at(kKind) : 0];
    const auto &scale_high = numbers[kHalves ? 1 : 0], &min_high = numbers[kHalves && kMin ? 3 : 0];
    LORALEI_UNROLL
    for (int v = 0; v < kTiles; ++v) {
      const float* const scales = reinterpret_cast<const float*>(wide + v * kWideTileBytes + kWideScalesAt);
      LORALEI_UNROLL
      for (int i = 0; i < kNumbers; ++i) numbers[i][v] = load(scales + i * kLanes);
    }
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LORALEI_UNROLL
      for (int v = 0; v < kTiles; ++v) {
        F& total = acc[i][v];
        total = fma(to_float(dots[i][v]), times_broadcast(scale[v], x.d + 4 * i), total);
        if constexpr (kMin) total = plus_times_broadcast(total, min[v], x.n + 4 * i);
        if constexpr (kHalves) total = fma(to_float(high[i][v]), times_broadcast(scale_high[v], x.d + 4 * i), total);
        if constexpr (kHalves && kMin) total = plus_times_broadcast(total, min_high[v], x.n + x.n_step + 4 * i);
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
  const int most = wide_halves(kind) ? 4 : kWideRows;
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
    case DType::kQ2_K:
      return wide_group_tiles<TileQ2_K>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kQ3_K:
      return wide_group_tiles<TileQ3_K>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kIQ4_NL:
      return wide_group_tiles<TileIQ4_NL>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kIQ4_XS:
      return wide_group_tiles<TileIQ4_XS>(tiles, wide, blocks, group, size, ahead, sums);
    case DType::kMXFP4:
      return wide_group_tiles<TileMXFP4>(tiles, wide, blocks, group, size, ahead, sums);
    default:
      CHECK(false);
  }
}
