// SPDX-License-Identifier: Apache-2.0
// The norm of what an adapter changes, against the products themselves.
#include "adapters/change.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "adapters/change_products.h"
#include "adapters/load_test_util.h"
#include "base/prng.h"
#include "ops/lora_factors.h"

namespace loralei {
namespace {

Matrix random_matrix(std::vector<int64_t> shape, unsigned seed, const char* dtype = "F32") {
  Matrix made = matrix(std::move(shape), 0, dtype);
  unsigned state = seed * 2654435761u + 1;
  for (float& value : made.values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 24) - 128) / 64.0f;
  }
  return made;
}

// scaling^2 * |B A|^2, B [out, r] and A [r, in].
double square_of(const Matrix& a, const Matrix& b, double scaling) {
  double sum = 0;
  for (int64_t o = 0; o < b.shape[0]; ++o) {
    for (int64_t i = 0; i < a.shape[1]; ++i) {
      double product = 0;
      for (int64_t r = 0; r < a.shape[0]; ++r)
        product += static_cast<double>(b.at(o, r)) * static_cast<double>(a.at(r, i));
      sum += product * product * scaling * scaling;
    }
  }
  return sum;
}

class ChangeTest : public LoadTest {
 protected:
  void expect_norm(double square, double tolerance = 1e-5) {
    for (const bool int8 : {false, true}) {
      const auto loaded = load({.int8 = int8});
      ASSERT_TRUE(loaded.ok()) << loaded.error().message;
      EXPECT_NEAR(loaded->adapter->change_norm, std::sqrt(square), std::sqrt(square) * (int8 ? 0.01 : tolerance));
      EXPECT_TRUE(loaded->adapter->doubts.empty());
    }
  }
};

TEST_F(ChangeTest, IsThatOfTheProducts) {
  const std::string down = kLayer + "0.mlp.down_proj.";
  config["target_modules"] = {"q_proj", "down_proj"};
  for (const int rank : {1, 2, 3, 63, 64, 65, 130}) {
    base.config.ffn = rank == 3 ? 777 : 300;  // several runs of columns, the last not whole
    config["r"] = rank;
    for (const char* dtype : {"F32", "BF16"}) {
      const Matrix a = random_matrix({rank, 8}, 1, dtype), b = random_matrix({8, rank}, 2, dtype);
      const Matrix a2 = random_matrix({rank, base.config.ffn}, 3, dtype), b2 = random_matrix({8, rank}, 4, dtype);
      tensors = {{kQ0 + "lora_A.weight", a},
                 {kQ0 + "lora_B.weight", b},
                 {down + "lora_A.weight", a2},
                 {down + "lora_B.weight", b2}};
      SCOPED_TRACE(std::to_string(rank) + dtype);
      expect_norm(square_of(a, b, 6.0 / rank) + square_of(a2, b2, 6.0 / rank));
    }
  }
}

TEST_F(ChangeTest, FusedAndEmbedded) {
  base.config.vocab = 600;
  config["target_modules"] = {"embed_tokens", "lm_head", "qkv_proj"};
  config["layers_to_transform"] = nullptr;
  config["exclude_modules"] = {"layers.1.self_attn.qkv_proj"};
  const std::string qkv = kLayer + "0.self_attn.qkv_proj.";
  const Matrix ea = random_matrix({2, 600}, 1), eb = random_matrix({8, 2}, 2), ha = random_matrix({2, 8}, 3),
               hb = random_matrix({600, 2}, 4), qa = random_matrix({2, 8}, 5), qb = random_matrix({16, 2}, 6);
  tensors = {{"base_model.model.model.embed_tokens.lora_embedding_A", ea},
             {"base_model.model.model.embed_tokens.lora_embedding_B", eb},
             {"base_model.model.lm_head.lora_A.weight", ha},
             {"base_model.model.lm_head.lora_B.weight", hb},
             {qkv + "lora_A.weight", qa},
             {qkv + "lora_B.weight", qb}};
  expect_norm(square_of(ea, eb, 3) + square_of(ha, hb, 3) + square_of(qa, qb, 3));
}

TEST_F(ChangeTest, OneThatChangesNothingIsDoubted) {
  const Tensors plain = tensors;
  const auto expect = [&](bool nothing) {
    const auto adapter = good();
    ASSERT_TRUE(adapter);
    ASSERT_EQ(adapter->doubts.size(), nothing ? 1u : 0u);
    if (nothing) {
      EXPECT_EQ(adapter->change_norm, 0);
      EXPECT_NE(adapter->doubts[0].find("changes nothing"), std::string::npos);
      EXPECT_EQ(adapter->report.back(), adapter->doubts[0]);
    }
    tensors = plain;
  };
  expect(false);
  for (const char* factor : {"lora_A.weight", "lora_B.weight"}) {
    tensors[kQ0 + factor].values.assign(16, 0.0f);
    expect(true);
    tensors[kQ0 + factor].values.assign(16, 0.0f);
    tensors[kQ0 + factor].values[15] = 1e-30f;  // little is not nothing
    expect(false);
  }
  config["lora_alpha"] = 0;
  expect(true);
  config["lora_alpha"] = 6;
  config["modules_to_save"] = {"model.norm"};
  tensors["base_model.model.model.norm.weight"] = matrix({8}, 1);
  tensors[kQ0 + "lora_B.weight"].values.assign(16, 0.0f);
  expect(false);
  config["modules_to_save"] = nullptr;
  config["lora_bias"] = true;
  tensors[kQ0 + "lora_B.bias"] = matrix({8}, 1);
  tensors[kQ0 + "lora_B.weight"].values.assign(16, 0.0f);
  expect(false);
}

// Random blocks in each instruction set of this machine, against one product at a time.
TEST(ChangeProducts, EveryInstructionSetAddsTheSame) {
  const int64_t numbers = kChangeRanks * kChangeColumns;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    Prng random(seed);
    std::vector<float> blocks[2];
    for (std::vector<float>& block : blocks)
      for (int64_t i = 0; i < numbers; ++i) block.push_back(static_cast<float>(random.uniform() - 0.5));
    const bool same = seed % 3 == 0;
    const std::vector<float>&x = blocks[0], &y = blocks[same ? 0 : 1];
    const auto x_rows = static_cast<int64_t>(1 + random.below(kChangeRanks));
    const auto y_rows = same ? x_rows : static_cast<int64_t>(1 + random.below(kChangeRanks));
    for (const ChangeProducts& products : change_products()) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << products.name);
      const auto square = std::make_unique<ChangeSquare>();
      square->fill(1.0);
      products.add(x.data(), x_rows, y.data(), y_rows, *square);
      for (int64_t i = 0; i < x_rows; ++i) {
        for (int64_t j = 0; j < (same ? i + 1 : y_rows); ++j) {
          double sum = 1;
          for (int64_t c = 0; c < kChangeColumns; ++c)
            sum +=
                double{x[static_cast<size_t>(i * kChangeColumns + c)]} * y[static_cast<size_t>(j * kChangeColumns + c)];
          ASSERT_NEAR((*square)[static_cast<size_t>(i * kChangeRanks + j)], sum, 1e-4) << i << " " << j;
        }
      }
    }
  }
}

TEST(ChangeProducts, EveryInstructionSetDecodesAllBits) {
  std::vector<uint16_t> bits(65536 + 5);
  std::iota(bits.begin(), bits.end(), uint16_t{0});
  const auto* const bytes = reinterpret_cast<const std::byte*>(bits.data());
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    const int64_t count = dtype == DType::kF32 ? 1001 : std::ssize(bits);
    std::vector<float> expected(static_cast<size_t>(count)), out = expected;
    decode_row(dtype, bytes, expected.data(), count);
    for (const ChangeProducts& products : change_products()) {
      products.decode(dtype, bytes, out.data(), count);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(std::isnan(out[i]), std::isnan(expected[i])) << products.name << " " << i;
        if (!std::isnan(out[i])) {
          ASSERT_EQ(out[i], expected[i]) << products.name << " " << i;
        }
      }
    }
  }
}

TEST_F(ChangeTest, NumbersThatF32DoesNotHold) {
  tensors[kQ0 + "lora_B.weight"].values.assign(16, 1e30f);
  const auto adapter = good();
  ASSERT_TRUE(adapter);
  EXPECT_TRUE(std::isinf(adapter->change_norm));
  EXPECT_TRUE(adapter->doubts.empty());
}

}  // namespace
}  // namespace loralei
