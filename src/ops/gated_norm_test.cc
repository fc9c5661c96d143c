// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "ops/delta_test_util.h"

namespace loralei {
namespace {

class GatedNorm : public EveryTable {};
FOR_EVERY_TABLE(GatedNorm);

constexpr uint64_t kSeed = 931;

// `y_at`: 0 apart, 1 in x, 2 in z.
std::vector<float> gated_norm(const OpTable& table, std::vector<float> x, std::vector<float> z,
                              const std::vector<float>& weight, int64_t stride, int32_t rows, int32_t vectors,
                              int threads, int y_at = 0) {
  std::vector<float> y = x;
  std::vector<float>& target = y_at == 0 ? y : y_at == 1 ? x : z;
  TestContext& context = fresh_context(table, threads);
  table.gated_norm(context.ctx, {.x = x.data(),
                                 .x_stride = stride,
                                 .z = z.data(),
                                 .z_stride = stride,
                                 .y = target.data(),
                                 .y_stride = stride,
                                 .weight = weight.data(),
                                 .rows = rows,
                                 .vectors = vectors,
                                 .dim = static_cast<int32_t>(weight.size()),
                                 .eps = 1e-3f});
  EXPECT_EQ(context.ctx.op_count, 1u);
  return target;
}

TEST_P(GatedNorm, AgreesWithTheFormulaInDouble) {
  SCOPED_TRACE(kSeed);
  Prng prng(kSeed);
  for (const auto& [rows, vectors, dim] : {std::tuple{1, 1, 1}, {5, 3, 7}, {33, 4, 128}, {2, 1, 333}}) {
    const int64_t stride = int64_t{vectors} * dim + 3;
    const std::vector<float> x = random_floats(prng, rows * stride, 0.1f), z = random_floats(prng, rows * stride, 9.0f),
                             weight = random_floats(prng, dim);
    const std::vector<float> y = gated_norm(table(), x, z, weight, stride, rows, vectors, 2);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t v = 0; v < vectors; ++v) {
        const auto first = static_cast<size_t>(row * stride + v * dim);
        double square = 0;
        for (size_t i = 0; i < weight.size(); ++i) square += std::pow(static_cast<double>(x[first + i]), 2);
        const double inverse = 1 / std::sqrt(square / dim + static_cast<double>(1e-3f));
        for (size_t i = 0; i < weight.size(); ++i) {
          const double gate = static_cast<double>(z[first + i]);
          const double expected =
              static_cast<double>(x[first + i]) * inverse * static_cast<double>(weight[i]) * gate * sigmoid(gate);
          ASSERT_NEAR(static_cast<double>(y[first + i]), expected, kEps * (dim / 32.0 + 24) * std::fabs(expected));
        }
      }
      for (auto i = static_cast<size_t>(row * stride + stride - 3); i < static_cast<size_t>((row + 1) * stride); ++i)
        ASSERT_EQ(y[i], x[i]) << "what lies between rows";
    }
  }
}

TEST_P(GatedNorm, ARowDoesNotDependOnItsBatchNorOnWhereItIsWritten) {
  SCOPED_TRACE(kSeed + 1);
  Prng prng(kSeed + 1);
  const int32_t rows = 40, vectors = 3, dim = 75;
  const int64_t stride = int64_t{vectors} * dim;
  const std::vector<float> x = random_floats(prng, rows * stride), z = random_floats(prng, rows * stride, 5.0f),
                           weight = random_floats(prng, dim);
  std::vector<float> alone;
  for (int32_t row = 0; row < rows; ++row) {
    const auto part = [&](const std::vector<float>& from) {
      return std::vector<float>(from.begin() + row * stride, from.begin() + (row + 1) * stride);
    };
    const std::vector<float> y = gated_norm(table(), part(x), part(z), weight, stride, 1, vectors, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (int threads : {1, 4}) {
    for (int y_at : {0, 1, 2})
      EXPECT_TRUE(same_bits(gated_norm(table(), x, z, weight, stride, rows, vectors, threads, y_at), alone));
  }
}

TEST_P(GatedNorm, NoRowsIsNoWork) {
  TestContext& context = fresh_context(table());
  table().gated_norm(context.ctx, {});
  EXPECT_EQ(context.ctx.op_count, 0u);
}

void expect_near(const std::vector<float>& expected, const float* values) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(values[i], expected[i], 2e-6f) << i;
}

// What transformers 5.23 (qwen3_5) computes of the same waves: its convolution, its
// recurrence and its chunked form (which agree to 3e-7), its norm.
TEST_P(GatedNorm, TheThreeOperationsAreThoseOfTransformers) {
  const int32_t rows = 5, k_heads = 2, v_heads = 4, key_dim = 4, value_dim = 3, kernel = 4;
  const int32_t keys = k_heads * key_dim, values = v_heads * value_dim, channels = 2 * keys + values;
  std::vector<float> x = wave(rows * channels, 0.7, 1.0, 2.0);
  const std::vector<float> weight = wave(channels * kernel, 1.3, 0.5), a = wave(rows * v_heads, 0.9, 0.2, 2.0),
                           b = wave(rows * v_heads, 1.1, 2.0, 3.0), a_log = wave(v_heads, 2.0, 0.3),
                           dt_bias = wave(v_heads, 1.7, 0.1), z = wave(rows * values, 0.4, 0.9, 2.0),
                           norm = wave(value_dim, 1.0, 1.0);
  std::vector<float> kept(static_cast<size_t>((kernel - 1) * channels)), out(static_cast<size_t>(rows * values));
  std::vector<float> state(static_cast<size_t>(v_heads * key_dim * value_dim));
  const std::vector<StateRows> conv = {{0, rows, kept.data()}}, delta = {{0, rows, state.data()}};
  TestContext& context = fresh_context(table());
  table().causal_conv(context.ctx, {.x = x.data(),
                                    .x_stride = channels,
                                    .y = x.data(),
                                    .y_stride = channels,
                                    .weight = weight.data(),
                                    .channels = channels,
                                    .kernel = kernel,
                                    .groups = conv});
  expect_near({3.44139051f, -0.259961218f, -0.20856674f, 2.1786201f, 0.106044874f, -0.062267933f, -0.195657209f},
              x.data() + 4 * channels);
  table().delta_rule(context.ctx, {.q = x.data(),
                                   .k = x.data() + keys,
                                   .v = x.data() + 2 * keys,
                                   .stride = channels,
                                   .a = a.data(),
                                   .a_stride = v_heads,
                                   .b = b.data(),
                                   .b_stride = v_heads,
                                   .a_log = a_log.data(),
                                   .dt_bias = dt_bias.data(),
                                   .out = out.data(),
                                   .out_stride = values,
                                   .k_heads = k_heads,
                                   .v_heads = v_heads,
                                   .key_dim = key_dim,
                                   .value_dim = value_dim,
                                   .groups = delta});
  expect_near({-0.0177310482f, 0.179439858f, 0.108407259f, -0.00650781207f, -0.0173137765f, 0.150982112f, 0.661099195f,
               -0.0800621808f, -0.124653369f, 0.280817538f, 0.118696228f, -0.0263864305f},
              out.data() + 4 * values);
  expect_near({0.0492112599f, 0.152835369f, -0.0193222854f, -0.0835644156f, -0.0428541116f, 0.0114263175f, 0.797956765f,
               -0.0955133364f, -0.0594427213f, 0.636771321f, 0.220473677f, -0.0574660711f},
              state.data() + 3 * key_dim * value_dim);
  table().gated_norm(context.ctx, {.x = out.data(),
                                   .x_stride = values,
                                   .z = z.data(),
                                   .z_stride = values,
                                   .y = out.data(),
                                   .y_stride = values,
                                   .weight = norm.data(),
                                   .rows = rows,
                                   .vectors = v_heads,
                                   .dim = value_dim});
  expect_near({-0.202771828f, 2.35687923f, 0.191053584f, -0.0621258393f, -0.0658331513f, -0.0235030614f, -0.379705101f,
               0.0502485596f, 0.0109945694f, -0.321154475f, -0.159683585f, 0.00584690785f},
              out.data() + 4 * values);
}

}  // namespace
}  // namespace loralei
