// SPDX-License-Identifier: Apache-2.0
// A block's dot products with the rows of a group and what becomes of their sums, instruction for instruction as it is
// written here: these loops are bound by their multiplications, and a compiler's own order, or its addresses kept in
// memory for want of registers, costs up to a fifth of their time. No include guard: see target.h.
//
// The integer sums of a block live in registers, up to sixteen of 32. The f32 sums do where they fit beside them: of
// two tiles with up to eight rows, where the tiles are taken one after the other. Else they live in the first-level
// cache, side by side, since sums a multiple of 4 KiB apart would wait for each other.

LORALEI_INLINE void add_dots(I& sum, I weights, I inputs) {
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(inputs));
}
LORALEI_INLINE void add_dots(I& sum, I weights, const std::byte* word) {
  asm volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const int32_t*>(word)));
}
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

// dots[i][v] = start of row i (0 where there are none) + words [kFirst, kFirst + kCount) of block v times the row. With
// several blocks an input word once broadcast serves them all. `words(v, j)` is word j of block v, q int8 [kRows][32],
// start int32 [kRows].
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

// sum = fma(dots, scale * d, sum), then with kMin fma(min, s, sum): in registers, or sums [kRows][kBlocks][16].
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
