// SPDX-License-Identifier: Apache-2.0
// Dot products with wide blocks by multiply-add pairs, which depend on how large the
// weights are. No include guard: see target.h.

template <class Format>
using WideWeights = Format;

template <class Format>
struct WordsOfTiles {
  using Weights = Format;
  const std::byte* wide;
  LORALEI_INLINE I operator()(int v, int j) const { return load_bits(wide + v * kWideTileBytes + 64 * j); }
};
// dots[i][v] = zero-point start of row i + words [kFirst, kFirst + kCount) of tile v's
// block times the row.
template <class Format, int kFirst, int kCount, int kRows, int kTiles>
LORALEI_INLINE void wide_dots(const std::byte* wide, const std::byte* q, const std::byte* start,
                              I (&dots)[kRows][kTiles]) {
  dots_in_order<Format::kZero != ZeroPoint::kNone, kFirst, kCount>(WordsOfTiles<Format>{wide}, q, start, dots);
}
