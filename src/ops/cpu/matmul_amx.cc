// SPDX-License-Identifier: Apache-2.0
// Products with bf16 and f16 weights on the matrix unit (AMX-BF16), for any number of rows.
//
// An f32 input is exactly the sum of three bf16 numbers: x1 = bf16(x), x2 = bf16(x - x1), x3 = x - x1 - x2. A bf16
// weight is one piece, an f16 weight exactly the sum of two: its upper eight bits and the other three. The unit
// multiplies a piece of sixteen rows of weights with one of 32 inputs of up to sixteen rows of x: products of bf16
// numbers are exact in f32, it adds those of the first and those of the second numbers of sixteen pairs in ascending
// order, then the two to the result (Intel's TDPBF16PS). Blocks of 32 inputs follow in ascending order, in each the
// pieces of the weights from the largest on, with each the inputs' likewise; the smallest two, of f16 weights and
// inputs, do not meet (less than 2^-24 of the product). So the number for (row, output) is one chain, however many rows
// and outputs are multiplied together (batch invariance), as accurate as f32 FMA. What is below 2^-126 counts as zero
// there, pieces included; an infinite input, or an infinite f16 weight, makes NaNs.
#include "ops/cpu/matmul_amx.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12's own AVX-512 header fills "undefined" results from an uninitialised variable and then warns about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>

#include "ops/cpu/scratch.h"
#include "ops/cpu/target.h"
#include "ops/tiles.h"

LORALEI_TARGET_BEGIN_AMX_BF16
namespace loralei {
namespace {
namespace matmul_amx {

// clang-format off
#include "ops/cpu/simd_avx512.inl.h"
#include "ops/cpu/tile_config.inl.h"
// clang-format on

constexpr int kTokenTile = 16;  // rows of x in one product
constexpr int kStepInputs = kMatrixStepInputs;
constexpr int kPairs = kStepInputs / 2;
constexpr int kSums = kRowTile * kTokenTile;  // results of one product: [outputs][kTokenTile]
constexpr int kStepBytes = kStepInputs * 2;   // of one row of weights
constexpr int kPieceBytes = kRowTile * kStepBytes;
constexpr __mmask32 kWholeStep = 0xFFFFFFFF;
constexpr int kSecondLevel = 2;  // where __builtin_prefetch brings a line to

// --- weights: what a format's rows are to the unit ---
// kPieces bf16 numbers a weight, [piece][kRowTile][kStepInputs] for a step; lay() writes one row's, zeros behind
// `lanes`. Two numbers that are kPairDistance apart are a pair to the unit.
struct WeightsBF16 {
  static constexpr int kPieces = 1;
  static constexpr int kPairDistance = 1;
  static LORALEI_INLINE void lay(__mmask32 lanes, const std::byte* from, std::byte* to) {
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(lanes, from));
  }
};

struct WeightsF16 {
  static constexpr int kPieces = 2;
  static constexpr int kPairDistance = 16;
  static LORALEI_INLINE void lay(__mmask32 lanes, const std::byte* from, std::byte* to) {
    const I halves = _mm512_maskz_loadu_epi16(lanes, from);
    const F first = from_f16(_mm512_castsi512_si256(halves));
    const F second = from_f16(_mm512_extracti64x4_epi64(halves, 1));
    _mm512_storeu_si512(to, pair(first, second));
    _mm512_storeu_si512(to + kPieceBytes, pair(sub(first, upper(first)), sub(second, upper(second))));
  }

 private:
  static LORALEI_INLINE I upper_mask() { return _mm512_set1_epi32(static_cast<int>(0xFFFF0000)); }
  static LORALEI_INLINE F upper(F x) { return _mm512_castsi512_ps(_mm512_and_si512(bits_of(x), upper_mask())); }
  // The upper halves of both, in turn.
  static LORALEI_INLINE I pair(F first, F second) {
    constexpr int kSecondWhereMask = 0xCA;
    return _mm512_ternarylogic_epi32(upper_mask(), bits_of(second), _mm512_srli_epi32(bits_of(first), 16),
                                     kSecondWhereMask);
  }
};

// How many pieces of the inputs meet a piece of the weights.
template <class Weights>
constexpr int input_pieces(int weight_piece) {
  return weight_piece < Weights::kPieces ? kMatrixPieces - weight_piece : 0;
}

// --- inputs: [token tile][step][piece][kPairs][width][2] bf16 ---
struct Inputs {
  std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t steps = 0;  // of kStepInputs
  int64_t tiles = 0;
  int width = 0;  // rows of x in a tile; those behind the last one are zero

  int64_t row_stride() const { return 4 * int64_t{width}; }
  int64_t step_bytes() const { return kMatrixPieces * kPairs * row_stride(); }
  int64_t tile_bytes() const { return steps * step_bytes(); }
  std::byte* at(int64_t tile, int64_t step) const { return data + tile * tile_bytes() + step * step_bytes(); }
};

// Words [row][column] of 32 bits to [column][row].
LORALEI_INLINE void transpose16(I (&m)[16]) {
  I t[16];
  LORALEI_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(m[i], m[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(m[i], m[i + 1]);
  }
  LORALEI_UNROLL
  for (int i = 0; i < 16; i += 4) {
    m[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    m[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    m[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    m[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  LORALEI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const I even01 = _mm512_shuffle_i32x4(m[i], m[4 + i], 0x88), odd01 = _mm512_shuffle_i32x4(m[i], m[4 + i], 0xDD);
    const I even23 = _mm512_shuffle_i32x4(m[8 + i], m[12 + i], 0x88);
    const I odd23 = _mm512_shuffle_i32x4(m[8 + i], m[12 + i], 0xDD);
    t[i] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
    t[12 + i] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
  }
  LORALEI_UNROLL
  for (int i = 0; i < 16; ++i) m[i] = t[i];
}

// 32 numbers in ascending order to sixteen pairs.
template <class Weights>
LORALEI_INLINE I in_pairs(I words) {
  if constexpr (Weights::kPairDistance == 1) return words;
  const I low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
  const I high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// The pieces of 32 inputs, each as sixteen pairs.
template <class Weights>
LORALEI_INLINE void cut(F low, F high, I (&pieces)[kMatrixPieces]) {
  LORALEI_UNROLL
  for (int p = 0; p < kMatrixPieces; ++p) {
    const I words = reinterpret_cast<I>(_mm512_cvtne2ps_pbh(high, low));
    pieces[p] = in_pairs<Weights>(words);
    low = sub(low, from_bf16(_mm512_castsi512_si256(words)));
    high = sub(high, from_bf16(_mm512_extracti64x4_epi64(words, 1)));
  }
}

// `count` inputs (at most kStepInputs) of `tokens` rows.
template <class Weights>
void pack_step(const float* x, int64_t x_stride, int tokens, int count, const Inputs& inputs, std::byte* to) {
  I pieces[kMatrixPieces][kTokenTile];
  const int low_lanes = std::min(count, kLanes), high_lanes = count - low_lanes;
  for (int t = 0; t < tokens; ++t) {
    const float* const row = x + t * x_stride;
    I cuts[kMatrixPieces];
    cut<Weights>(load_n(row, low_lanes), load_n(row + kLanes, high_lanes), cuts);
    for (int p = 0; p < kMatrixPieces; ++p) pieces[p][t] = cuts[p];
  }
  for (int p = 0; p < kMatrixPieces; ++p, to += kPairs * inputs.row_stride()) {
    if (inputs.width == 1) {
      _mm512_storeu_si512(to, pieces[p][0]);
      continue;
    }
    for (int t = tokens; t < kTokenTile; ++t) pieces[p][t] = _mm512_setzero_si512();
    transpose16(pieces[p]);
    LORALEI_UNROLL
    for (int pair = 0; pair < kPairs; ++pair)
      _mm512_mask_storeu_epi32(to + pair * inputs.row_stride(), first_lanes(inputs.width), pieces[p][pair]);
  }
}

template <class Weights>
void pack(OpContext& ctx, const MatmulArgs& args, const float* x, const Inputs& inputs) {
  constexpr int64_t kGrain = 64;  // few rows are not worth waking anybody
  ctx.pool->parallel_for(inputs.tiles * inputs.steps, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t tile = item / inputs.steps, step = item % inputs.steps;
      const int64_t tokens = std::min<int64_t>(inputs.rows - tile * kTokenTile, inputs.width);
      const int64_t count = std::min<int64_t>(args.w.cols - step * kStepInputs, kStepInputs);
      pack_step<Weights>(x + tile * kTokenTile * args.x_stride + step * kStepInputs, args.x_stride,
                         static_cast<int>(tokens), static_cast<int>(count), inputs, inputs.at(tile, step));
    }
  });
}

// --- the matrix unit ---
// Results [outputs, width] in 0..3 (two of each tile of outputs), weights [outputs, 32] in 4 and 5, inputs [kPairs,
// width, 2] in 6 and 7.
void configure(int outputs, int width) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    const bool weights = i == 4 || i == 5;
    config.bytes_a_row[i] = static_cast<uint16_t>(weights ? kStepBytes : 4 * width);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? outputs : kPairs);
  }
  load_config(config);
}

// The weights of tiles [index, end) from some input on, asked for while others are multiplied: some lines with each
// step.
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

// Weights of several pieces, laid out a step before they are multiplied, some rows between two products: a product of
// streamed weights mostly waits for the one before it.
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

// Weights that were laid out before: [step][piece][kRowTile][kStepInputs]. Others are asked for with each step.
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

// The registers' numbers are part of the instructions, and the compilers' own names for them take nothing but literals.
// A step's products with one piece of the weights.
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

// --- a thread's share of the outputs ---
// One or two tiles of outputs that are multiplied together: two only where both are whole.
struct OutputTiles {
  RowTile tile[2];
  int count = 0;
};

template <class Weights>
class Share {
 public:
  Share(const MatmulArgs& args, const Inputs& inputs, int64_t first_row, std::byte* memory)
      : args_(args),
        inputs_(inputs),
        first_row_(first_row),
        weight_stride_(row_bytes(args.w.dtype, args.w.cols)),
        gathered_(memory),
        sums_(reinterpret_cast<float*>(memory + matrix_gathered_bytes(inputs.rows, Weights::kPieces))) {}
  ~Share() { _tile_release(); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // Tiles of outputs [begin, end).
  void run(int64_t begin, int64_t end) {
    if (inputs_.tiles <= kMatrixStreamTiles) return stream(begin, end);
    for (int64_t first = begin; first < end; first += kMatrixTilesTogether)
      block(first, std::min(first + kMatrixTilesTogether, end), end);
  }

 private:
  OutputTiles tiles_at(int64_t index, int64_t end) const {
    OutputTiles tiles;
    tiles.tile[tiles.count++] = row_tile(args_.w, index);
    if (index + 1 < end && tiles.tile[0].count == kRowTile) {
      const RowTile second = row_tile(args_.w, index + 1);
      if (second.count == kRowTile) tiles.tile[tiles.count++] = second;
    }
    return tiles;
  }

  void prepare(const OutputTiles& tiles) {
    if (tiles.tile[0].count == configured_) return;
    configured_ = tiles.tile[0].count;
    configure(configured_, inputs_.width);
  }

  float* sums_of(int64_t tile) const { return sums_ + tile * inputs_.tiles * kSums; }

  // Few rows: the weights meet them as they come from memory.
  void stream(int64_t begin, int64_t end) {
    const int64_t whole = args_.w.cols / kStepInputs;
    WeightsAhead none;
    for (int64_t index = begin; index < end;) {
      const OutputTiles tiles = tiles_at(index, end);
      prepare(tiles);
      Operands operands;
      for (int o = 0; o < tiles.count; ++o) operands.weights[o] = tiles.tile[o].data;
      operands.weight_rows = tiles.tile[0].count;
      operands.weight_stride = weight_stride_;
      operands.laid = gathered_;
      operands.steps = whole;
      operands.next = tiles.count * kRowTile * weight_stride_;
      if (whole > 0) multiply_all<true>(operands, tiles.count, 0, 0, none);
      if (whole < inputs_.steps) {
        for (int o = 0; o < tiles.count; ++o) operands.weights[o] = gather(tiles.tile[o], o, whole, 1);
        operands.steps = 1;
        multiply_all<false>(operands, tiles.count, 0, whole, none);
      }
      for (int o = 0; o < tiles.count; ++o) write(tiles.tile[o], o);
      index += tiles.count;
    }
  }

  // Many rows: some steps of the weights of several tiles are laid one behind the other and stay in the second-level
  // cache. Those of two tiles of tokens stay in the first-level one while they meet all of them.
  void block(int64_t begin, int64_t end, int64_t share_end) {
    const int64_t token_pairs = (inputs_.tiles + 1) / 2;
    const int64_t lines = (2 * kRowTile + token_pairs - 1) / token_pairs;
    for (int64_t step = 0; step < inputs_.steps; step += kMatrixBlockSteps) {
      const int64_t count = std::min(kMatrixBlockSteps, inputs_.steps - step);
      for (int64_t index = begin; index < end; ++index) gather(row_tile(args_.w, index), index - begin, step, count);
      const bool last = step + count == inputs_.steps;
      WeightsAhead ahead(args_.w, last ? end : begin, last ? std::min(end + kMatrixTilesTogether, share_end) : end,
                         last ? 0 : step + count, lines);
      for (int64_t tokens = 0; tokens < inputs_.tiles; tokens += 2)
        multiply_gathered(begin, end, tokens, step, count, ahead);
    }
    for (int64_t index = begin; index < end; ++index) write(row_tile(args_.w, index), index - begin);
  }

  void multiply_gathered(int64_t begin, int64_t end, int64_t tokens, int64_t step, int64_t count, WeightsAhead& ahead) {
    for (int64_t index = begin; index < end;) {
      const OutputTiles tiles = tiles_at(index, end);
      prepare(tiles);
      Operands operands;
      for (int o = 0; o < tiles.count; ++o) operands.weights[o] = gathered_of(index - begin + o);
      operands.steps = count;
      multiply_tokens<false>(operands, tiles.count, index - begin, tokens, step, ahead);
      index += tiles.count;
    }
  }

  std::byte* gathered_of(int64_t tile) const { return gathered_ + tile * matrix_gather_bytes(Weights::kPieces); }

  // Steps of a tile's weights as GatheredWeights reads them, with zeros behind the last input.
  const std::byte* gather(const RowTile& tile, int64_t slot, int64_t step, int64_t count) const {
    std::byte* const to = gathered_of(slot);
    const int64_t whole = std::min(step + count, int64_t{args_.w.cols} / kStepInputs);
    for (int64_t row = 0; row < tile.count; ++row) {
      const std::byte* from = tile.data + row * weight_stride_ + step * kStepBytes;
      std::byte* place = to + row * kStepBytes;
      for (int64_t at = step; at < whole; ++at, from += kStepBytes, place += Weights::kPieces * kPieceBytes)
        Weights::lay(kWholeStep, from, place);
      if (whole < step + count) Weights::lay((__mmask32{1} << args_.w.cols % kStepInputs) - 1, from, place);
    }
    return to;
  }

  template <bool kStream>
  void multiply_all(Operands& operands, int output_tiles, int64_t slot, int64_t step, WeightsAhead& ahead) {
    for (int64_t tokens = 0; tokens < inputs_.tiles; tokens += 2)
      multiply_tokens<kStream>(operands, output_tiles, slot, tokens, step, ahead);
  }

  // The tiles of outputs that are slots [slot, slot + output_tiles) of the sums, and the two tiles of tokens from
  // `tokens` on.
  template <bool kStream>
  void multiply_tokens(Operands& operands, int output_tiles, int64_t slot, int64_t tokens, int64_t step,
                       WeightsAhead& ahead) {
    operands.inputs = inputs_.at(tokens, step);
    operands.input_stride = inputs_.row_stride();
    operands.input_tile_bytes = inputs_.tile_bytes();
    operands.from_zero = step == 0;
    for (int o = 0; o < output_tiles; ++o) operands.sums[o] = sums_of(slot + o) + tokens * kSums;
    const bool two = tokens + 1 < inputs_.tiles;
    if (output_tiles == 2) {
      two ? multiply_shape<kStream, 2, 2>(operands, ahead) : multiply_shape<kStream, 2, 1>(operands, ahead);
    } else {
      two ? multiply_shape<kStream, 1, 2>(operands, ahead) : multiply_shape<kStream, 1, 1>(operands, ahead);
    }
  }

  template <bool kStream, int kOutputTiles, int kTokenTiles>
  static void multiply_shape(const Operands& operands, WeightsAhead& ahead) {
    if constexpr (kStream && Weights::kPieces == 1) {
      multiply<Weights, kOutputTiles, kTokenTiles>(operands, StreamedWeights<kOutputTiles>(operands));
    } else if constexpr (kStream) {
      multiply<Weights, kOutputTiles, kTokenTiles>(operands, LaidWeights<Weights, kOutputTiles>(operands));
    } else {
      multiply<Weights, kOutputTiles, kTokenTiles>(operands, GatheredWeights<Weights>(operands, ahead));
    }
  }

  void write(const RowTile& tile, int64_t index) const {
    const F bias = args_.bias != nullptr ? load_n(args_.bias + tile.output, tile.count) : zero();
    for (int64_t t = 0; t < inputs_.tiles; ++t) {
      const float* const sums = sums_of(index) + t * kSums;
      I results[kRowTile];
      for (int o = 0; o < kRowTile; ++o) results[o] = bits_of(load(sums + o * kTokenTile));
      transpose16(results);
      const int64_t first = t * kTokenTile;
      const int64_t rows = std::min<int64_t>(inputs_.rows - first, inputs_.width);
      for (int64_t row = 0; row < rows; ++row) {
        float* const y = args_.y + (first_row_ + first + row) * args_.y_stride + tile.output;
        F value = _mm512_castsi512_ps(results[row]);
        if (args_.bias != nullptr) value = add(value, bias);
        if (args_.accumulate) value = add(load_n(y, tile.count), value);
        store_n(y, value, tile.count);
      }
    }
  }

  const MatmulArgs& args_;
  const Inputs& inputs_;
  const int64_t first_row_;
  const int64_t weight_stride_;
  std::byte* const gathered_;
  float* const sums_;   // [slot][token tile][kSums]
  int configured_ = 0;  // outputs of a product
};

template <class Weights>
void matmul(OpContext& ctx, const MatmulArgs& args) {
  if (args.rows <= 0 || args.w.rows <= 0) return;
  ++ctx.op_count;
  const int64_t parts = (args.rows + kMatrixPartRows - 1) / kMatrixPartRows;
  const int64_t part_rows = ((args.rows + parts - 1) / parts + kTokenTile - 1) / kTokenTile * kTokenTile;
  const Scratch scratch(ctx, matrix_input_bytes(std::min<int64_t>(args.rows, part_rows), args.w.cols),
                        matrix_worker_bytes(std::min<int64_t>(args.rows, part_rows), Weights::kPieces));
  const int64_t tiles = tile_count(args.w);
  for (int64_t first = 0; first < args.rows; first += part_rows) {
    Inputs inputs{.data = scratch.shared<std::byte>()};
    inputs.rows = std::min<int64_t>(part_rows, args.rows - first);
    inputs.steps = (args.w.cols + kStepInputs - 1) / kStepInputs;
    inputs.tiles = (inputs.rows + kTokenTile - 1) / kTokenTile;
    inputs.width = static_cast<int>(std::min<int64_t>(inputs.rows, kTokenTile));
    pack<Weights>(ctx, args, args.x + first * args.x_stride, inputs);
    ctx.pool->parallel_for_runs((tiles + 1) / 2, 1, [&](int64_t begin, int64_t end, int worker) {
      Share<Weights> share(args, inputs, first, scratch.worker<std::byte>(worker));
      share.run(2 * begin, std::min(2 * end, tiles));
    });
  }
}

}  // namespace matmul_amx
}  // namespace
}  // namespace loralei
LORALEI_TARGET_END

namespace loralei {
void matmul_halves_amx(OpContext& ctx, const MatmulArgs& args) {
  args.w.dtype == DType::kBF16 ? matmul_amx::matmul<matmul_amx::WeightsBF16>(ctx, args)
                               : matmul_amx::matmul<matmul_amx::WeightsF16>(ctx, args);
}
}  // namespace loralei

#endif
