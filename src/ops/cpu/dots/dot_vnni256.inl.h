// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of unsigned weights and signed inputs with AVX-VNNI. No include
// guard: see target.h.

constexpr bool kUnsignedDot = true;  // any unsigned byte times any signed byte, exact
constexpr int kGroupRows = 8;
constexpr int kPackedRows = 4;  // rows whose sums of both halves of a tile registers hold, beside weights and inputs

LORALEI_INLINE void add_dots(I& sum, I weights, I inputs) {
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(inputs));
}
