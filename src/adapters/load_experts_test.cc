// SPDX-License-Identifier: Apache-2.0
// Adapters of a mixture of experts: pairs for single experts, for parameters of all of a
// layer, for routers; and what is refused. That they compute what PEFT does is
// golden_test's.
#include <gtest/gtest.h>

#include "adapters/change.h"
#include "adapters/load_test_util.h"

namespace loralei {
namespace {

constexpr int kExperts = 3, kRank = 2;
const std::string kExperts1 = kLayer + "1.mlp.experts";

class LoadExperts : public LoadTest {
 protected:
  LoadExperts() {
    base.config.architecture = "qwen3_moe";
    base.config.experts = {.count = kExperts, .used = 2, .width = 5, .dense = {1, 0}};
    config.erase("layers_to_transform");
    config["target_modules"] = Json::array();
    tensors.clear();
  }
  // A parameter of all experts of layer 1.
  void give_stack(const std::string& module, int in, int out, float start) {
    tensors[module + ".lora_A.weight"] = matrix({kExperts * kRank, in}, start);
    tensors[module + ".lora_B.weight"] = matrix({out, kExperts * kRank}, start + 1000);
  }
  void expect_part_of_stack(const LoraPair& pair, const std::string& module, int expert, int64_t b_row,
                            int64_t b_step = 1) {
    const Matrix& a = tensors[module + ".lora_A.weight"];
    const Matrix& b = tensors[module + ".lora_B.weight"];
    ASSERT_EQ(pair.rank, kRank);
    for (int64_t r = 0; r < kRank; ++r) {
      for (int64_t i = 0; i < pair.in; ++i)
        EXPECT_EQ(number(pair.a, pair.dtype, r * pair.in + i), a.at(expert * kRank + r, i));
      for (int64_t o = 0; o < pair.out; ++o)
        EXPECT_EQ(number(pair.b_t, pair.dtype, r * pair.out + o), b.at(b_row + o * b_step, r * kExperts + expert));
    }
    EXPECT_EQ(pair.scaling, 3.0f);
  }
};

TEST_F(LoadExperts, OfSingleExpertsAreTheirs) {
  config["target_modules"] = {"up_proj", "gate"};
  for (int expert = 0; expert < kExperts; ++expert) {
    const std::string module = kExperts1 + "." + std::to_string(expert) + ".up_proj";
    tensors[module + ".lora_A.weight"] = matrix({kRank, 8}, 1 + static_cast<float>(expert));
    tensors[module + ".lora_B.weight"] = matrix({5, kRank}, 90 + static_cast<float>(expert));
  }
  tensors[kLayer + "1.mlp.gate.lora_A.weight"] = matrix({kRank, 8}, 7);
  tensors[kLayer + "1.mlp.gate.lora_B.weight"] = matrix({kExperts, kRank}, 8);
  tensors[kLayer + "0.mlp.up_proj.lora_A.weight"] = matrix({kRank, 8}, 5);  // the layer without experts
  tensors[kLayer + "0.mlp.up_proj.lora_B.weight"] = matrix({12, kRank}, 6);
  const auto adapter = good();
  ASSERT_EQ(adapter->experts.matrices.size(), 2u * kExperts * 3);
  for (int expert = 0; expert < kExperts; ++expert) {
    const std::string module = kExperts1 + "." + std::to_string(expert) + ".up_proj";
    expect_pair(adapter->experts.matrix(1, expert, 1), tensors[module + ".lora_A.weight"],
                tensors[module + ".lora_B.weight"]);
    EXPECT_EQ(adapter->experts.matrix(1, expert, 0).rank, 0);
    EXPECT_EQ(adapter->experts.matrix(0, expert, 1).rank, 0);
  }
  expect_pair(adapter->experts.router[1], tensors[kLayer + "1.mlp.gate.lora_A.weight"],
              tensors[kLayer + "1.mlp.gate.lora_B.weight"]);
  EXPECT_EQ(adapter->pair(0, Module::kUp).rank, kRank);
  EXPECT_EQ(adapter->pair(1, Module::kUp).rank, 0);
  EXPECT_EQ(adapter->rank_max, kRank);
  EXPECT_TRUE(changes_something(*adapter));
  EXPECT_GT(change_norm(*adapter), 0);
}

// As PEFT shortens a list where experts are parameters.
TEST_F(LoadExperts, NamesOfTheSharedExpertAskForNoSingleOnes) {
  base.config.experts.shared_width = 12;
  config["target_modules"] = {"up_proj"};
  const auto give = [&](const std::string& module, int out) {
    tensors[module + ".lora_A.weight"] = matrix({kRank, 8}, 1);
    tensors[module + ".lora_B.weight"] = matrix({out, kRank}, 9);
  };
  give(kLayer + "0.mlp.up_proj", 12);  // the layer without experts
  expect_error({"targets 4 modules without tensors", "mlp.shared_expert.up_proj"});
  give(kLayer + "1.mlp.shared_expert.up_proj", 12);
  const auto adapter = good();
  EXPECT_EQ(adapter->pair(1, Module::kUp).rank, kRank);
  EXPECT_FALSE(adapter->experts.any());
  give(kExperts1 + ".0.up_proj", 5);  // some are there: the others are missing
  expect_error({"targets 2 modules without tensors", "experts.1.up_proj"});
}

TEST_F(LoadExperts, OfParametersArePickedApart) {
  config["target_parameters"] = {"mlp.experts.gate_up_proj", "experts.down_proj"};
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    give_stack(kExperts1 + ".base_layer", 8, 10, 1);  // inside: gate_up_proj
    give_stack(kExperts1, 5, 8, 500);
    for (auto& [name, tensor] : tensors) {
      tensor.dtype = dtype;
      for (float& value : tensor.values) value = static_cast<float>(static_cast<int>(value) % 100);
    }
    const auto adapter = good();
    for (int expert = 0; expert < kExperts; ++expert) {
      expect_part_of_stack(adapter->experts.matrix(1, expert, 0), kExperts1 + ".base_layer", expert, 0);
      expect_part_of_stack(adapter->experts.matrix(1, expert, 1), kExperts1 + ".base_layer", expert, 5);
      expect_part_of_stack(adapter->experts.matrix(1, expert, 2), kExperts1, expert, 0);
    }
  }
}

// As gpt-oss has them.
TEST_F(LoadExperts, RowsOfGateAndUpInTurnArePickedApart) {
  base.config.architecture = "gpt_oss";
  base.config.experts.in_turn = true;
  config["target_parameters"] = {"mlp.experts.gate_up_proj", "experts.down_proj", "router.weight"};
  give_stack(kExperts1 + ".base_layer", 8, 10, 1);
  give_stack(kExperts1, 5, 8, 500);
  tensors[kLayer + "1.mlp.router.lora_A.weight"] = matrix({kRank, 8}, 7);
  tensors[kLayer + "1.mlp.router.lora_B.weight"] = matrix({kExperts, kRank}, 8);
  const auto adapter = good();
  for (int expert = 0; expert < kExperts; ++expert) {
    expect_part_of_stack(adapter->experts.matrix(1, expert, 0), kExperts1 + ".base_layer", expert, 0, 2);
    expect_part_of_stack(adapter->experts.matrix(1, expert, 1), kExperts1 + ".base_layer", expert, 1, 2);
    expect_part_of_stack(adapter->experts.matrix(1, expert, 2), kExperts1, expert, 0);
  }
  expect_pair(adapter->experts.router[1], tensors[kLayer + "1.mlp.router.lora_A.weight"],
              tensors[kLayer + "1.mlp.router.lora_B.weight"]);
  // Biases of experts and sinks are no part of what can be applied.
  tensors[kExperts1 + ".gate_up_proj_bias"] = matrix({kExperts, 10}, 1);
  expect_error({"gate_up_proj_bias"});
  tensors.erase(kExperts1 + ".gate_up_proj_bias");
  tensors[kLayer + "1.self_attn.sinks"] = matrix({4}, 1);
  expect_error({"self_attn.sinks"});
}

TEST_F(LoadExperts, AreNotHandedOutEarly) {
  config["target_parameters"] = {"down_proj"};
  give_stack(kExperts1, 5, 8, 1);
  bool begun = false;
  const AdapterEarly early{.begun = [&](AdapterArriving&&) { begun = true; },
                           .judge =
                               [&](const FileStamp&, Status read) {
                                 begun = true;
                                 return read;
                               }};
  AdapterLoadOptions options;
  options.early = &early;
  const auto loaded = load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(loaded->adapter->experts.any());
  EXPECT_FALSE(begun);
}

TEST_F(LoadExperts, AloneAParameterIsTheOuterOne) {
  config["target_parameters"] = {"gate_up_proj"};
  give_stack(kExperts1, 8, 10, 1);
  expect_part_of_stack(good()->experts.matrix(1, 2, 1), kExperts1, 2, 5);
}

TEST_F(LoadExperts, WhatCannotBeAppliedIsRefused) {
  config["target_parameters"] = {"experts.down_proj"};
  give_stack(kExperts1, 5, 8, 1);
  config["target_parameters"].push_back("mlp.router.weight");
  expect_error({"target_parameters", "mlp.router.weight"});
  config["target_parameters"] = {"experts.down_proj", "experts.gate_up_proj"};
  expect_error({"gate_up_proj", "base_layer", "is missing"});
  config["target_parameters"] = Json::array();
  config["target_modules"] = {"q_proj"};
  tensors[kQ0 + "lora_A.weight"] = matrix({2, 8}, 1);
  tensors[kQ0 + "lora_B.weight"] = matrix({8, 2}, 10);
  tensors[kLayer + "1.self_attn.q_proj.lora_A.weight"] = matrix({2, 8}, 1);
  tensors[kLayer + "1.self_attn.q_proj.lora_B.weight"] = matrix({8, 2}, 10);
  expect_error({"experts.lora_", "target_parameters"});
}

TEST_F(LoadExperts, ShapesThatDoNotFitAreRefused) {
  config["target_parameters"] = {"experts.down_proj"};
  give_stack(kExperts1, 5, 8, 1);
  tensors[kExperts1 + ".lora_A.weight"] = matrix({kExperts * kRank + 1, 5}, 1);
  expect_error({"lora_A", "[7, 5]", "[6, 5]"});
  give_stack(kExperts1, 5, 8, 1);
  tensors[kExperts1 + ".lora_B.weight"] = matrix({8, kExperts}, 1);
  expect_error({"lora_B", "[8, 3]", "[8, 6]"});
  give_stack(kExperts1, 5, 8, 1);
  tensors.erase(kExperts1 + ".lora_B.weight");
  expect_error({"lora_B", "missing"});
}

TEST_F(LoadExperts, ExpertsThatTheBaseLacksAreRefused) {
  config["target_modules"] = {"up_proj"};
  for (const char* module : {"1.mlp.experts.3.up_proj", "0.mlp.experts.1.up_proj", "1.mlp.experts.01.up_proj"}) {
    tensors.clear();
    tensors[kLayer + module + ".lora_A.weight"] = matrix({kRank, 8}, 1);
    tensors[kLayer + module + ".lora_B.weight"] = matrix({5, kRank}, 1);
    expect_error({module, "base model"});
  }
}

TEST_F(LoadExperts, HoldsOnlyWhatIsThereOfADenseBase) {
  base.config.experts = {};
  config["target_parameters"] = {"mlp.experts.down_proj"};
  tensors[kQ0 + "lora_A.weight"] = matrix({2, 8}, 1);
  expect_error({"target_parameters", "mlp.experts.down_proj"});
}

}  // namespace
}  // namespace loralei
