// SPDX-License-Identifier: Apache-2.0
// Four-way dot products with the multiply-add pairs of AVX2. No include guard: see target.h.
//
// Pairs are added in 16 bits: exact for unsigned weights up to 129, which all formats but q8_0 are. Signed weights give
// their sign to the inputs: |w| <= 128 times 127, twice, still fits.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 4;
constexpr int kPackedRows = kGroupRows;

// sum += weights times the four inputs at `four`
template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, const std::byte* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof bits);
  I inputs = iset1(bits);
  if constexpr (kSigned) {
    inputs = _mm256_sign_epi8(inputs, weights);
    weights = _mm256_abs_epi8(weights);
  }
  const I pairs = _mm256_maddubs_epi16(weights, inputs);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
