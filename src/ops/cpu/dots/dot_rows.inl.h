// SPDX-License-Identifier: Apache-2.0
// The dot products of several rows with a block's weights, one four-way product at a
// time. No include guard: see target.h.

// sums[i] += words [kFirst, kFirst + kCount) of the block times row `row + i`.
// Rows take turns word by word: one row's products wait for each other, those of
// several fill the time.
template <class Format, int kFirst, int kCount, int kRows>
LORALEI_INLINE void dot_words(I (&sums)[kRows], const I (&w)[8], const std::byte* block, int row) {
  LORALEI_UNROLL
  for (int j = kFirst; j < kFirst + kCount; ++j) {
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      sums[i] = dot4<Format::kSigned>(sums[i], w[j], block + (row + i) * kActivationBlock + 4 * j);
    }
  }
}
