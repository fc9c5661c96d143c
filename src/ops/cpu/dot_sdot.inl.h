// SPDX-License-Identifier: Apache-2.0
// Four-way dot products of signed bytes with the dotprod extension. No include guard: see target.h.

constexpr bool kUnsignedDot = false;
constexpr int kGroupRows = 8;
constexpr int kPackedRows = kGroupRows;

// sum += weights times the four inputs at `four`; unsigned weights are below 128 in all formats.
template <bool kSigned>  // of the weights
LORALEI_INLINE I dot4(I sum, I weights, const std::byte* four) {
  return vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_u32(vdupq_n_u32(four_bytes(four))));
}
