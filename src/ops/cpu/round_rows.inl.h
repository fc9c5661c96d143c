// SPDX-License-Identifier: Apache-2.0
// Rounding of a layer input to int8, row by row and block of 32 by block (ops/args.h), into the groups of
// activations.h. No include guard: see target.h.

constexpr int kBlockVectors = kActivationBlock / kLanes;

// Row `at` of a group of `rows` rows. x null: a row of zeros, which fills a group up.
void round_row(const float* x, int64_t cols, int rows, int at, std::byte* group) {
  const I abs_bits = iset1(0x7FFFFFFF);
  const int block_bytes = group_block_bytes(rows);
  for (int64_t k = 0; k < cols; k += kActivationBlock, group += block_bytes) {
    int8_t* q = reinterpret_cast<int8_t*>(group) + at * kActivationBlock;
    float d = 0, s = 0;
    int32_t sums[2] = {};
    uint32_t largest_bits = 0;
    F values[kBlockVectors];
    if (x != nullptr) {
      // As integers the magnitudes keep their order, and NaN is above infinity.
      I largest = iset1(0);
      LORALEI_UNROLL
      for (int v = 0; v < kBlockVectors; ++v) {
        values[v] = load(x + k + v * kLanes);
        largest = imax(largest, iand(bits_of(values[v]), abs_bits));
      }
      largest_bits = static_cast<uint32_t>(reduce_imax(largest));
    }
    const float magnitude = std::bit_cast<float>(largest_bits);
    if (largest_bits >= 0x7F800000u) {
      d = s = std::numeric_limits<float>::quiet_NaN();
      std::memset(q, 0, kActivationBlock);
    } else if (magnitude < kActivationMin) {
      std::memset(q, 0, kActivationBlock);
    } else {
      d = magnitude / 127.0f;
      const F inverse = set1(127.0f / magnitude);
      LORALEI_UNROLL
      for (int v = 0; v < kBlockVectors; ++v) {
        const I rounded = to_int(mul(values[v], inverse));
        store_bytes(q + v * kLanes, rounded);
        sums[v * kLanes / 16] += reduce_iadd(rounded);
      }
      s = d * static_cast<float>(sums[0] + sums[1]);
    }
    std::memcpy(group + group_d_at(rows) + 4 * at, &d, 4);
    std::memcpy(group + group_s_at(rows) + 4 * at, &s, 4);
    const auto put = [&](ZeroPoint zero, int32_t value) {
      std::memcpy(group + group_z_at(rows, zero) + 4 * at, &value, 4);
    };
    const int32_t sum = sums[0] + sums[1];
    put(ZeroPoint::k8, -8 * sum);
    put(ZeroPoint::k16, -16 * sum);
    put(ZeroPoint::k128, -128 * sum);
    put(ZeroPoint::k32Low, -32 * sums[0]);
    put(ZeroPoint::k32High, -32 * sums[1]);
  }
}
