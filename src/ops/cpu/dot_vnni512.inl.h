// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of unsigned weights and signed inputs with AVX-512 VNNI. No include guard: see target.h.

constexpr bool kUnsignedDot = true;  // any unsigned byte times any signed byte, exact
constexpr int kGroupRows = 16;       // rows whose sums stay in registers beside eight words of weights

template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, I inputs) {
  static_assert(!kSigned);
  return _mm512_dpbusd_epi32(sum, weights, inputs);
}
