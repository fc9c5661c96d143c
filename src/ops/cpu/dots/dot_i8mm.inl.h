// SPDX-License-Identifier: Apache-2.0
// Pairs of rows times pairs of outputs with the matrix extension i8mm; a row that is left
// alone takes dotprod. No include guard: see target.h.

LORALEI_INLINE I first_halves(I a, I b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
LORALEI_INLINE I second_halves(I a, I b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

// [rows r, r + 1] x [outputs o, o + 1] over eight inputs at a time: the words of two
// vectors, zipped, are the eight inputs of one output after the other. sums[i] is
// [4 outputs] of row i before and after; in between two vectors hold both rows for
// two outputs each.
template <class Format, int kFirst, int kCount, int kRows>
LORALEI_INLINE void dot_words(I (&sums)[kRows], const I (&w)[8], const std::byte* block, int row) {
  static_assert(kFirst % 2 == 0 && kCount % 2 == 0);
  constexpr int kPairs = kRows / 2;
  I low[kPairs > 0 ? kPairs : 1], high[kPairs > 0 ? kPairs : 1];  // outputs 0 and 1, 2 and 3
  LORALEI_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    low[p] = first_halves(sums[2 * p], sums[2 * p + 1]);
    high[p] = second_halves(sums[2 * p], sums[2 * p + 1]);
  }
  LORALEI_UNROLL
  for (int j = kFirst; j < kFirst + kCount; j += 2) {
    const int8x16_t w_low = vreinterpretq_s8_s32(vzip1q_s32(w[j], w[j + 1]));
    const int8x16_t w_high = vreinterpretq_s8_s32(vzip2q_s32(w[j], w[j + 1]));
    LORALEI_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const auto* const x = reinterpret_cast<const int8_t*>(block + (row + 2 * p) * kActivationBlock + 4 * j);
      const int8x16_t both = vcombine_s8(vld1_s8(x), vld1_s8(x + kActivationBlock));
      low[p] = vmmlaq_s32(low[p], both, w_low);
      high[p] = vmmlaq_s32(high[p], both, w_high);
    }
  }
  LORALEI_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    sums[2 * p] = first_halves(low[p], high[p]);
    sums[2 * p + 1] = second_halves(low[p], high[p]);
  }
  if constexpr (kRows % 2 == 1) {
    I last[1] = {sums[kRows - 1]};
    sdot_words<kFirst, kCount>(last, w, block, row + kRows - 1);
    sums[kRows - 1] = last[0];
  }
}
