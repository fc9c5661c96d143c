// SPDX-License-Identifier: Apache-2.0
// Adapters kept as int8 (--adapter-quant int8).
#include "adapters/load_test_util.h"
#include "base/prng.h"
#include "base/units.h"
#include "ops/lora_factors.h"
#include "sys/process.h"

namespace loralei {
namespace {

// Int8 factors: every number within half a step of its group's scale.
void expect_int8_pair(const LoraPair& pair, const Matrix& a, const Matrix& b, int64_t b_row = 0) {
  ASSERT_GT(pair.rank, 0);
  ASSERT_TRUE(pair.a_scale != nullptr && pair.b_scale != nullptr);
  std::vector<float> row_a(static_cast<size_t>(pair.in)), row_b(static_cast<size_t>(pair.out));
  for (int32_t r = 0; r < pair.rank; ++r) {
    decode_lora_a(pair, r, row_a.data());
    decode_lora_b(pair, r, 0, pair.out, row_b.data());
    for (int64_t i = 0; i < pair.in; ++i) {
      const float step = pair.a_scale[r * lora_quant_groups(pair.in) + i / kLoraQuantGroup];
      EXPECT_NEAR(row_a[static_cast<size_t>(i)], a.at(r, i), 0.5001f * step);
    }
    for (int64_t o = 0; o < pair.out; ++o) {
      const float step = pair.b_scale[o / kLoraQuantGroup * pair.rank + r];
      EXPECT_NEAR(row_b[static_cast<size_t>(o)], b.at(b_row + o, r), 0.5001f * step);
    }
  }
}

TEST_F(LoadTest, Int8FactorsTakeAByteANumber) {
  base.config.hidden = 256;
  base.config.head_dim = 160;  // q: 320 outputs, v: 160
  base.config.ffn = 70000;     // B of up_proj comes in several pieces
  config["target_modules"] = {"q_proj", "v_proj", "up_proj"};
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    tensors.clear();
    const std::string v = kLayer + "0.self_attn.v_proj.", up = kLayer + "0.mlp.up_proj.";
    Prng prng(1);
    for (const auto& [name, out] : {std::pair(kQ0, 320), {v, 160}, {up, 70000}}) {
      for (auto& [factor, shape] : {std::pair("lora_A.weight", std::vector<int64_t>{2, 256}),
                                    {"lora_B.weight", std::vector<int64_t>{out, 2}}}) {
        Matrix made = matrix(shape, 0, dtype);
        for (float& value : made.values) value = 0.0625f * static_cast<float>(static_cast<int>(prng.below(255)) - 127);
        tensors[name + factor] = std::move(made);
      }
    }
    AdapterLoadOptions options;
    const auto plain = load(options);
    options.int8 = true;
    const auto adapter = load(options);
    ASSERT_TRUE(plain.ok() && adapter.ok());
    for (const auto& [module, name] : {std::pair(Module::kQ, kQ0), {Module::kV, v}, {Module::kUp, up}})
      expect_int8_pair(adapter->adapter->pair(0, module), tensors[name + "lora_A.weight"],
                       tensors[name + "lora_B.weight"]);
    EXPECT_EQ(adapter->adapter->digest, plain->adapter->digest);  // the file's
    EXPECT_LT(adapter->adapter->bytes, plain->adapter->bytes * 0.6);
  }
}

TEST_F(LoadTest, Int8PartsOfFusedProjections) {
  base.config.hidden = 128;
  base.config.head_dim = 32;
  config["target_modules"] = {"qkv_proj"};
  config["lora_bias"] = true;
  const Matrix a = matrix({2, 128}, 1), b = matrix({128, 2}, 50), bias = matrix({128}, 300);
  tensors = {{kLayer + "0.self_attn.qkv_proj.lora_A.weight", a},
             {kLayer + "0.self_attn.qkv_proj.lora_B.weight", b},
             {kLayer + "0.self_attn.qkv_proj.lora_B.bias", bias}};
  AdapterLoadOptions options;
  options.int8 = true;
  const auto adapter = load(options);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  expect_int8_pair(adapter->adapter->pair(0, Module::kQ), a, b, 0);
  expect_int8_pair(adapter->adapter->pair(0, Module::kK), a, b, 64);
  expect_int8_pair(adapter->adapter->pair(0, Module::kV), a, b, 96);
  EXPECT_EQ(adapter->adapter->pair(0, Module::kQ).a, adapter->adapter->pair(0, Module::kV).a);
  EXPECT_EQ(adapter->adapter->pair(0, Module::kV).b_bias[31], bias.values[127]);
}

// No more than the pieces of a file is held beside the adapter, whose bytes are those
// that are granted.
TEST_F(LoadTest, Int8FactorsAreMadePieceByPiece) {
#if defined(LORALEI_THREAD_SANITIZER) || defined(LORALEI_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the sanitizer keeps memory that was freed";
#endif
  base.config.vocab = 300'000;
  config["target_modules"] = {"lm_head"};
  config["r"] = 32;
  config.erase("layers_to_transform");
  tensors = {{"base_model.model.lm_head.lora_A.weight", matrix({32, base.config.hidden}, 3, "BF16")},
             {"base_model.model.lm_head.lora_B.weight", matrix({300'000, 32}, 7, "BF16")}};
  AdapterLoadOptions options;
  options.int8 = true;
  files.put("/a/adapter_config.json", config.dump());
  files.put("/a/adapter_model.safetensors", safetensors(tensors));
  tensors.clear();
  reset_peak_memory();
  const int64_t before = process_memory()->rss_bytes;
  const auto adapter = load_adapter(files, "/a", base, options, AdapterVersionId{7});
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_LT(process_memory()->rss_peak_bytes - before, adapter->adapter->bytes + 16 * kMiB);
}

TEST_F(LoadTest, Int8LeavesEmbeddingsAlone) {
  config["target_modules"] = {"embed_tokens", "lm_head"};
  config.erase("layers_to_transform");
  const Matrix a = matrix({2, 6}, 1), b = matrix({8, 2}, 50), head_a = matrix({2, 8}, 3), head_b = matrix({6, 2}, 7);
  tensors = {{"base_model.model.model.embed_tokens.lora_embedding_A", a},
             {"base_model.model.model.embed_tokens.lora_embedding_B", b},
             {"base_model.model.lm_head.lora_A.weight", head_a},
             {"base_model.model.lm_head.lora_B.weight", head_b}};
  AdapterLoadOptions options;
  options.int8 = true;
  const auto adapter = load(options);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const LoraPair& embed = adapter->adapter->embed_pair();
  EXPECT_EQ(embed.a_scale, nullptr);
  EXPECT_EQ(embed.b_scale, nullptr);
  for (int o = 0; o < 8; ++o) EXPECT_EQ(number(embed.b_t, embed.dtype, o), b.at(o, 0));
  expect_int8_pair(adapter->adapter->head_pair(), head_a, head_b);
}

}  // namespace
}  // namespace loralei
