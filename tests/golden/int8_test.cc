// SPDX-License-Identifier: Apache-2.0
// What rounding layer inputs to int8 costs, on every quantised golden model: the logits of the integer products against
// those of the same weights in f32 must differ by no more than twice what rounding by itself does.
//
// What rounding does is computed here: the same f32 products with every input number moved by a random amount, uniform
// within half a rounding step of its block (ops/args.h), the worst of several draws. The relative error is |difference|
// / |logits| in the Euclidean norm over all positions.
#include <gtest/gtest.h>

#include <cmath>

#include "base/prng.h"
#include "ops/tiles.h"
#include "support/model_harness.h"
#include "tensor/tile_layout.h"

namespace loralei::test {
namespace {

const std::string kModels = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/";
#if defined(__SANITIZE_THREAD__)
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

struct Subject {
  const char* name;
  const char* model;
  std::optional<DType> quantise;
};
void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class Int8 : public testing::TestWithParam<Subject> {
 protected:
  // Logits at every position of one fixed sequence.
  std::vector<float> logits(const OpTable* table, LayoutId layout) {
    HarnessOptions options;
    options.table = table;
    options.quantised_layout = layout;
    options.quantise = GetParam().quantise;
    auto harness = ModelHarness::open(kModels + GetParam().model, options);
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
};

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double delta = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += delta * delta;
    size += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / size);
}

TEST_P(Int8, CostsNoMoreThanTwiceTheRounding) {
  const OpTable* best = available_op_tables().back();
  const std::vector<float> exact = logits(best, LayoutId::kPlain);
  ASSERT_FALSE(exact.empty());
  const double error = relative_error(logits(best, LayoutId::kTile16), exact);
  OpTable noisy = *best;
  noisy.matmul_tiles = noisy_matmul_tiles;
  double bound = 0;
  for (int draw = 0; draw < kDraws; ++draw)
    bound = std::max(bound, relative_error(logits(&noisy, LayoutId::kTile16), exact));
  EXPECT_LE(error, 2 * bound);
  EXPECT_GT(error, 0.0);
  RecordProperty("error", std::to_string(error));
  RecordProperty("rounding", std::to_string(bound));
  std::printf("%-12s int8 %.5f, random rounding %.5f\n", GetParam().name, error, bound);
}

INSTANTIATE_TEST_SUITE_P(, Int8,
                         testing::Values(Subject{"q8_0", "gguf-llama-q8_0.gguf", std::nullopt},
                                         Subject{"q4_0", "gguf-llama-q4_0.gguf", std::nullopt},
                                         Subject{"q4_1", "gguf-llama-q4_1.gguf", std::nullopt},
                                         Subject{"q5_0", "gguf-llama-q5_0.gguf", std::nullopt},
                                         Subject{"q5_1", "gguf-llama-q5_1.gguf", std::nullopt},
                                         Subject{"q4_k_m", "gguf-llama-q4_k_m.gguf", std::nullopt},
                                         Subject{"q5_k_m", "gguf-qwen2-q5_k_m.gguf", std::nullopt},
                                         Subject{"qwen3_q8_0", "gguf-qwen3-q8_0.gguf", std::nullopt},
                                         Subject{"made_q8_0", "llama-gqa", DType::kQ8_0},
                                         Subject{"made_q4_0", "llama-gqa", DType::kQ4_0}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loralei::test
