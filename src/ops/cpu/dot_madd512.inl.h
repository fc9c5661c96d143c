// SPDX-License-Identifier: Apache-2.0
// Four-way dot products with the multiply-add pairs of AVX-512BW. No include guard: see target.h.
//
// Pairs are added in 16 bits: exact for unsigned weights up to 129, which all formats but q8_0 are. Signed weights give
// their sign to the inputs: |w| <= 128 times 127, twice, still fits.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
constexpr int kPackedRows = kGroupRows;

// sum += weights times the four inputs at `four`
template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, const std::byte* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof bits);
  I inputs = iset1(bits);
  if constexpr (kSigned) {
    inputs = _mm512_mask_sub_epi8(inputs, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), inputs);
    weights = _mm512_abs_epi8(weights);
  }
  const I pairs = _mm512_maddubs_epi16(weights, inputs);
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
