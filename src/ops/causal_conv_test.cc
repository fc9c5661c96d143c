// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_test_util.h"

namespace loralei {
namespace {

class CausalConv : public EveryTable {};
FOR_EVERY_TABLE(CausalConv);

constexpr uint64_t kSeed = 911;
constexpr float kUntouched = -77;

struct Case {
  int32_t channels = 0, kernel = 4;
  bool bias = false;
  std::vector<int32_t> lengths;
};

struct Convolution {
  Case shape;
  int64_t stride = 0;  // of x and y, a little more than the channels
  std::vector<float> x, weight, bias;
  std::vector<std::vector<float>> states;  // as they begin

  Convolution(Prng& prng, const Case& given) : shape(given), stride(given.channels + 3) {
    int64_t rows = 0;
    for (int32_t length : given.lengths) rows += length;
    x = random_floats(prng, rows * stride, 3.0f);
    weight = random_floats(prng, int64_t{given.channels} * given.kernel);
    if (given.bias) bias = random_floats(prng, given.channels);
    for (size_t s = 0; s < given.lengths.size(); ++s) {
      states.push_back(random_floats(prng, int64_t{given.kernel - 1} * given.channels, 3.0f));
    }
  }
};

struct Result {
  std::vector<float> y;
  std::vector<std::vector<float>> states;

  bool same(const Result& other) const {
    bool all = same_bits(y, other.y) && states.size() == other.states.size();
    for (size_t s = 0; all && s < states.size(); ++s) all = same_bits(states[s], other.states[s]);
    return all;
  }
};

// Each call's rows lie together, in the order of its portions.
Result convolve(const OpTable& table, const Convolution& c, const std::vector<Call>& calls, int threads,
                bool in_place = false) {
  Result result{std::vector<float>(c.x.size(), kUntouched), c.states};
  std::vector<int32_t> done(c.shape.lengths.size(), 0);
  for (const Call& call : calls) {
    std::vector<float> x;
    std::vector<int64_t> rows;  // where each row of the call lies among all
    std::vector<StateRows> groups;
    for (const Portion& portion : call) {
      const auto s = static_cast<size_t>(portion.sequence);
      groups.push_back({static_cast<int32_t>(rows.size()), portion.count, result.states[s].data()});
      for (int32_t i = 0; i < portion.count; ++i)
        rows.push_back(first_row(c.shape.lengths, portion.sequence) + done[s]++);
    }
    for (int64_t row : rows) x.insert(x.end(), c.x.begin() + row * c.stride, c.x.begin() + (row + 1) * c.stride);
    std::vector<float> y(x.size(), kUntouched);
    TestContext& context = fresh_context(table, threads);
    table.causal_conv(context.ctx, {.x = x.data(),
                                    .x_stride = c.stride,
                                    .y = in_place ? x.data() : y.data(),
                                    .y_stride = c.stride,
                                    .weight = c.weight.data(),
                                    .bias = c.bias.empty() ? nullptr : c.bias.data(),
                                    .channels = c.shape.channels,
                                    .kernel = c.shape.kernel,
                                    .groups = groups});
    EXPECT_EQ(context.ctx.op_count, rows.empty() ? 0u : 1u);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto from = (in_place ? x : y).begin() + static_cast<int64_t>(i) * c.stride;
      std::copy(from, from + c.shape.channels, result.y.begin() + rows[i] * c.stride);
      if (!in_place) {
        EXPECT_EQ(from[c.shape.channels], kUntouched);
      }
    }
  }
  return result;
}

// `row` of a sequence, counted from its first in this test; those before it are the
// state.
double input(const Convolution& c, int sequence, int64_t row, int64_t channel) {
  const int64_t kept = c.shape.kernel - 1;
  const float* const state = c.states[static_cast<size_t>(sequence)].data();
  if (row < 0) return static_cast<double>(state[(kept + row) * c.shape.channels + channel]);
  return static_cast<double>(
      c.x[static_cast<size_t>((first_row(c.shape.lengths, sequence) + row) * c.stride + channel)]);
}

void expect_convolution(const Convolution& c, const Result& result) {
  const int64_t kernel = c.shape.kernel;
  for (int s = 0; s < static_cast<int>(c.shape.lengths.size()); ++s) {
    const int64_t length = c.shape.lengths[static_cast<size_t>(s)];
    for (int64_t channel = 0; channel < c.shape.channels; ++channel) {
      for (int64_t row = 0; row < length; ++row) {
        double sum = c.bias.empty() ? 0 : static_cast<double>(c.bias[static_cast<size_t>(channel)]);
        double size = std::fabs(sum);
        for (int64_t j = 0; j < kernel; ++j) {
          const double product = static_cast<double>(c.weight[static_cast<size_t>(channel * kernel + j)]) *
                                 input(c, s, row - (kernel - 1) + j, channel);
          sum += product;
          size += std::fabs(product);
        }
        // silu's slope is below 1.1; the sum rounds once a product.
        const double bound = kEps * (1.1 * static_cast<double>(kernel + 1) * size + 12 * std::fabs(sum));
        const auto at = static_cast<size_t>((first_row(c.shape.lengths, s) + row) * c.stride + channel);
        ASSERT_NEAR(static_cast<double>(result.y[at]), sum * sigmoid(sum), bound)
            << "sequence " << s << " row " << row << " channel " << channel;
      }
      for (int64_t j = 0; j < kernel - 1; ++j) {
        const float kept = result.states[static_cast<size_t>(s)][static_cast<size_t>(j * c.shape.channels + channel)];
        ASSERT_EQ(static_cast<double>(kept), input(c, s, length - (kernel - 1) + j, channel)) << "state row " << j;
      }
    }
  }
}

std::vector<Case> cases() {
  return {{.channels = 1, .kernel = 2, .lengths = {5}},
          {.channels = 7, .kernel = 8, .bias = true, .lengths = {3, 20}},
          {.channels = 300, .kernel = 4, .lengths = {1, 9, 0, 2}},
          {.channels = 515, .kernel = 3, .bias = true, .lengths = {17, 1}},
          {.channels = 256, .kernel = 5, .lengths = {4}},
          {.channels = 1040, .kernel = 4, .lengths = {6, 1, 1}}};
}

TEST_P(CausalConv, AgreesWithTheSumInDouble) {
  SCOPED_TRACE(kSeed);
  Prng prng(kSeed);
  for (const Case& shape : cases()) {
    const Convolution c(prng, shape);
    expect_convolution(c, convolve(table(), c, all_at_once(shape.lengths), 2));
  }
}

TEST_P(CausalConv, ARowDependsOnItsSequencesEarlierRowsAlone) {
  SCOPED_TRACE(kSeed + 1);
  Prng prng(kSeed + 1);
  for (const Case& shape : cases()) {
    const Convolution c(prng, shape);
    const Result alone = convolve(table(), c, row_by_row(shape.lengths), 1);
    for (int threads : {1, 2, 4}) {
      EXPECT_TRUE(convolve(table(), c, all_at_once(shape.lengths), threads).same(alone));
      for (int32_t most : {1, 2, 5, 13})
        EXPECT_TRUE(convolve(table(), c, chunks(prng, shape.lengths, most), threads).same(alone)) << most;
    }
    EXPECT_TRUE(convolve(table(), c, all_at_once(shape.lengths), 3, true).same(alone)) << "in place";
    EXPECT_TRUE(convolve(table(), c, row_by_row(shape.lengths), 1, true).same(alone)) << "in place";
  }
}

TEST_P(CausalConv, WhatIsNotFiniteStaysInItsSequenceAndChannel) {
  SCOPED_TRACE(kSeed + 2);
  Prng prng(kSeed + 2);
  const Case shape{.channels = 70, .kernel = 4, .lengths = {9, 9}};
  Convolution c(prng, shape);
  const Result before = convolve(table(), c, all_at_once(shape.lengths), 2);
  c.x[static_cast<size_t>(3 * c.stride + 5)] = std::numeric_limits<float>::quiet_NaN();
  const Result after = convolve(table(), c, all_at_once(shape.lengths), 2);
  for (int64_t row = 0; row < 18; ++row) {
    for (int64_t channel = 0; channel < shape.channels; ++channel) {
      const auto at = static_cast<size_t>(row * c.stride + channel);
      const bool touched = channel == 5 && row >= 3 && row < 7;
      ASSERT_EQ(std::isnan(after.y[at]), touched) << row << " " << channel;
      if (!touched) {
        ASSERT_EQ(after.y[at], before.y[at]);
      }
    }
  }
}

TEST_P(CausalConv, NoRowsIsNoWork) {
  TestContext& context = fresh_context(table());
  std::vector<float> state(9, kUntouched);
  const std::vector<StateRows> groups = {{0, 0, state.data()}};
  table().causal_conv(context.ctx, {.channels = 3, .kernel = 4, .groups = {}});
  table().causal_conv(context.ctx, {.channels = 3, .kernel = 4, .groups = groups});
  EXPECT_EQ(context.ctx.op_count, 0u);
  EXPECT_EQ(state, std::vector<float>(9, kUntouched));
}

}  // namespace
}  // namespace loralei
