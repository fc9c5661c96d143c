// SPDX-License-Identifier: Apache-2.0
// Products of rows with rows. No include guard: see target.h.
//
// The number for (row, output) is one lane accumulator over the input in ascending steps of kLanes, then reduce4's
// fixed order; how many rows and outputs share a register tile changes which numbers are computed together, never one
// of them (batch invariance).

struct ProductOut {
  float* y = nullptr;  // the first output of the first row
  int64_t stride = 0;
  const float* bias = nullptr;  // from the first output on, or null
  bool accumulate = false;
};

// kOutputs weight rows times kTokens activation rows.
template <class Rows, int kOutputs, int kTokens>
LORALEI_INLINE void product_tile(const std::byte* const* weights, const float* x, int64_t x_stride, int64_t cols,
                                 F (&sums)[kTokens * kOutputs]) {
  LORALEI_UNROLL
  for (int i = 0; i < kTokens * kOutputs; ++i) sums[i] = zero();
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
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

// A tile and its results. `outputs` of the kOutputs rows are real; the rest repeat the last one and are not stored.
template <class Rows, int kOutputs, int kTokens>
void product_block(const std::byte* const* weights, int outputs, int first_output, const float* x, int64_t x_stride,
                   int64_t row, int64_t cols, const ProductOut& out) {
  static_assert(kOutputs * kTokens % 4 == 0);
  F sums[kTokens * kOutputs];
  product_tile<Rows, kOutputs, kTokens>(weights, x + row * x_stride, x_stride, cols, sums);
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

// Activation rows a register tile of four outputs holds: 4 by 6 fill the 32 registers of AVX-512, 4 by 3 the 16 of
// AVX2.
constexpr int kTokenTile = kManyRegisters ? 6 : 3;

// All outputs for `kTokens` rows, kOutputs at a time.
template <class Rows, int kOutputs, int kTokens>
LORALEI_INLINE void product_outputs(const std::byte* const* weights, int outputs, const float* x, int64_t x_stride,
                                    int64_t row, int64_t cols, const ProductOut& out) {
  for (int o = 0; o < outputs; o += kOutputs) {
    product_block<Rows, kOutputs, kTokens>(weights + o, outputs - o, o, x, x_stride, row, cols, out);
  }
}

// The shape of the tile for what is left of the rows: with one or two rows the weights stream from memory, so more of
// them are in flight. Returns the rows it did.
template <class Rows>
LORALEI_INLINE int product_step(const std::byte* const* weights, int outputs, const float* x, int64_t x_stride,
                                int64_t row, int64_t rows, int64_t cols, const ProductOut& out) {
  if (rows == 1) return product_outputs<Rows, 8, 1>(weights, outputs, x, x_stride, row, cols, out), 1;
  if constexpr (kTokenTile == 6) {
    if (rows == 2) return product_outputs<Rows, 8, 2>(weights, outputs, x, x_stride, row, cols, out), 2;
    if (rows == 3) return product_outputs<Rows, 4, 3>(weights, outputs, x, x_stride, row, cols, out), 3;
    if (rows == 4 || rows == 7 || rows == 8)
      return product_outputs<Rows, 4, 4>(weights, outputs, x, x_stride, row, cols, out), 4;
    if (rows == 5) return product_outputs<Rows, 4, 5>(weights, outputs, x, x_stride, row, cols, out), 5;
    return product_outputs<Rows, 4, 6>(weights, outputs, x, x_stride, row, cols, out), 6;
  } else {
    if (rows == 2 || rows == 4) return product_outputs<Rows, 4, 2>(weights, outputs, x, x_stride, row, cols, out), 2;
    return product_outputs<Rows, 4, 3>(weights, outputs, x, x_stride, row, cols, out), 3;
  }
}

template <class Rows>
void product_rows(const std::byte* weights, int64_t weight_stride, int outputs, const float* x, int64_t x_stride,
                  int64_t row_begin, int64_t row_end, int64_t cols, const ProductOut& out) {
  const std::byte* pointers[kRowTile];
  for (int o = 0; o < kRowTile; ++o) pointers[o] = weights + (o < outputs ? o : outputs - 1) * weight_stride;
  for (int64_t row = row_begin; row < row_end;) {
    row += product_step<Rows>(pointers, outputs, x, x_stride, row, row_end - row, cols, out);
  }
}

void product_rows_of(DType dtype, const std::byte* weights, int64_t weight_stride, int outputs, const float* x,
                     int64_t x_stride, int64_t row_begin, int64_t row_end, int64_t cols, const ProductOut& out) {
  switch (dtype) {
    case DType::kF16:
      return product_rows<RowsF16>(weights, weight_stride, outputs, x, x_stride, row_begin, row_end, cols, out);
    case DType::kBF16:
      return product_rows<RowsBF16>(weights, weight_stride, outputs, x, x_stride, row_begin, row_end, cols, out);
    default:
      return product_rows<RowsF32>(weights, weight_stride, outputs, x, x_stride, row_begin, row_end, cols, out);
  }
}

// From how many rows on it pays to decode f16 and bf16 weights once instead of in every register tile.
constexpr int64_t kDecodeRows = 2 * kTokenTile + 1;
// Up to how many rows x stays in the second-level cache beside four decoded weight rows in the first.
constexpr int64_t kFewRows = 32;

// One tile of at most kRowTile weight rows. Quantised rows are decoded to f32 first: a few at a time while they are
// used once or twice (they stay in the first-level cache), all of them where many rows share them.
void matmul_tile(const MatmulArgs& args, const std::byte* weights, int outputs, int64_t output, int64_t row_begin,
                 int64_t row_end, float* decoded) {
  const int64_t cols = args.w.cols;
  const int64_t weight_stride = row_bytes(args.w.dtype, cols);
  const int64_t rows = row_end - row_begin;
  ProductOut out{args.y + output, args.y_stride, args.bias != nullptr ? args.bias + output : nullptr, args.accumulate};
  if (args.w.dtype == DType::kF32 || (!is_quantised(args.w.dtype) && rows < kDecodeRows)) {
    product_rows_of(args.w.dtype, weights, weight_stride, outputs, args.x, args.x_stride, row_begin, row_end, cols,
                    out);
    return;
  }
  const int64_t decoded_stride = decoded_stride_bytes(cols) / 4;
  const int step = rows <= kFewRows ? 4 : (cols <= 4096 ? kRowTile : 8);
  for (int o = 0; o < outputs; o += step) {
    const int count = outputs - o < step ? outputs - o : step;
    for (int i = 0; i < count; ++i)
      decode_to_f32(args.w.dtype, weights + (o + i) * weight_stride, decoded + i * decoded_stride, cols);
    ProductOut part = out;
    part.y += o;
    if (part.bias != nullptr) part.bias += o;
    product_rows<RowsF32>(reinterpret_cast<const std::byte*>(decoded), decoded_stride * 4, count, args.x, args.x_stride,
                          row_begin, row_end, cols, part);
  }
}

void matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  ++ctx.op_count;
  const Scratch scratch(ctx, 0, matmul_worker_bytes(args.w.cols));
  const int64_t tiles = tile_count(args.w);
  // Few outputs and many rows: split the rows too. The blocks are whole register tiles, so that none is cut needlessly.
  const int64_t splits = row_splits(tiles, args.rows, ctx.pool->threads());
  const int64_t block = (args.rows + splits - 1) / splits + kTokenTile - 1;
  const int64_t block_rows = block - block % kTokenTile;
  ctx.pool->parallel_for(tiles * splits, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t item = begin; item < end; ++item) {
      const RowTile tile = row_tile(args.w, item / splits);
      const int64_t row_begin = item % splits * block_rows;
      const int64_t row_end = row_begin + block_rows < args.rows ? row_begin + block_rows : args.rows;
      if (row_begin < row_end)
        matmul_tile(args, tile.data, tile.count, tile.output, row_begin, row_end, scratch.worker<float>(worker));
    }
  });
}
