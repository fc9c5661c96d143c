// SPDX-License-Identifier: Apache-2.0
// Where the results of a product with plain rows go. No include guard: see target.h.

struct ProductOut {
  float* y = nullptr;  // the first output of the first row
  int64_t stride = 0;
  const float* bias = nullptr;  // from the first output on, or null
  bool accumulate = false;
};

// Where the outputs of a row tile go.
LORALEI_INLINE ProductOut product_out(const MatmulArgs& args, const RowTile& tile) {
  return {args.y + tile.output, args.y_stride, args.bias != nullptr ? args.bias + tile.output : nullptr,
          args.accumulate};
}

// A row's results for the outputs of a row tile, `values` [kRowTile]; anything behind
// the last output.
LORALEI_INLINE void write_outputs(const float* values, int outputs, int64_t row, const ProductOut& out) {
  float* const y = out.y + row * out.stride;
  for (int o = 0; o < outputs; o += kLanes) {
    const int lanes = outputs - o < kLanes ? outputs - o : kLanes;
    F value = load(values + o);
    if (out.bias != nullptr) value = add(value, load_n(out.bias + o, lanes));
    if (out.accumulate) value = add(load_n(y + o, lanes), value);
    store_n(y + o, value, lanes);
  }
}

// The same from their lane sums [kRowTile][kLanes].
LORALEI_INLINE void write_lane_sums(const float* sums, int outputs, int64_t row, const ProductOut& out) {
  alignas(64) float values[kRowTile];
  LORALEI_UNROLL
  for (int o = 0; o < kRowTile; o += 4)
    store4(values + o, reduce4(load(sums + o * kLanes), load(sums + (o + 1) * kLanes), load(sums + (o + 2) * kLanes),
                               load(sums + (o + 3) * kLanes)));
  write_outputs(values, outputs, row, out);
}
