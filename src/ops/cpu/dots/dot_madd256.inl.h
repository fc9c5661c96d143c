// SPDX-License-Identifier: Apache-2.0
// What multiply-add pairs (madd_in_order.inl.h) need of AVX2. No include guard:
// see target.h.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
constexpr int kPackedRows = 4;  // rows whose sums of both halves of a tile registers hold, beside weights and inputs

using Signs = I;
LORALEI_INLINE Signs signs_of(I weights) { return weights; }
LORALEI_INLINE I magnitudes_of(I weights) { return _mm256_abs_epi8(weights); }
LORALEI_INLINE I give_signs(I inputs, Signs signs) {
  I given;
  asm volatile("vpsignb %2, %1, %0" : "=x"(given) : "x"(inputs), "x"(signs));
  return given;
}
