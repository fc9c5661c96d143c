// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes of AVX-512 (F, BW, VL, DQ). The same names as simd_avx2.inl.h; kernels
// are written over them. No include guard: see target.h.

constexpr int kLanes = 16;
constexpr bool kManyRegisters = true;  // 32
using F = __m512;
using I = __m512i;

LORALEI_INLINE F zero() { return _mm512_setzero_ps(); }
LORALEI_INLINE F set1(float x) { return _mm512_set1_ps(x); }
LORALEI_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
template <int kUses>
LORALEI_INLINE F load_for(const float* p) {  // simd_avx2.inl.h
  return load(p);
}
LORALEI_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
// Past the caches; p is aligned to a vector. Other threads may read what was written
// after end_stream.
LORALEI_INLINE void stream(float* p, F x) { _mm512_stream_ps(p, x); }
LORALEI_INLINE void end_stream() { _mm_sfence(); }
LORALEI_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
LORALEI_INLINE F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
LORALEI_INLINE void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

LORALEI_INLINE F from_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
LORALEI_INLINE F from_f16(__m256i bits) { return _mm512_cvtph_ps(bits); }
LORALEI_INLINE float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
LORALEI_INLINE __m256i load_halves(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
LORALEI_INLINE __m256i load_halves_n(const std::byte* p, int n) { return _mm256_maskz_loadu_epi16(first_lanes(n), p); }
LORALEI_INLINE F load_bf16(const std::byte* p) { return from_bf16(load_halves(p)); }
LORALEI_INLINE F load_f16(const std::byte* p) { return from_f16(load_halves(p)); }
LORALEI_INLINE F load_bf16_n(const std::byte* p, int n) { return from_bf16(load_halves_n(p, n)); }
LORALEI_INLINE F load_f16_n(const std::byte* p, int n) { return from_f16(load_halves_n(p, n)); }
LORALEI_INLINE void store_f16(std::byte* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LORALEI_INLINE void store_bf16(std::byte* p, F x) {
  const I bits = _mm512_castps_si512(x);
  const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const I rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
  const I quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
}

LORALEI_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
LORALEI_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
LORALEI_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
LORALEI_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
LORALEI_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
LORALEI_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
LORALEI_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
LORALEI_INLINE F round_even(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// keep where a < b is false, else zero
LORALEI_INLINE F zero_if_less(F a, F b, F keep) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(~_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)), keep);
}
LORALEI_INLINE F pow2(F integral) {  // 2^n for integral n in [-126, 127]
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(integral), _mm512_set1_epi32(127)), 23));
}
LORALEI_INLINE F times_pow2(F x, F integral) { return _mm512_scalef_ps(x, integral); }  // as x * pow2

LORALEI_INLINE __m128 upper_half_added(F x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
// Lane sums of four vectors, in one fixed order each: within 128-bit parts (0+2)+(1+3),
// then the parts the same way.
LORALEI_INLINE __m128 reduce4(F a, F b, F c, F d) {
  const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const F abcd = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  return upper_half_added(abcd);
}
// The order of lanes in which each is added to its neighbour, and each pair to the next
// pair, as reduce4 does.
constexpr int kLaneOrder[kLanes] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};
// Lane i of vector j becomes lane j of vector i.
LORALEI_INLINE void transpose(F (&rows)[kLanes]) {
  F pairs[kLanes], fours[kLanes], halves[kLanes];
  LORALEI_UNROLL
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  LORALEI_UNROLL
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  // fours[4g + c] holds in its part p lane 4p + c of the rows 4g to 4g + 3.
  LORALEI_UNROLL
  for (int c = 0; c < 4; ++c) {
    halves[c] = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);      // parts 0 and 2 of the first eight rows
    halves[4 + c] = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xDD);  // parts 1 and 3
    halves[8 + c] = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
    halves[12 + c] = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xDD);
  }
  LORALEI_UNROLL
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm512_shuffle_f32x4(halves[c], halves[8 + c], 0x88);
    rows[8 + c] = _mm512_shuffle_f32x4(halves[c], halves[8 + c], 0xDD);
    rows[4 + c] = _mm512_shuffle_f32x4(halves[4 + c], halves[12 + c], 0x88);
    rows[12 + c] = _mm512_shuffle_f32x4(halves[4 + c], halves[12 + c], 0xDD);
  }
}
LORALEI_INLINE void store4(float* p, __m128 four) { _mm_store_ps(p, four); }
LORALEI_INLINE float first4(__m128 four) { return _mm_cvtss_f32(four); }
LORALEI_INLINE float reduce_max(F x) { return _mm512_reduce_max_ps(x); }

LORALEI_INLINE I load_u8(const std::byte* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
LORALEI_INLINE I load_u16(const std::byte* p) { return _mm512_cvtepu16_epi32(load_halves(p)); }
LORALEI_INLINE I load_s8(const std::byte* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// An e4m3 number with the exponent's missing bit put in is an f16 of 2^-8 its size.
// No cache holds the codes of NaN.
LORALEI_INLINE F load_fp8(const std::byte* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
  return mul(from_f16(bits), set1(256.0f));
}
LORALEI_INLINE I iset1(int x) { return _mm512_set1_epi32(x); }
LORALEI_INLINE I iand(I a, I b) { return _mm512_and_si512(a, b); }
LORALEI_INLINE I ior(I a, I b) { return _mm512_or_si512(a, b); }
LORALEI_INLINE I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
LORALEI_INLINE I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
LORALEI_INLINE I ishr(I a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
LORALEI_INLINE I ishl(I a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
// lane i = (bits >> (first + i)) & 1
LORALEI_INLINE I ibits(uint32_t bits, int first) {
  const I lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return iand(_mm512_srlv_epi32(iset1(static_cast<int>(bits >> first)), lanes), iset1(1));
}
LORALEI_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }

LORALEI_INLINE I load_bits(const std::byte* p) { return _mm512_loadu_si512(p); }
LORALEI_INLINE void store_bits(std::byte* p, I x) { _mm512_storeu_si512(p, x); }
LORALEI_INLINE I sub_bytes(I a, I b) { return _mm512_sub_epi8(a, b); }
LORALEI_INLINE I ixor(I a, I b) { return _mm512_xor_si512(a, b); }
LORALEI_INLINE I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
LORALEI_INLINE I imax(I a, I b) { return _mm512_max_epi32(a, b); }
LORALEI_INLINE I bits_of(F x) { return _mm512_castps_si512(x); }
LORALEI_INLINE F float_of(I bits) { return _mm512_castsi512_ps(bits); }
// Sixteen bytes in every 128 bits, and those that bytes of `indices` (below 16) name.
LORALEI_INLINE I byte_table(const int32_t (&words)[4]) {
  return _mm512_set4_epi32(words[3], words[2], words[1], words[0]);
}
LORALEI_INLINE I look_up(I table, I indices) { return _mm512_shuffle_epi8(table, indices); }
LORALEI_INLINE I to_int(F x) { return _mm512_cvtps_epi32(x); }  // to nearest even
template <int kBits>
LORALEI_INLINE I ishr_const(I a) {
  return _mm512_srli_epi32(a, kBits);
}
template <int kBits>
LORALEI_INLINE I ishl_const(I a) {
  return _mm512_slli_epi32(a, kBits);
}
// Bit `from` of each byte in the place of bit kTo, for `from` up to 7; the other
// bits are anything.
template <int kTo>
LORALEI_INLINE I move_bit(I a, int from) {
  return _mm512_rolv_epi32(a, _mm512_set1_epi32(kTo - from));
}
template <int kBits>
LORALEI_INLINE I isar_const(I a) {
  return _mm512_srai_epi32(a, kBits);
}
// The low byte of every lane.
LORALEI_INLINE void store_bytes(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
LORALEI_INLINE int32_t reduce_imax(I x) { return _mm512_reduce_max_epi32(x); }
LORALEI_INLINE int32_t reduce_iadd(I x) { return _mm512_reduce_add_epi32(x); }
// The largest lane of each of four vectors, and the sums of their lanes.
LORALEI_INLINE void reduce4_imax(int32_t* out, I a, I b, I c, I d) {
  const I ab = imax(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const I cd = imax(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const I abcd = imax(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti32x8_epi32(abcd, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}
LORALEI_INLINE void reduce4_iadd(int32_t* out, I a, I b, I c, I d) {
  const I ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const I cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const I abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti32x8_epi32(abcd, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}
