// SPDX-License-Identifier: Apache-2.0
// A tile times groups of rows with the matrix unit (AMX-INT8). No include guard:
// see target.h.
//
// The weights of a tile are written out as signed bytes with f32 scales while they meet
// the first group; the others then find them so. One block of 32 inputs is one matrix
// product [rows, 32] x [32, 16] in int32, scaled and summed in registers. The integers
// are exact, so the results are those of the vector kernels bit for bit; those serve
// groups of few rows, for which writing the weights out does not pay.
//
// While the unit works (and a good 100 ns after its last instruction, a mere _tile_zero
// included), the processors measured run f32 arithmetic of 512 bits at half its rate;
// integers are not slowed. So scaling bounds these kernels: three operations for sixteen
// products of a block of 32.

// Groups of fewer rows leave too much of the unit idle.
constexpr int kMatrixRows = 12;

// Results [16, 16] in 0..3, which take turns, so that one product does not wait for the
// last one's results to be stored; inputs [16, 32] in 4 and 5, weights [8, 16, 4] in 6
// and 7. A block whose halves have scales of their own is two products of half the depth.
// Groups of fewer rows compute what lies behind them too, and nobody looks at it.
void configure_tiles(WideKind kind) {
  const int depth = wide_halves(kind) ? kActivationBlock / 2 : kActivationBlock;
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes_a_row[i] = static_cast<uint16_t>(i == 4 || i == 5 ? depth : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? 16 : depth / 4);
  }
  load_config(config);
}

// The integer products of one block in result register kTurn, and their way to memory:
// products [rows][16] int32. The registers' numbers are part of the instructions, and the
// compilers' own names for them take nothing but literals.
#define LORALEI_MULTIPLY(result, input, weight) \
  _tile_zero(result);                           \
  _tile_loadd(input, inputs, kActivationBlock); \
  _tile_loadd(weight, weights, 64);             \
  _tile_dpbssd(result, input, weight)
template <int kTurn>
LORALEI_INLINE void multiply(const std::byte* inputs, const std::byte* weights) {
  if constexpr (kTurn == 0) {
    LORALEI_MULTIPLY(0, 4, 6);
  } else if constexpr (kTurn == 1) {
    LORALEI_MULTIPLY(1, 5, 7);
  } else if constexpr (kTurn == 2) {
    LORALEI_MULTIPLY(2, 4, 6);
  } else {
    LORALEI_MULTIPLY(3, 5, 7);
  }
}
#undef LORALEI_MULTIPLY
template <int kTurn>
LORALEI_INLINE void store_products(int32_t* products) {
  if constexpr (kTurn == 0) {
    _tile_stored(0, products, 64);
  } else if constexpr (kTurn == 1) {
    _tile_stored(1, products, 64);
  } else if constexpr (kTurn == 2) {
    _tile_stored(2, products, 64);
  } else {
    _tile_stored(3, products, 64);
  }
}

template <WideKind kKind>
constexpr int kProducts = (wide_halves(kKind) ? 2 : 1) * 16 * kRowTile;  // integers of a block
template <WideKind kKind>
constexpr int kWideStep = wide_block_bytes(kKind);
template <int kRows, WideKind kKind>
constexpr int kBlockBytes = group_block_bytes(kRows, wide_halves(kKind));

template <int kRows, WideKind kKind>
LORALEI_INLINE void add_block(const int32_t* products, const std::byte* x, const std::byte* wide, F (&acc)[kRows]) {
  asm volatile("" : : : "memory");  // the products were stored behind the compiler's back
  constexpr bool kMin = wide_min(kKind);
  const float* const numbers = reinterpret_cast<const float*>(wide + kWideScalesAt);
  const F scale = load(numbers);
  const F scale_high = wide_halves(kKind) ? load(numbers + kRowTile) : zero();
  const F min = kMin ? load(numbers + wide_min_at(kKind) * kRowTile) : zero();
  const F min_high = kKind == WideKind::kHalvesMin ? load(numbers + 3 * kRowTile) : zero();
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const F dx = row_float(x + group_d_at(kRows), r);
    const F sum = to_float(_mm512_load_si512(products + 16 * r));
    acc[r] = fma(sum, mul(scale, dx), acc[r]);
    if constexpr (kMin) acc[r] = fma(min, row_float(x + group_s_at(kRows), r), acc[r]);
    if constexpr (wide_halves(kKind)) {
      const F high = to_float(_mm512_load_si512(products + 16 * (16 + r)));
      acc[r] = fma(high, mul(scale_high, dx), acc[r]);
      if constexpr (kMin) acc[r] = fma(min_high, row_float(x + group_s_at(kRows, 1), r), acc[r]);
    }
  }
}

// Products of one block; kTurn is its number modulo 4. A block with two halves
// takes two registers.
template <WideKind kKind, int kTurn>
LORALEI_INLINE void multiply_block(const std::byte* x, const std::byte* wide) {
  if constexpr (wide_halves(kKind)) {
    multiply<2 * kTurn % 4>(x, wide);
    multiply<2 * kTurn % 4 + 1>(x + kActivationBlock / 2, wide + 4 * 64);
  } else {
    multiply<kTurn>(x, wide);
  }
}
template <WideKind kKind, int kTurn>
LORALEI_INLINE void store_block(int32_t* products) {
  if constexpr (wide_halves(kKind)) {
    store_products<2 * kTurn % 4>(products);
    store_products<2 * kTurn % 4 + 1>(products + 256);
  } else {
    store_products<kTurn>(products);
  }
}

constexpr int kRowsAtOnce = 3;  // of results asked for with each four blocks of two tiles: 2 * 3 * 3 >= 16

// Step kTurn (the block's number modulo 4) of a line on which three blocks are under way:
// one multiplied, the one before it on its way to memory, the one before that scaled.
// A product takes far longer than the scaling of a block. kFirst: the line begins, so
// nothing is before the blocks 0 and 1.
template <int kRows, WideKind kKind, int kTurn, bool kFirst>
LORALEI_INLINE void pipeline_step(const std::byte* x, const std::byte* wide, int32_t* products, F (&acc)[kRows]) {
  constexpr int kBefore = (kTurn + 3) % 4, kBeforeThat = (kTurn + 2) % 4;
  x += kTurn * kBlockBytes<kRows, kKind>;
  wide += kTurn * kWideStep<kKind>;
  multiply_block<kKind, kTurn>(x, wide);
  if constexpr (!kFirst || kTurn >= 1) store_block<kKind, kBefore>(products + kBefore * kProducts<kKind>);
  if constexpr (!kFirst || kTurn >= 2) {
    add_block<kRows, kKind>(products + kBeforeThat * kProducts<kKind>, x - 2 * kBlockBytes<kRows, kKind>,
                            wide - 2 * kWideStep<kKind>, acc);
  }
}
// Four steps, and the writing out of the four blocks after them.
template <int kRows, bool kFirst, class Source>
LORALEI_INLINE void pipeline_four(Source& source, const std::byte* x, const std::byte* wide, int32_t* products,
                                  FetchAhead& fetches, F (&acc)[kRows]) {
  fetches.fetch<kRowsAtOnce>();
  pipeline_step<kRows, Source::kKind, 0, kFirst>(x, wide, products, acc);
  source.template widen<0>();
  pipeline_step<kRows, Source::kKind, 1, kFirst>(x, wide, products, acc);
  source.template widen<1>();
  fetches.weights.fetch();
  pipeline_step<kRows, Source::kKind, 2, kFirst>(x, wide, products, acc);
  source.template widen<2>();
  pipeline_step<kRows, Source::kKind, 3, kFirst>(x, wide, products, acc);
  source.template widen<3>();
}

// Adds the products of `blocks` blocks to sums [kRows][16]. `source` writes the blocks
// out in their wide form, four blocks before they are needed, if nobody did before.
template <int kRows, class Source>
LORALEI_INLINE void matrix_product(Source source, const std::byte* wide, int64_t blocks, const std::byte* x,
                                   FetchAhead& ahead, float* sums) {
  constexpr WideKind kKind = Source::kKind;
  constexpr int kStep = kBlockBytes<kRows, kKind>, kWide = kWideStep<kKind>;
  alignas(64) int32_t products[4 * kProducts<kKind>];
  F acc[kRows];
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) acc[r] = load(sums + r * kRowTile);
  FetchAhead fetches = ahead;  // in registers, whatever the barriers say
  source.template widen<0>();
  source.template widen<1>();
  source.template widen<2>();
  source.template widen<3>();
  asm volatile("" : : : "memory");  // what the tile loads read is in memory, although the compiler sees no reader
  if (int64_t fours = blocks / 4; fours > 0) {
    pipeline_four<kRows, true>(source, x, wide, products, fetches, acc);
    x += 4 * kStep;
    wide += 4 * kWide;
    for (; --fours > 0; x += 4 * kStep, wide += 4 * kWide)
      pipeline_four<kRows, false>(source, x, wide, products, fetches, acc);
    store_block<kKind, 3>(products + 3 * kProducts<kKind>);
    add_block<kRows, kKind>(products + 2 * kProducts<kKind>, x - 2 * kStep, wide - 2 * kWide, acc);
    add_block<kRows, kKind>(products + 3 * kProducts<kKind>, x - kStep, wide - kWide, acc);
  }
  for (int64_t rest = blocks % 4; rest > 0; --rest, x += kStep, wide += kWide) {
    multiply_block<kKind, 0>(x, wide);
    store_block<kKind, 0>(products);
    add_block<kRows, kKind>(products, x, wide, acc);
  }
  ahead = fetches;
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) store(sums + r * kRowTile, acc[r]);
}

// The weights lie there in their wide form.
template <WideKind kKindOf>
struct WideAlready {
  static constexpr WideKind kKind = kKindOf;
  template <int kPart>
  LORALEI_INLINE void widen() {}
};
// Blocks of a tile as they come from memory, written out one by one.
template <class Format>
class WidenOnTheWay {
 public:
  static constexpr WideKind kKind = wide_kind_of<Format>();
  WidenOnTheWay(const std::byte* tile, int64_t begin, int64_t count, std::byte* wide)
      : at_(block_at<Format>(tile, begin)), left_(count), out_(wide) {}

  // The next block, if one is left; its number is kPart modulo 4.
  template <int kPart>
  LORALEI_INLINE void widen() {
    if (left_ == 0) return;
    if constexpr (k256) {
      if (kPart == 0 && half_ == 0) Format::scales(at_, 0, scales_, mins_);
      widen_part<Format, WideFor::kMatrixUnit, kPart>(at_, 0, half_, scales_, mins_, out_);
      if (kPart == 3 && half_ == 1) step_block<Format>(at_);
      if (kPart == 3) half_ ^= 1;
    } else {
      widen_block_32<Format, WideFor::kMatrixUnit>(at_, out_);
      step_block<Format>(at_);
    }
    out_ += kWideStep<kKind>;
    --left_;
  }

 private:
  static constexpr bool k256 = Format::k256;
  TileSections at_;
  int64_t left_;
  std::byte* out_;
  int half_ = 0;
  static constexpr int kNumbers = (k256 ? kScalesOf256<Format> : 1) * kLanes;
  alignas(64) float scales_[kNumbers];
  alignas(64) float mins_[kNumbers];
};

// Blocks [begin, begin + count) of a tile times the first group of rows, which leaves
// them in their wide form, and times the groups after it. Adds to sums [rows][16].
using FirstKernel = void (*)(const std::byte* tile, int64_t begin, int64_t count, std::byte* wide, const std::byte* x,
                             FetchAhead& ahead, float* sums);
using NextKernel = void (*)(const std::byte* wide, int64_t count, const std::byte* x, FetchAhead& ahead, float* sums);
template <class Format, int kRows>
void first_product(const std::byte* tile, int64_t begin, int64_t count, std::byte* wide, const std::byte* x,
                   FetchAhead& ahead, float* sums) {
  matrix_product<kRows>(WidenOnTheWay<Format>(tile, begin, count, wide), wide, count, x, ahead, sums);
}
template <WideKind kKind, int kRows>
void next_product(const std::byte* wide, int64_t count, const std::byte* x, FetchAhead& ahead, float* sums) {
  matrix_product<kRows>(WideAlready<kKind>{}, wide, count, x, ahead, sums);
}
template <class Format>
FirstKernel first_kernel_of(int rows) {
  return rows == 12 ? first_product<Format, 12> : first_product<Format, 16>;
}
FirstKernel first_kernel(DType dtype, int rows) {
  switch (dtype) {
    case DType::kQ8_0:
      return first_kernel_of<TileQ8_0>(rows);
    case DType::kQ4_0:
      return first_kernel_of<TileQ4_0>(rows);
    case DType::kQ4_1:
      return first_kernel_of<TileQ4_1>(rows);
    case DType::kInt4G:
      return first_kernel_of<TileInt4G>(rows);
    case DType::kQ5_0:
      return first_kernel_of<TileQ5_0>(rows);
    case DType::kQ5_1:
      return first_kernel_of<TileQ5_1>(rows);
    case DType::kQ4_K:
      return first_kernel_of<TileQ4_K>(rows);
    case DType::kQ5_K:
      return first_kernel_of<TileQ5_K>(rows);
    case DType::kQ6_K:
      return first_kernel_of<TileQ6_K>(rows);
    case DType::kQ2_K:
      return first_kernel_of<TileQ2_K>(rows);
    case DType::kQ3_K:
      return first_kernel_of<TileQ3_K>(rows);
    case DType::kIQ4_NL:
      return first_kernel_of<TileIQ4_NL>(rows);
    case DType::kIQ4_XS:
      return first_kernel_of<TileIQ4_XS>(rows);
    case DType::kMXFP4:
      return first_kernel_of<TileMXFP4>(rows);
    default:
      return nullptr;
  }
}
template <WideKind kKind>
NextKernel next_kernel_of(int rows) {
  return rows == 12 ? next_product<kKind, 12> : next_product<kKind, 16>;
}
NextKernel next_kernel(WideKind kind, int rows) {
  switch (kind) {
    case WideKind::kPlain:
      return next_kernel_of<WideKind::kPlain>(rows);
    case WideKind::kMin:
      return next_kernel_of<WideKind::kMin>(rows);
    case WideKind::kHalves:
      return next_kernel_of<WideKind::kHalves>(rows);
    case WideKind::kHalvesMin:
      return next_kernel_of<WideKind::kHalvesMin>(rows);
  }
  return nullptr;
}

// As multiply_wide, for groups of kMatrixRows rows or more.
void multiply_matrix(const TileRun& tiles, const TileRun& next, const RowGroups& groups, int64_t begin, int64_t end,
                     const WideResults& results, const WideScratch& scratch) {
  const WideKind kind = wide_format(tiles.dtype).kind;
  const int64_t blocks = groups.cols / kActivationBlock;
  const FirstKernel first = first_kernel(tiles.dtype, group_size(groups, begin));
  configure_tiles(kind);
  for (int64_t block = 0; block < blocks; block += kWideBlocks) {
    const int64_t count = blocks - block < kWideBlocks ? blocks - block : kWideBlocks;
    FetchAhead ahead{weights_ahead(tiles, next, groups.cols, block, (end - begin) * tiles.count * (count / 2)), {}};
    const bool last = block + count == blocks;
    if (last) ahead.results = results_ahead(results, begin, end);
    for (int64_t group = begin; group < end; ++group) {
      const int size = group_size(groups, group);
      const std::byte* const x = groups.at(group, size, block);
      for (int v = 0; v < tiles.count; ++v) {
        std::byte* const wide = scratch.wide + v * kWideTileBytes;
        float* const sums = scratch.sums_of(v, group - begin);
        if (group == begin) {
          first(tiles.tile[v].data, block, count, wide, x, ahead, sums);
        } else {
          next_kernel(kind, size)(wide, count, x, ahead, sums);
        }
      }
      if (last) results.write(group, scratch.sums_of(0, group - begin));
    }
  }
  _tile_release();
}

void tiles_times_groups(const TileMatmulArgs& args, const TileProduct& product, const TileRun& tiles,
                        const TileRun& next, const RowGroups& groups, int64_t begin, int64_t end, std::byte* memory) {
  const WideScratch scratch(memory);
  // Only the last group can be a small one.
  const int64_t wide_end = wide_groups(groups, tiles.dtype, begin, end);
  int64_t matrix_end = group_size(groups, end - 1) < kMatrixRows ? end - 1 : end;
  const int rows = groups.first_row(end - 1) + groups.rows_of(end - 1) - groups.first_row(begin);
  if (rows < groups.tuning->of(tiles.dtype) || wide_end == begin) matrix_end = begin;
  const WideResults results{&args, &product, &tiles, &groups};
  clear_sums(scratch, tiles, begin, wide_end);
  if (begin < matrix_end) multiply_matrix(tiles, next, groups, begin, matrix_end, results, scratch);
  if (matrix_end < wide_end) multiply_wide(tiles, next, groups, matrix_end, wide_end, begin, results, scratch);
  multiply_packed(tiles, groups, wide_end, end, begin, results, scratch);
}
