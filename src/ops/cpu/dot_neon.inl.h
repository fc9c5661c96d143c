// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of signed bytes with the multiplications of armv8.0. No include guard: see target.h.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
constexpr int kPackedRows = kGroupRows;

// sum += weights times the four inputs at `four`; unsigned weights are below 128 in all formats.
template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, const std::byte* four) {
  const int8x16_t w = vreinterpretq_s8_s32(weights), x = vreinterpretq_s8_u32(vdupq_n_u32(four_bytes(four)));
  const I low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
  const I high = vpaddlq_s16(vmull_high_s8(w, x));
  return vaddq_s32(sum, vpaddq_s32(low, high));
}
