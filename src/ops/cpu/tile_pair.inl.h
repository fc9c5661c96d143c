// SPDX-License-Identifier: Apache-2.0
// Packed tiles times groups of few rows, which are bound by memory: writing the weights out would not pay. Two tiles go
// through a group together: memory gives two streams faster than one, the longer they are the faster (tile_matmul.inl.h
// chooses the tiles), and an input word once broadcast serves two products. No include guard: see target.h.
//
// The integer sums of a block live in registers (up to sixteen of 32), the f32 sums in the first-level cache. Groups of
// more than eight rows go through each block in two passes, which unpack it twice.

constexpr int kPair = 2;

// The compiler would hold the sums of several blocks in registers and spill what is used more often.
LORALEI_INLINE void keep_in_memory(float* sums) { asm volatile("" : : "r"(sums) : "memory"); }
// Loads anew each time: a copy of what is loaded already would compete with the products for their units.
LORALEI_INLINE I broadcast_start(const std::byte* word) {
  I words;
  asm volatile("vpbroadcastd %1, %0" : "=v"(words) : "m"(*reinterpret_cast<const int32_t*>(word)));
  return words;
}

// Adds the blocks' products for kPass rows of kRows to their sums [kPass][kPair][16]: side by side, since sums a
// multiple of 4 KiB apart would wait for each other.
template <int kRows, int kPass>
LORALEI_INLINE void add_pair(const I (&dots)[kPass][kPair], const F (&scale)[kPair], const std::byte* x, float* sums) {
  LORALEI_UNROLL
  for (int i = 0; i < kPass; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) {
      float* const sum = sums + (i * kPair + v) * kRowTile;
      store(sum, fma(to_float(dots[i][v]), times_broadcast(scale[v], x + group_d_at(kRows) + 4 * i), load(sum)));
    }
  }
}
template <int kRows, int kPass>
LORALEI_INLINE void add_pair(const I (&dots)[kPass][kPair], const F (&scale)[kPair], const F (&min)[kPair],
                             const std::byte* x, float* sums) {
  LORALEI_UNROLL
  for (int i = 0; i < kPass; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) {
      float* const sum = sums + (i * kPair + v) * kRowTile;
      const F scaled = fma(to_float(dots[i][v]), times_broadcast(scale[v], x + group_d_at(kRows) + 4 * i), load(sum));
      store(sum, fma_broadcast(min[v], x + group_s_at(kRows) + 4 * i, scaled));
    }
  }
}

// Words [kFirst, kFirst + kCount) of the pair's blocks times the rows from `row` on. `Block::word(at, half, j)` is a
// format's.
template <class Block, int kFirst, int kCount, int kRows, int kPass>
LORALEI_INLINE void pair_dots(const TileSections (&at)[kPair], int half, const std::byte* x, int row, ZeroPoint zero,
                              I (&dots)[kPass][kPair]) {
  LORALEI_UNROLL
  for (int i = 0; i < kPass; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) {
      dots[i][v] = zero == ZeroPoint::kNone ? iset1(0) : broadcast_start(x + group_z_at(kRows, zero) + 4 * (row + i));
    }
  }
  LORALEI_UNROLL
  for (int j = kFirst; j < kFirst + kCount; ++j) {
    const I w[kPair] = {Block::word(at[0], half, j), Block::word(at[1], half, j)};
    LORALEI_UNROLL
    for (int i = 0; i < kPass; ++i) {
      const I inputs = broadcast_word(x + (row + i) * kActivationBlock + 4 * j);
      LORALEI_UNROLL
      for (int v = 0; v < kPair; ++v) dots[i][v] = _mm512_dpbusd_epi32(dots[i][v], w[v], inputs);
    }
  }
}

// Asks for what the pair needs some bytes later (TileTuning): its own tiles' blocks, and behind their end those of the
// next pair, which lie there. Where that is close, the hardware has brought two streams of weights to the second-level
// cache in time by itself, but for the begin of each page. The sections of a block of 256 are read side by side, so
// what is needed first lies far behind its begin.
template <class Format, int kBytes>
LORALEI_INLINE void prefetch_pair(const std::byte* first, const std::byte* second, WeightsAsked asked) {
  constexpr int kFirstNeeded = Format::kQuants == 2048 ? Format::kHead + Format::kHigh : 0;
  if (asked.ahead_bytes == 0) return;
  first += asked.ahead_bytes + kFirstNeeded;
  second += asked.ahead_bytes + kFirstNeeded;
  if (asked.second_level) {
    bring_lines<kBytes>(first);
    bring_lines<kBytes>(second);
    return;
  }
  call_lines<kBytes>(first);
  call_lines<kBytes>(second);
  if (asked.ahead_bytes >= static_cast<int32_t>(kPage) / 2) return;
  prefetch_next_page<kBytes>(first);
  prefetch_next_page<kBytes>(second);
}

template <class Format>
struct BlockOf32 {
  static LORALEI_INLINE I word(const TileSections& at, int, int j) { return Format::word(at, 0, j); }
};
template <class Format, int kPart>
struct BlockOf256 {
  static LORALEI_INLINE I word(const TileSections& at, int half, int j) {
    return Format::template word<kPart>(at, 0, half, j);
  }
};

// Rows of a group whose integer sums registers hold.
constexpr int pair_pass(int rows) { return rows <= kPackedRows ? rows : rows / 2; }

template <class Format, int kRows>
LORALEI_INLINE void pair_32(const std::byte* first, const std::byte* second, const std::byte* x, int64_t blocks,
                            WeightsAsked asked, float* sums) {
  constexpr int kBytes = block_bytes<Format>();
  for (int64_t b = 0; b < blocks; ++b, first += kBytes, second += kBytes, x += group_block_bytes(kRows)) {
    keep_in_memory(sums);
    prefetch_pair<Format, kBytes>(first, second, asked);
    const TileSections at[kPair] = {first_block<Format>(first), first_block<Format>(second)};
    constexpr int kPass = pair_pass(kRows);
    LORALEI_UNROLL
    for (int row = 0; row < kRows; row += kPass) {
      if (row > 0) keep_in_memory(sums);
      float* const out = sums + row * kPair * kRowTile;
      I dots[kPass][kPair];
      pair_dots<BlockOf32<Format>, 0, 8, kRows>(at, 0, x, row, Format::kZero, dots);
      const F scale[kPair] = {load_scales(at[0].head, 0, 0), load_scales(at[1].head, 0, 0)};
      if constexpr (Format::kMin) {
        const F min[kPair] = {load_scales(at[0].head, 1, 0), load_scales(at[1].head, 1, 0)};
        add_pair<kRows>(dots, scale, min, x + 4 * row, out);
      } else {
        add_pair<kRows>(dots, scale, x + 4 * row, out);
      }
    }
  }
}

LORALEI_INLINE F pair_numbers(const float* numbers, int first, int index) {
  return load(numbers + (first + index) * kLanes);
}
// Block of 32 number 4 * half + kPart of a block of 256, which lies at `first` and `second`; scales [kPair][16][16],
// mins [kPair][8][16].
template <class Format, int kRows, int kPart>
LORALEI_INLINE void pair_part(const std::byte* first, const std::byte* second, int half, const std::byte* x,
                              const float* scales, const float* mins, WeightsAsked asked, float* sums) {
  using Block = BlockOf256<Format, kPart>;
  constexpr int kBytes = block_bytes<Format>() / 8;
  const int sub = 4 * half + kPart;
  keep_in_memory(sums);
  prefetch_pair<Format, kBytes>(first + sub * kBytes, second + sub * kBytes, asked);
  const TileSections at[kPair] = {first_block<Format>(first), first_block<Format>(second)};
  x += kPart * group_block_bytes(kRows);
  constexpr int kPass = pair_pass(kRows);
  LORALEI_UNROLL
  for (int row = 0; row < kRows; row += kPass) {
    if (row > 0) keep_in_memory(sums);
    float* const out = sums + row * kPair * kRowTile;
    I dots[kPass][kPair];
    if constexpr (Format::kHalves) {
      const F low[kPair] = {pair_numbers(scales, 0, 2 * sub), pair_numbers(scales, 16, 2 * sub)};
      pair_dots<Block, 0, 4, kRows>(at, half, x, row, ZeroPoint::k32Low, dots);
      add_pair<kRows>(dots, low, x + 4 * row, out);
      const F high[kPair] = {pair_numbers(scales, 0, 2 * sub + 1), pair_numbers(scales, 16, 2 * sub + 1)};
      pair_dots<Block, 4, 4, kRows>(at, half, x, row, ZeroPoint::k32High, dots);
      add_pair<kRows>(dots, high, x + 4 * row, out);
    } else {
      const F scale[kPair] = {pair_numbers(scales, 0, sub), pair_numbers(scales, 16, sub)};
      const F min[kPair] = {pair_numbers(mins, 0, sub), pair_numbers(mins, 8, sub)};
      pair_dots<Block, 0, 8, kRows>(at, half, x, row, Format::kZero, dots);
      add_pair<kRows>(dots, scale, min, x + 4 * row, out);
    }
  }
}

template <class Format, int kRows>
LORALEI_INLINE void pair_256(const std::byte* first, const std::byte* second, const std::byte* x, int64_t blocks,
                             WeightsAsked asked, float* sums) {
  alignas(64) float scales[kPair * 16 * kLanes], mins[kPair * 8 * kLanes];
  for (int64_t b = 0; b < blocks; ++b, first += block_bytes<Format>(), second += block_bytes<Format>()) {
    Format::scales(first_block<Format>(first), 0, scales, mins);
    Format::scales(first_block<Format>(second), 0, scales + 16 * kLanes, mins + 8 * kLanes);
    for (int half = 0; half < 2; ++half, x += 4 * group_block_bytes(kRows)) {
      pair_part<Format, kRows, 0>(first, second, half, x, scales, mins, asked, sums);
      pair_part<Format, kRows, 1>(first, second, half, x, scales, mins, asked, sums);
      pair_part<Format, kRows, 2>(first, second, half, x, scales, mins, asked, sums);
      pair_part<Format, kRows, 3>(first, second, half, x, scales, mins, asked, sums);
    }
  }
}

// Two tiles, or one as both, times a group of kRows rows; sums [kPair][kWideSums], of each the first [kRows][16].
template <class Format, int kRows>
void pair_product(const TileRun& tiles, int64_t cols, const std::byte* x, WeightsAsked asked, float* sums) {
  alignas(64) float pairs[kRows * kPair * kRowTile] = {};
  const std::byte *const first = tiles.tile[0].data, *const second = tiles.tile[tiles.count - 1].data;
  if constexpr (Format::kQuants == 2048) {
    pair_256<Format, kRows>(first, second, x, cols / 256, asked, pairs);
  } else {
    pair_32<Format, kRows>(first, second, x, cols / 32, asked, pairs);
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kPair; ++v)
      store(sums + v * kWideSums + i * kRowTile, load(pairs + (i * kPair + v) * kRowTile));
  }
}

using PairKernel = void (*)(const TileRun& tiles, int64_t cols, const std::byte* x, WeightsAsked asked, float* sums);
template <class Format>
PairKernel pair_kernel_of(int kind) {
  constexpr PairKernel kKernels[] = {pair_product<Format, 1>,  pair_product<Format, 2>, pair_product<Format, 3>,
                                     pair_product<Format, 4>,  pair_product<Format, 6>, pair_product<Format, 8>,
                                     pair_product<Format, 12>, pair_product<Format, 16>};
  return kKernels[kind];
}
// For groups of that kind (kGroupSizes).
PairKernel pair_kernel(DType dtype, int kind) {
  switch (dtype) {
    case DType::kQ8_0:
      return pair_kernel_of<TileQ8_0>(kind);
    case DType::kQ4_0:
      return pair_kernel_of<TileQ4_0>(kind);
    case DType::kQ4_1:
      return pair_kernel_of<TileQ4_1>(kind);
    case DType::kQ5_0:
      return pair_kernel_of<TileQ5_0>(kind);
    case DType::kQ5_1:
      return pair_kernel_of<TileQ5_1>(kind);
    case DType::kQ4_K:
      return pair_kernel_of<TileQ4_K>(kind);
    case DType::kQ5_K:
      return pair_kernel_of<TileQ5_K>(kind);
    case DType::kQ6_K:
      return pair_kernel_of<TileQ6_K>(kind);
    default:
      return nullptr;
  }
}

// The products of the tiles with groups [begin, end) of few rows, and their results.
void multiply_packed(const TileRun& tiles, const RowGroups& groups, int64_t begin, int64_t end, int64_t first,
                     const WideResults& results, const WideScratch& scratch) {
  for (int64_t group = begin; group < end; ++group) {
    const int kind = group_kind(groups.rows_of(group));
    float* const sums = scratch.sums_of(0, group - first);
    if (tiles.count == kPair || kGroupSizes[kind] > kPackedRows) {
      const WeightsAsked asked = groups.tuning->asked(tiles.dtype, groups.rows_of(group));
      pair_kernel(tiles.dtype, kind)(tiles, groups.cols, groups.at(group), asked, sums);
    } else {
      tile_kernel(tiles.dtype, kind)(tiles.tile[0].data, groups.cols, groups.at(group), sums);
    }
    results.write(group, sums);
  }
}
