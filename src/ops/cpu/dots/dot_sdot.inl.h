// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of signed bytes with the dotprod extension. No include
// guard: see target.h.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
constexpr int kPackedRows = kGroupRows;

// sums[i] += weights times word kLane of x[i]; unsigned weights are below
// 128 in all formats.
template <int kLane, int kRows>
LORALEI_INLINE void add_lanes(I (&sums)[kRows], I weights, const int8x16_t (&x)[kRows]) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    sums[i] = vdotq_laneq_s32(sums[i], vreinterpretq_s8_s32(weights), x[i], kLane);
  }
}
// sums[i] += words [kFirst, kFirst + kCount) of the block times row `row + i`. Four input
// words lie in a register, and the product takes one of them as it is: a broadcast would
// occupy the same units as the product.
template <int kFirst, int kCount, int kRows>
LORALEI_INLINE void sdot_words(I (&sums)[kRows], const I (&w)[8], const std::byte* block, int row) {
  static_assert(kFirst % 4 == 0 && kCount % 4 == 0);
  LORALEI_UNROLL
  for (int j = kFirst; j < kFirst + kCount; j += 4) {
    int8x16_t x[kRows];
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      x[i] = vreinterpretq_s8_s32(load_bits(block + (row + i) * kActivationBlock + 4 * j));
    }
    add_lanes<0>(sums, w[j], x);
    add_lanes<1>(sums, w[j + 1], x);
    add_lanes<2>(sums, w[j + 2], x);
    add_lanes<3>(sums, w[j + 3], x);
  }
}
