// SPDX-License-Identifier: Apache-2.0
// Eight lanes of AVX2 with FMA and F16C. The same names as simd_avx512.inl.h; kernels are
// written over them. No include guard: see target.h.

constexpr int kLanes = 8;
constexpr bool kManyRegisters = false;  // 16
using F = __m256;
using I = __m256i;

LORALEI_INLINE F zero() { return _mm256_setzero_ps(); }
LORALEI_INLINE F set1(float x) { return _mm256_set1_ps(x); }
LORALEI_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
// A load for several uses. Where there are two, the compiler would load twice, as a part
// of each instruction, and two loads a cycle are all there are.
template <int kUses>
LORALEI_INLINE F load_for(const float* p) {
  F x = load(p);
  if constexpr (kUses > 1) asm("" : "+x"(x));
  return x;
}
LORALEI_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
// Past the caches; p is aligned to a vector. Other threads may read what was written
// after end_stream.
LORALEI_INLINE void stream(float* p, F x) { _mm256_stream_ps(p, x); }
LORALEI_INLINE void end_stream() { _mm_sfence(); }
LORALEI_INLINE I first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LORALEI_INLINE F load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
LORALEI_INLINE void store_n(float* p, F x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }

LORALEI_INLINE F from_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
LORALEI_INLINE F from_f16(__m128i bits) { return _mm256_cvtph_ps(bits); }
LORALEI_INLINE float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
LORALEI_INLINE __m128i load_halves(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
LORALEI_INLINE __m128i load_halves_n(const std::byte* p, int n) {
  alignas(16) std::byte part[16] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * 2);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
}
// Both halves of a vector get all sixteen bytes on their way from memory, and one
// instruction puts them in place.
LORALEI_INLINE F load_bf16(const std::byte* p) {
  const I places = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                    -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_halves(p)), places));
}
LORALEI_INLINE F load_f16(const std::byte* p) { return from_f16(load_halves(p)); }
LORALEI_INLINE F load_bf16_n(const std::byte* p, int n) { return from_bf16(load_halves_n(p, n)); }
LORALEI_INLINE F load_f16_n(const std::byte* p, int n) { return from_f16(load_halves_n(p, n)); }
LORALEI_INLINE void store_f16(std::byte* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LORALEI_INLINE void store_bf16(std::byte* p, F x) {
  const I bits = _mm256_castps_si256(x);
  const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const I rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const I quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const I chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

LORALEI_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
LORALEI_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
LORALEI_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
LORALEI_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
LORALEI_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
LORALEI_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
LORALEI_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
LORALEI_INLINE F round_even(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// keep where a < b is false, else zero
LORALEI_INLINE F zero_if_less(F a, F b, F keep) { return _mm256_andnot_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ), keep); }
LORALEI_INLINE F pow2(F integral) {  // 2^n for integral n in [-126, 127]
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(integral), _mm256_set1_epi32(127)), 23));
}
LORALEI_INLINE F times_pow2(F x, F integral) { return mul(x, pow2(integral)); }

// Lane sums of four vectors, in one fixed order each: within 128-bit parts (0+2)+(1+3),
// then the two parts.
LORALEI_INLINE __m128 reduce4(F a, F b, F c, F d) {
  const F ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const F cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const F abcd = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}
// The order of lanes in which each is added to its neighbour, and each pair to the next
// pair, as reduce4 does.
constexpr int kLaneOrder[kLanes] = {0, 2, 1, 3, 4, 6, 5, 7};
// Lane i of vector j becomes lane j of vector i.
LORALEI_INLINE void transpose(F (&rows)[kLanes]) {
  F pairs[kLanes], fours[kLanes];
  LORALEI_UNROLL
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  LORALEI_UNROLL
  for (int i = 0; i < kLanes; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  LORALEI_UNROLL
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
    rows[4 + c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
  }
}
LORALEI_INLINE void store4(float* p, __m128 four) { _mm_store_ps(p, four); }
LORALEI_INLINE float first4(__m128 four) { return _mm_cvtss_f32(four); }
LORALEI_INLINE float reduce_max(F x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

LORALEI_INLINE I load_u8(const std::byte* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
LORALEI_INLINE I load_u16(const std::byte* p) { return _mm256_cvtepu16_epi32(load_halves(p)); }
LORALEI_INLINE I load_s8(const std::byte* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// An e4m3 number with the exponent's missing bit put in is an f16 of 2^-8 its size.
// No cache holds the codes of NaN.
LORALEI_INLINE F load_fp8(const std::byte* p) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i bits = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xBFFF)));
  return mul(from_f16(bits), set1(256.0f));
}
LORALEI_INLINE I iset1(int x) { return _mm256_set1_epi32(x); }
LORALEI_INLINE I iand(I a, I b) { return _mm256_and_si256(a, b); }
LORALEI_INLINE I ior(I a, I b) { return _mm256_or_si256(a, b); }
LORALEI_INLINE I iadd(I a, I b) { return _mm256_add_epi32(a, b); }
LORALEI_INLINE I isub(I a, I b) { return _mm256_sub_epi32(a, b); }
LORALEI_INLINE I ishr(I a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
LORALEI_INLINE I ishl(I a, int n) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }
// lane i = (bits >> (first + i)) & 1
LORALEI_INLINE I ibits(uint32_t bits, int first) {
  const I lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return iand(_mm256_srlv_epi32(iset1(static_cast<int>(bits >> first)), lanes), iset1(1));
}
LORALEI_INLINE F to_float(I x) { return _mm256_cvtepi32_ps(x); }

LORALEI_INLINE I load_bits(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
LORALEI_INLINE void store_bits(std::byte* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
LORALEI_INLINE I sub_bytes(I a, I b) { return _mm256_sub_epi8(a, b); }
LORALEI_INLINE I ixor(I a, I b) { return _mm256_xor_si256(a, b); }
LORALEI_INLINE I imul(I a, I b) { return _mm256_mullo_epi32(a, b); }
LORALEI_INLINE I imax(I a, I b) { return _mm256_max_epi32(a, b); }
LORALEI_INLINE I bits_of(F x) { return _mm256_castps_si256(x); }
LORALEI_INLINE F float_of(I bits) { return _mm256_castsi256_ps(bits); }
// Sixteen bytes in every 128 bits, and those that bytes of `indices` (below 16) name.
LORALEI_INLINE I byte_table(const int32_t (&words)[4]) {
  return _mm256_setr_epi32(words[0], words[1], words[2], words[3], words[0], words[1], words[2], words[3]);
}
LORALEI_INLINE I look_up(I table, I indices) { return _mm256_shuffle_epi8(table, indices); }
LORALEI_INLINE I to_int(F x) { return _mm256_cvtps_epi32(x); }  // to nearest even
template <int kBits>
LORALEI_INLINE I ishr_const(I a) {
  return _mm256_srli_epi32(a, kBits);
}
template <int kBits>
LORALEI_INLINE I ishl_const(I a) {
  return _mm256_slli_epi32(a, kBits);
}
// Bit `from` of each byte in the place of bit kTo, for `from` up to 7; the other
// bits are anything.
template <int kTo>
LORALEI_INLINE I move_bit(I a, int from) {
  return ishl_const<kTo>(ishr(a, from));
}
template <int kBits>
LORALEI_INLINE I isar_const(I a) {
  return _mm256_srai_epi32(a, kBits);
}
// The low byte of every lane.
LORALEI_INLINE void store_bytes(int8_t* p, I x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
LORALEI_INLINE int32_t reduce_imax(I x) {
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
}
LORALEI_INLINE int32_t reduce_iadd(I x) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
}
// The largest lane of each of four vectors, and the sums of their lanes.
LORALEI_INLINE void reduce4_imax(int32_t* out, I a, I b, I c, I d) {
  const I ab = imax(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const I cd = imax(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const I abcd = imax(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_max_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1)));
}
LORALEI_INLINE void reduce4_iadd(int32_t* out, I a, I b, I c, I d) {
  const I ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const I cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const I abcd = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1)));
}
