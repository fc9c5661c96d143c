// SPDX-License-Identifier: Apache-2.0
// Four lanes of NEON (armv8.0). The same names as simd_avx512.inl.h; kernels are written
// over them. No include guard: see target.h.

constexpr int kLanes = 4;
constexpr bool kManyRegisters = true;  // 32
using F = float32x4_t;
using I = int32x4_t;

LORALEI_INLINE uint32x4_t as_unsigned(I a) { return vreinterpretq_u32_s32(a); }
LORALEI_INLINE I as_signed(uint32x4_t a) { return vreinterpretq_s32_u32(a); }

LORALEI_INLINE F zero() { return vdupq_n_f32(0); }
LORALEI_INLINE F set1(float x) { return vdupq_n_f32(x); }
LORALEI_INLINE F load(const float* p) { return vld1q_f32(p); }
template <int kUses>
LORALEI_INLINE F load_for(const float* p) {  // simd_avx2.inl.h
  return load(p);
}
LORALEI_INLINE void store(float* p, F x) { vst1q_f32(p, x); }
// There is no store past the caches that pays.
LORALEI_INLINE void stream(float* p, F x) { store(p, x); }
LORALEI_INLINE void end_stream() {}
LORALEI_INLINE F load_n(const float* p, int n) {
  if (n >= kLanes) return load(p);
  float part[kLanes] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * sizeof(float));
  return load(part);
}
LORALEI_INLINE void store_n(float* p, F x, int n) {
  if (n >= kLanes) return store(p, x);
  float part[kLanes];
  store(part, x);
  std::memcpy(p, part, static_cast<size_t>(n) * sizeof(float));
}

LORALEI_INLINE F from_bf16(uint16x4_t bits) { return vreinterpretq_f32_u32(vshll_n_u16(bits, 16)); }
LORALEI_INLINE F from_f16(uint16x4_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }
LORALEI_INLINE float half_to_float(uint16_t bits) { return vgetq_lane_f32(from_f16(vdup_n_u16(bits)), 0); }
LORALEI_INLINE uint16x4_t load_halves(const std::byte* p) {
  return vreinterpret_u16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p)));
}
LORALEI_INLINE uint16x4_t load_halves_n(const std::byte* p, int n) {
  std::byte part[2 * kLanes] = {};
  std::memcpy(part, p, static_cast<size_t>(n) * 2);
  return load_halves(part);
}
LORALEI_INLINE F load_bf16(const std::byte* p) { return from_bf16(load_halves(p)); }
LORALEI_INLINE F load_f16(const std::byte* p) { return from_f16(load_halves(p)); }
LORALEI_INLINE F load_bf16_n(const std::byte* p, int n) { return from_bf16(load_halves_n(p, n)); }
LORALEI_INLINE F load_f16_n(const std::byte* p, int n) { return from_f16(load_halves_n(p, n)); }
LORALEI_INLINE void store_halves(std::byte* p, uint16x4_t bits) {
  vst1_u8(reinterpret_cast<uint8_t*>(p), vreinterpret_u8_u16(bits));
}
LORALEI_INLINE void store_f16(std::byte* p, F x) { store_halves(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
LORALEI_INLINE void store_bf16(std::byte* p, F x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF))), 16);
  const uint32x4_t quiet = vorrq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(0x40));
  store_halves(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)));
}

LORALEI_INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
LORALEI_INLINE F add(F a, F b) { return vaddq_f32(a, b); }
LORALEI_INLINE F sub(F a, F b) { return vsubq_f32(a, b); }
LORALEI_INLINE F mul(F a, F b) { return vmulq_f32(a, b); }
LORALEI_INLINE F div(F a, F b) { return vdivq_f32(a, b); }
LORALEI_INLINE F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // b where either is NaN
LORALEI_INLINE F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
LORALEI_INLINE F round_even(F x) { return vrndnq_f32(x); }
// keep where a < b is false, else zero
LORALEI_INLINE F zero_if_less(F a, F b, F keep) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(keep), vcltq_f32(a, b)));
}
LORALEI_INLINE F pow2(F integral) {  // 2^n for integral n in [-126, 127]
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(integral), vdupq_n_s32(127)), 23));
}
LORALEI_INLINE F times_pow2(F x, F integral) { return mul(x, pow2(integral)); }

// Lane sums of four vectors, in one fixed order each: (0+1)+(2+3).
LORALEI_INLINE F reduce4(F a, F b, F c, F d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }
// The order of lanes in which each is added to its neighbour, and each pair to the next
// pair, as reduce4 does.
constexpr int kLaneOrder[kLanes] = {0, 1, 2, 3};
// Lane i of vector j becomes lane j of vector i.
LORALEI_INLINE void transpose(F (&rows)[kLanes]) {
  const F a = vzip1q_f32(rows[0], rows[2]), b = vzip2q_f32(rows[0], rows[2]);
  const F c = vzip1q_f32(rows[1], rows[3]), d = vzip2q_f32(rows[1], rows[3]);
  rows[0] = vzip1q_f32(a, c);
  rows[1] = vzip2q_f32(a, c);
  rows[2] = vzip1q_f32(b, d);
  rows[3] = vzip2q_f32(b, d);
}
LORALEI_INLINE void store4(float* p, F four) { store(p, four); }
LORALEI_INLINE float first4(F four) { return vgetq_lane_f32(four, 0); }
LORALEI_INLINE float reduce_max(F x) { return vmaxvq_f32(x); }

LORALEI_INLINE uint32_t four_bytes(const std::byte* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}
LORALEI_INLINE I load_u8(const std::byte* p) {
  return as_signed(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four_bytes(p)))))));
}
LORALEI_INLINE I load_u16(const std::byte* p) { return as_signed(vmovl_u16(load_halves(p))); }
LORALEI_INLINE I load_s8(const std::byte* p) {
  return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four_bytes(p))))));
}
// An e4m3 number with the exponent's missing bit put in is an f16 of 2^-8 its size.
// No cache holds the codes of NaN.
LORALEI_INLINE F load_fp8(const std::byte* p) {
  const int16x4_t wide = vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four_bytes(p)))));
  const uint16x4_t bits = vand_u16(vreinterpret_u16_s16(vshl_n_s16(wide, 7)), vdup_n_u16(0xBFFF));
  return mul(from_f16(bits), set1(256.0f));
}
LORALEI_INLINE I iset1(int x) { return vdupq_n_s32(x); }
LORALEI_INLINE I iand(I a, I b) { return vandq_s32(a, b); }
LORALEI_INLINE I ior(I a, I b) { return vorrq_s32(a, b); }
LORALEI_INLINE I iadd(I a, I b) { return vaddq_s32(a, b); }
LORALEI_INLINE I isub(I a, I b) { return vsubq_s32(a, b); }
LORALEI_INLINE I ishr(I a, int n) { return as_signed(vshlq_u32(as_unsigned(a), vdupq_n_s32(-n))); }
LORALEI_INLINE I ishl(I a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
// lane i = (bits >> (first + i)) & 1
LORALEI_INLINE I ibits(uint32_t bits, int first) {
  const int32_t shifts[kLanes] = {0, -1, -2, -3};
  return as_signed(vandq_u32(vshlq_u32(vdupq_n_u32(bits >> first), vld1q_s32(shifts)), vdupq_n_u32(1)));
}
LORALEI_INLINE F to_float(I x) { return vcvtq_f32_s32(x); }

LORALEI_INLINE I load_bits(const std::byte* p) {
  return vreinterpretq_s32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
}
LORALEI_INLINE I ixor(I a, I b) { return veorq_s32(a, b); }
LORALEI_INLINE I imul(I a, I b) { return vmulq_s32(a, b); }
LORALEI_INLINE I imax(I a, I b) { return vmaxq_s32(a, b); }
LORALEI_INLINE I bits_of(F x) { return vreinterpretq_s32_f32(x); }
LORALEI_INLINE F float_of(I bits) { return vreinterpretq_f32_s32(bits); }
// Sixteen bytes, and for each byte of `indices`, below 16, the one it names.
LORALEI_INLINE I byte_table(const int32_t (&words)[4]) { return vld1q_s32(words); }
LORALEI_INLINE I look_up(I table, I indices) {
  return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(indices)));
}
LORALEI_INLINE I to_int(F x) { return vcvtnq_s32_f32(x); }  // to nearest even
// Shifts by zero are not encodable.
template <int kBits>
LORALEI_INLINE I ishr_const(I a) {
  if constexpr (kBits == 0) return a;
  if constexpr (kBits != 0) return as_signed(vshrq_n_u32(as_unsigned(a), kBits));
}
template <int kBits>
LORALEI_INLINE I ishl_const(I a) {
  return vshlq_n_s32(a, kBits);
}
// Bit `from` of each byte in the place of bit kTo, for `from` up to 7; the other
// bits are anything.
template <int kTo>
LORALEI_INLINE I move_bit(I a, int from) {
  return as_signed(vshlq_u32(as_unsigned(a), vdupq_n_s32(kTo - from)));
}
template <int kBits>
LORALEI_INLINE I isar_const(I a) {
  return vshrq_n_s32(a, kBits);
}
// The low byte of every lane.
LORALEI_INLINE void store_bytes(int8_t* p, I x) {
  const int16x4_t words = vmovn_s32(x);
  const uint32_t bits = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(words, words))), 0);
  std::memcpy(p, &bits, sizeof bits);
}
LORALEI_INLINE int32_t reduce_imax(I x) { return vmaxvq_s32(x); }
LORALEI_INLINE int32_t reduce_iadd(I x) { return vaddvq_s32(x); }
// The largest lane of each of four vectors, and the sums of their lanes.
LORALEI_INLINE void reduce4_imax(int32_t* out, I a, I b, I c, I d) {
  vst1q_s32(out, vpmaxq_s32(vpmaxq_s32(a, b), vpmaxq_s32(c, d)));
}
LORALEI_INLINE void reduce4_iadd(int32_t* out, I a, I b, I c, I d) {
  vst1q_s32(out, vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
}
