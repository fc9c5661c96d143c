// SPDX-License-Identifier: Apache-2.0
// What multiply-add pairs (madd_in_order.inl.h) need of AVX-512BW. No include
// guard: see target.h.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
// Rows whose sums of two tiles registers hold, in 16 and in 32 bits and, where tiles are
// written out, as f32.
constexpr int kPackedRows = 4;
constexpr int kWideRows = 4;

using Signs = __mmask64;
LORALEI_INLINE Signs signs_of(I weights) { return _mm512_movepi8_mask(weights); }
LORALEI_INLINE I magnitudes_of(I weights) { return _mm512_abs_epi8(weights); }
LORALEI_INLINE I give_signs(I inputs, Signs signs) {
  const I none = _mm512_setzero_si512();
  asm volatile("vpsubb %0, %2, %0%{%1%}" : "+v"(inputs) : "Yk"(signs), "v"(none));
  return inputs;
}
