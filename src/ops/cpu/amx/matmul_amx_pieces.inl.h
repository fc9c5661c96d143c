// SPDX-License-Identifier: Apache-2.0
// Weights and inputs of matmul_amx.cc as the bf16 numbers they are the sum of, laid out
// for the matrix unit. No include guard: see target.h.

constexpr int kTokenTile = 16;  // rows of x in one product
constexpr int kStepInputs = kMatrixStepInputs;
constexpr int kPairs = kStepInputs / 2;
constexpr int kSums = kRowTile * kTokenTile;  // results of one product: [outputs][kTokenTile]
constexpr int kStepBytes = kStepInputs * 2;   // of one row of weights
constexpr int kPieceBytes = kRowTile * kStepBytes;
constexpr __mmask32 kWholeStep = 0xFFFFFFFF;
constexpr int kSecondLevel = 2;  // where __builtin_prefetch brings a line to

// --- weights: what a format's rows are to the unit ---

// kPieces bf16 numbers a weight, [piece][kRowTile][kStepInputs] for a step; lay()
// writes one row's, zeros behind `lanes`. Two numbers that are kPairDistance apart are
// a pair to the unit.
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
