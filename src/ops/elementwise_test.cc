// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "ops/op_test_util.h"

namespace loralei {
namespace {

class Elementwise : public EveryTable {};
FOR_EVERY_TABLE(Elementwise);

TEST_P(Elementwise, RmsNormAgreesAndMayWorkInPlace) {
  Prng prng(401);
  for (const auto& [rows, vectors, dim] : {std::tuple{1, 1, 2048}, {7, 1, 333}, {33, 4, 64}, {70, 3, 5}, {2, 1, 1}}) {
    const int64_t stride = int64_t{vectors} * dim + 3;
    const std::vector<float> x = random_floats(prng, rows * stride, 5.0f), weight = random_floats(prng, dim);
    std::vector<float> y = x;
    TestContext& context = fresh_context(table(), 3);
    table().rms_norm(context.ctx, {.x = y.data(),
                                   .x_stride = stride,
                                   .y = y.data(),
                                   .y_stride = stride,
                                   .weight = weight.data(),
                                   .rows = rows,
                                   .vectors = vectors,
                                   .dim = dim,
                                   .eps = 1e-5f});
    EXPECT_EQ(context.ctx.op_count, 1u);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t v = 0; v < vectors; ++v) {
        double square = 0;
        for (int64_t i = 0; i < dim; ++i)
          square += std::pow(static_cast<double>(x[static_cast<size_t>(row * stride + v * dim + i)]), 2);
        const double inverse = 1 / std::sqrt(square / dim + 1e-5);
        for (int64_t i = 0; i < dim; ++i) {
          const auto at = static_cast<size_t>(row * stride + v * dim + i);
          const double expected =
              static_cast<double>(x[at]) * inverse * static_cast<double>(weight[static_cast<size_t>(i)]);
          ASSERT_NEAR(static_cast<double>(y[at]), expected, kEps * (dim / 32.0 + 12) * std::fabs(expected));
        }
      }
      for (int64_t i = int64_t{vectors} * dim; i < stride; ++i)
        ASSERT_EQ(y[static_cast<size_t>(row * stride + i)], x[static_cast<size_t>(row * stride + i)]);
    }
  }
}

TEST_P(Elementwise, LayerNormCentresAndAddsItsBias) {
  Prng prng(411);
  for (const int32_t dim : {1, 5, 17, 64, 333, 2048}) {
    const int32_t rows = 9;
    const int64_t stride = dim + 3;
    std::vector<float> x = random_floats(prng, rows * stride, 5.0f);
    for (float& value : x) value += 40.0f;  // the mean is far from 0
    const std::vector<float> weight = random_floats(prng, dim), bias = random_floats(prng, dim);
    std::vector<float> y = x;
    TestContext& context = fresh_context(table(), 3);
    table().rms_norm(context.ctx, {.x = y.data(),
                                   .x_stride = stride,
                                   .y = y.data(),
                                   .y_stride = stride,
                                   .weight = weight.data(),
                                   .bias = bias.data(),
                                   .rows = rows,
                                   .dim = dim,
                                   .eps = 1e-5f});
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = [&](int64_t i) { return static_cast<double>(x[static_cast<size_t>(row * stride + i)]); };
      double mean = 0, square = 0;
      for (int64_t i = 0; i < dim; ++i) mean += at(i) / dim;
      for (int64_t i = 0; i < dim; ++i) square += std::pow(at(i) - mean, 2) / dim;
      for (int64_t i = 0; i < dim; ++i) {
        const auto one = static_cast<size_t>(i);
        const double expected = (at(i) - mean) / std::sqrt(square + 1e-5) * static_cast<double>(weight[one]) +
                                static_cast<double>(bias[one]);
        ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(row * stride + i)]), expected, 2e-4) << dim;
      }
      for (int64_t i = dim; i < stride; ++i)
        ASSERT_EQ(y[static_cast<size_t>(row * stride + i)], x[static_cast<size_t>(row * stride + i)]);
    }
  }
}

TEST_P(Elementwise, RopeTurnsThePartOfAHeadAndLeavesTheRest) {
  Prng prng(412);
  const int32_t head_dim = 80, heads = 3, rows = 5;
  const int64_t stride = int64_t{heads} * head_dim;
  const std::vector<int32_t> positions = {0, 1, 77, 4095, 131071};
  for (const int32_t turned : {2, 20, 64}) {
    std::vector<float> inv_freq;
    for (int32_t i = 0; i < turned / 2; ++i) inv_freq.push_back(static_cast<float>(std::pow(500.0, -2.0 * i / turned)));
    const std::vector<float> x = random_floats(prng, rows * stride);
    std::vector<float> whole = x, alone(static_cast<size_t>(rows * heads * turned));
    for (int32_t vector = 0; vector < rows * heads; ++vector)
      std::copy_n(x.begin() + vector * head_dim, turned, alone.begin() + vector * turned);
    TestContext& context = fresh_context(table(), 2);
    std::vector<float> angles(static_cast<size_t>(rows * turned));
    table().rope_angles(context.ctx, {.positions = positions.data(),
                                      .inv_freq = inv_freq.data(),
                                      .rows = rows,
                                      .head_dim = turned,
                                      .angles = angles.data()});
    table().rope(context.ctx, {.x = whole.data(),
                               .stride = stride,
                               .rows = rows,
                               .heads = heads,
                               .head_dim = head_dim,
                               .rotary_dim = turned,
                               .angles = angles.data()});
    table().rope(context.ctx, {.x = alone.data(),
                               .stride = int64_t{heads} * turned,
                               .rows = rows,
                               .heads = heads,
                               .head_dim = turned,
                               .angles = angles.data()});
    for (int32_t vector = 0; vector < rows * heads; ++vector) {
      for (int32_t i = 0; i < head_dim; ++i) {
        const float expected = i < turned ? alone[static_cast<size_t>(vector * turned + i)]
                                          : x[static_cast<size_t>(vector * head_dim + i)];
        ASSERT_EQ(whole[static_cast<size_t>(vector * head_dim + i)], expected) << turned << " " << i;
      }
    }
  }
}

TEST_P(Elementwise, RopeTurnsByExactAnglesAtFarPositions) {
  Prng prng(402);
  for (int32_t head_dim : {2, 20, 64, 128}) {
    const int32_t heads = 3, rows = 9, half = head_dim / 2;
    const int64_t stride = int64_t{heads} * head_dim;
    const std::vector<int32_t> positions = {0, 1, 2, 77, 1000, 4095, 32767, 131071, 1000003};
    std::vector<float> inv_freq;
    for (int32_t i = 0; i < half; ++i) inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
    const std::vector<float> x = random_floats(prng, rows * stride);
    std::vector<float> y = x;
    TestContext& context = fresh_context(table(), 2);
    std::vector<float> angles(static_cast<size_t>(rows * head_dim));
    table().rope_angles(context.ctx, {.positions = positions.data(),
                                      .inv_freq = inv_freq.data(),
                                      .attention_scale = 1.25f,
                                      .rows = rows,
                                      .head_dim = head_dim,
                                      .angles = angles.data()});
    table().rope(
        context.ctx,
        {.x = y.data(), .stride = stride, .rows = rows, .heads = heads, .head_dim = head_dim, .angles = angles.data()});
    EXPECT_EQ(context.ctx.op_count, 2u);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t head = 0; head < heads; ++head) {
        for (int32_t i = 0; i < half; ++i) {
          const auto at = static_cast<size_t>(row * stride + head * head_dim + i);
          const double angle =
              positions[static_cast<size_t>(row)] * static_cast<double>(inv_freq[static_cast<size_t>(i)]);
          const double x1 = static_cast<double>(x[at]), x2 = static_cast<double>(x[at + static_cast<size_t>(half)]);
          const double bound = kEps * 4 * 1.25 * (std::fabs(x1) + std::fabs(x2));
          ASSERT_NEAR(static_cast<double>(y[at]), 1.25 * (x1 * std::cos(angle) - x2 * std::sin(angle)), bound);
          ASSERT_NEAR(static_cast<double>(y[at + static_cast<size_t>(half)]),
                      1.25 * (x2 * std::cos(angle) + x1 * std::sin(angle)), bound);
        }
      }
    }
  }
}

// The whole range of exp is visible through silu: gate / (1 + e^-gate).
TEST_P(Elementwise, SwigluIsAccurateFromTinyToHuge) {
  Prng prng(403);
  for (int32_t dim : {1, 15, 16, 100, 5632}) {
    const int32_t rows = 5;
    std::vector<float> gate = random_floats(prng, int64_t{rows} * dim, 100.0f);
    const std::vector<float> up = random_floats(prng, int64_t{rows} * dim, 3.0f);
    for (size_t i = 0; i < gate.size(); ++i) {
      if (i % 3 == 0)
        gate[i] = static_cast<float>(std::ldexp(static_cast<double>(gate[i]), -static_cast<int>(prng.below(60))));
    }
    std::vector<float> y = gate;
    TestContext& context = fresh_context(table(), 2);
    table().swiglu(context.ctx, {.gate = y.data(), .up = up.data(), .stride = dim, .rows = rows, .dim = dim});
    EXPECT_EQ(context.ctx.op_count, 1u);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<double>(gate[i]), expected = g / (1 + std::exp(-g)) * static_cast<double>(up[i]);
      // Below e^-87 the quotient is a subnormal or zero: absolute error there, a
      // few ulp elsewhere.
      ASSERT_NEAR(static_cast<double>(y[i]), expected, 10 * kEps * std::fabs(expected) + 1e-35) << gate[i];
    }
  }
}

// The exponent of a GELU is rounded before its power is taken: what is below zero has its
// size's error beside.
TEST_P(Elementwise, GeluIsAccurateFromTinyToHuge) {
  Prng prng(406);
  for (int32_t dim : {1, 15, 16, 100, 5632}) {
    const int32_t rows = 5;
    std::vector<float> gate = random_floats(prng, int64_t{rows} * dim, 12.0f);
    const std::vector<float> up = random_floats(prng, int64_t{rows} * dim, 3.0f);
    for (size_t i = 0; i < gate.size(); ++i) {
      if (i % 3 == 0)
        gate[i] = static_cast<float>(std::ldexp(static_cast<double>(gate[i]), -static_cast<int>(prng.below(60))));
    }
    std::vector<float> y = gate, alone = gate;
    TestContext& context = fresh_context(table(), 2);
    table().swiglu(context.ctx, {.gate = y.data(),
                                 .up = up.data(),
                                 .stride = dim,
                                 .rows = rows,
                                 .dim = dim,
                                 .activation = Activation::kGeluTanh});
    table().swiglu(
        context.ctx,
        {.gate = alone.data(), .stride = dim, .rows = rows, .dim = dim, .activation = Activation::kGeluTanh});
    EXPECT_EQ(context.ctx.op_count, 2u);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<double>(gate[i]);
      const double u = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
      const double gelu = g > -3 ? g / 2 * (1 + std::tanh(u)) : g / (1 + std::exp(-2 * u));
      const double relative = kEps * (12 + (g < 0 ? 8 * std::fabs(u) : 0));
      ASSERT_NEAR(static_cast<double>(alone[i]), gelu, relative * std::fabs(gelu) + 1e-35) << gate[i];
      const double expected = gelu * static_cast<double>(up[i]);
      ASSERT_NEAR(static_cast<double>(y[i]), expected, (relative + kEps) * std::fabs(expected) + 1e-35) << gate[i];
    }
  }
}

TEST_P(Elementwise, SigmoidIsAccurateFromTinyToHuge) {
  Prng prng(408);
  for (int32_t dim : {1, 15, 16, 100, 5632}) {
    const int32_t rows = 5;
    std::vector<float> gate = random_floats(prng, int64_t{rows} * dim, 100.0f);
    const std::vector<float> up = random_floats(prng, int64_t{rows} * dim, 3.0f);
    std::vector<float> y = gate;
    TestContext& context = fresh_context(table(), 2);
    table().swiglu(context.ctx, {.gate = y.data(),
                                 .up = up.data(),
                                 .stride = dim,
                                 .rows = rows,
                                 .dim = dim,
                                 .activation = Activation::kSigmoid});
    for (size_t i = 0; i < gate.size(); ++i) {
      const double expected = static_cast<double>(up[i]) / (1 + std::exp(-static_cast<double>(gate[i])));
      ASSERT_NEAR(static_cast<double>(y[i]), expected, 10 * kEps * std::fabs(expected) + 1e-35) << gate[i];
    }
  }
}

// The limits, the 1 and alpha are those of the call. Where up + 1 nearly cancels, its
// rounding is that of 1.
TEST_P(Elementwise, ClampedGatesAreAccurateAndClamped) {
  SCOPED_TRACE("seed 408");
  Prng prng(408);
  for (const GateClamp& clamp : {GateClamp{}, GateClamp{.alpha = 0.9f, .limit = 1.5f}}) {
    for (const int32_t dim : {1, 15, 16, 100, 2880}) {
      const int32_t rows = 5;
      std::vector<float> gate = random_floats(prng, int64_t{rows} * dim, 12.0f);
      const std::vector<float> up = random_floats(prng, int64_t{rows} * dim, 12.0f);
      std::vector<float> y = gate;
      TestContext& context = fresh_context(table(), 2);
      table().swiglu(context.ctx, {.gate = y.data(),
                                   .up = up.data(),
                                   .stride = dim,
                                   .rows = rows,
                                   .dim = dim,
                                   .activation = Activation::kClamped,
                                   .clamp = clamp});
      EXPECT_EQ(context.ctx.op_count, 1u);
      const double alpha = static_cast<double>(clamp.alpha), limit = static_cast<double>(clamp.limit);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = std::min(static_cast<double>(gate[i]), limit);
        const double u = std::clamp(static_cast<double>(up[i]), -limit, limit);
        const double active = g / (1 + std::exp(-alpha * g));
        // The exponent is rounded before its power is taken.
        const double relative = kEps * (12 + std::fabs(alpha * g));
        ASSERT_NEAR(static_cast<double>(y[i]), active * (u + 1),
                    relative * std::fabs(active) * (std::fabs(u) + 1) + 1e-35)
            << gate[i] << " and " << up[i];
      }
    }
  }
}

TEST_P(Elementwise, CapsAreAccurateFromTinyToHuge) {
  Prng prng(407);
  for (const float cap : {30.0f, 50.0f, 0.7f}) {
    const int32_t rows = 7, dim = 1003;
    const int64_t stride = dim + 5;
    std::vector<float> x = random_floats(prng, rows * stride, 5 * cap);
    for (size_t i = 0; i < x.size(); i += 2) x[i] = std::ldexp(x[i], -static_cast<int>(prng.below(100)));
    x[0] = std::numeric_limits<float>::infinity(), x[1] = -x[0], x[2] = std::numeric_limits<float>::quiet_NaN();
    x[3] = 3e38f, x[4] = -3e38f, x[5] = 0.0f;
    std::vector<float> y = x;
    TestContext& context = fresh_context(table(), 3);
    table().cap(context.ctx, {.y = y.data(), .y_stride = stride, .rows = rows, .dim = dim, .cap = cap});
    EXPECT_EQ(context.ctx.op_count, 1u);
    EXPECT_EQ(y[0], cap);
    EXPECT_EQ(y[1], -cap);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], cap);
    EXPECT_EQ(y[4], -cap);
    EXPECT_EQ(y[5], 0.0f);
    for (size_t i = 6; i < x.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= dim) {
        EXPECT_EQ(y[i], x[i]) << "beside the row";
        continue;
      }
      const double expected =
          static_cast<double>(cap) * std::tanh(static_cast<double>(x[i]) / static_cast<double>(cap));
      ASSERT_NEAR(static_cast<double>(y[i]), expected, 10 * kEps * std::fabs(expected)) << x[i];
    }
  }
}

TEST_P(Elementwise, SpecialValuesFlowThrough) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> gate = {0.0f, inf, -inf, nan, 88.5f, -88.5f, 3e38f, -3e38f, 1.0f};
  const std::vector<float> up(gate.size(), 1.0f);
  TestContext& context = fresh_context(table());
  table().swiglu(context.ctx, {.gate = gate.data(), .up = up.data(), .stride = 9, .rows = 1, .dim = 9});
  EXPECT_EQ(gate[0], 0.0f);
  EXPECT_EQ(gate[1], inf);
  EXPECT_TRUE(std::isnan(gate[2]));  // -inf / inf
  EXPECT_TRUE(std::isnan(gate[3]));
  EXPECT_EQ(gate[4], 88.5f);
  EXPECT_LE(std::fabs(gate[5]), 1e-35f);
  EXPECT_EQ(gate[6], 3e38f);
  EXPECT_LE(std::fabs(gate[7]), 1e-35f);
  EXPECT_NEAR(gate[8], 0.7310586f, 1e-6);
  gate = {0.0f, inf, -inf, nan, 20.0f, -20.0f, 3e38f, -3e38f, 1.0f};
  table().swiglu(
      context.ctx,
      {.gate = gate.data(), .up = up.data(), .stride = 9, .rows = 1, .dim = 9, .activation = Activation::kGeluTanh});
  EXPECT_EQ(gate[0], 0.0f);
  EXPECT_EQ(gate[1], inf);
  EXPECT_TRUE(std::isnan(gate[2]));
  EXPECT_TRUE(std::isnan(gate[3]));
  EXPECT_EQ(gate[4], 20.0f);
  EXPECT_LE(std::fabs(gate[5]), 1e-35f);
  EXPECT_EQ(gate[6], 3e38f);
  EXPECT_LE(std::fabs(gate[7]), 1e-35f);
  EXPECT_NEAR(gate[8], 0.8411920f, 1e-6);
  gate = {0.0f, inf, -inf, nan, 20.0f, -200.0f, 3e38f, -3e38f, 1.0f};
  table().swiglu(
      context.ctx,
      {.gate = gate.data(), .up = up.data(), .stride = 9, .rows = 1, .dim = 9, .activation = Activation::kSigmoid});
  EXPECT_EQ(gate[0], 0.5f);
  EXPECT_EQ(gate[1], 1.0f);
  EXPECT_LE(std::fabs(gate[2]), 1e-35f);
  EXPECT_TRUE(std::isnan(gate[3]));
  EXPECT_EQ(gate[4], 1.0f);
  EXPECT_LE(std::fabs(gate[5]), 1e-35f);
  EXPECT_EQ(gate[6], 1.0f);
  EXPECT_LE(std::fabs(gate[7]), 1e-35f);
  EXPECT_NEAR(gate[8], 0.7310586f, 1e-6);
  gate = {inf, -3e38f, nan, 1.0f, 1.0f, 1.0f, 3e38f};
  const std::vector<float> ups = {inf, 0.0f, 0.0f, -inf, nan, 0.0f, -1.0f};
  table().swiglu(context.ctx, {.gate = gate.data(),
                               .up = ups.data(),
                               .stride = 7,
                               .rows = 1,
                               .dim = 7,
                               .activation = Activation::kClamped,
                               .clamp = {.limit = 7}});
  EXPECT_NEAR(gate[0], 7 * 8, 1e-3);
  EXPECT_LE(std::fabs(gate[1]), 1e-35f);
  EXPECT_TRUE(std::isnan(gate[2]) && std::isnan(gate[4])) << "what is no number must not become one";
  EXPECT_NEAR(gate[3], -6 * 0.8457958f, 1e-5);
  EXPECT_NEAR(gate[5], 0.8457958f, 1e-6);
  EXPECT_EQ(gate[6], 0.0f);
  std::vector<float> x = {nan, 1.0f, inf, 2.0f};
  const std::vector<float> ones(2, 1.0f);
  table().rms_norm(
      context.ctx,
      {.x = x.data(), .x_stride = 2, .y = x.data(), .y_stride = 2, .weight = ones.data(), .rows = 2, .dim = 2});
  EXPECT_TRUE(std::isnan(x[1]));
}

TEST_P(Elementwise, AddAddsScaleScalesAndRowsAreIndependent) {
  Prng prng(404);
  for (int32_t dim : {1, 31, 2050}) {
    const int32_t rows = 37;
    const std::vector<float> x = random_floats(prng, int64_t{rows} * dim),
                             start = random_floats(prng, int64_t{rows} * dim);
    std::vector<float> y = start, expected = start;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += x[i];
    TestContext& context = fresh_context(table(), 4);
    table().add(context.ctx,
                {.x = x.data(), .x_stride = dim, .y = y.data(), .y_stride = dim, .rows = rows, .dim = dim});
    EXPECT_TRUE(same_bits(y, expected));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = (expected[i] + 0.22f * x[i]) * 12.0f;
    table().add(
        context.ctx,
        {.x = x.data(), .x_stride = dim, .y = y.data(), .y_stride = dim, .rows = rows, .dim = dim, .scale = 0.22f});
    table().scale(context.ctx, {.y = y.data(), .y_stride = dim, .rows = rows, .dim = dim, .factor = 12.0f});
    EXPECT_TRUE(same_bits(y, expected));
  }
}

TEST_P(Elementwise, ARowDoesNotDependOnItsBatch) {
  Prng prng(405);
  const int32_t rows = 40, dim = 2200;
  const std::vector<float> x = random_floats(prng, rows * dim), up = random_floats(prng, rows * dim),
                           weight = random_floats(prng, dim);
  const auto run = [&](int32_t begin, int32_t count, int threads) {
    TestContext& context = fresh_context(table(), threads);
    std::vector<float> y(x.begin() + begin * dim, x.begin() + (begin + count) * dim);
    table().rms_norm(context.ctx, {.x = y.data(),
                                   .x_stride = dim,
                                   .y = y.data(),
                                   .y_stride = dim,
                                   .weight = weight.data(),
                                   .rows = count,
                                   .dim = dim});
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kSigmoid, Activation::kClamped})
      table().swiglu(context.ctx, {.gate = y.data(),
                                   .up = up.data() + begin * dim,
                                   .stride = dim,
                                   .rows = count,
                                   .dim = dim,
                                   .activation = activation});
    table().cap(context.ctx, {.y = y.data(), .y_stride = dim, .rows = count, .dim = dim, .cap = 0.2f});
    return y;
  };
  std::vector<float> alone;
  for (int32_t row = 0; row < rows; ++row) {
    const std::vector<float> y = run(row, 1, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  EXPECT_TRUE(same_bits(run(0, rows, 1), alone));
  EXPECT_TRUE(same_bits(run(0, rows, 4), alone));
}

TEST_P(Elementwise, NoRowsIsNoWork) {
  TestContext& context = fresh_context(table());
  table().rms_norm(context.ctx, {});
  table().rope_angles(context.ctx, {});
  table().rope(context.ctx, {});
  table().swiglu(context.ctx, {});
  table().embed(context.ctx, {});
  table().add(context.ctx, {});
  table().scale(context.ctx, {});
  table().cap(context.ctx, {});
  EXPECT_EQ(context.ctx.op_count, 0u);
}

}  // namespace
}  // namespace loralei
