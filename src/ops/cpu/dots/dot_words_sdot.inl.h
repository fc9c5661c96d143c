// SPDX-License-Identifier: Apache-2.0
// Where dotprod is all there is, it multiplies all rows. No include guard: see target.h.

template <class Format, int kFirst, int kCount, int kRows>
LORALEI_INLINE void dot_words(I (&sums)[kRows], const I (&w)[8], const std::byte* block, int row) {
  sdot_words<kFirst, kCount>(sums, w, block, row);
}
