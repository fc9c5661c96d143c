// SPDX-License-Identifier: Apache-2.0
// The products inside one attention tile: queries with keys, weights with values. No
// include guard: see target.h.
//
// Both are register tiles without a sum across lanes. Keys lie [head_dim, kKvBlockTokens]
// in a block (args.h), so lanes are positions and a score is one chain over the head's
// dimensions in ascending order; values lie [kKvBlockTokens, head_dim], so lanes are
// dimensions and an output is one chain over the positions in ascending order. How many
// queries, blocks or vectors share a register tile changes which numbers are computed
// together, never one of them.

constexpr int kBlockVectors = kKvBlockTokens / kLanes;

LORALEI_INLINE void prefetch(const std::byte* p) { __builtin_prefetch(p, 0, 3); }
LORALEI_INLINE void prefetch_l2(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

// What the next tile will be decoded from: asked for a few lines at a time while this one
// is worked on, because blocks of the cache are too short and lie too far apart for the
// processors' own prefetchers.
class TileAhead {
 public:
  TileAhead() = default;
  explicit TileAhead(int64_t head_bytes) : head_bytes_(head_bytes) {}
  void add(const std::byte* head) { heads_[count_++] = head; }
  // `steps`: calls of fetch() that will come.
  void spread(int steps) { each_ = (count_ * lines_of_head() + steps - 1) / steps; }

  LORALEI_INLINE void fetch() {
    for (int64_t i = 0; i < each_ && head_ < count_; ++i) {
      prefetch_l2(heads_[head_] + 64 * line_);
      if (++line_ < lines_of_head()) continue;
      line_ = 0;
      ++head_;
    }
  }

 private:
  int64_t lines_of_head() const { return (head_bytes_ + 63) / 64; }

  const std::byte* heads_[2 * kTileBlocks] = {};  // slices of K and of V
  int64_t head_bytes_ = 0;
  int64_t each_ = 0;  // lines a call
  int count_ = 0, head_ = 0;
  int64_t line_ = 0;
};

// One tile of the cache, block by block; in the cache itself or decoded to f32. Blocks
// outside the item's positions are never addressed.
struct TileSource {
  DType key_dtype = DType::kF32, value_dtype = DType::kF32;
  int first_block = 0, end_block = 0;            // of the tile's kTileBlocks
  const std::byte* keys[kTileBlocks] = {};       // [head_dim, kKvBlockTokens] each
  const std::byte* values[kTileBlocks] = {};     // [kKvBlockTokens, value_bytes] each
  const std::byte* next_keys[kTileBlocks] = {};  // to be fetched ahead, or null
  const float* scales[2][kTileBlocks] = {};      // int8, fp8: [kKvBlockTokens] of K and of V
  int64_t value_bytes = 0;                       // from position to position
  TileAhead* ahead = nullptr;                    // where many queries share the tile
};

// sums[q][v] += factors[q * stride] * vector at(v). Of both, the fewer are held beside
// the sums: registers are just enough for that.
template <int kQueries, int kVectors, class At>
LORALEI_INLINE void add_outer_product(const float* factors, int64_t stride, const At& at,
                                      F (&sums)[kQueries][kVectors]) {
  if constexpr (kQueries <= kVectors) {
    F held[kQueries];
    LORALEI_UNROLL
    for (int q = 0; q < kQueries; ++q) held[q] = set1(factors[q * stride]);
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const F numbers = at(v);
      LORALEI_UNROLL
      for (int q = 0; q < kQueries; ++q) sums[q][v] = fma(held[q], numbers, sums[q][v]);
    }
  } else {
    F held[kVectors];
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) held[v] = at(v);
    LORALEI_UNROLL
    for (int q = 0; q < kQueries; ++q) {
      const F factor = set1(factors[q * stride]);
      LORALEI_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[q][v] = fma(factor, held[v], sums[q][v]);
    }
  }
}

// scores[q][block * kKvBlockTokens + lane] for blocks [block, block + kBlocks). kAhead:
// fetch the same blocks' values meanwhile.
template <class Rows, int kQueries, int kBlocks, bool kAhead>
LORALEI_INLINE void score_register_tile(const float* queries, int64_t query_stride, int32_t head_dim,
                                        const TileSource& tile, int block, float* scores) {
  constexpr int kVectors = kBlocks * kBlockVectors;
  constexpr int64_t kStepBytes = kKvBlockTokens * Rows::kBytes;
  constexpr int32_t kLineSteps = kStepBytes < 64 ? 64 / kStepBytes : 1;
  F sums[kQueries][kVectors];
  LORALEI_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[q][v] = zero();
  }
  for (int32_t d = 0; d < head_dim; ++d) {
    if (kAhead && d % kLineSteps == 0) {
      LORALEI_UNROLL
      for (int b = 0; b < kBlocks; ++b) prefetch(tile.values[block + b] + d * kStepBytes);
    }
    const auto keys = [&](int v) LORALEI_INLINE_LAMBDA {
      return Rows::at(tile.keys[block + v / kBlockVectors] + d * kStepBytes +
                      v % kBlockVectors * kLanes * Rows::kBytes);
    };
    add_outer_product<kQueries, kVectors>(queries + d, query_stride, keys, sums);
  }
  LORALEI_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v)
      store(scores + q * kTileTokens + block * kKvBlockTokens + v * kLanes, sums[q][v]);
  }
}

// With few registers: how many queries may meet four vectors. Three need all sixteen,
// so decoding has to do without one for a constant.
template <class Rows>
constexpr int queries_of_four_vectors() {
  return std::is_same_v<Rows, RowsBF16> || std::is_same_v<Rows, RowsF8> ? 2 : 3;
}

template <class Rows, int kQueries, bool kAhead>
void score_queries(const float* queries, int64_t query_stride, int32_t head_dim, const TileSource& tile,
                   float* scores) {
  int block = tile.first_block;
  if constexpr (kLanes == 16) {
    if constexpr (kQueries <= 6) {
      for (; block + 4 <= tile.end_block; block += 4)
        score_register_tile<Rows, kQueries, 4, kAhead>(queries, query_stride, head_dim, tile, block, scores);
    }
    for (; block + 2 <= tile.end_block; block += 2)
      score_register_tile<Rows, kQueries, 2, kAhead>(queries, query_stride, head_dim, tile, block, scores);
  }
  if constexpr (!kManyRegisters) {
    if constexpr (kQueries == 1) {
      for (; block + 4 <= tile.end_block; block += 4)
        score_register_tile<Rows, kQueries, 4, kAhead>(queries, query_stride, head_dim, tile, block, scores);
    }
    if constexpr (kQueries <= queries_of_four_vectors<Rows>()) {
      for (; block + 2 <= tile.end_block; block += 2)
        score_register_tile<Rows, kQueries, 2, kAhead>(queries, query_stride, head_dim, tile, block, scores);
    }
  }
  for (; block < tile.end_block; ++block)
    score_register_tile<Rows, kQueries, 1, kAhead>(queries, query_stride, head_dim, tile, block, scores);
}

// Eight queries that share a head are common in decoding, and together they decode a
// tile half as often.
constexpr bool kEightTogether = kLanes == 16;

// How many of `left` queries the next register tile takes: six by four vectors fill
// AVX-512's registers, six by two those of AVX2. Multiply-adds take four cycles and two
// begin in each, so that fewer than eight sums wait for themselves: where registers are
// few, one, two or three queries meet more vectors, and where they are many seven and
// eight are better cut in half.
LORALEI_INLINE int query_step(int left) {
  if (kEightTogether && left == 8) return 8;
  if (left == 4 || (kManyRegisters && (left == 7 || left == 8))) return 4;
  if (left >= 6) return 6;
  return left == 5 ? 3 : left;
}

// Register tiles that `count` queries take, about.
LORALEI_INLINE int query_steps(int count) { return (count + 5) / 6; }

// scores [count, kTileTokens] of all loaded blocks. kAhead: the first register tile
// fetches ahead, later ones find its work done.
template <class Rows, bool kAhead>
void score_all(const float* queries, int64_t query_stride, int32_t head_dim, const TileSource& tile, int count,
               float* scores) {
  const int step = query_step(count);
  if (tile.ahead != nullptr) tile.ahead->fetch();
  if constexpr (kEightTogether) {
    if (step == 8) score_queries<Rows, 8, kAhead>(queries, query_stride, head_dim, tile, scores);
  }
  if (step == 6) score_queries<Rows, 6, kAhead>(queries, query_stride, head_dim, tile, scores);
  if (step == 4) score_queries<Rows, 4, kAhead>(queries, query_stride, head_dim, tile, scores);
  if (step == 3) score_queries<Rows, 3, kAhead>(queries, query_stride, head_dim, tile, scores);
  if (step == 2) score_queries<Rows, 2, kAhead>(queries, query_stride, head_dim, tile, scores);
  if (step == 1) score_queries<Rows, 1, kAhead>(queries, query_stride, head_dim, tile, scores);
  if (step < count) {
    score_all<Rows, false>(queries + step * query_stride, query_stride, head_dim, tile, count - step,
                           scores + step * kTileTokens);
  }
}

void tile_scores(const float* queries, int64_t query_stride, int32_t head_dim, const TileSource& tile, int count,
                 float* scores) {
  switch (tile.key_dtype) {
    case DType::kF16:
      return score_all<RowsF16, true>(queries, query_stride, head_dim, tile, count, scores);
    case DType::kBF16:
      return score_all<RowsBF16, true>(queries, query_stride, head_dim, tile, count, scores);
    case DType::kI8:
      return score_all<RowsI8, true>(queries, query_stride, head_dim, tile, count, scores);
    case DType::kF8:
      return score_all<RowsF8, true>(queries, query_stride, head_dim, tile, count, scores);
    default:
      return score_all<RowsF32, false>(queries, query_stride, head_dim, tile, count, scores);
  }
}

// o[q][d ..] += sum over positions j in [begin, end) of weights[q][j] * values[j][d ..].
// kAhead: fetch the next tile's keys meanwhile.
template <class Rows, int kQueries, int kVectors, bool kAhead>
LORALEI_INLINE void value_register_tile(const float* weights, const TileSource& tile, int begin, int end, int32_t d,
                                        float* o, int64_t dim) {
  F sums[kQueries][kVectors];
  LORALEI_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[q][v] = load(o + q * dim + d + v * kLanes);
  }
  for (int j = begin; j < end;) {
    const int block = j / kKvBlockTokens;
    const int stop = std::min(end, (block + 1) * kKvBlockTokens);
    const std::byte* row = tile.values[block] + j % kKvBlockTokens * tile.value_bytes + d * Rows::kBytes;
    const std::byte* next = kAhead ? tile.next_keys[block] : nullptr;
    for (; j < stop; ++j, row += tile.value_bytes) {
      if (kAhead && next != nullptr) {
        const std::byte* line = next + j % kKvBlockTokens * tile.value_bytes;
        for (int64_t offset = 0; offset < tile.value_bytes; offset += 64) prefetch(line + offset);
      }
      const auto values = [&](int v) LORALEI_INLINE_LAMBDA { return Rows::at(row + v * kLanes * Rows::kBytes); };
      add_outer_product<kQueries, kVectors>(weights + j, kTileTokens, values, sums);
    }
  }
  LORALEI_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) store(o + q * dim + d + v * kLanes, sums[q][v]);
  }
}

// Output columns from d on, kVectors vectors at a time; answers where it stopped. Only
// the first d fetches ahead.
template <class Rows, int kQueries, int kVectors, bool kAhead>
LORALEI_INLINE int32_t value_columns(const float* weights, const TileSource& tile, int begin, int end, int32_t d,
                                     float* o, int64_t dim) {
  for (; d + kVectors * kLanes <= dim; d += kVectors * kLanes) {
    if (kAhead && d == 0) {
      value_register_tile<Rows, kQueries, kVectors, kAhead>(weights, tile, begin, end, d, o, dim);
    } else {
      value_register_tile<Rows, kQueries, kVectors, false>(weights, tile, begin, end, d, o, dim);
    }
  }
  return d;
}

// As many vectors at once as the registers hold; `dim` is a multiple of 16.
template <class Rows, int kQueries, bool kAhead>
void value_queries(const float* weights, const TileSource& tile, int begin, int end, float* o, int64_t dim) {
  constexpr bool kEight = kQueries <= (kManyRegisters ? 2 : 1),
                 kFour = kQueries <= (kManyRegisters ? 6 : queries_of_four_vectors<Rows>());
  int32_t d = 0;
  if constexpr (kEight) d = value_columns<Rows, kQueries, 8, kAhead>(weights, tile, begin, end, d, o, dim);
  if constexpr (kFour) d = value_columns<Rows, kQueries, 4, kAhead>(weights, tile, begin, end, d, o, dim);
  d = value_columns<Rows, kQueries, 2, kAhead>(weights, tile, begin, end, d, o, dim);
  value_columns<Rows, kQueries, 1, kAhead>(weights, tile, begin, end, d, o, dim);
}

// A part of a tile: positions [begin, end).
struct TilePart {
  int begin = 0, end = 0;
};

// Queries of one register tile do not all attend to the same positions: what they share
// is done together, what a query has before and after that alone.
template <class Rows, int kQueries, bool kAhead>
void value_parts(const float* weights, const TileSource& tile, const TilePart* parts, float* o, int64_t dim) {
  TilePart shared = parts[0];
  for (int q = 1; q < kQueries; ++q)
    shared = {std::max(shared.begin, parts[q].begin), std::min(shared.end, parts[q].end)};
  const auto alone = [&](int q, int begin, int end) {
    if (begin < end) value_queries<Rows, 1, false>(weights + q * kTileTokens, tile, begin, end, o + q * dim, dim);
  };
  if (shared.begin >= shared.end) {
    for (int q = 0; q < kQueries; ++q) alone(q, parts[q].begin, parts[q].end);
    return;
  }
  for (int q = 0; q < kQueries; ++q) alone(q, parts[q].begin, shared.begin);
  value_queries<Rows, kQueries, kAhead>(weights, tile, shared.begin, shared.end, o, dim);
  for (int q = 0; q < kQueries; ++q) alone(q, shared.end, parts[q].end);
}

// o [count, dim] += weights * values, each query over its own part of the tile. kAhead:
// the first register tile.
template <class Rows, bool kAhead>
void values_all(const float* weights, const TileSource& tile, const TilePart* parts, int count, float* o, int64_t dim) {
  const int step = query_step(count);
  if (tile.ahead != nullptr) tile.ahead->fetch();
  if constexpr (kEightTogether) {
    if (step == 8) value_parts<Rows, 8, kAhead>(weights, tile, parts, o, dim);
  }
  if (step == 6) value_parts<Rows, 6, kAhead>(weights, tile, parts, o, dim);
  if (step == 4) value_parts<Rows, 4, kAhead>(weights, tile, parts, o, dim);
  if (step == 3) value_parts<Rows, 3, kAhead>(weights, tile, parts, o, dim);
  if (step == 2) value_parts<Rows, 2, kAhead>(weights, tile, parts, o, dim);
  if (step == 1) value_parts<Rows, 1, kAhead>(weights, tile, parts, o, dim);
  if (step < count) {
    values_all<Rows, false>(weights + step * kTileTokens, tile, parts + step, count - step, o + step * dim, dim);
  }
}

void add_tile_values(const float* weights, const TileSource& tile, const TilePart* parts, int count, float* o,
                     int64_t dim) {
  switch (tile.value_dtype) {
    case DType::kF16:
      return values_all<RowsF16, true>(weights, tile, parts, count, o, dim);
    case DType::kBF16:
      return values_all<RowsBF16, true>(weights, tile, parts, count, o, dim);
    case DType::kI8:
      return values_all<RowsI8, true>(weights, tile, parts, count, o, dim);
    case DType::kF8:
      return values_all<RowsF8, true>(weights, tile, parts, count, o, dim);
    default:
      return values_all<RowsF32, false>(weights, tile, parts, count, o, dim);
  }
}

// 2^x for x <= 0, relative error below 2e-7; 0 below the smallest normal result; NaN
// stays NaN. x = n + r, |r| <= 1/2, Taylor polynomial of degree 7 of 2^r = e^(r ln 2).
LORALEI_INLINE F exp2_not_positive(F x) {
  const F low = set1(-126.0f);
  const F clamped = max(low, x);
  const F n = round_even(clamped);
  const F r = sub(clamped, n);  // exact
  F p = set1(1.52527338e-5f);
  p = fma(p, r, set1(1.54035304e-4f));
  p = fma(p, r, set1(1.33335581e-3f));
  p = fma(p, r, set1(9.61812911e-3f));
  p = fma(p, r, set1(5.55041087e-2f));
  p = fma(p, r, set1(2.40226507e-1f));
  p = fma(p, r, set1(6.93147181e-1f));
  p = fma(p, r, set1(1.0f));
  return zero_if_less(x, low, times_pow2(p, n));
}
