// SPDX-License-Identifier: Apache-2.0
// Adapters as mlx-lm writes them: what is loaded is what PEFT's form of the same numbers
// gives, bit for bit.
#include <gtest/gtest.h>

#include <cstring>

#include "adapters/expert_map.h"
#include "adapters/load_test_util.h"
#include "ops/lora_factors.h"

namespace loralei {
namespace {

Matrix crossed(const Matrix& source) {
  Matrix made{{source.shape[1], source.shape[0]}, {}, source.dtype};
  for (int64_t col = 0; col < source.shape[1]; ++col) {
    for (int64_t row = 0; row < source.shape[0]; ++row) made.values.push_back(source.at(row, col));
  }
  return made;
}

class LoadMlxTest : public LoadTest {
 protected:
  LoadMlxTest() {
    config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}, {"target_modules", "all-linear"}};
    tensors.clear();
    mlx = {{"fine_tune_type", "lora"},
           {"num_layers", 2},
           {"lora_parameters", {{"rank", 2}, {"scale", 3.0}, {"dropout", 0.1}}},
           {"learning_rate", 1e-5},
           {"model", "org/llama"}};
  }
  // One pair, in both forms.
  void add(const std::string& module, const Matrix& a, const Matrix& b) {
    tensors["base_model.model." + module + ".lora_A.weight"] = a;
    tensors["base_model.model." + module + ".lora_B.weight"] = b;
    mlx_tensors[module + ".lora_a"] = crossed(a);
    mlx_tensors[module + ".lora_b"] = crossed(b);
  }
  void add_all(const char* dtype) {
    float start = 1;
    for (int layer = 0; layer < 2; ++layer) {
      for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
        const std::string name = module;
        const int64_t in = name == "mlp.down_proj" ? 12 : 8;
        const int64_t out = name == "self_attn.k_proj" || name == "self_attn.v_proj" ? 4
                            : name == "mlp.gate_proj" || name == "mlp.up_proj"       ? 12
                                                                                     : 8;
        add("model.layers." + std::to_string(layer) + "." + name, matrix({2, in}, start, dtype),
            matrix({out, 2}, -start, dtype));
        start += 3;
      }
    }
  }
  Result<AdapterLoad> load_mlx(AdapterLoadOptions options = {}) {
    files.put("/m/adapter_config.json", mlx.dump());
    files.put("/m/adapters.safetensors", safetensors(mlx_tensors));
    return load_adapter(files, "/m", base, options, AdapterVersionId{7});
  }
  void expect_refused(const std::vector<std::string>& words) {
    const auto loaded = load_mlx();
    ASSERT_FALSE(loaded.ok());
    for (const std::string& word : words)
      EXPECT_NE(loaded.error().message.find(word), std::string::npos) << loaded.error().message << " lacks " << word;
  }
  void expect_same(AdapterLoadOptions options = {}) {
    const auto peft = load(options), mine = load_mlx(options);
    ASSERT_TRUE(peft.ok()) << peft.error().message;
    ASSERT_TRUE(mine.ok()) << mine.error().message;
    ASSERT_EQ(peft->adapter->pairs.size(), mine->adapter->pairs.size());
    int pairs = 0;
    for (size_t i = 0; i < peft->adapter->pairs.size(); ++i) {
      const LoraPair &x = peft->adapter->pairs[i], &y = mine->adapter->pairs[i];
      ASSERT_EQ(x.rank, y.rank) << i;
      if (x.rank == 0) continue;
      ++pairs;
      EXPECT_EQ(x.scaling, y.scaling);
      ASSERT_EQ(x.dtype, y.dtype);
      ASSERT_EQ(x.in, y.in);
      ASSERT_EQ(x.out, y.out);
      if (options.int8) {
        EXPECT_EQ(std::memcmp(x.a, y.a, static_cast<size_t>(x.rank * lora_quant_row_bytes(x.in))), 0) << i;
        EXPECT_EQ(std::memcmp(x.b_t, y.b_t, static_cast<size_t>(x.rank * lora_quant_row_bytes(x.out))), 0) << i;
        const auto scales = [&](int64_t count) { return static_cast<size_t>(x.rank * lora_quant_groups(count) * 4); };
        EXPECT_EQ(std::memcmp(x.a_scale, y.a_scale, scales(x.in)), 0) << i;
        EXPECT_EQ(std::memcmp(x.b_scale, y.b_scale, scales(x.out)), 0) << i;
        continue;
      }
      EXPECT_EQ(std::memcmp(x.a, y.a, static_cast<size_t>(x.rank * row_bytes(x.dtype, x.in))), 0) << i;
      EXPECT_EQ(std::memcmp(x.b_t, y.b_t, static_cast<size_t>(x.rank * row_bytes(x.dtype, x.out))), 0) << i;
    }
    EXPECT_EQ(pairs, static_cast<int>(mlx_tensors.size() / 2));
    EXPECT_EQ(peft->adapter->modules, mine->adapter->modules);
  }

  Json mlx;
  Tensors mlx_tensors;
};

TEST_F(LoadMlxTest, IsWhatPeftsFormOfTheSameNumbersGives) {
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    SCOPED_TRACE(dtype);
    tensors.clear();
    mlx_tensors.clear();
    add_all(dtype);
    expect_same();
    expect_same({.int8 = true});
  }
}

TEST_F(LoadMlxTest, FusedProjectionsAreSplit) {
  add("model.layers.0.self_attn.qkv_proj", matrix({2, 8}, 1), matrix({16, 2}, 10));
  add("model.layers.1.mlp.gate_up_proj", matrix({2, 8}, 2), matrix({24, 2}, 20));
  config["target_modules"] = ".*(0.self_attn.qkv_proj|1.mlp.gate_up_proj)";
  const auto peft = load(), mine = load_mlx();
  ASSERT_TRUE(peft.ok() && mine.ok()) << (mine.ok() ? peft : mine).error().message;
  for (size_t i = 0; i < peft->adapter->pairs.size(); ++i) {
    const LoraPair &x = peft->adapter->pairs[i], &y = mine->adapter->pairs[i];
    ASSERT_EQ(x.rank, y.rank);
    if (x.rank == 0) continue;
    EXPECT_EQ(std::memcmp(x.b_t, y.b_t, static_cast<size_t>(x.rank * row_bytes(x.dtype, x.out))), 0) << i;
  }
}

// GLM's files have the pairs that are turned side by side, and so have adapters of it.
TEST_F(LoadMlxTest, RowsOfABaseThatTurnsNeighboursArePutInOrder) {
  base.config.architecture = "glm";
  base.config.head_dim = 4;
  base.config.rotary_dim = 2;
  add_all("F32");
  expect_same();
  const auto glm = load();
  base.config.rotary_dim = 0;  // all four of a head: 0 2 1 3
  const auto whole = load();
  base.config.architecture = "llama";
  const auto llama = load();
  ASSERT_TRUE(glm.ok() && whole.ok() && llama.ok());
  const auto rows = [](const Result<AdapterLoad>& loaded) {
    return reinterpret_cast<const float*>(loaded->adapter->pair(0, Module::kQ).b_t);
  };
  EXPECT_EQ(std::memcmp(rows(glm), rows(llama), 8 * sizeof(float)), 0) << "of two nothing changes places";
  for (const int head : {0, 4}) {
    EXPECT_EQ(rows(whole)[head], rows(llama)[head]);
    EXPECT_EQ(rows(whole)[head + 1], rows(llama)[head + 2]);
    EXPECT_EQ(rows(whole)[head + 2], rows(llama)[head + 1]);
    EXPECT_EQ(rows(whole)[head + 3], rows(llama)[head + 3]);
  }
}

// Tensors of more than a window of the file.
TEST_F(LoadMlxTest, LargeFactorsAreReadInPieces) {
  base.config.hidden = 4096;
  base.config.head_dim = 2048;
  config["r"] = mlx["lora_parameters"]["rank"] = 160;
  config["lora_alpha"] = 480;
  config["target_modules"] = ".*1.self_attn.q_proj";
  add("model.layers.1.self_attn.q_proj", matrix({160, 4096}, 1), matrix({4096, 160}, 2));
  expect_same();
}

TEST_F(LoadMlxTest, TheEmbeddingIsTheHeadTooWhereTheseAreTied) {
  const Matrix a = matrix({6, 2}, 1), b = matrix({2, 8}, 5);
  mlx_tensors["model.embed_tokens.lora_a"] = a;
  mlx_tensors["model.embed_tokens.lora_b"] = b;
  base.config.tied_head = true;
  const auto tied = load_mlx();
  ASSERT_TRUE(tied.ok()) << tied.error().message;
  const LoraPair &embed = tied->adapter->pairs.back(), &head = tied->adapter->pairs[tied->adapter->pairs.size() - 2];
  ASSERT_EQ(embed.rank, 2);
  ASSERT_EQ(head.rank, 2);
  EXPECT_EQ(embed.scaling, 3.0f);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t token = 0; token < 6; ++token) {
      EXPECT_EQ(number(embed.a, embed.dtype, token * 2 + r), a.at(token, r));
      EXPECT_EQ(number(head.b_t, head.dtype, r * 6 + token), a.at(token, r));
    }
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(number(embed.b_t, embed.dtype, r * 8 + i), b.at(r, i));
      EXPECT_EQ(number(head.a, head.dtype, r * 8 + i), b.at(r, i));
    }
  }
  base.config.tied_head = false;
  const auto alone = load_mlx();
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->adapter->pairs[alone->adapter->pairs.size() - 2].rank, 0);
}

// Of all experts of a layer at once, and what else a layer with experts has.
class LoadMlxExperts : public LoadMlxTest {
 protected:
  static constexpr int kExperts = 3, kRank = 2, kWidth = 5;
  LoadMlxExperts() {
    base.config.architecture = "qwen3_moe";
    base.config.experts = {.count = kExperts, .used = 2, .width = kWidth, .dense = {1, 0}};
  }
  // Part `part` of every expert of layer 1, in both forms.
  void add_experts(const std::string& block, int part, float start) {
    const char* const name = expert_matrix_name(base.config, part);
    const int64_t in = part == 2 ? kWidth : 8, out = part == 2 ? 8 : kWidth;
    Matrix all_a{{kExperts, kRank, in}, {}, "F32"}, all_b{{kExperts, out, kRank}, {}, "F32"};
    for (int expert = 0; expert < kExperts; ++expert) {
      const Matrix a = matrix({kRank, in}, start), b = matrix({out, kRank}, start + 100);
      start += 7;
      all_a.values.insert(all_a.values.end(), a.values.begin(), a.values.end());
      all_b.values.insert(all_b.values.end(), b.values.begin(), b.values.end());
      const std::string module =
          "base_model.model.model.layers.1." + block + ".experts." + std::to_string(expert) + "." + name;
      tensors[module + ".lora_A.weight"] = a;
      tensors[module + ".lora_B.weight"] = b;
    }
    const std::string module = "model.layers.1." + block + ".switch_mlp." + kExpertMatrices[part];
    mlx_tensors[module + ".lora_a"] = all_a;
    mlx_tensors[module + ".lora_b"] = all_b;
  }
  void expect_same_experts() {
    const auto peft = load(), mine = load_mlx();
    ASSERT_TRUE(peft.ok()) << peft.error().message;
    ASSERT_TRUE(mine.ok()) << mine.error().message;
    const ExpertPairs &want = peft->adapter->experts, &got = mine->adapter->experts;
    ASSERT_EQ(want.matrices.size(), got.matrices.size());
    for (size_t i = 0; i < want.matrices.size(); ++i) expect_equal(want.matrices[i], got.matrices[i]);
    ASSERT_EQ(want.router.size(), got.router.size());
    for (size_t i = 0; i < want.router.size(); ++i) expect_equal(want.router[i], got.router[i]);
  }
  static void expect_equal(const LoraPair& x, const LoraPair& y) {
    ASSERT_EQ(x.rank, y.rank);
    if (x.rank == 0) return;
    ASSERT_EQ(x.in, y.in);
    ASSERT_EQ(x.out, y.out);
    ASSERT_EQ(x.dtype, y.dtype);
    EXPECT_EQ(x.scaling, y.scaling);
    EXPECT_EQ(std::memcmp(x.a, y.a, static_cast<size_t>(x.rank * row_bytes(x.dtype, x.in))), 0);
    EXPECT_EQ(std::memcmp(x.b_t, y.b_t, static_cast<size_t>(x.rank * row_bytes(x.dtype, x.out))), 0);
  }
};

TEST_F(LoadMlxExperts, AreWhatPeftsFormOfTheSameNumbersGives) {
  for (const bool mixtral : {false, true}) {
    SCOPED_TRACE(mixtral);
    tensors.clear();
    mlx_tensors.clear();
    base.config.experts.mixtral_names = mixtral;
    const std::string block = mixtral ? "block_sparse_moe" : "mlp";
    for (int part = 0; part < 3; ++part) add_experts(block, part, static_cast<float>(1 + 30 * part));
    add("model.layers.1." + block + ".gate", matrix({kRank, 8}, 3), matrix({kExperts, kRank}, 4));
    config["target_modules"] =
        mixtral ? Json{"w1", "w2", "w3", "gate"} : Json{"up_proj", "gate_proj", "down_proj", "gate"};
    config["layers_to_transform"] = {1};
    expect_same_experts();
    // As mlx-lm had it before: A's experts one below the other.
    for (auto& [name, tensor] : mlx_tensors) {
      if (name.find("switch_mlp") != std::string::npos && name.ends_with("lora_a"))
        tensor.shape = {kExperts * kRank, tensor.shape[2]};
    }
    expect_same_experts();
  }
}

TEST_F(LoadMlxExperts, ShapesThatDoNotFitAreRefused) {
  add_experts("mlp", 1, 1);
  const Tensors sound = mlx_tensors;
  const std::string up = "model.layers.1.mlp.switch_mlp.up_proj";
  mlx_tensors[up + ".lora_a"].shape = {kRank, kExperts, 8};
  expect_refused({"up_proj.lora_a", "[2, 3, 8]", "[3, 2, 8]"});
  mlx_tensors = sound;
  mlx_tensors[up + ".lora_b"].shape = {kExperts * kWidth, kRank};
  expect_refused({"up_proj.lora_b", "[experts, out, rank]"});
  mlx_tensors = sound;
  mlx["lora_parameters"]["rank"] = 4;
  expect_refused({"rank 2", "rank 4"});
  mlx["lora_parameters"]["rank"] = kRank;
  mlx_tensors.erase(up + ".lora_a");
  expect_refused({"lora_a", "missing"});
  mlx_tensors = sound;
  for (const char* name : {"model.layers.0.mlp.switch_mlp.up_proj", "model.layers.1.mlp.switch_mlp.w1",
                           "model.layers.2.mlp.switch_mlp.up_proj"}) {
    mlx_tensors[std::string(name) + ".lora_a"] = sound.at(up + ".lora_a");
    expect_refused({name});
    mlx_tensors = sound;
  }
}

TEST_F(LoadMlxTest, WhatCannotBeAppliedIsRefused) {
  add_all("F32");
  const Json sound = mlx;
  mlx["fine_tune_type"] = "dora";
  expect_refused({"fine_tune_type", "dora", "fuse"});
  mlx["fine_tune_type"] = "full";
  expect_refused({"full"});
  mlx = sound;
  mlx["lora_parameters"].erase("scale");
  expect_refused({"lacks \"scale\""});
  mlx = sound;
  mlx["lora_parameters"]["rank"] = 3;
  expect_refused({"rank 2", "rank 3"});
  mlx = sound;
  mlx["lora_parameters"]["use_rslora"] = true;
  expect_refused({"use_rslora"});
  mlx = sound;
  mlx.erase("lora_parameters");
  expect_refused({"peft_type", "lora_parameters"});
  mlx = sound;
  const Tensors whole = mlx_tensors;
  mlx_tensors["model.layers.0.self_attn.q_proj.m"] = matrix({8}, 1);
  expect_refused({"self_attn.q_proj.m", "mlx-lm"});
  mlx_tensors = whole;
  mlx_tensors["model.layers.0.mlp.switch_mlp.up_proj.lora_a"] = matrix({2, 2, 8}, 1);
  expect_refused({"switch_mlp"});
  mlx_tensors = whole;
  mlx_tensors.erase("model.layers.1.mlp.up_proj.lora_b");
  expect_refused({"mlp.up_proj", "missing"});
  mlx_tensors = whole;
  mlx_tensors["model.layers.0.self_attn.q_proj.lora_a"] = matrix({2, 8}, 1);  // PEFT's form
  expect_refused({"self_attn.q_proj"});
  mlx_tensors = whole;
  ASSERT_TRUE(load_mlx().ok());
}

}  // namespace
}  // namespace loralei
