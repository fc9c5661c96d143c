// SPDX-License-Identifier: Apache-2.0
// What becomes of a block's dot products with the rows of a group, with vectors of
// 256 bits. The integer sums live in registers, half of sixteen, the f32 sums in the
// first-level cache. No include guard: see target.h.

// sum = fma(dots, scale * d, sum), then with kMin fma(min, s, sum); sums
// [kRows][kVectors][8].
template <bool kMin, int kRows, int kVectors>
LORALEI_INLINE void add_in_order(const I (&dots)[kRows][kVectors], const BlockScales<kVectors>& by, float* sums) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const F d = broadcast_number(by.d + 4 * i);
    LORALEI_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* const sum = sums + (i * kVectors + v) * kLanes;
      F total = fma(to_float(dots[i][v]), mul(by.scale[v], d), load(sum));
      if constexpr (kMin) total = fma(by.min[v], broadcast_number(by.s + 4 * i), total);
      store(sum, total);
    }
  }
}
