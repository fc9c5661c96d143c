// SPDX-License-Identifier: Apache-2.0
// A tile times groups of rows with the matrix unit (AMX-INT8). No include guard: see target.h.
//
// The weights of a tile are written out once as signed bytes with f32 scales (kWideBlockBytes) and then meet every
// group: one block of 32 inputs is one matrix product [rows, 32] x [32, 16] in int32, scaled and summed in registers.
// The integers are exact, so the results are those of the vector kernels bit for bit; those serve groups of few rows,
// for which writing the weights out does not pay.

// Rows that go through the tiles together while their rounded form stays in the second-level cache.
constexpr int kRowsInCache = 128;
constexpr int kMatrixRows = 6;  // groups of fewer rows go through the vector kernels
constexpr int kRun = 4;         // blocks whose products are under way together
constexpr int kProductsMax = 2 * 16 * 16;

// Tile registers: results take turns, so that one product does not wait for the last one's results to be stored.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_a_row[16] = {};
  uint8_t rows[16] = {};
};

// Results in 0..3, inputs in 4 and 5, weights in 6 and 7; `inputs` of the block's 32 at a time.
void configure_tiles(int rows, int inputs) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes_a_row[i] = static_cast<uint16_t>(i == 4 || i == 5 ? inputs : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : inputs / 4);
  }
  // The compiler believes that the instruction reads eight bytes; the barrier makes it write all of them first.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

LORALEI_INLINE void store_signed(const I (&w)[8], int zero, std::byte* out) {
  const I zeros = _mm512_set1_epi8(static_cast<char>(zero));
  LORALEI_UNROLL
  for (int j = 0; j < 8; ++j) _mm512_store_si512(out + 64 * j, _mm512_sub_epi8(w[j], zeros));
}

template <class Format>
void widen_32(TileSections at, int64_t blocks, std::byte* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kWideBlockBytes) {
    prefetch_ahead<Format::kQuants>(at.quants);
    I w[8];
    Format::weights(at, 0, w);
    store_signed(w, zero_value(Format::kZero), out);
    store(reinterpret_cast<float*>(out + 512), load_scales(at.head, 0, 0));
    if constexpr (Format::kMin) store(reinterpret_cast<float*>(out + 576), load_scales(at.head, 1, 0));
    at.head += Format::kHead;
    at.high += Format::kHigh;
    at.quants += Format::kQuants;
  }
}

template <class Format, int kPart>
LORALEI_INLINE void widen_part(const TileSections& at, int half, const float* scales, const float* mins,
                               std::byte* out) {
  const int sub = 4 * half + kPart;
  I w[8];
  Format::template weights<kPart>(at, 0, half, w);
  store_signed(w, zero_value(Format::kZero), out);
  const float* const first = Format::kHalves ? scales + 2 * sub * kLanes : scales + sub * kLanes;
  const float* const second = Format::kHalves ? first + kLanes : mins + sub * kLanes;
  store(reinterpret_cast<float*>(out + 512), load(first));
  store(reinterpret_cast<float*>(out + 576), load(second));
}

template <class Format>
void widen_256(TileSections at, int64_t blocks, std::byte* out) {
  alignas(64) float scales[16 * kLanes], mins[8 * kLanes];
  for (int64_t b = 0; b < blocks; ++b) {
    prefetch_ahead<Format::kQuants>(at.quants);
    Format::scales(at, 0, scales, mins);
    for (int half = 0; half < 2; ++half, out += 4 * kWideBlockBytes) {
      widen_part<Format, 0>(at, half, scales, mins, out);
      widen_part<Format, 1>(at, half, scales, mins, out + kWideBlockBytes);
      widen_part<Format, 2>(at, half, scales, mins, out + 2 * kWideBlockBytes);
      widen_part<Format, 3>(at, half, scales, mins, out + 3 * kWideBlockBytes);
    }
    at.head += Format::kHead;
    at.high += Format::kHigh;
    at.quants += Format::kQuants;
  }
}

template <class Format>
void widen(const std::byte* tile, int64_t cols, std::byte* out) {
  constexpr bool k256 = Format::kQuants == 2048;
  const int64_t blocks = cols / (k256 ? 256 : 32);
  TileSections at;
  at.head = tile;
  at.high = tile + blocks * Format::kHead;
  at.quants = at.high + blocks * Format::kHigh;
  if constexpr (k256) {
    widen_256<Format>(at, blocks, out);
  } else {
    widen_32<Format>(at, blocks, out);
  }
}
void widen_tile(DType dtype, const std::byte* tile, int64_t cols, std::byte* out) {
  switch (dtype) {
    case DType::kQ8_0:
      return widen<TileQ8_0>(tile, cols, out);
    case DType::kQ4_0:
      return widen<TileQ4_0>(tile, cols, out);
    case DType::kQ4_1:
      return widen<TileQ4_1>(tile, cols, out);
    case DType::kQ5_0:
      return widen<TileQ5_0>(tile, cols, out);
    case DType::kQ5_1:
      return widen<TileQ5_1>(tile, cols, out);
    case DType::kQ4_K:
      return widen<TileQ4_K>(tile, cols, out);
    case DType::kQ5_K:
      return widen<TileQ5_K>(tile, cols, out);
    case DType::kQ6_K:
      return widen<TileQ6_K>(tile, cols, out);
    default:
      CHECK(false);
  }
}

enum class WideKind { kPlain, kMin, kHalves };
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

// The integer products of one block with tile registers kTurn of each kind; products [rows][16] int32. The registers'
// numbers are part of the instructions, and the compilers' own names for them take nothing but literals.
#define LORALEI_MULTIPLY(result, input, weight) \
  _tile_zero(result);                           \
  _tile_loadd(input, inputs, kActivationBlock); \
  _tile_loadd(weight, weights, 64);             \
  _tile_dpbssd(result, input, weight);          \
  _tile_stored(result, products, 64)
template <int kTurn>
LORALEI_INLINE void multiply(const std::byte* inputs, const std::byte* weights, int32_t* products) {
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

template <int kRows, WideKind kKind>
LORALEI_INLINE void add_block(const int32_t* products, const std::byte* x, const std::byte* wide, F (&acc)[kRows]) {
  asm volatile("" : : : "memory");  // the products were stored behind the compiler's back
  const F scale = load(reinterpret_cast<const float*>(wide + 512));
  const F second = kKind == WideKind::kPlain ? zero() : load(reinterpret_cast<const float*>(wide + 576));
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const F dx = row_float(x + group_d_at(kRows), r);
    const F sum = to_float(_mm512_load_si512(products + 16 * r));
    acc[r] = fma(sum, mul(scale, dx), acc[r]);
    if constexpr (kKind == WideKind::kMin) acc[r] = fma(second, row_float(x + group_s_at(kRows), r), acc[r]);
    if constexpr (kKind == WideKind::kHalves) {
      const F high = to_float(_mm512_load_si512(products + 16 * (kRows + r)));
      acc[r] = fma(high, mul(second, dx), acc[r]);
    }
  }
}

// Products of block number kBlock of a run.
template <int kRows, WideKind kKind, int kBlock>
LORALEI_INLINE void block_step(const std::byte* x, const std::byte* wide, int32_t (*products)[kProductsMax]) {
  x += kBlock * group_block_bytes(kRows);
  wide += kBlock * kWideBlockBytes;
  if constexpr (kKind == WideKind::kHalves) {
    // The second half of a block: its inputs follow 16 bytes on in every row, its weights four word rows on.
    multiply<2 * kBlock % 4>(x, wide, products[kBlock]);
    multiply<2 * kBlock % 4 + 1>(x + 16, wide + 256, products[kBlock] + 16 * kRows);
  } else {
    multiply<kBlock>(x, wide, products[kBlock]);
  }
}
template <int kRows, WideKind kKind>
LORALEI_INLINE void run_step(const std::byte* x, const std::byte* wide, int32_t (*products)[kProductsMax]) {
  block_step<kRows, kKind, 0>(x, wide, products);
  block_step<kRows, kKind, 1>(x, wide, products);
  block_step<kRows, kKind, 2>(x, wide, products);
  block_step<kRows, kKind, 3>(x, wide, products);
}

// Blocks go through in runs of four: the next run's products are under way while the last run's are scaled, because a
// product takes far longer than the scaling of one block.
template <int kRows, WideKind kKind>
void wide_product(const std::byte* wide, int64_t blocks, const std::byte* x, float* sums) {
  constexpr int kStep = group_block_bytes(kRows);
  alignas(64) int32_t products[2][kRun][kProductsMax];
  asm volatile("" : : : "memory");  // what the tile loads read is in memory, although the compiler sees no reader
  configure_tiles(kRows, kKind == WideKind::kHalves ? 16 : 32);
  F acc[kRows];
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) acc[r] = zero();
  const int64_t runs = blocks / kRun;
  if (runs > 0) run_step<kRows, kKind>(x, wide, products[0]);
  for (int64_t run = 0; run < runs; ++run) {
    if (run + 1 < runs) {
      run_step<kRows, kKind>(x + kRun * kStep, wide + kRun * kWideBlockBytes, products[(run + 1) & 1]);
    }
    for (int i = 0; i < kRun; ++i, x += kStep, wide += kWideBlockBytes) {
      add_block<kRows, kKind>(products[run & 1][i], x, wide, acc);
    }
  }
  for (int64_t b = runs * kRun; b < blocks; ++b, x += kStep, wide += kWideBlockBytes) {
    block_step<kRows, kKind, 0>(x, wide, products[0]);
    add_block<kRows, kKind>(products[0][0], x, wide, acc);
  }
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) store(sums + r * kRowTile, acc[r]);
}

using WideKernel = void (*)(const std::byte* wide, int64_t blocks, const std::byte* x, float* sums);
template <WideKind kKind>
WideKernel wide_kernel_of(int rows) {
  switch (rows) {
    case 6:
      return wide_product<6, kKind>;
    case 8:
      return wide_product<8, kKind>;
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

void tile_times_groups(const TileMatmulArgs& args, const TileProduct& product, const RowTile& tile,
                       const RowGroups& groups, int64_t begin, int64_t end, std::byte* wide) {
  alignas(64) float sums[kGroupRows * kRowTile];
  const int64_t cols = product.w.cols;
  bool widened = false;
  for (int64_t group = begin; group < end; ++group) {
    const int rows = groups.rows_of(group);
    const int kind = group_kind(rows);
    if (kGroupSizes[kind] < kMatrixRows) {
      tile_kernel(product.w.dtype, kind)(tile.data, cols, groups.at(group), sums);
    } else {
      if (!widened) widen_tile(product.w.dtype, tile.data, cols, wide);
      widened = true;
      wide_kernel(product.w.dtype, kGroupSizes[kind])(wide, cols / kActivationBlock, groups.at(group), sums);
    }
    write_tile(args, product, tile, groups.first_row(group), rows, sums);
  }
  if (widened) _tile_release();
}
