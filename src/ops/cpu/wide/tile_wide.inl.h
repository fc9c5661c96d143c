// SPDX-License-Identifier: Apache-2.0
// Weights of a tile written out for many rows: whole bytes and f32 scales, some blocks of
// 32 inputs at a time, so that unpacking is paid once and every group of rows meets plain
// words. No include guard: see target.h.
//
// A wide block is words u8 or s8 [8][16][4], then f32 [16] once, twice or four times:
//   kPlain       one scale
//   kMin         the scale and the minimum
//   kHalves      a scale for each half of the block
//   kHalvesMin   the same, then a minimum for each
// Vector kernels take unsigned words and correct for the zero point afterwards; the
// matrix unit takes signed ones with the zero point gone.

// Two vectors of outputs go through a group together, so that an input word once
// broadcast serves two products: two tiles with 512 bits, both halves of one with 256.
constexpr int kPair = 2;
constexpr bool kPairOfTiles = kLanes == kRowTile;
constexpr int kTilesTogether = kPairOfTiles ? 2 : 1;
static_assert(kPairOfTiles || kPair * kLanes == kRowTile);
// The first output of vector v in its tile.
constexpr int lane_of(int v) { return kPairOfTiles ? 0 : v * kLanes; }

constexpr int kWideBlocks = 16;  // blocks written out at a time: they stay in the first-level cache

enum class WideKind { kPlain, kMin, kHalves, kHalvesMin };
constexpr bool wide_halves(WideKind kind) { return kind == WideKind::kHalves || kind == WideKind::kHalvesMin; }
constexpr bool wide_min(WideKind kind) { return kind == WideKind::kMin || kind == WideKind::kHalvesMin; }
// Numbers beside the words; the first minimum among them.
constexpr int wide_numbers_of(WideKind kind) { return (wide_halves(kind) ? 2 : 1) * (wide_min(kind) ? 2 : 1); }
constexpr int wide_min_at(WideKind kind) { return wide_halves(kind) ? 2 : 1; }
enum class WideFor { kVectors, kMatrixUnit };

constexpr int kWideScalesAt = 8 * 64;
constexpr int wide_block_bytes(WideKind kind) { return kWideScalesAt + 64 * wide_numbers_of(kind); }
// From one tile's blocks to the other's: a line more than three pages.
constexpr int kWideTileBytes = kWideBlocks * wide_block_bytes(WideKind::kHalvesMin) + 64;

template <class Format>
constexpr WideKind wide_kind_of() {
  if constexpr (Format::kHalves) return Format::kMin ? WideKind::kHalvesMin : WideKind::kHalves;
  if constexpr (!Format::kHalves) return Format::kMin ? WideKind::kMin : WideKind::kPlain;
}

// Outputs [lane, lane + kLanes) of a block.
template <class Format, WideFor kUnit>
LORALEI_INLINE void store_block_wide(const I (&w)[8], const F (&numbers)[wide_numbers_of(wide_kind_of<Format>())],
                                     int lane, std::byte* out) {
  constexpr int kNumbers = wide_numbers_of(wide_kind_of<Format>());
  constexpr auto kZeroPoints = static_cast<int>(0x01010101u * static_cast<unsigned>(zero_value(Format::kZero)));
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) {
    store_bits(out + 64 * j + 4 * lane, kUnit == WideFor::kMatrixUnit ? sub_bytes(w[j], iset1(kZeroPoints)) : w[j]);
  }
  float* const scales = reinterpret_cast<float*>(out + kWideScalesAt) + lane;
  LORALEI_UNROLL
  for (int i = 0; i < kNumbers; ++i) store(scales + i * kRowTile, numbers[i]);
}

template <class Format, WideFor kUnit>
LORALEI_INLINE void widen_block_32(const TileSections& at, std::byte* out) {
  LORALEI_UNROLL
  for (int lane = 0; lane < kRowTile; lane += kLanes) {
    I w[8];
    block_words<Format>(at, lane, w);
    F numbers[Format::kMin ? 2 : 1] = {Format::scale(at.head, lane)};
    if constexpr (Format::kMin) numbers[1] = Format::min(at.head, lane);
    store_block_wide<Format, kUnit>(w, numbers, lane, out);
  }
}
template <class Format>
void widen_32(TileSections at, int64_t blocks, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b, out += wide_block_bytes(wide_kind_of<Format>())) {
    widen_block_32<Format, WideFor::kVectors>(at, out);
    step_block<Format>(at);
  }
}

template <class Format, WideFor kUnit, int kPart>
LORALEI_INLINE void widen_part(const TileSections& at, int lane, int half, const float* scales, const float* mins,
                               std::byte* out) {
  constexpr WideKind kKind = wide_kind_of<Format>();
  const int number = (4 * half + kPart) * kScalesOf32<Format>;
  I w[8];
  part_words<Format, kPart>(at, lane, half, w);
  F numbers[wide_numbers_of(kKind)];
  LORALEI_UNROLL
  for (int i = 0; i < kScalesOf32<Format>; ++i) {
    numbers[i] = load(scales + (number + i) * kLanes);
    if constexpr (Format::kMin) numbers[wide_min_at(kKind) + i] = load(mins + (number + i) * kLanes);
  }
  store_block_wide<Format, kUnit>(w, numbers, lane, out);
}

template <class Format>
void widen_256(TileSections at, int64_t blocks, std::byte* out) {
  alignas(64) float scales[kScalesOf256<Format> * kLanes], mins[kScalesOf256<Format> * kLanes];
  constexpr int kBytes = wide_block_bytes(wide_kind_of<Format>());
  for (int64_t b = 0; b < blocks; ++b, out += 8 * kBytes) {
    LORALEI_UNROLL
    for (int lane = 0; lane < kRowTile; lane += kLanes) {
      Format::scales(at, lane, scales, mins);
      std::byte* part = out;
      for (int half = 0; half < 2; ++half, part += 4 * kBytes) {
        widen_part<Format, WideFor::kVectors, 0>(at, lane, half, scales, mins, part);
        widen_part<Format, WideFor::kVectors, 1>(at, lane, half, scales, mins, part + kBytes);
        widen_part<Format, WideFor::kVectors, 2>(at, lane, half, scales, mins, part + 2 * kBytes);
        widen_part<Format, WideFor::kVectors, 3>(at, lane, half, scales, mins, part + 3 * kBytes);
      }
    }
    step_block<Format>(at);
  }
}

template <class Format>
constexpr int64_t kPartsOf = Format::k256 ? 8 : 1;  // blocks of 32 inputs in one of the format's
// Where block number `block` of 32 inputs lies, the first of one of the format's.
template <class Format>
LORALEI_INLINE TileSections block_at(const std::byte* tile, int64_t block) {
  return first_block<Format>(tile + block / kPartsOf<Format> * block_bytes<Format>());
}

// Blocks of 32 inputs [begin, begin + count) of a tile; both are multiples of
// the format's blocks.
template <class Format>
void widen(const std::byte* tile, int64_t begin, int64_t count, std::byte* out) {
  if constexpr (kPartsOf<Format> == 8) {
    widen_256<Format>(block_at<Format>(tile, begin), count / 8, out);
  } else {
    widen_32<Format>(block_at<Format>(tile, begin), count, out);
  }
}
void widen_tile(DType dtype, const std::byte* tile, int64_t begin, int64_t count, std::byte* out) {
  switch (dtype) {
    case DType::kQ8_0:
      return widen<TileQ8_0>(tile, begin, count, out);
    case DType::kQ4_0:
      return widen<TileQ4_0>(tile, begin, count, out);
    case DType::kQ4_1:
      return widen<TileQ4_1>(tile, begin, count, out);
    case DType::kInt4G:
      return widen<TileInt4G>(tile, begin, count, out);
    case DType::kQ5_0:
      return widen<TileQ5_0>(tile, begin, count, out);
    case DType::kQ5_1:
      return widen<TileQ5_1>(tile, begin, count, out);
    case DType::kQ4_K:
      return widen<TileQ4_K>(tile, begin, count, out);
    case DType::kQ5_K:
      return widen<TileQ5_K>(tile, begin, count, out);
    case DType::kQ6_K:
      return widen<TileQ6_K>(tile, begin, count, out);
    case DType::kQ2_K:
      return widen<TileQ2_K>(tile, begin, count, out);
    case DType::kQ3_K:
      return widen<TileQ3_K>(tile, begin, count, out);
    case DType::kIQ4_NL:
      return widen<TileIQ4_NL>(tile, begin, count, out);
    case DType::kIQ4_XS:
      return widen<TileIQ4_XS>(tile, begin, count, out);
    case DType::kMXFP4:
      return widen<TileMXFP4>(tile, begin, count, out);
    default:
      CHECK(false);
  }
}

// What the kernels for wide blocks need to know of a format.
struct WideFormat {
  DType dtype = DType::kQ8_0;
  WideKind kind = WideKind::kPlain;
};
template <class Format>
constexpr WideFormat wide_format_of(DType dtype) {
  return {dtype, wide_kind_of<Format>()};
}
WideFormat wide_format(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return wide_format_of<TileQ8_0>(dtype);
    case DType::kQ4_0:
      return wide_format_of<TileQ4_0>(dtype);
    case DType::kQ4_1:
      return wide_format_of<TileQ4_1>(dtype);
    case DType::kInt4G:
      return wide_format_of<TileInt4G>(dtype);
    case DType::kQ5_0:
      return wide_format_of<TileQ5_0>(dtype);
    case DType::kQ5_1:
      return wide_format_of<TileQ5_1>(dtype);
    case DType::kQ4_K:
      return wide_format_of<TileQ4_K>(dtype);
    case DType::kQ5_K:
      return wide_format_of<TileQ5_K>(dtype);
    case DType::kQ6_K:
      return wide_format_of<TileQ6_K>(dtype);
    case DType::kQ2_K:
      return wide_format_of<TileQ2_K>(dtype);
    case DType::kQ3_K:
      return wide_format_of<TileQ3_K>(dtype);
    case DType::kIQ4_NL:
      return wide_format_of<TileIQ4_NL>(dtype);
    case DType::kIQ4_XS:
      return wide_format_of<TileIQ4_XS>(dtype);
    case DType::kMXFP4:
      return wide_format_of<TileMXFP4>(dtype);
    default:
      CHECK(false);
  }
}

// While some blocks are multiplied, the packed weights that are written out next come to
// the second-level cache: bit by bit, because the processor has few places for what is on
// its way from memory.
struct WeightsAhead {
  const std::byte* at[kTilesTogether] = {};
  int64_t left = 0;  // lines of each
  int64_t each = 0;  // lines a call

  LORALEI_INLINE void fetch() {
    for (int64_t i = 0; i < each && left > 0; ++i, --left) {
      LORALEI_UNROLL
      for (int v = 0; v < kTilesTogether; ++v) {
        __builtin_prefetch(at[v], 0, 2);
        at[v] += 64;
      }
    }
  }
};
// What follows the blocks from `block` on: the same tiles' next ones, or the first of the
// next tiles (none: count 0).
WeightsAhead weights_ahead(const TileRun& tiles, const TileRun& next, int64_t cols, int64_t block, int64_t calls) {
  const int64_t blocks = cols / kActivationBlock;
  const bool same = block + kWideBlocks < blocks;
  const TileRun& from = same ? tiles : next;                                   // the next ones may be of another format
  const int64_t per_block = tile_bytes(from.dtype, kActivationBlock * 8) / 8;  // of 32 inputs
  const int64_t begin = same ? block + kWideBlocks : 0;
  const int64_t count = blocks - begin < kWideBlocks ? blocks - begin : kWideBlocks;
  WeightsAhead ahead;
  if (from.count == 0 || calls == 0) return ahead;
  for (int v = 0; v < kTilesTogether; ++v) ahead.at[v] = from.tile[v < from.count ? v : 0].data + begin * per_block;
  ahead.left = (count * per_block + 63) / 64;
  ahead.each = (ahead.left + calls - 1) / calls;
  return ahead;
}

// A worker's memory: the wide blocks of each tile and the sums of each, [groups in
// cache][kGroupRows][16].
constexpr int kRowsInCache = 128;  // rows that go through the tiles together while their rounded form stays in cache
constexpr int kWideSums = kRowsInCache * kRowTile;
struct WideScratch {
  std::byte* wide = nullptr;  // [kTilesTogether][kWideTileBytes]
  float* sums = nullptr;      // [kTilesTogether][kWideSums]
  explicit WideScratch(std::byte* memory)
      : wide(memory), sums(reinterpret_cast<float*>(memory + kTilesTogether * kWideTileBytes)) {}
  float* sums_of(int tile, int64_t group) const { return sums + tile * kWideSums + group * kGroupRows * kRowTile; }
};
static_assert(tile_worker_bytes() >= kTilesTogether * (kWideTileBytes + kWideSums * 4));

int group_size(const RowGroups& groups, int64_t group) { return kGroupSizes[group_kind(groups.rows_of(group))]; }

// Of groups [begin, end) those before the answer get the weights written out: not those
// of few rows, nor the last one where it is small.
int64_t wide_groups(const RowGroups& groups, DType dtype, int64_t begin, int64_t end) {
  if (few_rows(groups, dtype)) return begin;
  return group_size(groups, end - 1) <= kPackedRows ? end - 1 : end;
}

// Where the results of some tiles go. A group is written when its last products end.
struct WideResults {
  const TileMatmulArgs* args = nullptr;
  const TileProduct* product = nullptr;
  const TileRun* tiles = nullptr;
  const RowGroups* groups = nullptr;

  // sums: of the first tile; those of the second lie kWideSums behind.
  void write(int64_t group, const float* sums) const {
    for (int v = 0; v < tiles->count; ++v) {
      write_tile(*args, *product, tiles->tile[v], *groups, group, sums + v * kWideSums);
    }
  }
};
// The lines of y that results will be written to: they lie far apart, and asked for all
// at once they would hold up everything else. `kRows` rows a call, with no harm done
// behind the last one.
struct ResultsAhead {
  const float* y = nullptr;
  int64_t stride = 0;
  int64_t left = 0;  // rows

  template <int kRows>
  LORALEI_INLINE void fetch() {
    if (left <= 0) return;
    left -= kRows;
    LORALEI_UNROLL
    for (int r = 0; r < kRows; ++r, y += stride) {
      LORALEI_UNROLL
      for (int v = 0; v < kTilesTogether; ++v) __builtin_prefetch(y + v * kRowTile, 1);
    }
  }
};
ResultsAhead results_ahead(const WideResults& results, int64_t begin, int64_t end) {
  const RowGroups& groups = *results.groups;
  const int64_t row = groups.first_row(begin), row_end = groups.first_row(end - 1) + groups.rows_of(end - 1);
  return {results.product->y + row * results.product->y_stride + results.tiles->tile[0].output,
          results.product->y_stride, row_end - row};
}
// What products ask for on the side.
struct FetchAhead {
  WeightsAhead weights;
  ResultsAhead results;
  template <int kResultRows>
  LORALEI_INLINE void fetch() {
    weights.fetch();
    results.fetch<kResultRows>();
  }
};
// For groups [first, end), whose sums start at the place of group `first`.
void clear_sums(const WideScratch& scratch, const TileRun& tiles, int64_t first, int64_t end) {
  for (int v = 0; v < tiles.count; ++v) {
    std::memset(scratch.sums_of(v, 0), 0, static_cast<size_t>((end - first) * kGroupRows * kRowTile) * sizeof(float));
  }
}
