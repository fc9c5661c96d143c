// SPDX-License-Identifier: Apache-2.0
// Products of rows with rows. No include guard: see target.h.
//
// The number for (row, output) is one lane accumulator over the input in ascending steps of kLanes, then reduce4's
// fixed order; how many rows and outputs share a register tile, and how many inputs are multiplied at a time, changes
// which numbers are computed together, never one of them (batch invariance).
//
// Few rows meet the weights as they stream from memory. For more, kBlockCols inputs of sixteen outputs are decoded to
// f32 and meet all rows from the first-level cache, while the rows' lane sums wait in the second-level one.

struct ProductIn {
  const float* x = nullptr;  // the first row
  int64_t stride = 0;
  int64_t cols = 0;
  // Few rows: bytes from one weight row to the next if those that come next are to be asked for, else 0. Several rows
  // of weights read side by side are too many streams for some prefetchers, which bring most of one row after the other
  // (TileTuning).
  int64_t ask_stride = 0;
};

// Lane sums [kTokens][kOutputs] += kOutputs weight rows times the kTokens activation rows from x on.
template <class Rows, int kOutputs, int kTokens>
LORALEI_INLINE void product_tile(const std::byte* const* weights, const float* x, const ProductIn& in,
                                 F (&sums)[kTokens * kOutputs]) {
  const int64_t cols = in.cols, x_stride = in.stride;
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    if (in.ask_stride != 0 && k % (64 / Rows::kBytes) == 0) {
      LORALEI_UNROLL
      for (int o = 0; o < kOutputs; ++o)
        __builtin_prefetch(weights[o] + kOutputs * in.ask_stride + k * Rows::kBytes, 0, 2);
    }
    F w[kOutputs];
    LORALEI_UNROLL
    for (int o = 0; o < kOutputs; ++o) w[o] = Rows::at(weights[o] + k * Rows::kBytes);
    LORALEI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const F value = load(x + t * x_stride + k);
      LORALEI_UNROLL
      for (int o = 0; o < kOutputs; ++o) sums[t * kOutputs + o] = fma(value, w[o], sums[t * kOutputs + o]);
    }
  }
  if (k == cols) return;
  const int rest = static_cast<int>(cols - k);
  F w[kOutputs];
  LORALEI_UNROLL
  for (int o = 0; o < kOutputs; ++o) w[o] = Rows::at_n(weights[o] + k * Rows::kBytes, rest);
  LORALEI_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const F value = load_n(x + t * x_stride + k, rest);
    LORALEI_UNROLL
    for (int o = 0; o < kOutputs; ++o) sums[t * kOutputs + o] = fma(value, w[o], sums[t * kOutputs + o]);
  }
}

// Writes the results of a tile. `outputs` of the kOutputs are real.
template <int kOutputs, int kTokens>
LORALEI_INLINE void write_products(const F (&sums)[kTokens * kOutputs], int outputs, int first_output, int64_t row,
                                   const ProductOut& out) {
  static_assert(kOutputs * kTokens % 4 == 0);
  alignas(16) float values[kTokens * kOutputs];
  LORALEI_UNROLL
  for (int i = 0; i < kTokens * kOutputs; i += 4)
    store4(values + i, reduce4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
  const int count = outputs < kOutputs ? outputs : kOutputs;
  for (int t = 0; t < kTokens; ++t) {
    float* y = out.y + (row + t) * out.stride + first_output;
    for (int o = 0; o < count; ++o) {
      float value = values[t * kOutputs + o];
      if (out.bias != nullptr) value += out.bias[first_output + o];
      y[o] = out.accumulate ? y[o] + value : value;
    }
  }
}

// --- few rows ---
// A tile and its results. Outputs behind the real ones repeat the last one.
template <class Rows, int kOutputs, int kTokens>
void product_block(const std::byte* const* weights, int outputs, int first_output, const ProductIn& in, int64_t row,
                   const ProductOut& out) {
  F sums[kTokens * kOutputs];
  LORALEI_UNROLL
  for (int i = 0; i < kTokens * kOutputs; ++i) sums[i] = zero();
  product_tile<Rows, kOutputs, kTokens>(weights, in.x + row * in.stride, in, sums);
  write_products<kOutputs, kTokens>(sums, outputs, first_output, row, out);
}

// Activation rows a register tile of four outputs holds: 4 by 6 fill the 32 registers of AVX-512, 4 by 3 the 16 of
// AVX2.
constexpr int kTokenTile = kManyRegisters ? 6 : 3;

// All outputs for `kTokens` rows, kOutputs at a time.
template <class Rows, int kOutputs, int kTokens>
LORALEI_INLINE void product_outputs(const std::byte* const* weights, int outputs, const ProductIn& in, int64_t row,
                                    const ProductOut& out) {
  for (int o = 0; o < outputs; o += kOutputs) {
    product_block<Rows, kOutputs, kTokens>(weights + o, outputs - o, o, in, row, out);
  }
}

// One row of inputs, one row of weights after the other.
template <class Rows>
void product_in_order(const std::byte* const* weights, int outputs, const ProductIn& in, int64_t row,
                      const ProductOut& out) {
  alignas(64) float waiting[kRowTile * kLanes];
  for (int o = 0; o < outputs; ++o) {
    F sum[1] = {zero()};
    product_tile<Rows, 1, 1>(weights + o, in.x + row * in.stride, in, sum);
    store(waiting + o * kLanes, sum[0]);
  }
  write_lane_sums(waiting, outputs, row, out);
}

// The shape of the tile for what is left of the rows: with one or two rows the weights stream from memory, so more of
// them are in flight, unless the prefetchers do better with one. Returns the rows it did.
template <class Rows>
LORALEI_INLINE int product_step(const std::byte* const* weights, int outputs, const ProductIn& in, int64_t row,
                                int64_t rows, const ProductOut& out) {
  if (rows == 1 && in.ask_stride != 0) return product_in_order<Rows>(weights, outputs, in, row, out), 1;
  if (rows == 1) return product_outputs<Rows, 8, 1>(weights, outputs, in, row, out), 1;
  if constexpr (kTokenTile == 6) {
    if (rows == 2) return product_outputs<Rows, 8, 2>(weights, outputs, in, row, out), 2;
    if (rows == 3) return product_outputs<Rows, 4, 3>(weights, outputs, in, row, out), 3;
    if (rows == 4 || rows == 7 || rows == 8) return product_outputs<Rows, 4, 4>(weights, outputs, in, row, out), 4;
    if (rows == 5) return product_outputs<Rows, 4, 5>(weights, outputs, in, row, out), 5;
    return product_outputs<Rows, 4, 6>(weights, outputs, in, row, out), 6;
  } else {
    if (rows == 2 || rows == 4) return product_outputs<Rows, 4, 2>(weights, outputs, in, row, out), 2;
    return product_outputs<Rows, 4, 3>(weights, outputs, in, row, out), 3;
  }
}

template <class Rows>
void product_rows(const std::byte* weights, int64_t weight_stride, int outputs, const ProductIn& in, int64_t row_begin,
                  int64_t row_end, const ProductOut& out) {
  const std::byte* pointers[kRowTile];
  for (int o = 0; o < kRowTile; ++o) pointers[o] = weights + (o < outputs ? o : outputs - 1) * weight_stride;
  for (int64_t row = row_begin; row < row_end;) {
    row += product_step<Rows>(pointers, outputs, in, row, row_end - row, out);
  }
}

void product_rows_of(DType dtype, const std::byte* weights, int64_t weight_stride, int outputs, const ProductIn& in,
                     int64_t row_begin, int64_t row_end, const ProductOut& out) {
  switch (dtype) {
    case DType::kF16:
      return product_rows<RowsF16>(weights, weight_stride, outputs, in, row_begin, row_end, out);
    case DType::kBF16:
      return product_rows<RowsBF16>(weights, weight_stride, outputs, in, row_begin, row_end, out);
    default:
      return product_rows<RowsF32>(weights, weight_stride, outputs, in, row_begin, row_end, out);
  }
}

// --- many rows ---
constexpr int kBlockOutputs = 4;  // of a register tile

// The weights that come next are asked for while others are multiplied: some lines of sixteen rows at each call.
struct RowsAhead {
  const std::byte* rows = nullptr;
  int64_t stride = 0;
  int64_t bytes = 0;  // of each row
  int64_t left = 0;   // rows
  int64_t each = 0;   // lines a call
  int64_t at = 0;

  LORALEI_INLINE void fetch() {
    for (int64_t i = 0; i < each && left > 0; ++i) {
      __builtin_prefetch(rows + at, 0, 2);
      at += 64;
      if (at < bytes) continue;
      at = 0;
      rows += stride;
      --left;
    }
  }
};

// One block of inputs of a row tile, decoded, and the rows that meet it.
struct DecodedBlock {
  const float* weights = nullptr;  // [kRowTile][kBlockCols], kBlockStride apart
  int64_t cols = 0;
  int outputs = 0;
  const float* x = nullptr;  // from the block's first input on
  int64_t x_stride = 0;
  float* sums = nullptr;  // [rows][kRowTile][kLanes]; anything behind the last output
  bool first = false;     // nothing waits in sums yet
};

// sums [kTokens][kRowTile] += four outputs' products with whole vectors of inputs.
template <int kTokens>
LORALEI_INLINE void add_products(const float* weights, const float* x, int64_t x_stride, int64_t cols, bool first,
                                 float* waiting) {
  F sums[kTokens][kBlockOutputs];
  LORALEI_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    LORALEI_UNROLL
    for (int o = 0; o < kBlockOutputs; ++o) sums[t][o] = first ? zero() : load(waiting + (t * kRowTile + o) * kLanes);
  }
  for (int64_t k = 0; k < cols; k += kLanes) {
    F w[kBlockOutputs];
    LORALEI_UNROLL
    for (int o = 0; o < kBlockOutputs; ++o) w[o] = load(weights + o * kBlockStride + k);
    LORALEI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const F value = load(x + t * x_stride + k);
      LORALEI_UNROLL
      for (int o = 0; o < kBlockOutputs; ++o) sums[t][o] = fma(value, w[o], sums[t][o]);
    }
  }
  LORALEI_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    LORALEI_UNROLL
    for (int o = 0; o < kBlockOutputs; ++o) store(waiting + (t * kRowTile + o) * kLanes, sums[t][o]);
  }
}
// The last inputs, fewer than a vector.
void add_rest(const float* weights, const float* x, int count, float* waiting) {
  const F value = load_n(x, count);
  for (int o = 0; o < kBlockOutputs; ++o)
    store(waiting + o * kLanes, fma(value, load_n(weights + o * kBlockStride, count), load(waiting + o * kLanes)));
}

// All outputs for kTokens rows from `row` on.
template <int kTokens>
void block_rows(const DecodedBlock& block, int64_t row, RowsAhead& ahead) {
  const int64_t whole = block.cols - block.cols % kLanes;
  for (int first = 0; first < block.outputs; first += kBlockOutputs) {
    ahead.fetch();
    const float* const weights = block.weights + first * kBlockStride;
    const float* const x = block.x + row * block.x_stride;
    float* const waiting = block.sums + (row * kRowTile + first) * kLanes;
    add_products<kTokens>(weights, x, block.x_stride, whole, block.first, waiting);
    if (whole == block.cols) continue;
    for (int t = 0; t < kTokens; ++t)
      add_rest(weights + whole, x + t * block.x_stride + whole, static_cast<int>(block.cols - whole),
               waiting + t * kRowTile * kLanes);
  }
}
// As many of the rows from `row` on as fit a register tile; returns how many.
int block_step(const DecodedBlock& block, int64_t row, int64_t rows, RowsAhead& ahead) {
  if constexpr (kTokenTile == 6) {
    if (rows >= 6) return block_rows<6>(block, row, ahead), 6;
    if (rows == 5) return block_rows<5>(block, row, ahead), 5;
    if (rows == 4) return block_rows<4>(block, row, ahead), 4;
  }
  if (rows >= 3) return block_rows<3>(block, row, ahead), 3;
  if (rows == 2) return block_rows<2>(block, row, ahead), 2;
  return block_rows<1>(block, row, ahead), 1;
}

// The lines of y that a step will write, which lie far apart.
void fetch_results(const ProductOut& out, int64_t row, int64_t rows) {
  for (int64_t r = row; r < row + kTokenTile && r < rows; ++r) __builtin_prefetch(out.y + r * out.stride, 1);
}

// A row tile times up to kBlockRows rows of x; `next` is the tile that this thread takes after it, or null.
void blocked_product(const MatmulArgs& args, const RowTile& tile, const std::byte* next, const float* x, int64_t rows,
                     const ProductOut& out, float* memory) {
  const DType dtype = args.w.dtype;
  const int64_t cols = args.w.cols, stride = row_bytes(dtype, cols);
  const int decoded_rows = (tile.count + kBlockOutputs - 1) / kBlockOutputs * kBlockOutputs;
  DecodedBlock block{
      .weights = memory, .outputs = tile.count, .x_stride = args.x_stride, .sums = memory + kRowTile * kBlockStride};
  const int64_t calls = (rows + kTokenTile - 1) / kTokenTile * (decoded_rows / kBlockOutputs);
  for (int64_t k = 0; k < cols; k += kBlockCols) {
    block.cols = cols - k < kBlockCols ? cols - k : kBlockCols;
    block.x = x + k;
    block.first = k == 0;
    const bool last = k + block.cols == cols;
    for (int o = 0; o < decoded_rows; ++o) {
      const int64_t row = o < tile.count ? o : tile.count - 1;
      decode_to_f32(dtype, tile.data + row * stride + row_bytes(dtype, k), memory + o * kBlockStride, block.cols);
    }
    const int64_t ahead_at = last ? 0 : k + kBlockCols;
    const std::byte* const from = last ? next : tile.data;
    RowsAhead ahead{.stride = stride};
    if (from != nullptr) {
      ahead.rows = from + row_bytes(dtype, ahead_at);
      ahead.bytes = row_bytes(dtype, cols - ahead_at < kBlockCols ? cols - ahead_at : kBlockCols);
      ahead.left = kRowTile;
      ahead.each = (kRowTile * ((ahead.bytes + 63) / 64) + calls - 1) / calls;
    }
    if (last) fetch_results(out, 0, rows);
    for (int64_t row = 0; row < rows;) {
      if (last) fetch_results(out, row + kTokenTile, rows);
      const int64_t end = row + block_step(block, row, rows - row, ahead);
      for (int64_t r = row; last && r < end; ++r)
        write_lane_sums(block.sums + r * kRowTile * kLanes, block.outputs, r, out);
      row = end;
    }
  }
}

// From how many rows on it pays to decode f16 and bf16 weights once instead of in every register tile.
constexpr int64_t kDecodeRows = 2 * kTokenTile + 1;

// The rows [row_begin, row_end) of one tile.
void matmul_tile(const MatmulArgs& args, const RowTile& tile, const std::byte* next, int64_t row_begin, int64_t row_end,
                 const TileTuning& tuning, float* memory) {
  ProductOut out{args.y + tile.output, args.y_stride, args.bias != nullptr ? args.bias + tile.output : nullptr,
                 args.accumulate};
  if (!is_quantised(args.w.dtype) && row_end - row_begin < kDecodeRows) {
    const int64_t stride = row_bytes(args.w.dtype, args.w.cols);
    const ProductIn in{args.x, args.x_stride, args.w.cols, tuning.ask_for_rows ? stride : 0};
    product_rows_of(args.w.dtype, tile.data, stride, tile.count, in, row_begin, row_end, out);
    return;
  }
  out.y += row_begin * out.stride;
  blocked_product(args, tile, next, args.x + row_begin * args.x_stride, row_end - row_begin, out, memory);
}

// Into how many parts the rows go: each part's inputs stay in the second-level cache while all tiles meet them, and
// where there are few tiles every thread finds several work items.
int64_t row_parts(const MatmulArgs& args, int64_t tiles, int threads) {
  constexpr int64_t kInputsInCache = int64_t{1} << 18;
  const int64_t in_cache = std::clamp(kInputsInCache / args.w.cols, int64_t{8} * kTokenTile, kBlockRows);
  return std::max((args.rows + in_cache - 1) / in_cache, row_splits(tiles, args.rows, threads));
}

void matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  ++ctx.op_count;
  const Scratch scratch(ctx, 0, matmul_worker_bytes());
  const int64_t tiles = tile_count(args.w);
  const int64_t parts = row_parts(args, tiles, ctx.pool->threads());
  // Whole register tiles, so that none is cut needlessly.
  const int64_t part = (args.rows + parts - 1) / parts + kTokenTile - 1;
  const int64_t part_rows = part - part % kTokenTile;
  ctx.pool->parallel_for_runs(tiles * parts, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      const RowTile tile = row_tile(args.w, item % tiles);
      const std::byte* const next = item + 1 < end ? row_tile(args.w, (item + 1) % tiles).data : nullptr;
      const int64_t row_begin = item / tiles * part_rows;
      const int64_t row_end = std::min<int64_t>(row_begin + part_rows, args.rows);
      if (row_begin < row_end)
        matmul_tile(args, tile, next, row_begin, row_end, ctx.tuning, scratch.worker<float>(worker));
    }
  });
}
