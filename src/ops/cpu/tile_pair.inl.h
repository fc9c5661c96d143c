// SPDX-License-Identifier: Apache-2.0
// Packed tiles times groups of few rows, which are bound by memory: writing the weights out would not pay. Two tiles go
// through a group together: memory gives two streams faster than one, and an input word once broadcast serves two
// products. No include guard: see target.h.
//
// The integer sums of a block live in registers (up to sixteen of 32), the f32 sums in the first-level cache.

constexpr int kPair = 2;

// The compiler would hold the sums of several blocks in registers and spill what is used more often.
LORALEI_INLINE void keep_in_memory(float* sums) { asm volatile("" : : "r"(sums) : "memory"); }
// Loads anew each time: a copy of what is loaded already would compete with the products for their units.
LORALEI_INLINE I broadcast_start(const std::byte* word) {
  I words;
  asm volatile("vpbroadcastd %1, %0" : "=v"(words) : "m"(*reinterpret_cast<const int32_t*>(word)));
  return words;
}

// Adds the blocks' products to the sums [kRows][kPair][16]: side by side, since sums a multiple of 4 KiB apart would
// wait for each other.
template <int kRows>
LORALEI_INLINE void add_pair(const I (&dots)[kRows][kPair], const F (&scale)[kPair], const std::byte* x, float* sums) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) {
      float* const sum = sums + (i * kPair + v) * kRowTile;
      store(sum, fma(to_float(dots[i][v]), times_broadcast(scale[v], x + group_d_at(kRows) + 4 * i), load(sum)));
    }
  }
}
template <int kRows>
LORALEI_INLINE void add_pair(const I (&dots)[kRows][kPair], const F (&scale)[kPair], const F (&min)[kPair],
                             const std::byte* x, float* sums) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) {
      float* const sum = sums + (i * kPair + v) * kRowTile;
      const F scaled = fma(to_float(dots[i][v]), times_broadcast(scale[v], x + group_d_at(kRows) + 4 * i), load(sum));
      store(sum, fma_broadcast(min[v], x + group_s_at(kRows) + 4 * i, scaled));
    }
  }
}

// The words of the pair's blocks times the rows. `Block::word(at, half, j)` is a format's.
template <class Block, int kRows>
LORALEI_INLINE void pair_dots(const TileSections (&at)[kPair], int half, const std::byte* x, ZeroPoint zero,
                              I (&dots)[kRows][kPair]) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) {
      dots[i][v] = zero == ZeroPoint::kNone ? iset1(0) : broadcast_start(x + group_z_at(kRows, zero) + 4 * i);
    }
  }
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) {
    const I w[kPair] = {Block::word(at[0], half, j), Block::word(at[1], half, j)};
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const I inputs = broadcast_word(x + i * kActivationBlock + 4 * j);
      LORALEI_UNROLL
      for (int v = 0; v < kPair; ++v) dots[i][v] = _mm512_dpbusd_epi32(dots[i][v], w[v], inputs);
    }
  }
}

// Asks for what the pair needs next: its own tiles' blocks, and behind their end those of the next pair, which lies
// behind the second tile. The hardware brings two streams of weights to the second-level cache in time by itself, page
// by page.
class PairAhead {
 public:
  PairAhead(const TileRun& tiles, int64_t tile_bytes)
      : at_{tiles.tile[0].data, tiles.tile[1].data}, tile_bytes_(tile_bytes) {}

  // What lies ahead of the `kBytes` bytes at `offset` of each tile.
  template <int kBytes>
  LORALEI_INLINE void fetch(int64_t offset) const {
    int64_t place = offset + kPairBytesAhead;
    if (place >= tile_bytes_) place += tile_bytes_;
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) prefetch_lines<kBytes>(at_[v] + place);
  }

 private:
  static constexpr int64_t kPairBytesAhead = 896;
  const std::byte* at_[kPair];
  int64_t tile_bytes_;
};

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

template <class Format, int kRows>
LORALEI_INLINE void pair_32(TileSections (&at)[kPair], const PairAhead& ahead, const std::byte* x, int64_t blocks,
                            float* sums) {
  for (int64_t b = 0; b < blocks; ++b, x += group_block_bytes(kRows)) {
    keep_in_memory(sums);
    ahead.fetch<block_bytes<Format>()>(b * block_bytes<Format>());
    I dots[kRows][kPair];
    pair_dots<BlockOf32<Format>>(at, 0, x, Format::kZero, dots);
    const F scale[kPair] = {load_scales(at[0].head, 0, 0), load_scales(at[1].head, 0, 0)};
    if constexpr (Format::kMin) {
      const F min[kPair] = {load_scales(at[0].head, 1, 0), load_scales(at[1].head, 1, 0)};
      add_pair(dots, scale, min, x, sums);
    } else {
      add_pair(dots, scale, x, sums);
    }
    for (TileSections& tile : at) step_block<Format>(tile);
  }
}

LORALEI_INLINE F pair_numbers(const float* numbers, int first, int index) {
  return load(numbers + (first + index) * kLanes);
}
// Block of 32 number 4 * half + kPart of a block of 256; scales [kPair][16][16], mins [kPair][8][16].
template <class Format, int kRows, int kPart>
LORALEI_INLINE void pair_part(const TileSections (&at)[kPair], const std::byte* x, int half, const float* scales,
                              const float* mins, float* sums) {
  using Block = BlockOf256<Format, kPart>;
  const int sub = 4 * half + kPart;
  keep_in_memory(sums);
  I dots[kRows][kPair];
  const F scale[kPair] = {pair_numbers(scales, 0, sub), pair_numbers(scales, 16, sub)};
  const F min[kPair] = {pair_numbers(mins, 0, sub), pair_numbers(mins, 8, sub)};
  pair_dots<Block>(at, half, x, Format::kZero, dots);
  add_pair(dots, scale, min, x, sums);
}

template <class Format, int kRows>
LORALEI_INLINE void pair_256(TileSections (&at)[kPair], const PairAhead& ahead, const std::byte* x, int64_t blocks,
                             float* sums) {
  constexpr int kStep = group_block_bytes(kRows), kHalf = block_bytes<Format>() / 2;
  alignas(64) float scales[kPair * 16 * kLanes], mins[kPair * 8 * kLanes];
  for (int64_t b = 0; b < blocks; ++b) {
    LORALEI_UNROLL
    for (int v = 0; v < kPair; ++v) Format::scales(at[v], 0, scales + 16 * v * kLanes, mins + 8 * v * kLanes);
    for (int half = 0; half < 2; ++half, x += 4 * kStep) {
      ahead.fetch<kHalf>((2 * b + half) * kHalf);
      pair_part<Format, kRows, 0>(at, x, half, scales, mins, sums);
      pair_part<Format, kRows, 1>(at, x + kStep, half, scales, mins, sums);
      pair_part<Format, kRows, 2>(at, x + 2 * kStep, half, scales, mins, sums);
      pair_part<Format, kRows, 3>(at, x + 3 * kStep, half, scales, mins, sums);
    }
    for (TileSections& tile : at) step_block<Format>(tile);
  }
}

// Two tiles times a group of kRows rows; sums [kPair][kWideSums], of each the first [kRows][16].
template <class Format, int kRows>
void pair_product(const TileRun& tiles, int64_t cols, const std::byte* x, float* sums) {
  alignas(64) float pairs[kRows * kPair * kRowTile] = {};
  TileSections at[kPair] = {first_block<Format>(tiles.tile[0].data), first_block<Format>(tiles.tile[1].data)};
  const PairAhead ahead(tiles, tile_bytes(tiles.dtype, cols));
  if constexpr (Format::kQuants == 2048) {
    pair_256<Format, kRows>(at, ahead, x, cols / 256, pairs);
  } else {
    pair_32<Format, kRows>(at, ahead, x, cols / 32, pairs);
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kPair; ++v)
      store(sums + v * kWideSums + i * kRowTile, load(pairs + (i * kPair + v) * kRowTile));
  }
}

// Whether pairs are the faster way, as measured. A block of 256 has so many scales that the sums would go to the cache
// and back too often, unless they are few.
template <class Format>
constexpr bool in_pairs(int rows) {
  if constexpr (Format::kQuants == 2048) return !Format::kHalves && rows <= 2;
  return true;
}

using PairKernel = void (*)(const TileRun& tiles, int64_t cols, const std::byte* x, float* sums);
template <class Format, int kRows>
constexpr PairKernel pair_kernel_for() {
  if constexpr (in_pairs<Format>(kRows)) return pair_product<Format, kRows>;
  return nullptr;
}
template <class Format>
PairKernel pair_kernel_of(int kind) {
  constexpr PairKernel kKernels[] = {pair_kernel_for<Format, 1>(), pair_kernel_for<Format, 2>(),
                                     pair_kernel_for<Format, 3>(), pair_kernel_for<Format, 4>(),
                                     pair_kernel_for<Format, 6>(), pair_kernel_for<Format, 8>()};
  return kKernels[kind];
}
// For groups of that kind (kGroupSizes); null: tiles go through it one by one.
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
    const PairKernel pair = tiles.count == kPair ? pair_kernel(tiles.dtype, kind) : nullptr;
    if (pair != nullptr) {
      pair(tiles, groups.cols, groups.at(group), scratch.sums_of(0, group - first));
    } else {
      const TileKernel kernel = tile_kernel(tiles.dtype, kind);
      for (int v = 0; v < tiles.count; ++v)
        kernel(tiles.tile[v].data, groups.cols, groups.at(group), scratch.sums_of(v, group - first));
    }
    results.write(group, scratch.sums_of(0, group - first));
  }
}
