// SPDX-License-Identifier: Apache-2.0
#include "formats/peft_config.h"

#include <gtest/gtest.h>

#include "formats/json_util.h"
#include "sys/file.h"

namespace loralei {
namespace {

Json minimal() { return Json{{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}}; }

Result<PeftConfig> parse(const Json& json, bool strict = true) {
  return parse_peft_config(json.dump(), "adapter_config.json", strict);
}

// PEFT's own answers (tests/vectors/make_peft_matching.py).
TEST(PeftConfig, MatchesModulesAsPeft) {
  auto text =
      PosixFileSystem().read_all(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/peft_matching.json", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Json vectors = Json::parse(*text);
  for (const Json& row : vectors["matching"]) {
    Json json = minimal();
    json.update(row["config"]);
    auto config = parse(json);
    ASSERT_TRUE(config.ok()) << row["config"] << config.error().message;
    auto matcher = PeftMatcher::create(*config, "adapter_config.json");
    ASSERT_TRUE(matcher.ok()) << row["config"] << matcher.error().message;
    Json targeted = Json::array();
    for (const Json& key : vectors["modules"]) {
      auto yes = matcher->targets(key, true);
      ASSERT_TRUE(yes.ok()) << yes.error().message;
      if (*yes) targeted.push_back(key);
    }
    EXPECT_EQ(targeted, row["targeted"]) << row["config"];
  }
  for (const Json& row : vectors["patterns"]) {
    // ranks 1, 2, ... by place tell which key was found; 4000 none. The text is built by
    // hand to keep the order of the keys.
    std::string text = R"({"peft_type": "LORA", "r": 4000, "lora_alpha": 8000, "rank_pattern": {)";
    std::string alphas;
    for (size_t i = 0; i < row["keys"].size(); ++i) {
      text += (i ? ", " : "") + row["keys"][i].dump() + ": " + std::to_string(i + 1);
      alphas += (i ? ", " : "") + row["keys"][i].dump() + ": " + std::to_string(2 * (i + 1));
    }
    text += "}, \"alpha_pattern\": {" + alphas + "}}";
    auto config = parse_peft_config(text, "adapter_config.json", true);
    ASSERT_TRUE(config.ok()) << config.error().message;
    auto matcher = PeftMatcher::create(*config, "adapter_config.json");
    ASSERT_TRUE(matcher.ok()) << matcher.error().message;
    for (size_t i = 0; i < row["found"].size(); ++i) {
      const int found = row["found"][i];
      const std::string key = vectors["modules"][i];
      EXPECT_EQ(*matcher->rank(key), found < 0 ? 4000 : found + 1) << row["keys"] << " " << key;
      EXPECT_EQ(*matcher->scaling(key), 2.0) << row["keys"] << " " << key;
    }
  }
}

TEST(PeftConfig, ScalingFollowsTheModulesOwnRankAndAlpha) {
  Json json = minimal();
  json["use_rslora"] = true;
  json["rank_pattern"] = {{"q_proj", 9}};
  json["alpha_pattern"] = {{"k_proj", 3}};
  auto config = parse(json);
  ASSERT_TRUE(config.ok());
  auto matcher = PeftMatcher::create(*config, "");
  ASSERT_TRUE(matcher.ok());
  EXPECT_DOUBLE_EQ(*matcher->scaling("model.layers.0.self_attn.q_proj"), 8.0 / 3.0);
  EXPECT_DOUBLE_EQ(*matcher->scaling("model.layers.0.self_attn.k_proj"), 3.0 / 2.0);
  EXPECT_DOUBLE_EQ(*matcher->scaling("model.layers.0.self_attn.v_proj"), 4.0);
}

// Keys that change the result: refused by name, in the report when not strict.
TEST(PeftConfig, RefusesByNameWhatItDoesNotApply) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"use_dora", true},
      {"use_qalora", true},
      {"use_bdlora", {{"nblocks", 2}}},
      {"kasa_config", {{"beta", 1}}},
      {"monteclora_config", {{"num_samples", 8}}},
      {"arrow_config", {{"top_k", 3}}},
      {"layer_replication", {{0, 4}}},
      {"megatron_config", {{"a", 1}}},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "pissa_niter_4"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "corda"},
      {"init_lora_weights", "loftq"},
      {"init_lora_weights", "lora_ga"},
      {"init_lora_weights", "something"},
      {"enable_lora", {true, false}},
      {"a_new_key", 1},
      {"another_new_key", "x"},
  };
  for (const auto& [key, value] : cases) {
    Json json = minimal();
    json[key] = value;
    auto strict = parse(json);
    ASSERT_FALSE(strict.ok()) << key;
    EXPECT_EQ(strict.error().code, ErrorCode::kUnsupported) << key;
    EXPECT_NE(strict.error().message.find("\"" + key + "\""), std::string::npos) << strict.error().message;
    EXPECT_NE(strict.error().message.find(value.dump()), std::string::npos) << strict.error().message;
    auto loose = parse(json, false);
    ASSERT_TRUE(loose.ok()) << key;
    EXPECT_EQ(loose->refused.size(), 1u) << key;
  }
}

TEST(PeftConfig, NeutralAndHarmlessValuesAreFine) {
  Json json = minimal();
  for (const char* key : {"use_dora", "use_qalora", "merge_weights", "a_new_flag"}) json[key] = false;
  for (const char* key : {"layer_replication", "target_parameters", "kasa_config", "megatron_config", "a_new_key"})
    json[key] = nullptr;
  json["loftq_config"] = Json::object();
  json["eva_config"] = {{"rho", 2.0}};
  json["lora_dropout"] = 0.1;
  json["megatron_core"] = "megatron.core";
  for (const Json& init : {Json(true), Json(false), Json("gaussian"), Json("eva"), Json("orthogonal"), Json("mica")}) {
    json["init_lora_weights"] = init;
    auto config = parse(json);
    EXPECT_TRUE(config.ok()) << init << (config.ok() ? "" : config.error().message);
  }
}

TEST(PeftConfig, ReadsEveryAppliedKey) {
  auto config =
      parse_peft_config(R"({"peft_type": "LORA", "r": 16, "lora_alpha": 32.5, "bias": "all", "lora_bias": true,
      "target_modules": "All-Linear", "exclude_modules": ".*k_proj", "modules_to_save": ["lm_head"], "fan_in_fan_out": true,
      "rank_pattern": {"z": 2, "a": 3, "z": 4}, "trainable_token_indices": [5, 3], "alora_invocation_tokens": [9, 8],
      "ensure_weight_tying": true, "task_type": "SEQ_CLS", "base_model_name_or_path": "x/y"})",
                        "f", true);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->rank, 16);
  EXPECT_EQ(config->alpha, 32.5);
  EXPECT_EQ(config->bias, PeftBias::kAll);
  EXPECT_TRUE(config->lora_bias && config->all_linear && config->ensure_weight_tying);
  EXPECT_EQ(config->exclude_pattern, ".*k_proj");
  EXPECT_EQ(config->modules_to_save, std::vector<std::string>{"lm_head"});
  // The file's order, the last value of a key that stands twice.
  EXPECT_EQ(config->rank_pattern, (std::vector<std::pair<std::string, int>>{{"z", 4}, {"a", 3}}));
  EXPECT_EQ(config->trainable_tokens.at("embed_tokens"), (std::vector<TokenId>{5, 3}));
  EXPECT_EQ(config->alora_invocation, (std::vector<TokenId>{9, 8}));
  EXPECT_EQ(config->base_model, "x/y");
  EXPECT_EQ(config->notes.size(), 2u);  // fan_in_fan_out, task_type
}

TEST(PeftConfig, RefusesImpossibleValues) {
  const std::vector<std::pair<std::string, Json>> cases = {{"peft_type", "VERA"},
                                                           {"peft_type", nullptr},
                                                           {"r", 0},
                                                           {"r", 5000},
                                                           {"r", 1.5},
                                                           {"r", "8"},
                                                           {"lora_alpha", "x"},
                                                           {"bias", "some"},
                                                           {"bias", 3},
                                                           {"target_modules", 3},
                                                           {"target_modules", {1}},
                                                           {"rank_pattern", {1}},
                                                           {"rank_pattern", {{"a", 0}}},
                                                           {"alpha_pattern", {{"a", "b"}}},
                                                           {"layers_pattern", "h"},
                                                           {"layers_to_transform", "x"},
                                                           {"trainable_token_indices", {-1}},
                                                           {"trainable_token_indices", {3, 3}},
                                                           {"use_rslora", 1},
                                                           {"init_lora_weights", 3},
                                                           {"alora_invocation_tokens", {-5}}};
  for (const auto& [key, value] : cases) {
    Json json = minimal();
    json[key] = value;
    EXPECT_FALSE(parse(json, false).ok()) << key << " " << value;
  }
  Json json = minimal();
  json["target_modules"] = ".*";
  json["layers_to_transform"] = {1};
  EXPECT_FALSE(parse(json).ok());
  for (const char* text : {"", "[]", "{", "nul", "{\"peft_type\": \"LORA\"} x", "\xff"})
    EXPECT_FALSE(parse_peft_config(text, "f", true).ok());
  std::string deep = "{\"a\":";
  for (int i = 0; i < 200; ++i) deep += "[";
  EXPECT_FALSE(parse_peft_config(deep, "f", true).ok());
}

TEST(PeftConfig, BrokenPatternsNameTheirKey) {
  for (const char* key : {"target_modules", "exclude_modules"}) {
    Json json = minimal();
    json[key] = "(";
    auto config = parse(json);
    ASSERT_TRUE(config.ok());
    auto matcher = PeftMatcher::create(*config, "file");
    ASSERT_FALSE(matcher.ok());
    EXPECT_NE(matcher.error().message.find(key), std::string::npos);
  }
}

// A compiled pattern takes about a hundred times the memory of its text.
TEST(PeftConfig, PatternsAreBoundedInNumberAndLength) {
  const auto refused = [](const Json& json) {
    auto config = parse(json);
    if (!config.ok()) return std::move(config).error();
    auto matcher = PeftMatcher::create(*config, "file");
    return matcher.ok() ? Error{ErrorCode::kInternal, "nothing"} : std::move(matcher).error();
  };
  for (const char* key : {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_pattern"}) {
    for (const size_t length : {size_t{4000}, size_t{1}}) {
      Json json = minimal();
      json["layers_to_transform"] = {0};
      const bool list = std::string_view(key) == "modules_to_save" || std::string_view(key) == "layers_pattern";
      for (int i = 0; i < (length > 1 ? 500 : 19'000); ++i) {
        const std::string name = std::to_string(i) + std::string(length, 'x');
        if (list)
          json[key].push_back(name);
        else
          json[key][name] = 4;
      }
      const Error error = refused(json);
      EXPECT_EQ(error.code, ErrorCode::kTooLarge) << key << ": " << error.message;
    }
  }
}

// Every module of the deepest models there are, by its full name.
TEST(PeftConfig, PatternsOfEveryModuleAreFine) {
  Json json = minimal();
  for (int layer = 0; layer < 128; ++layer) {
    for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      const std::string name = "base_model.model.model.layers." + std::to_string(layer) + "." + module;
      json["rank_pattern"][name] = 8;
      json["alpha_pattern"][name] = 16;
    }
  }
  const auto config = parse(json);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const auto matcher = PeftMatcher::create(*config, "file");
  EXPECT_TRUE(matcher.ok()) << matcher.error().message;
}

}  // namespace
}  // namespace loralei
