// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of unsigned weights and signed inputs with AVX-VNNI. No include guard: see target.h.

constexpr bool kUnsignedDot = true;  // any unsigned byte times any signed byte, exact
constexpr int kGroupRows = 4;        // rows whose sums stay in registers beside eight words of weights
constexpr int kPackedRows = kGroupRows;

// sum += weights times the four inputs at `four`
template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, const std::byte* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof bits);
  const I inputs = iset1(bits);
  static_assert(!kSigned);
  return _mm256_dpbusd_avx_epi32(sum, weights, inputs);
}
