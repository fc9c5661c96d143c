// SPDX-License-Identifier: Apache-2.0
// A tile times groups of rows with the matrix unit (AMX-INT8). No include guard: see target.h.
//
// The weights of a tile are written out once as signed bytes with f32 scales and then meet every
// group: one block of 32 inputs is one matrix product [rows, 32] x [32, 16] in int32, scaled and summed in registers.
// The integers are exact, so the results are those of the vector kernels bit for bit; those serve groups of few rows,
// for which writing the weights out does not pay.

// Groups of fewer rows leave too much of the unit idle.
constexpr int kMatrixRows = 12;

// Results [16, 16] in 0..3, which take turns, so that one product does not wait for the last one's results to be
// stored; inputs [16, 32] in 4 and 5, weights [8, 16, 4] in 6 and 7. Groups of fewer rows compute
// what lies behind them too, and nobody looks at it.
void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes_a_row[i] = static_cast<uint16_t>(i == 4 || i == 5 ? kActivationBlock : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? 16 : kActivationBlock / 4);
  }
  load_config(config);
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

template <WideKind kKind>
constexpr int kWideStep = wide_block_bytes(kKind, WideFor::kMatrixUnit);

template <int kRows, WideKind kKind>
LORALEI_INLINE void add_block(const int32_t* products, const std::byte* x, const std::byte* wide, F (&acc)[kRows]) {
  asm volatile("" : : : "memory");  // the products were stored behind the compiler's back
  constexpr int kAt = wide_scales_at(kKind, WideFor::kMatrixUnit);
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
                          wide - 2 * kWideStep<kKind>, acc);
}

// The end of the line: the two blocks before `x`, of which the first has number kTurn modulo 4.
template <int kRows, WideKind kKind, int kTurn>
LORALEI_INLINE void drain(const std::byte* x, const std::byte* wide, int32_t* products, F (&acc)[kRows]) {
  constexpr int kProducts = 16 * (kKind == WideKind::kHalves ? 32 : 16);
  constexpr int kStep = group_block_bytes(kRows);
  store_block<kRows, kKind, kTurn + 1>(products + (kTurn + 1) * kProducts);
  add_block<kRows, kKind>(products + kTurn * kProducts, x - 2 * kStep, wide - 2 * kWideStep<kKind>, acc);
  add_block<kRows, kKind>(products + (kTurn + 1) * kProducts, x - kStep, wide - kWideStep<kKind>, acc);
}

// A turn of the line is four blocks: of sixteen, the line's ends leave three turns.
constexpr int64_t turns_of(int64_t blocks) { return blocks < 6 ? 1 : (blocks - 2) / 4; }
constexpr int kRowsATurn = 3;  // a group's rows in the turns of two tiles: 2 * 3 * 3 >= 16

// Adds the blocks' products to sums [kRows][16].
template <int kRows, WideKind kKind>
void matrix_product(const std::byte* wide, int64_t blocks, const std::byte* x, FetchAhead& ahead, float* sums) {
  constexpr int kStep = group_block_bytes(kRows);
  constexpr int kProducts = 16 * (kKind == WideKind::kHalves ? 32 : 16);
  alignas(64) int32_t products[4 * kProducts];
  asm volatile("" : : : "memory");  // what the tile loads read is in memory, although the compiler sees no reader
  F acc[kRows];
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) acc[r] = load(sums + r * kRowTile);
  const std::byte* const x_end = x + blocks * kStep;
  FetchAhead fetches = ahead;  // in registers, whatever the barriers say
  if (blocks >= 4) {
    multiply_block<kKind, 0>(x, wide);
    multiply_block<kKind, 1>(x + kStep, wide + kWideStep<kKind>);
    store_block<kRows, kKind, 0>(products);
    x += 2 * kStep;
    wide += 2 * kWideStep<kKind>;
    // From here on the block to multiply has a number that is 2 modulo 4.
    for (; x + 3 * kStep < x_end; x += 4 * kStep, wide += 4 * kWideStep<kKind>) {
      fetches.fetch<kRowsATurn>();
      pipeline_step<kRows, kKind, 2>(x, wide, products, acc);
      pipeline_step<kRows, kKind, 3>(x + kStep, wide + kWideStep<kKind>, products, acc);
      pipeline_step<kRows, kKind, 0>(x + 2 * kStep, wide + 2 * kWideStep<kKind>, products, acc);
      pipeline_step<kRows, kKind, 1>(x + 3 * kStep, wide + 3 * kWideStep<kKind>, products, acc);
    }
    if (x + kStep < x_end) {
      pipeline_step<kRows, kKind, 2>(x, wide, products, acc);
      pipeline_step<kRows, kKind, 3>(x + kStep, wide + kWideStep<kKind>, products, acc);
      x += 2 * kStep;
      wide += 2 * kWideStep<kKind>;
      drain<kRows, kKind, 2>(x, wide, products, acc);
    } else {
      drain<kRows, kKind, 0>(x, wide, products, acc);
    }
  }
  for (; x < x_end; x += kStep, wide += kWideStep<kKind>) {
    multiply_block<kKind, 0>(x, wide);
    store_block<kRows, kKind, 0>(products);
    add_block<kRows, kKind>(products, x, wide, acc);
  }
  ahead = fetches;
  LORALEI_UNROLL
  for (int r = 0; r < kRows; ++r) store(sums + r * kRowTile, acc[r]);
}

// Adds the products of the blocks to sums [rows][16].
using MatrixKernel = void (*)(const std::byte* wide, int64_t blocks, const std::byte* x, FetchAhead& ahead,
                              float* sums);
template <WideKind kKind>
MatrixKernel matrix_kernel_of(int rows) {
  switch (rows) {
    case 12:
      return matrix_product<12, kKind>;
    case 16:
      return matrix_product<16, kKind>;
    default:
      return nullptr;
  }
}
MatrixKernel matrix_kernel(WideKind kind, int rows) {
  switch (kind) {
    case WideKind::kPlain:
      return matrix_kernel_of<WideKind::kPlain>(rows);
    case WideKind::kMin:
      return matrix_kernel_of<WideKind::kMin>(rows);
    case WideKind::kHalves:
      return matrix_kernel_of<WideKind::kHalves>(rows);
  }
  return nullptr;
}

// As multiply_wide, for groups of kMatrixRows rows or more.
void multiply_matrix(const TileRun& tiles, const TileRun& next, const RowGroups& groups, int64_t begin, int64_t end,
                     const WideResults& results, const WideScratch& scratch) {
  const WideKind kind = wide_format(tiles.dtype).kind;
  const int64_t blocks = groups.cols / kActivationBlock;
  configure_tiles();
  for (int64_t block = 0; block < blocks; block += kWideBlocks) {
    const int64_t count = blocks - block < kWideBlocks ? blocks - block : kWideBlocks;
    for (int v = 0; v < tiles.count; ++v) {
      widen_tile<WideFor::kMatrixUnit>(tiles.dtype, tiles.tile[v].data, block, count,
                                       scratch.wide + v * kWideTileBytes);
    }
    FetchAhead ahead{weights_ahead(tiles, next, groups.cols, block, (end - begin) * tiles.count * turns_of(count)), {}};
    const bool last = block + count == blocks;
    if (last) ahead.results = results_ahead(results, begin, end);
    for (int64_t group = begin; group < end; ++group) {
      const int size = group_size(groups, group);
      const std::byte* const x = groups.at(group) + block * group_block_bytes(size);
      for (int v = 0; v < tiles.count; ++v) {
        matrix_kernel(kind, size)(scratch.wide + v * kWideTileBytes, count, x, ahead,
                                  scratch.sums_of(v, group - begin));
      }
      if (last) results.write(group, scratch.sums_of(0, group - begin));
    }
  }
  _tile_release();
}

constexpr int kTilesTogether = 2;

void tiles_times_groups(const TileMatmulArgs& args, const TileProduct& product, const TileRun& tiles,
                        const TileRun& next, const RowGroups& groups, int64_t begin, int64_t end, std::byte* memory) {
  const WideScratch scratch(memory);
  // Only the last group can be a small one.
  const int last = group_size(groups, end - 1);
  int64_t matrix_end = last < kMatrixRows ? end - 1 : end;
  const int rows = groups.first_row(end - 1) + groups.rows_of(end - 1) - groups.first_row(begin);
  if (rows < groups.tuning->of(tiles.dtype)) matrix_end = begin;
  const int64_t wide_end = last <= kPackedRows ? end - 1 : end;
  const WideResults results{&args, &product, &tiles, &groups};
  clear_sums(scratch, tiles, begin, wide_end);
  if (begin < matrix_end) multiply_matrix(tiles, next, groups, begin, matrix_end, results, scratch);
  if (matrix_end < wide_end) multiply_wide(tiles, next, groups, matrix_end, wide_end, begin, results, scratch);
  multiply_packed(tiles, groups, wide_end, end, begin, results, scratch);
}
