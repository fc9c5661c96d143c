// SPDX-License-Identifier: Apache-2.0
// Dot products with wide blocks by AVX-512 VNNI: the same for all unsigned words. No
// include guard: see target.h.

struct AnyWeights {};
template <class Format>
using WideWeights = AnyWeights;

// dots[i][v] = zero-point start of row i + words [kFirst, kFirst + kCount) of tile v's
// block times the row.
template <class, int kFirst, int kCount, int kRows, int kTiles>
LORALEI_INLINE void wide_dots(const std::byte* wide, const std::byte* q, const std::byte* start,
                              I (&dots)[kRows][kTiles]) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kTiles; ++v) dots[i][v] = start != nullptr ? broadcast_word(start + 4 * i) : iset1(0);
  }
  LORALEI_UNROLL
  for (int j = kFirst; j < kFirst + kCount; ++j) {
    I w[kTiles];
    LORALEI_UNROLL
    for (int v = 0; v < kTiles; ++v) w[v] = load_bits(wide + v * kWideTileBytes + 64 * j);
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const I inputs = broadcast_word(q + i * kActivationBlock + 4 * j);
      LORALEI_UNROLL
      for (int v = 0; v < kTiles; ++v) dots[i][v] = _mm512_dpbusd_epi32(dots[i][v], w[v], inputs);
    }
  }
}
