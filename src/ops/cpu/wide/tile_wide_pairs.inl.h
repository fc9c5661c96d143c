// SPDX-License-Identifier: Apache-2.0
// Wide blocks (tile_wide.inl.h) times groups of rows with the dot products of
// dots_in_order: both halves of a tile and four rows at a time, whose integer sums live
// in registers and f32 sums in the first-level cache. No include guard: see target.h.

template <class Format>
struct WideWords {
  using Weights = Format;
  const std::byte* wide;
  LORALEI_INLINE I operator()(int v, int j) const { return load_bits(wide + 64 * j + 4 * lane_of(v)); }
};

// Scales number `number` of a wide block.
LORALEI_INLINE void wide_numbers(const std::byte* wide, int number, F (&out)[kPair]) {
  const float* const numbers = reinterpret_cast<const float*>(wide + kWideScalesAt) + number * kRowTile;
  LORALEI_UNROLL
  for (int v = 0; v < kPair; ++v) out[v] = load(numbers + lane_of(v));
}

// A block times kRows rows, whose numbers lie at q, d and so on, those of its second half
// `step` behind; sums [kRows][16].
template <class Format, int kRows>
LORALEI_INLINE void wide_block(const std::byte* wide, const std::byte* q, const std::byte* z, int step,
                               BlockScales<kPair> by, float* sums) {
  constexpr WideKind kKind = wide_kind_of<Format>();
  constexpr bool kStarts = Format::kZero != ZeroPoint::kNone;
  const WideWords<Format> words{wide};
  keep_in_memory(sums);
  I dots[kRows][kPair];
  dots_in_order<kStarts, 0, 8 / kScalesOf32<Format>>(words, q, z, dots);
  wide_numbers(wide, 0, by.scale);
  if constexpr (Format::kMin) wide_numbers(wide, wide_min_at(kKind), by.min);
  add_in_order<Format::kMin>(dots, by, sums);
  if constexpr (Format::kHalves) {
    dots_in_order<kStarts, 4, 4>(words, q, z + step, dots);
    wide_numbers(wide, 1, by.scale);
    if constexpr (Format::kMin) wide_numbers(wide, wide_min_at(kKind) + 1, by.min);
    by.s += step;
    add_in_order<Format::kMin>(dots, by, sums);
  }
}

// How often wide_group() calls fetch().
int64_t wide_fetches(WideKind, int, int64_t blocks) { return blocks; }

// `size` rows, kRows at a time; sums [size][16]. Inlined into a loop over groups, some
// formats would spill registers.
template <class Format, int kRows>
[[gnu::noinline]] void wide_rows(const std::byte* wide, int64_t blocks, const std::byte* group, int size,
                                 FetchAhead& ahead, float* sums) {
  FetchAhead fetches = ahead;  // in registers, whatever the barriers say
  const int z_at = group_z_at(size);
  for (int64_t b = 0; b < blocks; ++b) {
    fetches.fetch<1>();
    for (int row = 0; row < size; row += kRows) {
      BlockScales<kPair> by;
      by.d = group + group_d_at(size) + 4 * row;
      by.s = group + group_s_at(size) + 4 * row;
      wide_block<Format, kRows>(wide, as_base(group + row * kActivationBlock), group + z_at + 4 * row, 4 * size, by,
                                sums + row * kRowTile);
    }
    wide = as_base(wide + wide_block_bytes(wide_kind_of<Format>()));
    group += group_block_bytes(size, Format::kHalves);
  }
  ahead = fetches;
}

template <class Format>
void wide_group_of(const std::byte* wide, int64_t blocks, const std::byte* group, int size, FetchAhead& ahead,
                   float* sums) {
  if (size % 4 == 0) {
    wide_rows<Format, 4>(wide, blocks, group, size, ahead, sums);
  } else {
    wide_rows<Format, 3>(wide, blocks, group, size, ahead, sums);
  }
}
// Adds the products of `blocks` wide blocks of a tile with a group of `size` rows
// to sums [size][16].
void wide_group(const WideFormat& format, int, const std::byte* wide, int64_t blocks, const std::byte* group, int size,
                FetchAhead& ahead, float* sums) {
  switch (format.dtype) {
    case DType::kQ8_0:
      return wide_group_of<TileQ8_0>(wide, blocks, group, size, ahead, sums);
    case DType::kQ4_0:
      return wide_group_of<TileQ4_0>(wide, blocks, group, size, ahead, sums);
    case DType::kQ4_1:
      return wide_group_of<TileQ4_1>(wide, blocks, group, size, ahead, sums);
    case DType::kInt4G:
      return wide_group_of<TileInt4G>(wide, blocks, group, size, ahead, sums);
    case DType::kQ5_0:
      return wide_group_of<TileQ5_0>(wide, blocks, group, size, ahead, sums);
    case DType::kQ5_1:
      return wide_group_of<TileQ5_1>(wide, blocks, group, size, ahead, sums);
    case DType::kQ4_K:
      return wide_group_of<TileQ4_K>(wide, blocks, group, size, ahead, sums);
    case DType::kQ5_K:
      return wide_group_of<TileQ5_K>(wide, blocks, group, size, ahead, sums);
    case DType::kQ6_K:
      return wide_group_of<TileQ6_K>(wide, blocks, group, size, ahead, sums);
    case DType::kQ2_K:
      return wide_group_of<TileQ2_K>(wide, blocks, group, size, ahead, sums);
    case DType::kQ3_K:
      return wide_group_of<TileQ3_K>(wide, blocks, group, size, ahead, sums);
    case DType::kIQ4_NL:
      return wide_group_of<TileIQ4_NL>(wide, blocks, group, size, ahead, sums);
    case DType::kIQ4_XS:
      return wide_group_of<TileIQ4_XS>(wide, blocks, group, size, ahead, sums);
    case DType::kMXFP4:
      return wide_group_of<TileMXFP4>(wide, blocks, group, size, ahead, sums);
    default:
      CHECK(false);
  }
}
