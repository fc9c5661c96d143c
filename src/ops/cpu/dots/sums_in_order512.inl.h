// SPDX-License-Identifier: Apache-2.0
// What becomes of a block's dot products with the rows of a group, in the order written
// here (dot_in_order.inl.h), with vectors of 512 bits. No include guard: see target.h.
//
// The integer sums of a block live in registers, up to sixteen of 32. The f32 sums do
// where they fit beside them: of two tiles with up to eight rows, where the tiles are
// taken one after the other. Else they live in the first-level cache, side by side, since
// sums a multiple of 4 KiB apart would wait for each other.

LORALEI_INLINE F convert(I x) {
  F converted;
  asm volatile("vcvtdq2ps %1, %0" : "=v"(converted) : "v"(x));
  return converted;
}
LORALEI_INLINE F times_broadcast(F x, const std::byte* number) {
  F product;
  asm volatile("vmulps %2%{1to16%}, %1, %0" : "=v"(product) : "v"(x), "m"(*reinterpret_cast<const float*>(number)));
  return product;
}
LORALEI_INLINE F times_plus(F x, F y, const float* sum) {
  asm volatile("vfmadd213ps %2, %1, %0" : "+v"(x) : "v"(y), "m"(*reinterpret_cast<const F*>(sum)));
  return x;
}
LORALEI_INLINE F plus_times(F sum, F x, F y) {
  asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
}
LORALEI_INLINE F plus_times_broadcast(F sum, F x, const std::byte* number) {
  asm volatile("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*reinterpret_cast<const float*>(number)));
  return sum;
}

// sum = fma(dots, scale * d, sum), then with kMin fma(min, s, sum): in registers, or sums
// [kRows][kBlocks][16].
template <bool kMin, int kRows, int kBlocks>
LORALEI_INLINE void add_in_order(const I (&dots)[kRows][kBlocks], const BlockScales<kBlocks>& by,
                                 F (&sums)[kRows][kBlocks]) {
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kBlocks; ++v) {
      const F total = convert(dots[i][v]);
      sums[i][v] = plus_times(sums[i][v], total, times_broadcast(by.scale[v], by.d + 4 * i));
      if constexpr (kMin) sums[i][v] = plus_times_broadcast(sums[i][v], by.min[v], by.s + 4 * i);
    }
  }
}
template <bool kMin, int kRows, int kBlocks>
LORALEI_INLINE void add_in_order(const I (&dots)[kRows][kBlocks], const BlockScales<kBlocks>& by, float* sums) {
  F total[kRows][kBlocks];
  if constexpr (!kMin) {  // with a minimum there is enough to do between one conversion and the next
    LORALEI_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LORALEI_UNROLL
      for (int v = 0; v < kBlocks; ++v) total[i][v] = convert(dots[i][v]);
    }
  }
  LORALEI_UNROLL
  for (int i = 0; i < kRows; ++i) {
    LORALEI_UNROLL
    for (int v = 0; v < kBlocks; ++v) {
      float* const sum = sums + (i * kBlocks + v) * kRowTile;
      if constexpr (kMin) total[i][v] = convert(dots[i][v]);
      total[i][v] = times_plus(total[i][v], times_broadcast(by.scale[v], by.d + 4 * i), sum);
      if constexpr (kMin) total[i][v] = plus_times_broadcast(total[i][v], by.min[v], by.s + 4 * i);
      store(sum, total[i][v]);
    }
  }
}
