// SPDX-License-Identifier: Apache-2.0
// Products of rows with rows. No include guard: see target.h.
//
// The number for (row, output) is one lane accumulator over the input in ascending steps
// of kLanes, then reduce4's fixed order; how many rows and outputs share a register tile,
// and how many inputs are multiplied at a time, changes which numbers are computed
// together, never one of them (batch invariance).
//
// Few rows meet the weights as they stream from memory. For more, weights are decoded to
// f32 once and multiplied one lane at a time.

struct ProductIn {
  const float* x = nullptr;  // the first row
  int64_t stride = 0;
  int64_t cols = 0;
  // Few rows: bytes from one weight row to the next if those that come next are to be
  // asked for, else 0. Several rows of weights read side by side are too many streams for
  // some prefetchers, which bring most of one row after the other (TileTuning).
  int64_t ask_stride = 0;
};

// Lane sums [kTokens][kOutputs] += kOutputs weight rows times the kTokens activation
// rows from x on.
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
    for (int o = 0; o < kOutputs; ++o) w[o] = row_at<Rows>(weights[o], k);
    LORALEI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const F value = load_for<kOutputs>(x + t * x_stride + k);
      LORALEI_UNROLL
      for (int o = 0; o < kOutputs; ++o) sums[t * kOutputs + o] = fma(value, w[o], sums[t * kOutputs + o]);
    }
  }
  if (k == cols) return;
  const int rest = static_cast<int>(cols - k);
  F w[kOutputs];
  LORALEI_UNROLL
  for (int o = 0; o < kOutputs; ++o) w[o] = row_at_n<Rows>(weights[o], k, rest);
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
  constexpr int kCount = kTokens * kOutputs, kLast = kCount - 1;
  alignas(16) float values[(kCount + 3) / 4 * 4];  // the last one again where four do not divide them
  LORALEI_UNROLL
  for (int i = 0; i < kCount; i += 4)
    store4(values + i,
           reduce4(sums[i], sums[std::min(i + 1, kLast)], sums[std::min(i + 2, kLast)], sums[std::min(i + 3, kLast)]));
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

// All outputs for `kTokens` rows, kOutputs at a time.
template <class Rows, int kOutputs, int kTokens>
LORALEI_INLINE int product_outputs(const std::byte* const* weights, int outputs, const ProductIn& in, int64_t row,
                                   const ProductOut& out) {
  for (int o = 0; o < outputs; o += kOutputs) {
    product_block<Rows, kOutputs, kTokens>(weights + o, outputs - o, o, in, row, out);
  }
  return kTokens;
}

// One row of inputs, one row of weights after the other.
template <class Rows>
int product_in_order(const std::byte* const* weights, int outputs, const ProductIn& in, int64_t row,
                     const ProductOut& out) {
  alignas(64) float waiting[kRowTile * kLanes];
  for (int o = 0; o < outputs; ++o) {
    F sum[1] = {zero()};
    product_tile<Rows, 1, 1>(weights + o, in.x + row * in.stride, in, sum);
    store(waiting + o * kLanes, sum[0]);
  }
  write_lane_sums(waiting, outputs, row, out);
  return 1;
}

// The shape of the tile for what is left of the rows; returns the rows it did. With one
// or two rows the weights stream from memory, so more of them are in flight, unless the
// prefetchers do better with one: where a vector is so wide that memory is no faster than
// a single sum waiting for itself. 4 outputs by 6 rows fill the 32 registers of AVX-512,
// 2 by 6 the 16 of AVX2.
template <class Rows>
LORALEI_INLINE int product_step(const std::byte* const* weights, int outputs, const ProductIn& in, int64_t row,
                                int64_t rows, const ProductOut& out) {
  if constexpr (kManyRegisters) {
    if (rows == 1 && in.ask_stride != 0) return product_in_order<Rows>(weights, outputs, in, row, out);
    if (rows == 1) return product_outputs<Rows, 8, 1>(weights, outputs, in, row, out);
    if (rows == 2) return product_outputs<Rows, 8, 2>(weights, outputs, in, row, out);
    if (rows == 3) return product_outputs<Rows, 4, 3>(weights, outputs, in, row, out);
    if (rows == 4 || rows == 7 || rows == 8) return product_outputs<Rows, 4, 4>(weights, outputs, in, row, out);
    if (rows == 5) return product_outputs<Rows, 4, 5>(weights, outputs, in, row, out);
    return product_outputs<Rows, 4, 6>(weights, outputs, in, row, out);
  } else {
    if (rows == 1) return product_outputs<Rows, 8, 1>(weights, outputs, in, row, out);
    if (rows == 2) return product_outputs<Rows, 4, 2>(weights, outputs, in, row, out);
    if (rows == 3) return product_outputs<Rows, 2, 3>(weights, outputs, in, row, out);
    if (rows == 4 || rows == 7 || rows == 8) return product_outputs<Rows, 2, 4>(weights, outputs, in, row, out);
    if (rows == 5 || rows == 9 || rows == 10) return product_outputs<Rows, 2, 5>(weights, outputs, in, row, out);
    return product_outputs<Rows, 2, 6>(weights, outputs, in, row, out);
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
    case DType::kF8G:
      return product_rows<RowsF8G>(weights, weight_stride, outputs, in, row_begin, row_end, out);
    default:
      return product_rows<RowsF32>(weights, weight_stride, outputs, in, row_begin, row_end, out);
  }
}

// --- any number of rows ---

// From how many rows on it pays to put weights and inputs in the order of lanes. With
// AVX2 few rows take the weights of a tile several times from the second-level cache,
// where those in f32 are twice as large.
constexpr int64_t lane_rows_least(DType dtype) { return kManyRegisters ? 48 : dtype == DType::kF32 ? 10 : 17; }

void matmul_few_rows(OpContext& ctx, const MatmulArgs& args) {
  ++ctx.op_count;
  const int64_t stride = row_bytes(args.w.dtype, args.w.cols);
  const ProductIn in{args.x, args.x_stride, args.w.cols, ctx.tuning.ask_for_rows ? stride : 0};
  ctx.pool->parallel_for_runs(tile_count(args.w), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t index = begin; index < end; ++index) {
      const RowTile tile = row_tile(args.w, index);
      product_rows_of(args.w.dtype, tile.data, stride, tile.count, in, 0, args.rows, product_out(args, tile));
    }
  });
}

void matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  const bool streamed = !is_quantised(args.w.dtype) || args.w.dtype == DType::kF8G;
  if (streamed && args.rows < lane_rows_least(args.w.dtype)) return matmul_few_rows(ctx, args);
  if (is_quantised(args.w.dtype)) return matmul_lanes<QuantisedTile>(ctx, args);
  switch (args.w.dtype) {
    case DType::kF16:
      return matmul_lanes<PlainTile<RowsF16>>(ctx, args);
    case DType::kBF16:
      return matmul_lanes<PlainTile<RowsBF16>>(ctx, args);
    default:
      return matmul_lanes<PlainTile<RowsF32>>(ctx, args);
  }
}
