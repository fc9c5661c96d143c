// SPDX-License-Identifier: Apache-2.0
// Low-rank pairs as tests of their products want them: seeded, in every format.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "ops/lora_factors.h"
#include "ops/op_test_util.h"

namespace loralei {

// How the factors of a test's pair are stored.
enum class Stored { kF32, kF16, kBF16, kInt8 };
inline constexpr Stored kStored[] = {Stored::kF32, Stored::kF16, Stored::kBF16, Stored::kInt8};
inline DType dtype_of(Stored stored) {
  return stored == Stored::kInt8 ? DType::kF32 : kPlainDTypes[static_cast<int>(stored)];
}

// One adapter's pair for one target, with its decoded numbers.
struct TestPair {
  std::vector<std::byte> a, b_t;
  std::vector<float> a_scale, b_scale;
  std::vector<float> a_values, b_values, b_bias, bias_delta;
  LoraPair pair;

  TestPair(Prng& prng, Stored stored, int32_t rank, int32_t in, int32_t out, bool with_b_bias, bool with_delta) {
    const DType dtype = dtype_of(stored);
    a = random_rows(prng, dtype, rank, in);
    b_t = random_rows(prng, dtype, rank, out);
    b_bias = random_floats(prng, out);
    bias_delta = random_floats(prng, out);
    if (stored == Stored::kInt8 && rank > 0) {
      quantise(a, a_scale, rank, in, lora_quant_groups(in), 1);
      quantise(b_t, b_scale, rank, out, 1, rank);
    }
    pair = {.a = a.data(),
            .b_t = b_t.data(),
            .dtype = dtype,
            .a_scale = a_scale.empty() ? nullptr : a_scale.data(),
            .b_scale = b_scale.empty() ? nullptr : b_scale.data(),
            .rank = rank,
            .in = in,
            .out = out,
            .scaling = static_cast<float>(0.25 + prng.uniform()),
            .b_bias = with_b_bias ? b_bias.data() : nullptr,
            .bias_delta = with_delta ? bias_delta.data() : nullptr};
    a_values.resize(static_cast<size_t>(rank) * static_cast<size_t>(in));
    b_values.resize(static_cast<size_t>(rank) * static_cast<size_t>(out));
    for (int32_t r = 0; r < rank; ++r) {
      decode_lora_a(pair, r, &a_values[static_cast<size_t>(r * in)]);
      decode_lora_b(pair, r, 0, out, &b_values[static_cast<size_t>(r * out)]);
    }
  }

  static void quantise(std::vector<std::byte>& rows, std::vector<float>& scales, int32_t rank, int32_t count,
                       int64_t rank_stride, int64_t group_stride) {
    std::vector<std::byte> quantised(static_cast<size_t>(rank * lora_quant_row_bytes(count)), std::byte{0xFF});
    scales.resize(static_cast<size_t>(rank * lora_quant_groups(count)), std::numeric_limits<float>::quiet_NaN());
    quantise_lora(reinterpret_cast<const float*>(rows.data()), rank, count, quantised.data(), scales.data(),
                  rank_stride, group_stride);
    rows = std::move(quantised);
  }
};

}  // namespace loralei
