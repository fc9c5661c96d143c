// SPDX-License-Identifier: Apache-2.0
// The matrix unit in matmul_amx.cc: its registers, where weights come from (streamed,
// laid out a step ahead, laid out before), and one call's products. No include
// guard: see target.h.

// Results [outputs, width] in 0..3 (two of each tile of outputs), weights [outputs, 32]
// in 4 and 5, inputs [kPairs, width, 2] in 6 and 7.
void configure(int outputs, int width) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    const bool weights = i == 4 || i == 5;
    config.bytes_a_row[i] = static_cast<uint16_t>(weights ? kStepBytes : 4 * width);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? outputs : kPairs);
  }
  load_config(config);
}

// The weights of tiles [index, end) from some input on, asked for while others are
// multiplied: some lines with each step.
class WeightsAhead {
 public:
  WeightsAhead() = default;
  WeightsAhead(const WeightView& w, int64_t index, int64_t end, int64_t step, int64_t lines_a_step)
      : w_(&w), index_(index), end_(end), from_(step * kStepBytes), each_(lines_a_step) {
    const int64_t stride = row_bytes(w.dtype, w.cols);
    bytes_ = std::min(kMatrixBlockSteps * kStepBytes, stride - from_);
    stride_ = stride;
    if (index_ < end_) tile_ = row_tile(w, index_);
  }

  LORALEI_INLINE void fetch() {
    for (int64_t i = 0; i < each_ && index_ < end_; ++i) {
      __builtin_prefetch(tile_.data + row_ * stride_ + from_ + at_, 0, kSecondLevel);
      at_ += 64;
      if (at_ >= bytes_) next_row();
    }
  }

 private:
  void next_row() {
    at_ = 0;
    if (++row_ < tile_.count) return;
    row_ = 0;
    if (++index_ < end_) tile_ = row_tile(*w_, index_);
  }

  const WeightView* w_ = nullptr;
  int64_t index_ = 0, end_ = 0;
  int64_t from_ = 0, bytes_ = 0, stride_ = 0;  // of each row
  int64_t each_ = 0;
  RowTile tile_;
  int row_ = 0;
  int64_t at_ = 0;
};

constexpr int64_t kNearSteps = 3;  // streamed weights are asked for so far ahead

// What one call multiplies: up to two tiles of outputs with up to two tiles of tokens.
struct Operands {
  const std::byte* weights[2] = {};
  int weight_rows = 0;        // of the first tile of outputs
  int64_t weight_stride = 0;  // streamed weights: from row to row
  std::byte* laid = nullptr;  // streamed weights of more than one piece: place for those of two steps
  const std::byte* inputs = nullptr;
  int64_t input_tile_bytes = 0;  // from a tile of tokens to the next
  int64_t input_stride = 0;      // from pair to pair
  int64_t steps = 0;
  bool from_zero = false;
  int64_t next = 0;     // streamed weights: where those lie, from these, that follow the last step
  float* sums[2] = {};  // of each tile of outputs: kSums for each of the token tiles

  // Streamed weights: the bytes from a row's first to what is to be asked for at a step.
  LORALEI_INLINE int64_t near(int64_t step) const {
    const int64_t near = step + kNearSteps;
    return near < steps ? near * kStepBytes : (near - steps) * kStepBytes + next;
  }
};

// Weights of one piece, read where they lie in memory and asked for kNearSteps ahead.
template <int kOutputTiles>
class StreamedWeights {
 public:
  explicit LORALEI_INLINE StreamedWeights(const Operands& args) : args_(args) {}

  LORALEI_INLINE void before_step(int64_t step) {
    const int64_t at = args_.near(step);
    LORALEI_UNROLL
    for (int row = 0; row < kRowTile; ++row) {
      LORALEI_UNROLL
      for (int o = 0; o < kOutputTiles; ++o) __builtin_prefetch(args_.weights[o] + at + row * args_.weight_stride);
    }
  }
  LORALEI_INLINE void after_products(int64_t, int) {}
  LORALEI_INLINE const std::byte* at(int64_t step, int output_tile, int) const {
    return args_.weights[output_tile] + step * kStepBytes;
  }
  LORALEI_INLINE int64_t stride() const { return args_.weight_stride; }

 private:
  const Operands& args_;
};

// Weights of several pieces, laid out a step before they are multiplied, some rows
// between two products: a product of streamed weights mostly waits for the one before it.
template <class Weights, int kOutputTiles>
class LaidWeights {
 public:
  explicit LORALEI_INLINE LaidWeights(const Operands& args) : args_(args) {
    for (int row = 0; row < kRows; ++row) lay(0, row);
  }

  LORALEI_INLINE void before_step(int64_t) {}
  LORALEI_INLINE void after_products(int64_t step, int turn) {
    constexpr int kTurns = input_pieces<Weights>(0) + input_pieces<Weights>(1);
    constexpr int kRowsATurn = (kRows + kTurns - 1) / kTurns;
    if (step + 1 == args_.steps) return;
    LORALEI_UNROLL
    for (int i = 0; i < kRowsATurn; ++i) {
      if (turn * kRowsATurn + i < kRows) lay(step + 1, turn * kRowsATurn + i);
    }
  }
  LORALEI_INLINE const std::byte* at(int64_t step, int output_tile, int piece) const {
    return place(step) + (output_tile * Weights::kPieces + piece) * kPieceBytes;
  }
  LORALEI_INLINE int64_t stride() const { return kStepBytes; }

 private:
  static constexpr int kRows = kOutputTiles * kRowTile;
  static_assert(2 * kOutputTiles * Weights::kPieces * kPieceBytes <= matrix_gathered_bytes(1, Weights::kPieces));

  LORALEI_INLINE std::byte* place(int64_t step) const {
    return args_.laid + step % 2 * (kOutputTiles * Weights::kPieces * kPieceBytes);
  }
  LORALEI_INLINE void lay(int64_t step, int index) const {
    const int output_tile = index / kRowTile, row = index % kRowTile;
    if (row >= args_.weight_rows) return;
    const std::byte* const weights = args_.weights[output_tile] + row * args_.weight_stride;
    __builtin_prefetch(weights + args_.near(step), 0, kSecondLevel);
    Weights::lay(kWholeStep, weights + step * kStepBytes,
                 place(step) + output_tile * Weights::kPieces * kPieceBytes + row * kStepBytes);
  }

  const Operands& args_;
};

// Weights that were laid out before: [step][piece][kRowTile][kStepInputs]. Others are
// asked for with each step.
template <class Weights>
class GatheredWeights {
 public:
  LORALEI_INLINE GatheredWeights(const Operands& args, WeightsAhead& ahead) : args_(args), ahead_(ahead) {}
  LORALEI_INLINE void before_step(int64_t) { ahead_.fetch(); }
  LORALEI_INLINE void after_products(int64_t, int) {}
  LORALEI_INLINE const std::byte* at(int64_t step, int output_tile, int piece) const {
    return args_.weights[output_tile] + step * Weights::kPieces * kPieceBytes + piece * kPieceBytes;
  }
  LORALEI_INLINE int64_t stride() const { return kStepBytes; }

 private:
  const Operands& args_;
  WeightsAhead& ahead_;
};

// The registers' numbers are part of the instructions, and the compilers' own names for
// them take nothing but literals. A step's products with one piece of the weights.
template <class Weights, int kPiece, int kOutputTiles, int kTokenTiles, class Source>
LORALEI_INLINE void multiply_piece(const Operands& args, Source& weights, const std::byte* inputs, int64_t step) {
  constexpr bool kOutputs2 = kOutputTiles == 2, kTokens2 = kTokenTiles == 2;
  _tile_loadd(4, weights.at(step, 0, kPiece), weights.stride());
  if constexpr (kOutputs2) _tile_loadd(5, weights.at(step, 1, kPiece), weights.stride());
  constexpr int kInputPieces = input_pieces<Weights>(kPiece);
  LORALEI_UNROLL
  for (int piece = 0; piece < kInputPieces; ++piece) {
    const std::byte* const at = inputs + piece * kPairs * args.input_stride;
    _tile_loadd(6, at, args.input_stride);
    if constexpr (kTokens2) _tile_loadd(7, at + args.input_tile_bytes, args.input_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTokens2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kOutputs2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kOutputs2 && kTokens2) _tile_dpbf16ps(3, 5, 7);
    weights.after_products(step, kPiece * kMatrixPieces + piece);
  }
}

// sums += products.
template <class Weights, int kOutputTiles, int kTokenTiles, class Source>
void multiply(const Operands& args, Source weights) {
  constexpr bool kOutputs2 = kOutputTiles == 2, kTokens2 = kTokenTiles == 2;
  constexpr int kSumsStride = kTokenTile * 4;
  asm volatile("" : : : "memory");  // what the tile loads read is in memory, although the compiler sees no reader
  if (args.from_zero) {
    _tile_zero(0);
    if constexpr (kTokens2) _tile_zero(1);
    if constexpr (kOutputs2) _tile_zero(2);
    if constexpr (kOutputs2 && kTokens2) _tile_zero(3);
  } else {
    _tile_loadd(0, args.sums[0], kSumsStride);
    if constexpr (kTokens2) _tile_loadd(1, args.sums[0] + kSums, kSumsStride);
    if constexpr (kOutputs2) _tile_loadd(2, args.sums[1], kSumsStride);
    if constexpr (kOutputs2 && kTokens2) _tile_loadd(3, args.sums[1] + kSums, kSumsStride);
  }
  const std::byte* inputs = args.inputs;
  for (int64_t step = 0; step < args.steps; ++step, inputs += kMatrixPieces * kPairs * args.input_stride) {
    weights.before_step(step);
    multiply_piece<Weights, 0, kOutputTiles, kTokenTiles>(args, weights, inputs, step);
    if constexpr (Weights::kPieces == 2)
      multiply_piece<Weights, 1, kOutputTiles, kTokenTiles>(args, weights, inputs, step);
    asm volatile("" : : : "memory");  // nor does it see that a tile load reads what `weights` wrote
  }
  _tile_stored(0, args.sums[0], kSumsStride);
  if constexpr (kTokens2) _tile_stored(1, args.sums[0] + kSums, kSumsStride);
  if constexpr (kOutputs2) _tile_stored(2, args.sums[1], kSumsStride);
  if constexpr (kOutputs2 && kTokens2) _tile_stored(3, args.sums[1] + kSums, kSumsStride);
  asm volatile("" : : : "memory");  // the sums were stored behind the compiler's back
}
