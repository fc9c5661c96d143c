// SPDX-License-Identifier: Apache-2.0
// Packed tiles times groups of few rows, which are bound by memory: writing the weights
// out would not pay. Two tiles go through a group together, because memory gives two
// streams faster than one, the longer they are the faster (tile_matmul.inl.h chooses the
// tiles); or both halves of one tile. No include guard: see target.h.
//
// Groups of more than kPackedRows rows go through the blocks in two passes, which
// unpack them twice.

constexpr int kPairStep = kPairOfTiles ? kWideSums : kLanes;  // from its sums to those of the next

// Asks for what the pair needs some bytes later (TileTuning): its own tiles' blocks,
// and behind their end those of the next pair, which lie there. Where that is close,
// the hardware has brought two streams of weights to the second-level cache in time by
// itself, but for the begin of each page. The sections of a block of 256 are read side by
// side, so what is needed first lies far behind its begin.
template <class Format, int kBytes>
LORALEI_INLINE void prefetch_pair(const std::byte* first, const std::byte* second, WeightsAsked asked) {
  constexpr int kFirstNeeded = Format::k256 ? Format::kHead + Format::kHigh : 0;
  if (asked.ahead_bytes == 0) return;
  first += asked.ahead_bytes + kFirstNeeded;
  second += asked.ahead_bytes + kFirstNeeded;
  if constexpr (Format::k256) {
    first = as_base(first);
    second = as_base(second);
  }
  if (asked.second_level) {
    bring_lines<kBytes>(first);
    if constexpr (kPairOfTiles) bring_lines<kBytes>(second);
    return;
  }
  call_lines<kBytes>(first);
  if constexpr (kPairOfTiles) call_lines<kBytes>(second);
  if (asked.ahead_bytes >= static_cast<int32_t>(kPage) / 2) return;
  prefetch_next_page<kBytes>(first);
  if constexpr (kPairOfTiles) prefetch_next_page<kBytes>(second);
}

// The words of blocks of 32 at `at` (dots_in_order), and of part kPart of half `half` of
// blocks of 256, which is at `at`.
template <class Format>
struct WordsOf32 {
  using Weights = Format;
  const TileSections* at;
  LORALEI_INLINE I operator()(int v, int j) const { return Format::word(at[v], lane_of(v), j); }
};
template <class Format, int kPart>
struct WordsOf256 {
  using Weights = Format;
  const TileSections* at;
  int half;
  LORALEI_INLINE I operator()(int v, int j) const { return Format::template word<kPart>(at[v], lane_of(v), half, j); }
};

// Rows of a group whose integer sums registers hold.
constexpr int pair_pass(int rows) { return rows <= kPackedRows ? rows : rows / 2; }

// Block of 32 of kBlocks tiles times rows [row, row + kPass) of a group of kRows; sums as
// add_in_order wants them.
template <class Format, int kRows, int kPass, int kBlocks, class Sums>
LORALEI_INLINE void add_block_32(const TileSections* at, const std::byte* x, int row, Sums& sums) {
  I dots[kPass][kBlocks];
  dots_in_order<Format::kZero != ZeroPoint::kNone, 0, 8>(WordsOf32<Format>{at}, x + row * kActivationBlock,
                                                         x + group_z_at(kRows) + 4 * row, dots);
  BlockScales<kBlocks> by;
  by.d = x + group_d_at(kRows) + 4 * row;
  by.s = x + group_s_at(kRows) + 4 * row;
  LORALEI_UNROLL
  for (int v = 0; v < kBlocks; ++v) {
    by.scale[v] = Format::scale(at[v].head, lane_of(v));
    if constexpr (Format::kMin) by.min[v] = Format::min(at[v].head, lane_of(v));
  }
  add_in_order<Format::kMin>(dots, by, sums);
}

// With the sums in registers (TileTuning); up to eight rows.
template <class Format, int kRows>
LORALEI_INLINE void pair_32_in_registers(const std::byte* first, const std::byte* second, const std::byte* x,
                                         int64_t blocks, WeightsAsked asked, float* sums) {
  constexpr int kBytes = block_bytes<Format>();
  constexpr int kTogether = kRows <= 4 ? kPair : 1;  // blocks that go through the rows side by side
  F acc[kPair / kTogether][kRows][kTogether];
  LORALEI_UNROLL
  for (int v = 0; v < kPair; ++v) {
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) acc[v / kTogether][i][v % kTogether] = zero();
  }
  for (int64_t b = 0; b < blocks;
       ++b, first += kBytes, second += kBytes, x += group_block_bytes(kRows, Format::kHalves)) {
    prefetch_pair<Format, kBytes>(first, second, asked);
    const TileSections at[kPair] = {first_block<Format>(first), first_block<Format>(second)};
    x = as_base(x);
    LORALEI_UNROLL
    for (int v = 0; v < kPair; v += kTogether) {
      add_block_32<Format, kRows, kRows, kTogether>(at + v, x, 0, acc[v / kTogether]);
    }
  }
  LORALEI_UNROLL
  for (int v = 0; v < kPair; ++v) {
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) store(sums + v * kPairStep + i * kRowTile, acc[v / kTogether][i][v % kTogether]);
  }
}

// Sums in memory [kRows][kPair][kLanes].
template <class Format, int kRows>
LORALEI_INLINE void pair_32(const std::byte* first, const std::byte* second, const std::byte* x, int64_t blocks,
                            WeightsAsked asked, float* sums) {
  constexpr int kBytes = block_bytes<Format>(), kPass = pair_pass(kRows);
  for (int64_t b = 0; b < blocks;
       ++b, first += kBytes, second += kBytes, x += group_block_bytes(kRows, Format::kHalves)) {
    prefetch_pair<Format, kBytes>(first, second, asked);
    const TileSections at[kPair] = {first_block<Format>(first), first_block<Format>(second)};
    x = as_base(x);
    LORALEI_UNROLL
    for (int row = 0; row < kRows; row += kPass) {
      keep_in_memory(sums);
      float* const out = sums + row * kPair * kLanes;
      add_block_32<Format, kRows, kPass, kPair>(at, x, row, out);
    }
  }
}

// Half a block of 256 of both tiles: the words, scales and minima of its four parts
// lie behind these pointers at constant distances, from the first of the half on: scales
// [kPair][kScalesApart][kLanes], mins [kPair][kScalesOf256][kLanes] (none where a format
// has no minimum).
constexpr int kScalesApart = 16;  // also where there are 8: closer, one row of Q4_K took 3 % longer (Zen 4)
struct PairHalf {
  int number;
  const std::byte *first, *second;  // of its bytes, were a tile's cut in two: what is asked for is counted from there
  TileSections at[kPair];
  const float *scales, *mins;
};
template <class Format>
LORALEI_INLINE PairHalf pair_half(const std::byte* first, const std::byte* second, const float* scales,
                                  const float* mins, int number) {
  constexpr int kBytes = block_bytes<Format>() / 2, kNumbers = kScalesOf256<Format> / 2 * kLanes;
  PairHalf half{
      number,
      as_base(first + number * kBytes),
      as_base(second + number * kBytes),
      {Format::half_of(first_block<Format>(first), number), Format::half_of(first_block<Format>(second), number)},
      as_base(scales + number * kNumbers),
      Format::kMin ? as_base(mins + number * kNumbers) : nullptr};
  LORALEI_UNROLL
  for (TileSections& at : half.at) {
    if constexpr (Format::kHigh != 0) at.high = as_base(at.high);
    at.quants = as_base(at.quants);
  }
  return half;
}

// Vector `number` of both tiles' numbers, `count` of each.
LORALEI_INLINE void pair_numbers(const float* numbers, int count, int number, F (&out)[kPair]) {
  LORALEI_UNROLL
  for (int v = 0; v < kPair; ++v) out[v] = load(numbers + (v * count + number) * kLanes);
}
// Part kPart of that half, 32 inputs.
template <class Format, int kRows, int kPart>
LORALEI_INLINE void pair_part(const PairHalf& half, const std::byte* x, WeightsAsked asked, float* sums) {
  constexpr int kBytes = block_bytes<Format>() / 8;
  prefetch_pair<Format, kBytes>(half.first + kPart * kBytes, half.second + kPart * kBytes, asked);
  const WordsOf256<Format, kPart> words{half.at, half.number};
  x = as_base(x);
  constexpr int kPass = pair_pass(kRows);
  LORALEI_UNROLL
  for (int row = 0; row < kRows; row += kPass) {
    keep_in_memory(sums);
    float* const out = sums + row * kPair * kLanes;
    const std::byte* const q = x + row * kActivationBlock;
    I dots[kPass][kPair];
    BlockScales<kPair> by;
    by.d = x + group_d_at(kRows) + 4 * row;
    by.s = x + group_s_at(kRows) + 4 * row;
    constexpr bool kStarts = Format::kZero != ZeroPoint::kNone;
    constexpr int kNumbers = kScalesOf256<Format>, kNumber = kPart * kScalesOf32<Format>;
    pair_numbers(half.scales, kScalesApart, kNumber, by.scale);
    if constexpr (Format::kMin) pair_numbers(half.mins, kNumbers, kNumber, by.min);
    dots_in_order<kStarts, 0, 8 / kScalesOf32<Format>>(words, q, x + group_z_at(kRows) + 4 * row, dots);
    add_in_order<Format::kMin>(dots, by, out);
    if constexpr (Format::kHalves) {
      by.s = x + group_s_at(kRows, 1) + 4 * row;
      pair_numbers(half.scales, kScalesApart, kNumber + 1, by.scale);
      if constexpr (Format::kMin) pair_numbers(half.mins, kNumbers, kNumber + 1, by.min);
      dots_in_order<kStarts, 4, 4>(words, q, x + group_z_at(kRows, 1) + 4 * row, dots);
      add_in_order<Format::kMin>(dots, by, out);
    }
  }
}

template <class Format, int kRows>
LORALEI_INLINE void pair_256(const std::byte* first, const std::byte* second, const std::byte* x, int64_t blocks,
                             WeightsAsked asked, float* sums) {
  constexpr int kStep = group_block_bytes(kRows, Format::kHalves);
  constexpr int kNumbers = kScalesOf256<Format> * kLanes;
  alignas(64) float scales[kPair * kScalesApart * kLanes], mins[kPair * kNumbers];
  for (int64_t b = 0; b < blocks; ++b, first += block_bytes<Format>(), second += block_bytes<Format>()) {
    Format::scales(first_block<Format>(first), lane_of(0), scales, mins);
    Format::scales(first_block<Format>(second), lane_of(1), scales + kScalesApart * kLanes, mins + kNumbers);
    for (int number = 0; number < 2; ++number, x += 4 * kStep) {
      const PairHalf half = pair_half<Format>(first, second, scales, mins, number);
      pair_part<Format, kRows, 0>(half, x, asked, sums);
      pair_part<Format, kRows, 1>(half, x + kStep, asked, sums);
      pair_part<Format, kRows, 2>(half, x + 2 * kStep, asked, sums);
      pair_part<Format, kRows, 3>(half, x + 3 * kStep, asked, sums);
    }
  }
}

// Two tiles, or one as both, times a group of kRows rows; sums [tiles][kWideSums], of
// each the first [kRows][16].
template <class Format, int kRows>
void pair_product(const TileRun& tiles, int64_t cols, const std::byte* x, const TileTuning& tuning, int rows,
                  float* sums) {
  const WeightsAsked asked = tuning.asked(tiles.dtype, rows);
  const std::byte *const first = tiles.tile[0].data, *const second = tiles.tile[tiles.count - 1].data;
  if constexpr (kManyRegisters && !Format::k256 && kRows <= kPackedRows) {
    if (tuning.sums_in_registers) return pair_32_in_registers<Format, kRows>(first, second, x, cols / 32, asked, sums);
  }
  alignas(64) float pairs[kRows * kPair * kLanes] = {};
  if constexpr (Format::k256) {
    pair_256<Format, kRows>(first, second, x, cols / 256, asked, pairs);
  } else {
    pair_32<Format, kRows>(first, second, x, cols / 32, asked, pairs);
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kPair; ++v) store(sums + v * kPairStep + i * kRowTile, load(pairs + (i * kPair + v) * kLanes));
  }
}

using PairKernel = void (*)(const TileRun& tiles, int64_t cols, const std::byte* x, const TileTuning& tuning, int rows,
                            float* sums);
template <class Format>
PairKernel pair_kernel_of(int kind) {
  if constexpr (kGroupKinds == 6) {
    constexpr PairKernel kKernels[] = {pair_product<Format, 1>, pair_product<Format, 2>, pair_product<Format, 3>,
                                       pair_product<Format, 4>, pair_product<Format, 6>, pair_product<Format, 8>};
    return kKernels[kind];
  } else {
    constexpr PairKernel kKernels[] = {pair_product<Format, 1>,  pair_product<Format, 2>, pair_product<Format, 3>,
                                       pair_product<Format, 4>,  pair_product<Format, 6>, pair_product<Format, 8>,
                                       pair_product<Format, 12>, pair_product<Format, 16>};
    return kKernels[kind];
  }
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
    case DType::kInt4G:
      return pair_kernel_of<TileInt4G>(kind);
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
    case DType::kQ2_K:
      return pair_kernel_of<TileQ2_K>(kind);
    case DType::kQ3_K:
      return pair_kernel_of<TileQ3_K>(kind);
    case DType::kIQ4_NL:
      return pair_kernel_of<TileIQ4_NL>(kind);
    case DType::kIQ4_XS:
      return pair_kernel_of<TileIQ4_XS>(kind);
    case DType::kMXFP4:
      return pair_kernel_of<TileMXFP4>(kind);
    default:
      return nullptr;
  }
}
