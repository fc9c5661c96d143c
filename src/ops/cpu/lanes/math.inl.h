// SPDX-License-Identifier: Apache-2.0
// What both instruction sets build from their lanes: sums, exp, loads by number format.
// No include guard: see target.h.

// Lane sum in the order of reduce4, so that a number does not depend on how many were
// reduced together.
LORALEI_INLINE float reduce_add(F x) { return first4(reduce4(x, x, x, x)); }

// e^x, relative error below 2e-7; 0 below the smallest normal result, infinity
// above the largest; NaN stays NaN. Cephes-style: x = n ln 2 + r, |r| <= ln 2 / 2,
// Taylor polynomial of degree 7 in r (its remainder is below half an ulp there), then
// 2^n in two factors.
LORALEI_INLINE F exp_f32(F x) {
  const F low = set1(-87.33654f);
  const F clamped = min(set1(89.0f), max(low, x));
  const F n = round_even(mul(clamped, set1(1.44269504f)));
  F r = fma(n, set1(-0.693359375f), clamped);  // exact product: 9 bits of ln 2
  r = fma(n, set1(2.12194440e-4f), r);         // the rest of ln 2
  F p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  const F half = round_even(mul(n, set1(0.5f)));
  return zero_if_less(x, low, mul(mul(p, pow2(half)), pow2(sub(n, half))));
}

// tanh x within a few ulp, also near zero; NaN stays NaN. 2x = n ln 2 + r as in exp_f32,
// and e^2x - 1 = 2^n (e^r - 1) + (2^n - 1).
LORALEI_INLINE F tanh_f32(F x) {
  const F twice = mul(set1(2.0f), min(set1(10.0f), max(set1(-10.0f), x)));  // beyond it is 1
  const F n = round_even(mul(twice, set1(1.44269504f)));
  F r = fma(n, set1(-0.693359375f), twice);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = mul(r, fma(p, r, set1(1.0f)));
  const F power = pow2(n);
  const F e = fma(p, power, sub(power, set1(1.0f)));
  return div(e, add(e, set1(2.0f)));
}

// Rows of weights and caches in the plain formats: kLanes numbers from `p` on; at_n reads
// only the first n and clears the rest.
struct RowsF32 {
  static constexpr int kBytes = 4;
  static LORALEI_INLINE F at(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  static LORALEI_INLINE F at_n(const std::byte* p, int n) { return load_n(reinterpret_cast<const float*>(p), n); }
};
struct RowsF16 {
  static constexpr int kBytes = 2;
  static LORALEI_INLINE F at(const std::byte* p) { return load_f16(p); }
  static LORALEI_INLINE F at_n(const std::byte* p, int n) { return load_f16_n(p, n); }
};
struct RowsBF16 {
  static constexpr int kBytes = 2;
  static LORALEI_INLINE F at(const std::byte* p) { return load_bf16(p); }
  static LORALEI_INLINE F at_n(const std::byte* p, int n) { return load_bf16_n(p, n); }
};
struct RowsI8 {
  static constexpr int kBytes = 1;
  static LORALEI_INLINE F at(const std::byte* p) { return to_float(load_s8(p)); }
  static LORALEI_INLINE F at_n(const std::byte* p, int n) {
    alignas(16) std::byte part[16] = {};
    std::memcpy(part, p, static_cast<size_t>(n));
    return at(part);
  }
};
struct RowsF8 {
  static constexpr int kBytes = 1;
  static LORALEI_INLINE F at(const std::byte* p) { return load_fp8(p); }
  static LORALEI_INLINE F at_n(const std::byte* p, int n) {
    alignas(16) std::byte part[16] = {};
    std::memcpy(part, p, static_cast<size_t>(n));
    return at(part);
  }
};
// Blocks of 128 numbers behind their scale; there are no numbers behind the last block.
struct RowsF8G {
  static constexpr int kBytes = 1;  // about; of which places are asked for ahead
  static LORALEI_INLINE F at_input(const std::byte* row, int64_t k) {
    const std::byte* const block = row + k / 128 * 132;
    float d;
    std::memcpy(&d, block, sizeof d);
    return mul(load_fp8(block + 4 + k % 128), set1(d));
  }
};

// kLanes numbers of a row from its `k`th on, and the last `n` of it.
template <class Rows>
LORALEI_INLINE F row_at(const std::byte* row, int64_t k) {
  if constexpr (std::is_same_v<Rows, RowsF8G>)
    return Rows::at_input(row, k);
  else
    return Rows::at(row + k * Rows::kBytes);
}
template <class Rows>
LORALEI_INLINE F row_at_n(const std::byte* row, int64_t k, int n) {
  if constexpr (std::is_same_v<Rows, RowsF8G>)
    return zero();  // blocks are whole
  else
    return Rows::at_n(row + k * Rows::kBytes, n);
}
