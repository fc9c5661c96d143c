// SPDX-License-Identifier: Apache-2.0
// Dot products of signed bytes with the multiplications of armv8.0, which give 16 bits.
// No include guard: see target.h.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
constexpr int kPackedRows = kGroupRows;

// Of how many words 16 bits hold the sum of products: two, four or all eight.
template <class Format>
constexpr int words_in_16_bits() {
  constexpr int kMost = 32767 / (127 * Format::kLargest);
  static_assert(kMost >= 2);
  return kMost >= 8 ? 8 : kMost >= 4 ? 4 : 2;
}

// Products with outputs 0 and 1 of a vector of weights, and with 2 and 3.
struct Products16 {
  int16x8_t low, high;
};
template <int kLane, bool kBegins>
LORALEI_INLINE void multiply_lane(Products16& sum, I weights, I x) {
  const int8x16_t w = vreinterpretq_s8_s32(weights), four = vreinterpretq_s8_s32(vdupq_laneq_s32(x, kLane));
  const int8x8_t w_low = vget_low_s8(w), four_low = vget_low_s8(four);
  sum.low = kBegins ? vmull_s8(w_low, four_low) : vmlal_s8(sum.low, w_low, four_low);
  sum.high = kBegins ? vmull_high_s8(w, four) : vmlal_high_s8(sum.high, w, four);
}
LORALEI_INLINE I add_widened(I sum, Products16 products) {
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(products.low), vpaddlq_s16(products.high)));
}

// sums[i] += words [kFirst, kFirst + kCount) of the block times row `row + i`. As many
// words as fit are added in 16 bits, exactly, and widened to 32 bits once.
template <class Format, int kFirst, int kCount, int kRows>
LORALEI_INLINE void dot_words(I (&sums)[kRows], const I (&w)[8], const std::byte* block, int row) {
  static_assert(kFirst % 4 == 0 && kCount % 4 == 0);
  constexpr int kFit = words_in_16_bits<Format>();
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    Products16 products;
    LORALEI_UNROLL
    for (int j = kFirst; j < kFirst + kCount; j += 4) {
      const I x = load_bits(block + (row + i) * kActivationBlock + 4 * j);
      if (j == kFirst || kFit <= 4) {
        multiply_lane<0, true>(products, w[j], x);
      } else {
        multiply_lane<0, false>(products, w[j], x);
      }
      multiply_lane<1, false>(products, w[j + 1], x);
      if constexpr (kFit == 2) sums[i] = add_widened(sums[i], products);
      multiply_lane<2, kFit == 2>(products, w[j + 2], x);
      multiply_lane<3, false>(products, w[j + 3], x);
      if (kFit <= 4 || j + 4 == kFirst + kCount) sums[i] = add_widened(sums[i], products);
    }
  }
}
