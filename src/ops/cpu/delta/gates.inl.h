// SPDX-License-Identifier: Apache-2.0
// Gates and sums that the kernels of gated linear attention share. No include guard: see
// target.h.

LORALEI_INLINE F sigmoid_f32(F x) { return div(set1(1.0f), add(set1(1.0f), exp_f32(sub(zero(), x)))); }
LORALEI_INLINE F silu(F x) { return div(x, add(set1(1.0f), exp_f32(sub(zero(), x)))); }

// log(1 + e^x), relative error below 1e-6: max(x, 0) + log(1 + t) with t = e^-|x|, and
// log(1 + t) = 2 artanh(t / (2 + t)), whose series ends at the fifteenth power: the next
// term is below a quarter of an ulp. All terms are positive. NaN stays NaN.
LORALEI_INLINE F softplus_f32(F x) {
  const F t = exp_f32(min(sub(zero(), x), x));
  const F s = div(t, add(set1(2.0f), t));
  const F square = mul(s, s);
  F p = set1(1.0f / 15);
  p = fma(p, square, set1(1.0f / 13));
  p = fma(p, square, set1(1.0f / 11));
  p = fma(p, square, set1(1.0f / 9));
  p = fma(p, square, set1(1.0f / 7));
  p = fma(p, square, set1(1.0f / 5));
  p = fma(p, square, set1(1.0f / 3));
  p = mul(p, square);
  const F twice = add(s, s);
  return add(max(zero(), x), fma(p, twice, twice));
}

LORALEI_INLINE float sum_of_squares(const float* x, int32_t count) {
  F sums[2] = {zero(), zero()};
  int32_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const F even = load(x + i), odd = load(x + i + kLanes);
    sums[0] = fma(even, even, sums[0]);
    sums[1] = fma(odd, odd, sums[1]);
  }
  for (; i < count; i += kLanes) {
    const F rest = load_n(x + i, count - i < kLanes ? count - i : kLanes);
    sums[0] = fma(rest, rest, sums[0]);
  }
  return reduce_add(add(sums[0], sums[1]));
}

// Items of `elements` each that a thread takes at once so that waking it pays.
LORALEI_INLINE int64_t delta_grain(int64_t elements) {
  constexpr int64_t kElements = 16384;
  return elements >= kElements ? 1 : (kElements + elements) / (elements + 1);
}
