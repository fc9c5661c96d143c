// SPDX-License-Identifier: Apache-2.0
// A tile times groups of rows with the matrix unit (AMX-INT8). No include guard: see target.h.
//
// The weights of a tile are written out once as signed bytes with f32 scales and then meet every
// group: one block of 32 inputs is one matrix product [rows, 32] x [32, 16] in int32, scaled and summed in registers.
// The integers are exact, so the results are those of the vector kernels bit for bit; those serve groups of few rows,
// for which writing the weights out does not pay.

// Rows that go through the tiles together while their rounded form stays in the second-level cache.
constexpr int kRowsInCache = 128;
// Measured: for fewer groups, or in a group of fewer rows, the vector kernels are faster than writing the weights out.
constexpr int kMatrixGroups = 3;
constexpr int kMatrixRows = 12;
constexpr int kWideBlocks = 16;  // blocks of 32 inputs written out at a time: they stay in the first-level cache

enum class WideKind { kPlain, kMin, kHalves };
// Where the two vectors of scales of a block stand behind its weights. With a scale for each half the weights of a half
// must meet only its inputs: they lie as low half, zeros, high half, and each product takes eight word rows of the
// twelve.
constexpr int wide_scales_at(WideKind kind) { return kind == WideKind::kHalves ? 768 : 512; }
constexpr int wide_block_bytes(WideKind kind) { return wide_scales_at(kind) + 128; }
template <class Format>
constexpr WideKind wide_kind_of() {
  if constexpr (Format::kQuants == 2048) return Format::kHalves ? WideKind::kHalves : WideKind::kMin;
  if constexpr (Format::kQuants != 2048) return Format::kMin ? WideKind::kMin : WideKind::kPlain;
}

// Tile registers: results take turns, so that one product does not wait for the last one's results to be stored.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_a_row[16] = {};
  uint8_t rows[16] = {};
};

// Results [16, 16] in 0..3, inputs [16, 32] in 4 and 5, weights [8, 16, 4] in 6 and 7. Groups of fewer rows compute
// what lies behind them too, and nobody looks at it.
void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes_a_row[i] = static_cast<uint16_t>(i == 4 || i == 5 ? kActivationBlock : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? 16 : kActivationBlock / 4);
  }
  // The compiler believes that the instruction reads eight bytes; the barrier makes it write all of them first.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

template <class Format>
LORALEI_INLINE void store_block_wide(const I (&w)[8], F first, F second, std::byte* out) {
  constexpr WideKind kKind = wide_kind_of<Format>();
  const I zero_point = _mm512_set1_epi8(static_cast<char>(zero_value(Format::kZero)));
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) {
    const int place = kKind == WideKind::kHalves && j >= 4 ? j + 4 : j;
    _mm512_store_si512(out + 64 * place, _mm512_sub_epi8(w[j], zero_point));
  }
  if constexpr (kKind == WideKind::kHalves) {
    LORALEI_UNROLL
    for (int j = 4; j < 8; ++j) _mm512_store_si512(out + 64 * j, _mm512_setzero_si512());
  }
  store(reinterpret_cast<float*>(out + wide_scales_at(kKind)), first);
  store(reinterpret_cast<float*>(out + wide_scales_at(kKind) + 64), second);
}

template <class Format>
void widen_32(TileSections at, int64_t blocks, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b, out += wide_block_bytes(wide_kind_of<Format>())) {
    prefetch_ahead<block_bytes<Format>()>(at.head);
    I w[8];
    Format::weights(at, 0, w);
    F m = zero();
    if constexpr (Format::kMin) m = load_scales(at.head, 1, 0);
    store_block_wide<Format>(w, load_scales(at.head, 0, 0), m, out);
    step_block<Format>(at);
  }
}

template <class Format, int kPart>
LORALEI_INLINE void widen_part(const TileSections& at, int half, const float* scales, const float* mins,
                               std::byte* out) {
  const int sub = 4 * half + kPart;
  I w[8];
  Format::template weights<kPart>(at, 0, half, w);
  const float* const first = Format::kHalves ? scales + 2 * sub * kLanes : scales + sub * kLanes;
  const float* const second = Format::kHalves ? first + kLanes : mins + sub * kLanes;
  store_block_wide<Format>(w, load(first), load(second), out);
}

template <class Format>
void widen_256(TileSections at, int64_t blocks, std::byte* out) {
  alignas(64) float scales[16 * kLanes], mins[8 * kLanes];
  for (int64_t b = 0; b < blocks; ++b) {
    prefetch_ahead<block_bytes<Format>()>(at.head);
    Format::scales(at, 0, scales, mins);
    constexpr int kBytes = wide_block_bytes(wide_kind_of<Format>());
    for (int half = 0; half < 2; ++half, out += 4 * kBytes) {
      widen_part<Format, 0>(at, half, scales, mins, out);
      widen_part<Format, 1>(at, half, scales, mins, out + kBytes);
      widen_part<Format, 2>(at, half, scales, mins, out + 2 * kBytes);
      widen_part<Format, 3>(at, half, scales, mins, out + 3 * kBytes);
    }
    step_block<Format>(at);
  }
}

// Blocks of 32 inputs [begin, begin + count) of a tile; both are multiples of the format's blocks.
template <class Format>
void widen(const std::byte* tile, int64_t begin, int64_t count, std::byte* out) {
  constexpr bool k256 = Format::kQuants == 2048;
  constexpr int64_t kParts = k256 ? 8 : 1;
  const TileSections at = first_block<Format>(tile + begin / kParts * block_bytes<Format>());
  if constexpr (k256) {
    widen_256<Format>(at, count / kParts, out);
  } else {
    widen_32<Format>(at, count, out);
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
    default:
      CHECK(false);
  }
}

WideKind wide_kind(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return WideKind::kMin;
    case DType::kQ6_K:
      return WideKind::kHalves;
    default:
      return WideKind::kPlain;
  }
}

// The integer products of one block in result register kTurn, and their way to memory: products [rows][16] int32. The
// registers' numbers are part of the instructions, and the compilers' own names for them take nothing but literals.
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

template <int kRows, WideKind kKind>
LORALEI_INLINE void add_block(const int32_t* products, const std::byte* x, const std::byte* wide, F (&acc)[kRows]) {
  asm volatile("" : : : "memory");  // the products were stored behind the compiler's back
  constexpr int kAt = wide_scales_at(kKind);
  const F scale = load(reinterpret_cast<const float*>(wide + kAt));
  const F second = kKind == WideKind::kPlain ? zero() : load(reinterpret_cast<const float*>(wide + kAt + 64));
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const F dx = row_float(x + group_d_at(kRows), r);
    const F sum = to_float(_mm512_load_si512(products + 16 * r));
    acc[r] = fma(sum, mul(scale, dx), acc[r]);
    if constexpr (kKind == WideKind::kMin) acc[r] = fma(second, row_float(x + group_s_at(kRows), r), acc[r]);
    if constexpr (kKind == WideKind::kHalves) {
      const F high = to_float(_mm512_load_si512(products + 16 * (16 + r)));
      acc[r] = fma(high, mul(second, dx), acc[r]);
    }
  }
}

// Products of one block; kTurn is its number modulo 4. A block with two halves takes two registers.
template <WideKind kKind, int kTurn>
LORALEI_INLINE void multiply_block(const std::byte* x, const std::byte* wide) {
  if constexpr (kKind == WideKind::kHalves) {
    multiply<2 * kTurn % 4>(x, wide);
    multiply<2 * kTurn % 4 + 1>(x, wide + 256);
  } else {
    multiply<kTurn>(x, wide);
  }
}
template <int kRows, WideKind kKind, int kTurn>
LORALEI_INLINE void store_block(int32_t* products) {
  if constexpr (kKind == WideKind::kHalves) {
    store_products<2 * kTurn % 4>(products);
    store_products<2 * kTurn % 4 + 1>(products + 256);
  } else {
    store_products<kTurn>(products);
  }
}

// A product takes far longer than the scaling of a block, so three blocks are under way: one multiplied, the one before
// it on its way to memory, the one before that scaled. Step kTurn (the block's number modulo 4) of that line.
template <int kRows, WideKind kKind, int kTurn>
LORALEI_INLINE void pipeline_step(const std::byte* x, const std::byte* wide, int32_t* products, F (&acc)[kRows]) {
  constexpr int kProducts = 16 * (kKind == WideKind::kHalves ? 32 : 16);
  multiply_block<kKind, kTurn>(x, wide);
  store_block<kRows, kKind, (kTurn + 3) % 4>(products + (kTurn + 3) % 4 * kProducts);
  add_block<kRows, kKind>(products + (kTurn + 2) % 4 * kProducts, x - 2 * group_block_bytes(kRows),
                          wide - 2 * wide_block_bytes(kKind), acc);
}

// Adds the blocks' products to sums [kRows][16].
template <int kRows, WideKind kKind>
void wide_product(const std::byte* wide, int64_t blocks, const std::byte* x, float* sums) {
  constexpr int kStep = group_block_bytes(kRows);
  constexpr int kProducts = 16 * (kKind == WideKind::kHalves ? 32 : 16);
  alignas(64) int32_t products[4 * kProducts];
  asm volatile("" : : : "memory");  // what the tile loads read is in memory, although the compiler sees no reader
  F acc[kRows];
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) acc[r] = load(sums + r * kRowTile);
  const std::byte* const x_end = x + blocks * kStep;
  if (blocks >= 4) {
    multiply_block<kKind, 0>(x, wide);
    multiply_block<kKind, 1>(x + kStep, wide + wide_block_bytes(kKind));
    store_block<kRows, kKind, 0>(products);
    x += 2 * kStep;
    wide += 2 * wide_block_bytes(kKind);
    // From here on the block to multiply has a number that is 2 modulo 4.
    for (; x + 3 * kStep < x_end; x += 4 * kStep, wide += 4 * wide_block_bytes(kKind)) {
      pipeline_step<kRows, kKind, 2>(x, wide, products, acc);
      pipeline_step<kRows, kKind, 3>(x + kStep, wide + wide_block_bytes(kKind), products, acc);
      pipeline_step<kRows, kKind, 0>(x + 2 * kStep, wide + 2 * wide_block_bytes(kKind), products, acc);
      pipeline_step<kRows, kKind, 1>(x + 3 * kStep, wide + 3 * wide_block_bytes(kKind), products, acc);
    }
    store_block<kRows, kKind, 1>(products + kProducts);
    add_block<kRows, kKind>(products, x - 2 * kStep, wide - 2 * wide_block_bytes(kKind), acc);
    add_block<kRows, kKind>(products + kProducts, x - kStep, wide - wide_block_bytes(kKind), acc);
  }
  for (; x < x_end; x += kStep, wide += wide_block_bytes(kKind)) {
    multiply_block<kKind, 0>(x, wide);
    store_block<kRows, kKind, 0>(products);
    add_block<kRows, kKind>(products, x, wide, acc);
  }
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) store(sums + r * kRowTile, acc[r]);
}

using WideKernel = void (*)(const std::byte* wide, int64_t blocks, const std::byte* x, float* sums);
template <WideKind kKind>
WideKernel wide_kernel_of(int rows) {
  switch (rows) {
    case 12:
      return wide_product<12, kKind>;
    case 16:
      return wide_product<16, kKind>;
    default:
      return nullptr;
  }
}
WideKernel wide_kernel(DType dtype, int rows) {
  switch (wide_kind(dtype)) {
    case WideKind::kPlain:
      return wide_kernel_of<WideKind::kPlain>(rows);
    case WideKind::kMin:
      return wide_kernel_of<WideKind::kMin>(rows);
    case WideKind::kHalves:
      return wide_kernel_of<WideKind::kHalves>(rows);
  }
  return nullptr;
}

static_assert(tile_worker_bytes() == kWideBlocks * wide_block_bytes(WideKind::kHalves) +
                                         kRowsInCache / kGroupRows * kGroupRows * kRowTile * 4);

void tile_times_groups(const TileMatmulArgs& args, const TileProduct& product, const RowTile& tile,
                       const RowGroups& groups, int64_t begin, int64_t end, std::byte* scratch) {
  constexpr int kSums = kGroupRows * kRowTile;
  const DType dtype = product.w.dtype;
  const int64_t cols = product.w.cols;
  const int64_t blocks = cols / kActivationBlock;
  std::byte* const wide = scratch;
  float* const sums =
      reinterpret_cast<float*>(scratch + kWideBlocks * wide_block_bytes(WideKind::kHalves));  // [groups][rows][16]
  // Only the last group can be a small one.
  const int last_kind = group_kind(groups.rows_of(end - 1));
  int64_t wide_end = kGroupSizes[last_kind] < kMatrixRows ? end - 1 : end;
  if (wide_end - begin < kMatrixGroups) wide_end = begin;
  for (int64_t group = wide_end; group < end; ++group) {
    tile_kernel(dtype, group_kind(groups.rows_of(group)))(tile.data, cols, groups.at(group),
                                                          sums + (group - begin) * kSums);
  }
  if (begin < wide_end) {
    configure_tiles();
    std::memset(sums, 0, static_cast<size_t>((wide_end - begin) * kSums) * sizeof(float));
    for (int64_t block = 0; block < blocks; block += kWideBlocks) {
      const int64_t count = blocks - block < kWideBlocks ? blocks - block : kWideBlocks;
      widen_tile(dtype, tile.data, block, count, wide);
      for (int64_t group = begin; group < wide_end; ++group) {
        const int rows = kGroupSizes[group_kind(groups.rows_of(group))];
        wide_kernel(dtype, rows)(wide, count, groups.at(group) + block * group_block_bytes(rows),
                                 sums + (group - begin) * kSums);
      }
    }
    _tile_release();
  }
  for (int64_t group = begin; group < end; ++group) {
    write_tile(args, product, tile, groups.first_row(group), groups.rows_of(group), sums + (group - begin) * kSums);
  }
}
