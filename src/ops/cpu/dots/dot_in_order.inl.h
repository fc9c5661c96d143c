// SPDX-License-Identifier: Apache-2.0
// A block's dot products with the rows of a group by four-way products (add_dots),
// instruction for instruction as it is written here: these loops are bound by their
// multiplications, and a compiler's own order, or its addresses kept in memory for want
// of registers, costs up to a fifth of their time. No include guard: see target.h.

// dots[i][v] = start of row i (0 where there are none) + words [kFirst, kFirst + kCount)
// of block v times the row. With several blocks an input word once broadcast serves them
// all. `words(v, j)` is word j of block v, q int8 [kRows][32], start int32 [kRows].
template <bool kStarts, int kFirst, int kCount, int kRows, int kBlocks, class Words>
LORALEI_INLINE void dots_in_order(const Words& words, const std::byte* q, const std::byte* start,
                                  I (&dots)[kRows][kBlocks]) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kBlocks; ++v) dots[i][v] = kStarts ? broadcast_word(start + 4 * i) : iset1(0);
  }
  LORALEI_UNROLL
  for (int j = kFirst; j < kFirst + kCount; ++j) {
    I w[kBlocks];
    LORALEI_UNROLL
    for (int v = 0; v < kBlocks; ++v) w[v] = words(v, j);
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const std::byte* const word = q + i * kActivationBlock + 4 * j;
      if constexpr (kBlocks == 1) {
        add_dots(dots[i][0], w[0], word);
      } else {
        const I inputs = broadcast_word(word);
        LORALEI_UNROLL
        for (int v = 0; v < kBlocks; ++v) add_dots(dots[i][v], w[v], inputs);
      }
    }
  }
}
