// SPDX-License-Identifier: Apache-2.0
// Rounding of a layer input to int8, row by row and block of 32 by block (ops/args.h),
// into the groups of activations.h. No include guard: see target.h.

constexpr int kBlockVectors = kActivationBlock / kLanes;

// Where the numbers of a block of row `at` lie in a group of `rows`, and in which form.
struct RoundedBlock {
  std::byte* block = nullptr;
  int rows = 0, at = 0;
  RowForm form = RowForm::kSum;

  int bytes() const { return group_block_bytes(rows, has_halves(form)); }
  RoundedBlock after(int64_t blocks) const { return {block + blocks * bytes(), rows, at, form}; }
  int8_t* q() const { return reinterpret_cast<int8_t*>(block) + at * kActivationBlock; }
  // low, high: the sums of q over each half.
  LORALEI_INLINE void put(float d, int32_t low, int32_t high) const {
    const int32_t sum = low + high;
    put_float(group_d_at(rows), d);
    switch (form) {
      case RowForm::kSum:
        return put_float(group_s_at(rows), d * static_cast<float>(sum));
      case RowForm::kHalfSums:
        put_float(group_s_at(rows), d * static_cast<float>(low));
        return put_float(group_s_at(rows, 1), d * static_cast<float>(high));
      case RowForm::kZero8:
        return put_start(ZeroPoint::k8, 0, sum);
      case RowForm::kZero12:
        return put_start(ZeroPoint::k12, 0, sum);
      case RowForm::kZero16:
        return put_start(ZeroPoint::k16, 0, sum);
      case RowForm::kZero128:
        return put_start(ZeroPoint::k128, 0, sum);
      case RowForm::kHalvesZero4:
        return put_starts(ZeroPoint::k4, low, high);
      case RowForm::kHalvesZero32:
        return put_starts(ZeroPoint::k32, low, high);
    }
  }

 private:
  LORALEI_INLINE void put_float(int offset, float value) const { std::memcpy(block + offset + 4 * at, &value, 4); }
  LORALEI_INLINE void put_start(ZeroPoint zero, int half, int32_t sum) const {
    const int32_t start = -zero_value(zero) * sum;
    std::memcpy(block + group_z_at(rows, half) + 4 * at, &start, 4);
  }
  LORALEI_INLINE void put_starts(ZeroPoint zero, int32_t low, int32_t high) const {
    put_start(zero, 0, low);
    put_start(zero, 1, high);
  }
};

// One block; x null: zeros.
void round_block(const float* x, const RoundedBlock& out) {
  uint32_t largest_bits = 0;
  if (x != nullptr) {
    // As integers the magnitudes keep their order, and NaN is above infinity.
    I largest = iset1(0);
    for (int v = 0; v < kBlockVectors; ++v)
      largest = imax(largest, iand(bits_of(load(x + v * kLanes)), iset1(0x7FFFFFFF)));
    largest_bits = static_cast<uint32_t>(reduce_imax(largest));
  }
  const float magnitude = std::bit_cast<float>(largest_bits);
  if (largest_bits >= 0x7F800000u || magnitude < kActivationMin) {
    std::memset(out.q(), 0, kActivationBlock);
    return out.put(largest_bits >= 0x7F800000u ? std::numeric_limits<float>::quiet_NaN() : 0.0f, 0, 0);
  }
  const F inverse = set1(127.0f / magnitude);
  int32_t sums[2] = {};
  for (int v = 0; v < kBlockVectors; ++v) {
    const I rounded = to_int(mul(load(x + v * kLanes), inverse));
    store_bytes(out.q() + v * kLanes, rounded);
    sums[v * kLanes / 16] += reduce_iadd(rounded);
  }
  out.put(magnitude / 127.0f, sums[0], sums[1]);
}

// Four ordinary blocks together: most of the work is looking across lanes, which four
// vectors do at the price of one and a half. False, and nothing done, where a block is
// zero or holds what is no number.
bool round_four_blocks(const float* x, const RoundedBlock& first) {
  const I abs_bits = iset1(0x7FFFFFFF);
  I largest[4];
  LORALEI_UNROLL
  for (int b = 0; b < 4; ++b) {
    largest[b] = iand(bits_of(load(x + b * kActivationBlock)), abs_bits);
    LORALEI_UNROLL
    for (int v = 1; v < kBlockVectors; ++v)
      largest[b] = imax(largest[b], iand(bits_of(load(x + b * kActivationBlock + v * kLanes)), abs_bits));
  }
  alignas(16) int32_t bits[4];
  reduce4_imax(bits, largest[0], largest[1], largest[2], largest[3]);
  constexpr auto kMinBits = std::bit_cast<int32_t>(kActivationMin);
  for (int32_t b : bits) {
    if (b < kMinBits || b >= 0x7F800000) return false;
  }
  I sums[2][4];
  LORALEI_UNROLL
  for (int b = 0; b < 4; ++b) {
    const F inverse = set1(127.0f / std::bit_cast<float>(bits[b]));
    const RoundedBlock out = first.after(b);
    LORALEI_UNROLL
    for (int v = 0; v < kBlockVectors; ++v) {
      const I rounded = to_int(mul(load(x + b * kActivationBlock + v * kLanes), inverse));
      store_bytes(out.q() + v * kLanes, rounded);
      I& sum = sums[v * kLanes / 16][b];
      sum = v * kLanes % 16 == 0 ? rounded : iadd(sum, rounded);
    }
  }
  alignas(16) int32_t low[4], high[4];
  reduce4_iadd(low, sums[0][0], sums[0][1], sums[0][2], sums[0][3]);
  reduce4_iadd(high, sums[1][0], sums[1][1], sums[1][2], sums[1][3]);
  for (int b = 0; b < 4; ++b) first.after(b).put(std::bit_cast<float>(bits[b]) / 127.0f, low[b], high[b]);
  return true;
}

// A row of `cols` inputs, whose first block goes to `out`. x null: a row of zeros, which
// fills a group up. `next`: what will be rounded afterwards, as many numbers, or null;
// it is asked for, since pieces of rows are too short for the processor to foresee.
void round_row(const float* x, const float* next, int64_t cols, RoundedBlock out) {
  constexpr int64_t kLineNumbers = 64 / sizeof(float);
  for (int64_t k = 0; next != nullptr && k < cols; k += kLineNumbers) __builtin_prefetch(next + k, 0, 3);
  for (int64_t k = 0; k < cols;) {
    if (x != nullptr && k + 4 * kActivationBlock <= cols && round_four_blocks(x + k, out)) {
      k += 4 * kActivationBlock;
      out = out.after(4);
      continue;
    }
    round_block(x != nullptr ? x + k : nullptr, out);
    k += kActivationBlock;
    out = out.after(1);
  }
}
