// SPDX-License-Identifier: Apache-2.0
#include "device/host/isa.h"
#include "ops/op_test_util.h"

namespace loralei {
namespace {

class Matmul : public EveryTable {};
FOR_EVERY_PRODUCT_TABLE(Matmul);

std::vector<float> run_matmul(const OpTable& table, int threads, const TestWeights& weights,
                              const std::vector<float>& x, int32_t rows, const float* bias = nullptr,
                              const std::vector<float>* add_to = nullptr, const TileTuning& tuning = TileTuning()) {
  TestContext& context = fresh_context(table, threads);
  context.ctx.tuning = tuning;
  const int32_t out = weights.view.rows, in = weights.view.cols;
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(out), std::numeric_limits<float>::quiet_NaN());
  if (add_to != nullptr) y = *add_to;
  table.matmul(context.ctx, {.x = x.data(),
                             .x_stride = in,
                             .rows = rows,
                             .w = weights.view,
                             .bias = bias,
                             .y = y.data(),
                             .y_stride = out,
                             .accumulate = add_to != nullptr});
  EXPECT_EQ(context.ctx.op_count, 1u);
  return y;
}

// What a table makes of the inputs.
std::vector<float> inputs_of(const OpTable& table, const TestWeights& weights, std::vector<float> x) {
  if (!table.rounds_bf16 || weights.view.dtype != DType::kBF16) return x;
  for (float& value : x) value = bf16_to_f32(f32_to_bf16(value));
  return x;
}

// |error| <= eps * (steps of the longest chain of additions) * sum |x w|, the standard
// bound of a dot product.
void expect_product(const std::vector<float>& y, const TestWeights& weights, const std::vector<float>& x, int32_t rows,
                    const float* bias, const std::vector<float>* add_to, const std::string& what) {
  const auto out = static_cast<size_t>(weights.view.rows), in = static_cast<size_t>(weights.view.cols);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t o = 0; o < out; ++o) {
      double sum = bias != nullptr ? static_cast<double>(bias[o]) : 0.0;
      double magnitude = std::fabs(sum);
      if (add_to != nullptr) {
        sum += static_cast<double>((*add_to)[row * out + o]);
        magnitude += std::fabs(static_cast<double>((*add_to)[row * out + o]));
      }
      for (size_t k = 0; k < in; ++k) {
        const double term = static_cast<double>(x[row * in + k]) * static_cast<double>(weights.values[o * in + k]);
        sum += term;
        magnitude += std::fabs(term);
      }
      const double bound = kEps * (static_cast<double>(in) / 8 + 10) * magnitude;
      ASSERT_NEAR(static_cast<double>(y[row * out + o]), sum, bound) << what << " row " << row << " output " << o;
    }
  }
}

TEST_P(Matmul, AgreesWithTheNaiveProduct) {
  Prng prng(101);
  for (DType dtype : kAllDTypes) {
    const int block = dtype_info(dtype).block_elems;
    for (int round = 0; round < 6; ++round) {
      const int32_t rows = std::vector<int32_t>{1, 2, 5, 7, 19, 40}[static_cast<size_t>(round)];
      const int32_t in =
          block == 1 ? static_cast<int32_t>(1 + prng.below(300)) : block * static_cast<int32_t>(1 + prng.below(4));
      const auto out = static_cast<int32_t>(1 + prng.below(90));
      const TestWeights weights(prng, dtype, out, in, 1 + round % 3);
      const std::vector<float> x = random_floats(prng, int64_t{rows} * in), bias = random_floats(prng, out);
      const std::vector<float> old = random_floats(prng, int64_t{rows} * out);
      const float* bias_used = round % 2 == 0 ? bias.data() : nullptr;
      const std::vector<float>* add_to = round % 3 == 1 ? &old : nullptr;
      const std::vector<float> y = run_matmul(table(), 1 + round % 4, weights, x, rows, bias_used, add_to);
      expect_product(y, weights, inputs_of(table(), weights, x), rows, bias_used, add_to, dtype_info(dtype).name);
    }
  }
}

TEST_P(Matmul, AWideInputIsSummedRight) {
  Prng prng(102);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kQ4_K}) {
    const TestWeights weights(prng, dtype, 40, 4608, 2);
    const std::vector<float> x = random_floats(prng, 15 * 4608);
    expect_product(run_matmul(table(), 2, weights, x, 15), weights, inputs_of(table(), weights, x), 15, nullptr,
                   nullptr, dtype_info(dtype).name);
  }
}

// All finite f16 numbers, subnormal ones included, times one input.
TEST_P(Matmul, EveryF16WeightCounts) {
  constexpr int32_t kIn = 64, kOut = 2 * 31 * 1024 / kIn;
  std::vector<uint16_t> bits;
  for (uint32_t sign : {0u, 0x8000u})
    for (uint32_t size = 0; size < 31 * 1024; ++size) bits.push_back(static_cast<uint16_t>(sign | size));
  std::vector<float> values(bits.size());
  const auto* const data = reinterpret_cast<const std::byte*>(bits.data());
  decode_row(DType::kF16, data, values.data(), static_cast<int64_t>(bits.size()));
  const std::vector<WeightPanel> panels = {{data, 0, kOut}};
  constexpr float kInput = 1.2345678f;
  constexpr double kRoundings = 5;  // where a weight and an input are cut into pieces
  std::vector<float> x(size_t{kIn} * kIn, 0.0f), y(size_t{kIn} * kOut);
  for (size_t row = 0; row < kIn; ++row) x[row * kIn + row] = kInput;
  table().matmul(fresh_context(table(), 2).ctx, {.x = x.data(),
                                                 .x_stride = kIn,
                                                 .rows = kIn,
                                                 .w = {DType::kF16, LayoutId::kPlain, kOut, kIn, panels},
                                                 .y = y.data(),
                                                 .y_stride = kOut});
  for (size_t row = 0; row < kIn; ++row) {
    for (size_t o = 0; o < kOut; ++o) {
      const double product = static_cast<double>(values[o * kIn + row]) * static_cast<double>(kInput);
      ASSERT_NEAR(static_cast<double>(y[row * kOut + o]), product, kRoundings * kEps * std::fabs(product))
          << "weight " << bits[o * kIn + row];
    }
  }
}

TEST_P(Matmul, AskingForRowsDoesNotShow) {
  Prng prng(109);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const TestWeights weights(prng, dtype, 75, 300, 2);
    for (int32_t rows : {1, 2, 3, 5, 8}) {
      const std::vector<float> x = random_floats(prng, int64_t{rows} * 300);
      TileTuning tuning;
      tuning.ask_for_rows = false;
      const std::vector<float> want = run_matmul(table(), 2, weights, x, rows, nullptr, nullptr, tuning);
      tuning.ask_for_rows = true;
      EXPECT_TRUE(same_bits(run_matmul(table(), 2, weights, x, rows, nullptr, nullptr, tuning), want))
          << dtype_info(dtype).name << " rows " << rows;
    }
  }
}

// A row alone = the same row in a batch of any size, on any number of threads and in any
// panels, bit for bit.
TEST_P(Matmul, ARowDoesNotDependOnItsBatch) {
  Prng prng(103);
  for (DType dtype : kAllDTypes) {
    const int32_t in = dtype_info(dtype).block_elems == 1 ? 333 : 512, out = 53;
    TestWeights weights(prng, dtype, out, in);
    const std::vector<float> x = random_floats(prng, 70 * in);
    std::vector<float> alone;
    for (int32_t row = 0; row < 70; ++row) {
      const std::vector<float> one(x.begin() + row * in, x.begin() + (row + 1) * in);
      const std::vector<float> y = run_matmul(table(), 1, weights, one, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int32_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 25, 31, 32, 33, 37, 64, 70}) {
      for (int threads : {1, 4}) {
        const std::vector<float> y = run_matmul(table(), threads, weights, x, rows);
        ASSERT_TRUE(same_bits(y, std::vector<float>(alone.begin(), alone.begin() + rows * out)))
            << dtype_info(dtype).name << " rows " << rows << " threads " << threads;
      }
    }
    const int64_t bytes = row_bytes(dtype, in);
    weights.panels = {{weights.parts[0].data(), 0, 16},
                      {weights.parts[0].data() + 16 * bytes, 16, 32},
                      {weights.parts[0].data() + 48 * bytes, 48, 5}};
    weights.view.panels = weights.panels;
    EXPECT_TRUE(same_bits(run_matmul(table(), 4, weights, x, 70), alone));
  }
}

// More rows than a part holds, more inputs than a block, on any number of threads.
TEST_P(Matmul, ManyRowsOfManyInputsAreTheRowsAlone) {
  Prng prng(107);
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kQ4_K}) {
    const int32_t in = dtype == DType::kQ4_K ? 1280 : 1061, out = 21, rows = 407;
    const TestWeights weights(prng, dtype, out, in);
    const std::vector<float> x = random_floats(prng, int64_t{rows} * in),
                             old = random_floats(prng, int64_t{rows} * out);
    std::vector<float> alone;
    for (int32_t row = 0; row < rows; ++row) {
      const std::vector<float> one(x.begin() + row * in, x.begin() + (row + 1) * in);
      const std::vector<float> add_to(old.begin() + row * out, old.begin() + (row + 1) * out);
      const std::vector<float> y = run_matmul(table(), 1, weights, one, 1, nullptr, &add_to);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int threads : {1, 3}) {
      ASSERT_TRUE(same_bits(run_matmul(table(), threads, weights, x, rows, nullptr, &old), alone))
          << dtype_info(dtype).name << " threads " << threads;
    }
  }
}

// Products too small for a number leave a zero of their sign in a lane, also where the
// last inputs fill only some lanes.
TEST_P(Matmul, ZerosHaveTheSameSignInAnyBatch) {
  Prng prng(110);
  constexpr int32_t kRows = 40, kOut = 18;
  for (int32_t in : {5, 16, 37, 64}) {
    TestWeights weights(prng, DType::kF32, kOut, in);
    std::vector<float> tiny(static_cast<size_t>(kOut * in), -1e-30f);
    std::memcpy(weights.parts[0].data(), tiny.data(), tiny.size() * sizeof(float));
    const std::vector<float> x(static_cast<size_t>(kRows * in), 1e-30f);
    const std::vector<float> one = run_matmul(table(), 1, weights, x, 1);
    const std::vector<float> all = run_matmul(table(), 2, weights, x, kRows);
    for (size_t row = 0; row < kRows; ++row)
      ASSERT_TRUE(same_bits(std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(row * kOut),
                                               all.begin() + static_cast<std::ptrdiff_t>((row + 1) * kOut)),
                            one))
          << in << " inputs, row " << row;
  }
}

TEST_P(Matmul, NaNAndInfinityStayInTheirRow) {
  Prng prng(104);
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const TestWeights weights(prng, dtype, 20, 64);
    for (int32_t rows : {8, 40}) {
      std::vector<float> x = random_floats(prng, rows * 64);
      const std::vector<float> clean = run_matmul(table(), 1, weights, x, rows);
      x[3 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
      x[5 * 64 + 7] = std::numeric_limits<float>::infinity();
      const std::vector<float> y = run_matmul(table(), 1, weights, x, rows);
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        for (size_t o = 0; o < 20; ++o) {
          const float value = y[row * 20 + o];
          if (row == 3) {
            EXPECT_TRUE(std::isnan(value));
          } else if (row == 5) {
            EXPECT_FALSE(std::isfinite(value));
          } else {
            EXPECT_EQ(value, clean[row * 20 + o]);
          }
        }
      }
    }
  }
}

TEST_P(Matmul, NoRowsIsNoWork) {
  Prng prng(105);
  const TestWeights weights(prng, DType::kF32, 4, 4);
  TestContext& context = fresh_context(table());
  table().matmul(context.ctx, {.rows = 0, .w = weights.view});
  EXPECT_EQ(context.ctx.op_count, 0u);
}

// embed decodes rows exactly as the codec does, whatever instructions it uses; this is
// the test of the vectorised decoders.
TEST_P(Matmul, EmbeddingRowsAreTheCodecsBitForBit) {
  Prng prng(106);
  for (DType dtype : kAllDTypes) {
    const int32_t cols = dtype_info(dtype).block_elems == 1 ? 77 : 512;
    const TestWeights weights(prng, dtype, 50, cols, 3);
    std::vector<TokenId> tokens;
    std::vector<float> expected;
    for (int i = 0; i < 30; ++i) {
      tokens.push_back(static_cast<TokenId>(prng.below(50)));
      expected.insert(expected.end(), weights.values.begin() + tokens.back() * cols,
                      weights.values.begin() + (tokens.back() + 1) * cols);
    }
    std::vector<float> y(expected.size());
    TestContext& context = fresh_context(table());
    table().embed(context.ctx,
                  {.tokens = tokens.data(), .rows = 30, .w = weights.view, .y = y.data(), .y_stride = cols});
    EXPECT_TRUE(same_bits(y, expected)) << dtype_info(dtype).name;
    EXPECT_EQ(context.ctx.op_count, 1u);
  }
}

TEST(OpTables, AreChosenByName) {
  EXPECT_EQ(select_op_table("ref").value()->name, std::string("ref"));
  const OpTable* unasked = select_op_table("").value();
  const OpTable* last = available_op_tables().back();
  EXPECT_EQ(unasked == last, !last->rounds_bf16 || host_vendor() != CpuVendor::kIntel) << unasked->name;
  EXPECT_FALSE(unasked->rounds_bf16 && host_vendor() == CpuVendor::kIntel);
  const Result<const OpTable*> unknown = select_op_table("mmx");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(unknown.error().message.find("ref"), std::string::npos);
}

TEST(OpTables, ExactInputsExcludeThoseThatRound) {
  for (const OpTable* table : available_op_tables()) {
    const Result<const OpTable*> chosen = select_op_table(table->name, Bf16Inputs::kExact);
    EXPECT_EQ(chosen.ok(), !table->rounds_bf16) << table->name;
  }
  EXPECT_FALSE(select_op_table("", Bf16Inputs::kExact).value()->rounds_bf16);
}

}  // namespace
}  // namespace loralei
