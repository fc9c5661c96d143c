// SPDX-License-Identifier: Apache-2.0
// Rows of low-rank factors, decoded in registers. No include guard: see target.h.

// From column `k` (a multiple of kLanes) of one row; with _n, the first n lanes count and
// the rest are zero.
template <class Rows>
struct PlainFactor {
  static constexpr int kBytes = Rows::kBytes;
  static constexpr bool kScaledRanks = false;
  const std::byte* data = nullptr;

  static PlainFactor of_a(const LoraPair& pair, int32_t rank) { return {pair.a + rank * lora_a_stride_bytes(pair)}; }
  static PlainFactor of_b(const LoraPair& pair, int32_t rank, int32_t output) {
    return {pair.b_t + rank * lora_b_stride_bytes(pair) + int64_t{output} * Rows::kBytes};
  }
  LORALEI_INLINE F at(int64_t k) const { return Rows::at(data + k * Rows::kBytes); }
  LORALEI_INLINE F at_n(int64_t k, int n) const { return Rows::at_n(data + k * Rows::kBytes, n); }
};

// A: value = q * scale of its group.
struct Int8A {
  static constexpr int kBytes = 1;
  const std::byte* data = nullptr;
  const float* scales = nullptr;

  static Int8A of_a(const LoraPair& pair, int32_t rank) {
    return {pair.a + rank * lora_a_stride_bytes(pair), pair.a_scale + rank * lora_quant_groups(lora_a_width(pair))};
  }
  LORALEI_INLINE F at(int64_t k) const { return mul(to_float(load_s8(data + k)), set1(scales[k / kLoraQuantGroup])); }
  LORALEI_INLINE F at_n(int64_t k, int) const { return at(k); }  // the row is padded with zeros
};

// B: the scales of a group of outputs go into the ranks' values, once for
// all its outputs.
struct Int8B {
  static constexpr int kBytes = 1;
  static constexpr bool kScaledRanks = true;
  const std::byte* data = nullptr;

  static Int8B of_b(const LoraPair& pair, int32_t rank, int32_t output) {
    return {pair.b_t + rank * lora_b_stride_bytes(pair) + output};
  }
  LORALEI_INLINE F at(int64_t k) const { return to_float(load_s8(data + k)); }
  LORALEI_INLINE F at_n(int64_t k, int) const { return at(k); }
};
