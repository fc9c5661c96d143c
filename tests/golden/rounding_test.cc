// SPDX-License-Identifier: Apache-2.0
// What rounding layer inputs costs: to int8 on every quantised golden model, to bf16 on
// models of bf16 weights. The logits of the rounding products against those of the same
// weights with f32 inputs must differ by no more than twice what rounding by itself does.
//
// What rounding does is computed here: the same f32 products with every input
// number moved by a random amount, uniform within half a rounding step of its block
// (ops/args.h) or of the number itself, the worst of several draws. The relative error is
// |difference| / |logits| in the Euclidean norm over all positions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/prng.h"
#include "ops/tiles.h"
#include "support/model_harness.h"
#include "tensor/tile_layout.h"

namespace loralei::test {
namespace {

const std::string kModels = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";
#if defined(LORALEI_THREAD_SANITIZER) || defined(LORALEI_ADDRESS_SANITIZER)
constexpr int kTokens = 8, kDraws = 1;  // the reference is slow, and slower by twenty times here
#else
constexpr int kTokens = 40, kDraws = 5;
#endif

Prng noise(20261120);  // one draw of rounding errors after the other

// matmul_tiles with exact arithmetic and random rounding.
void noisy_matmul_tiles(OpContext&, const TileMatmulArgs& args) {
  const int32_t in = args.products[0].w.cols;
  std::vector<double> x(static_cast<size_t>(args.rows) * static_cast<size_t>(in));
  for (int32_t row = 0; row < args.rows; ++row) {
    for (int32_t k = 0; k < in; k += kActivationBlock) {
      const float* block = args.x + row * args.x_stride + k;
      float largest = 0;
      for (int i = 0; i < kActivationBlock; ++i) largest = std::max(largest, std::fabs(block[i]));
      for (int i = 0; i < kActivationBlock; ++i) {
        x[static_cast<size_t>(int64_t{row} * in + k + i)] =
            static_cast<double>(block[i]) + (noise.uniform() - 0.5) * static_cast<double>(largest) / 127.0;
      }
    }
  }
  std::vector<float> weights(static_cast<size_t>(in));
  for (const TileProduct& product : args.products) {
    for (int32_t o = 0; o < product.w.rows; ++o) {
      const RowTile tile = tile_of_row(product.w, o);
      decode_tile_row(product.w.dtype, tile.data, static_cast<int>(o - tile.output), in, weights.data());
      for (int32_t row = 0; row < args.rows; ++row) {
        double sum = product.bias != nullptr ? static_cast<double>(product.bias[o]) : 0.0;
        for (int32_t k = 0; k < in; ++k) {
          sum += x[static_cast<size_t>(int64_t{row} * in + k)] * static_cast<double>(weights[static_cast<size_t>(k)]);
        }
        float& y = product.y[row * product.y_stride + o];
        y = static_cast<float>(args.accumulate ? static_cast<double>(y) + sum : sum);
      }
    }
  }
}

// matmul of bf16 weights likewise.
void noisy_matmul(OpContext& context, const MatmulArgs& args) {
  const auto cols = static_cast<size_t>(args.w.cols);
  std::vector<float> x(static_cast<size_t>(args.rows) * cols);
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = args.x[static_cast<int64_t>(i / cols) * args.x_stride + static_cast<int64_t>(i % cols)];
    int exponent = 0;
    std::frexp(value, &exponent);
    constexpr int kBits = 8;  // of a bf16 number
    x[i] = value + static_cast<float>((noise.uniform() - 0.5) * std::ldexp(1.0, exponent - kBits));
  }
  MatmulArgs noisy = args;
  noisy.x = x.data();
  noisy.x_stride = args.w.cols;
  select_op_table("ref").value()->matmul(context, noisy);
}

struct Subject {
  const char* name;
  const char* model;
  std::optional<DType> quantise;
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

// Logits at every position of one fixed sequence.
std::vector<float> logits(const Subject& subject, const OpTable& table, LayoutId layout = LayoutId::kTile16) {
  HarnessOptions options;
  options.table = &table;
  options.quantised_layout = layout;
  options.quantise = subject.quantise;
  auto harness = ModelHarness::open(kModels + subject.model, options);
  if (!harness.ok()) {
    ADD_FAILURE() << harness.error().message;
    return {};
  }
  Prng prng(17);
  Span span;
  for (int i = 0; i < kTokens; ++i) {
    span.tokens.push_back(static_cast<TokenId>(prng.below(static_cast<uint64_t>((*harness)->config().vocab))));
    span.logits_at.push_back(i);
  }
  auto output = (*harness)->run({span});
  EXPECT_TRUE(output.ok());
  std::vector<float> all;
  for (const auto& row : output->logits) all.insert(all.end(), row.begin(), row.end());
  return all;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double delta = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += delta * delta;
    size += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / size);
}

// `error` and the errors of random rounding.
void expect_explained(const char* format, const char* name, double error, const std::vector<double>& random_errors) {
  const double bound = *std::max_element(random_errors.begin(), random_errors.end());
  EXPECT_LE(error, 2 * bound);
  EXPECT_GT(error, 0.0);
  testing::Test::RecordProperty("error", std::to_string(error));
  testing::Test::RecordProperty("rounding", std::to_string(bound));
  std::printf("%-14s %s %.5f, random rounding %.5f\n", name, format, error, bound);
}

class Int8 : public testing::TestWithParam<Subject> {};

TEST_P(Int8, CostsNoMoreThanTwiceTheRounding) {
  const OpTable& best = *select_op_table("", Bf16Inputs::kExact).value();
  const std::vector<float> exact = logits(GetParam(), best, LayoutId::kPlain);
  ASSERT_FALSE(exact.empty());
  OpTable noisy = best;
  noisy.matmul_tiles = noisy_matmul_tiles;
  std::vector<double> random_errors;
  for (int draw = 0; draw < kDraws; ++draw) random_errors.push_back(relative_error(logits(GetParam(), noisy), exact));
  expect_explained("int8", GetParam().name, relative_error(logits(GetParam(), best), exact), random_errors);
}

class Bf16 : public testing::TestWithParam<Subject> {};

TEST_P(Bf16, CostsNoMoreThanTwiceTheRounding) {
  const OpTable* rounding = nullptr;
  for (const OpTable* table : available_op_tables()) {
    if (table->rounds_bf16) rounding = table;
  }
  if (rounding == nullptr) GTEST_SKIP() << "this processor has no products of bf16 pairs (AVX512_BF16)";
  const OpTable& reference = *select_op_table("ref").value();
  const std::vector<float> exact = logits(GetParam(), reference);
  ASSERT_FALSE(exact.empty());
  OpTable noisy = reference;
  noisy.matmul = noisy_matmul;
  std::vector<double> random_errors;
  for (int draw = 0; draw < kDraws; ++draw) random_errors.push_back(relative_error(logits(GetParam(), noisy), exact));
  expect_explained("bf16", GetParam().name, relative_error(logits(GetParam(), *rounding), exact), random_errors);
}

INSTANTIATE_TEST_SUITE_P(, Int8,
                         testing::Values(Subject{"q8_0", "gguf-llama-q8_0.gguf", std::nullopt},
                                         Subject{"q4_0", "gguf-llama-q4_0.gguf", std::nullopt},
                                         Subject{"q4_1", "gguf-llama-q4_1.gguf", std::nullopt},
                                         Subject{"q5_0", "gguf-llama-q5_0.gguf", std::nullopt},
                                         Subject{"q5_1", "gguf-llama-q5_1.gguf", std::nullopt},
                                         Subject{"q4_k_m", "gguf-llama-q4_k_m.gguf", std::nullopt},
                                         Subject{"q5_k_m", "gguf-qwen2-q5_k_m.gguf", std::nullopt},
                                         Subject{"q2_k_m", "gguf-llama-q2_k_m.gguf", std::nullopt},
                                         Subject{"q3_k_m", "gguf-llama-q3_k_m.gguf", std::nullopt},
                                         Subject{"iq4_nl", "gguf-llama-iq4_nl.gguf", std::nullopt},
                                         Subject{"iq4_xs_m", "gguf-qwen2-iq4_xs_m.gguf", std::nullopt},
                                         Subject{"mxfp4", "gguf-llama-mxfp4.gguf", std::nullopt},
                                         Subject{"qwen3_q8_0", "gguf-qwen3-q8_0.gguf", std::nullopt},
                                         Subject{"gptq", "gptq-sym", std::nullopt},
                                         Subject{"int4g", "awq", std::nullopt},
                                         Subject{"made_q8_0", "llama-gqa", DType::kQ8_0},
                                         Subject{"made_q4_0", "llama-gqa", DType::kQ4_0}),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(, Bf16,
                         testing::Values(Subject{"llama_gqa", "llama-gqa", std::nullopt},
                                         Subject{"llama2", "llama2", std::nullopt},
                                         Subject{"mistral_window", "mistral-window", std::nullopt},
                                         Subject{"qwen2", "qwen2", std::nullopt},
                                         Subject{"qwen3", "qwen3", std::nullopt}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loralei::test
