// SPDX-License-Identifier: Apache-2.0
// Adapters of models with gated linear attention: every module of both kinds of layer has
// its place, and names of the other kind are refused. That they compute what PEFT does is
// golden_test's.
#include <gtest/gtest.h>

#include <algorithm>

#include "adapters/load_test_util.h"
#include "adapters/peft_map.h"
#include "adapters/value_heads.h"

namespace loralei {
namespace {

const std::string kLinear0 = kLayer + "0.linear_attn.";

class LoadLinear : public LoadTest {
 protected:
  LoadLinear() {
    base.config.architecture = "qwen3_5_text";
    base.config.attention_gate = true;
    base.config.linear = {
        .layers = {1, 0}, .k_heads = 2, .v_heads = 4, .key_dim = 3, .value_dim = 2, .kernel = 4};  // 20 channels
    use_qk_norms(base.config);
    config.erase("layers_to_transform");
    tensors.clear();
  }
  // Of rank 2.
  void give(const std::string& module, int in, int out, float start) {
    tensors[module + ".lora_A.weight"] = matrix({2, in}, start);
    tensors[module + ".lora_B.weight"] = matrix({out, 2}, start + 100);
  }
  void expect_given(const LoraPair& pair, const std::string& module) {
    expect_pair(pair, tensors[module + ".lora_A.weight"], tensors[module + ".lora_B.weight"]);
  }
};

TEST_F(LoadLinear, ModulesOfBothKindsOfLayerHaveTheirPlaces) {
  config["target_modules"] = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "q_proj", "o_proj"};
  give(kLinear0 + "in_proj_qkv", 8, 20, 1);
  give(kLinear0 + "in_proj_z", 8, 8, 2);
  give(kLinear0 + "in_proj_b", 8, 4, 3);
  give(kLinear0 + "in_proj_a", 8, 4, 4);
  give(kLinear0 + "out_proj", 8, 8, 5);
  give(kLayer + "1.self_attn.q_proj", 8, 16, 6);  // queries and gates
  give(kLayer + "1.self_attn.o_proj", 8, 8, 7);
  const auto adapter = good();
  expect_given(adapter->pair(0, Module::kQ), kLinear0 + "in_proj_qkv");
  expect_given(adapter->pair(0, Module::kK), kLinear0 + "in_proj_z");
  expect_given(adapter->pair(0, Module::kV), kLinear0 + "in_proj_b");
  expect_given(adapter->pair(0, Module::kDecay), kLinear0 + "in_proj_a");
  expect_given(adapter->pair(0, Module::kO), kLinear0 + "out_proj");
  expect_given(adapter->pair(1, Module::kQ), kLayer + "1.self_attn.q_proj");
  EXPECT_EQ(adapter->pair(1, Module::kDecay).rank, 0);
  EXPECT_EQ(adapter->pairs.size(), 2u * 8 + 2);
}

TEST_F(LoadLinear, ModulesOfTheOtherKindAreRefused) {
  config["target_modules"] = {"q_proj", "in_proj_a"};
  give(kLayer + "0.self_attn.q_proj", 8, 16, 1);
  expect_error({"layers.0.self_attn.q_proj", "not one that a LoRA adapter of this base model can have"});
  tensors.clear();
  give(kLayer + "1.linear_attn.in_proj_a", 8, 4, 1);
  expect_error({"layers.1.linear_attn.in_proj_a", "not one that a LoRA adapter of this base model can have"});
  tensors.clear();
  give(kLinear0 + "conv1d", 4, 20, 1);
  expect_error({"conv1d"});
  tensors.clear();
  give(kLinear0 + "in_proj_a", 8, 5, 1);
  give(kLayer + "1.self_attn.q_proj", 8, 16, 1);
  expect_error({"in_proj_a", "[5, 2]", "[4, 2]"});
}

TEST_F(LoadLinear, NormsOfQueriesAreThoseOfLayersThatHaveSome) {
  const std::vector<ModuleRef> savable = savable_modules(base.config);
  const auto count = std::count_if(savable.begin(), savable.end(),
                                   [](const ModuleRef& module) { return module.key.ends_with("q_norm"); });
  EXPECT_EQ(count, 1);
  EXPECT_EQ(parse_module("model.layers.0.self_attn.q_norm", base.config).site, Site::kUnknown);
  EXPECT_EQ(parse_module("model.layers.1.self_attn.q_norm", base.config).site, Site::kLayerNorm);
  EXPECT_EQ(parse_module("model.layers.0.input_layernorm", base.config).site, Site::kLayerNorm);
}

// Key heads 0 and 1, whose value heads are 0 1 and 2 3; tiled 0 2 1 3.
TEST_F(LoadLinear, OrdersOfValueHeadsUndoEachOther) {
  const auto order = [&](Module module, HeadOrder to) { return value_rows(base.config, 0, module, to); };
  EXPECT_EQ(order(Module::kV, HeadOrder::kToTiled), (std::vector<int32_t>{0, 2, 1, 3}));
  EXPECT_EQ(order(Module::kK, HeadOrder::kToTiled), (std::vector<int32_t>{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(order(Module::kQ, HeadOrder::kToTiled)[12 + 2], 12 + 4);
  EXPECT_EQ(order(Module::kQ, HeadOrder::kToTiled)[11], 11);
  EXPECT_TRUE(order(Module::kGate, HeadOrder::kToTiled).empty());
  EXPECT_TRUE(value_rows(base.config, 1, Module::kV, HeadOrder::kToTiled).empty()) << "a layer of attention";
  EXPECT_EQ(value_cols(base.config, 0, Module::kO, HeadOrder::kToTiled).size(), 8u);
  EXPECT_TRUE(value_cols(base.config, 0, Module::kV, HeadOrder::kToTiled).empty());
  base.config.linear.k_heads = 1;
  base.config.linear.v_heads = 6;
  for (int k_heads : {1, 2, 3}) {
    base.config.linear.k_heads = k_heads;
    const auto to = order(Module::kDecay, HeadOrder::kToTiled), from = order(Module::kDecay, HeadOrder::kFromTiled);
    for (size_t head = 0; head < 6; ++head) EXPECT_EQ(from[static_cast<size_t>(to[head])], static_cast<int>(head));
  }
  base.config.linear.k_heads = 6;
  EXPECT_TRUE(order(Module::kDecay, HeadOrder::kToTiled).empty());
}

TEST_F(LoadLinear, OnABaseWithTiledHeadsRowsAndColumnsGoWhereItsAre) {
  base.config.linear.tiled = true;
  config["target_modules"] = {"in_proj_b", "out_proj", "q_proj"};
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    tensors[kLinear0 + "in_proj_b.lora_A.weight"] = matrix({2, 8}, 1, dtype);
    tensors[kLinear0 + "in_proj_b.lora_B.weight"] = matrix({4, 2}, 20, dtype);
    tensors[kLinear0 + "out_proj.lora_A.weight"] = matrix({2, 8}, 40, dtype);
    tensors[kLinear0 + "out_proj.lora_B.weight"] = matrix({8, 2}, 60, dtype);
    give(kLayer + "1.self_attn.q_proj", 8, 16, 6);
    const auto adapter = good();
    const LoraPair& b = adapter->pair(0, Module::kV);
    const LoraPair& o = adapter->pair(0, Module::kO);
    const std::vector<int64_t> heads = {0, 2, 1, 3};
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t head = 0; head < 4; ++head) {
        EXPECT_EQ(number(b.b_t, b.dtype, r * 4 + heads[static_cast<size_t>(head)]),
                  tensors[kLinear0 + "in_proj_b.lora_B.weight"].at(head, r));
        for (int64_t i = 0; i < 2; ++i)
          EXPECT_EQ(number(o.a, o.dtype, r * 8 + heads[static_cast<size_t>(head)] * 2 + i),
                    tensors[kLinear0 + "out_proj.lora_A.weight"].at(r, head * 2 + i));
      }
      for (int64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(number(b.a, b.dtype, r * 8 + i), tensors[kLinear0 + "in_proj_b.lora_A.weight"].at(r, i));
        EXPECT_EQ(number(o.b_t, o.dtype, r * 8 + i), tensors[kLinear0 + "out_proj.lora_B.weight"].at(i, r));
      }
    }
    expect_given(adapter->pair(1, Module::kQ), kLayer + "1.self_attn.q_proj");
  }
}

TEST_F(LoadLinear, AllLinearMeansTheModulesOfEachLayer) {
  config["target_modules"] = "all-linear";
  give(kLinear0 + "out_proj", 8, 8, 5);
  give(kLayer + "1.self_attn.k_proj", 8, 4, 6);
  const auto adapter = good();
  EXPECT_EQ(adapter->pair(0, Module::kO).rank, 2);
  EXPECT_EQ(adapter->pair(1, Module::kK).rank, 2);
}

}  // namespace
}  // namespace loralei
