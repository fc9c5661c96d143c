// SPDX-License-Identifier: Apache-2.0
// What a loaded adapter holds, byte for byte, and what is refused. Files are made
// here, in memory.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "adapters/load_test_util.h"
#include "adapters/peft_map.h"
#include "base/printable.h"

namespace loralei {
namespace {

TEST_F(LoadTest, PlainPairInEveryFormat) {
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    for (auto& [name, tensor] : tensors) tensor.dtype = dtype;
    const auto adapter = good();
    const LoraPair& pair = adapter->pair(0, Module::kQ);
    expect_pair(pair, tensors[kQ0 + "lora_A.weight"], tensors[kQ0 + "lora_B.weight"]);
    EXPECT_EQ(std::string(dtype_info(pair.dtype).name), std::string(dtype) == "F32"   ? "f32"
                                                        : std::string(dtype) == "F16" ? "f16"
                                                                                      : "bf16");
    EXPECT_EQ(pair.scaling, 3.0f);
    EXPECT_EQ(adapter->pairs.size(), 2u * kLayerModules + 2);
    EXPECT_EQ(adapter->pair(1, Module::kQ).rank, 0);
    EXPECT_EQ(adapter->head_pair().a, nullptr);
    EXPECT_EQ(adapter->rank_max, 2);
    EXPECT_EQ(adapter->vocab, 6);
    EXPECT_EQ(adapter->version.value, 7u);
    EXPECT_EQ(adapter->modules.at("q_proj"), 1);
    EXPECT_GE(adapter->bytes, 2 * 16 * dtype_info(pair.dtype).block_bytes);
    EXPECT_FALSE(adapter->saved.any());
  }
}

TEST_F(LoadTest, MixedFormatsBecomeF32) {
  tensors[kQ0 + "lora_A.weight"].dtype = "F16";
  const auto adapter = good();
  EXPECT_EQ(adapter->pair(0, Module::kQ).dtype, DType::kF32);
  expect_pair(adapter->pair(0, Module::kQ), tensors[kQ0 + "lora_A.weight"], tensors[kQ0 + "lora_B.weight"]);
}

TEST_F(LoadTest, LargeTensorsAreReadInPieces) {
  base.config.ffn = 70000;  // B of up_proj: more than one MiB
  config["target_modules"] = {"up_proj"};
  tensors.clear();
  const std::string name = kLayer + "0.mlp.up_proj.";
  tensors[name + "lora_A.weight"] = matrix({2, 8}, 1);
  tensors[name + "lora_B.weight"] = matrix({70000, 2}, 0);
  for (const char* dtype : {"F32", "F16"}) {
    for (auto& [key, tensor] : tensors) {
      tensor.dtype = dtype;
      for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = static_cast<float>(i % 1000);
    }
    expect_pair(good()->pair(0, Module::kUp), tensors[name + "lora_A.weight"], tensors[name + "lora_B.weight"]);
  }
}

TEST_F(LoadTest, NamePrefixesAreTolerated) {
  for (const char* prefix : {"", "model.", "base_model.model.", "base_model.model.model.model."}) {
    const Matrix a = matrix({2, 8}, 1), b = matrix({8, 2}, 100);
    tensors = {{std::string(prefix) + "layers.0.self_attn.q_proj.lora_A.weight", a},
               {std::string(prefix) + "layers.0.self_attn.q_proj.lora_B.weight", b}};
    expect_pair(good()->pair(0, Module::kQ), a, b);
  }
  tensors["layers.0.self_attn.q_proj.lora_A.weight"] = matrix({2, 8}, 1);  // the same module under two names
  expect_error({"mean the same"});
}

TEST_F(LoadTest, FusedProjectionsAreSplit) {
  config["target_modules"] = {"qkv_proj", "gate_up_proj"};
  config["lora_bias"] = true;
  const Matrix a = matrix({2, 8}, 1), b = matrix({16, 2}, 50), bias = matrix({16}, 300), a2 = matrix({2, 8}, 2),
               b2 = matrix({24, 2}, 500), bias2 = matrix({24}, 900);
  tensors = {{kLayer + "0.self_attn.qkv_proj.lora_A.weight", a},  {kLayer + "0.self_attn.qkv_proj.lora_B.weight", b},
             {kLayer + "0.self_attn.qkv_proj.lora_B.bias", bias}, {kLayer + "0.mlp.gate_up_proj.lora_A.weight", a2},
             {kLayer + "0.mlp.gate_up_proj.lora_B.weight", b2},   {kLayer + "0.mlp.gate_up_proj.lora_B.bias", bias2}};
  const auto adapter = good();
  expect_pair(adapter->pair(0, Module::kQ), a, b, 0);
  expect_pair(adapter->pair(0, Module::kK), a, b, 8);
  expect_pair(adapter->pair(0, Module::kV), a, b, 12);
  expect_pair(adapter->pair(0, Module::kGate), a2, b2, 0);
  expect_pair(adapter->pair(0, Module::kUp), a2, b2, 12);
  EXPECT_EQ(adapter->pair(0, Module::kQ).a, adapter->pair(0, Module::kV).a);  // shared
  EXPECT_EQ(adapter->pair(0, Module::kV).b_bias[3], bias.values[15]);
  EXPECT_EQ(adapter->pair(0, Module::kUp).b_bias[0], bias2.values[12]);
  EXPECT_EQ(adapter->pair(0, Module::kDown).rank, 0);
}

TEST_F(LoadTest, EmbeddingAndHeadPairs) {
  config["target_modules"] = {"embed_tokens", "lm_head"};
  config.erase("layers_to_transform");
  const Matrix a = matrix({2, 6}, 1), b = matrix({8, 2}, 50), head_a = matrix({2, 8}, 3), head_b = matrix({6, 2}, 7);
  tensors = {{"base_model.model.model.embed_tokens.lora_embedding_A", a},
             {"base_model.model.model.embed_tokens.lora_embedding_B", b},
             {"base_model.model.lm_head.lora_A.weight", head_a},
             {"base_model.model.lm_head.lora_B.weight", head_b}};
  const auto adapter = good();
  const LoraPair& embed = adapter->embed_pair();
  EXPECT_EQ(embed.in, 6);
  EXPECT_EQ(embed.out, 8);
  for (int token = 0; token < 6; ++token) {
    for (int r = 0; r < 2; ++r) EXPECT_EQ(number(embed.a, embed.dtype, token * 2 + r), a.at(r, token));
  }
  for (int r = 0; r < 2; ++r) {
    for (int o = 0; o < 8; ++o) EXPECT_EQ(number(embed.b_t, embed.dtype, r * 8 + o), b.at(o, r));
  }
  expect_pair(adapter->head_pair(), head_a, head_b);

  // Tied and trained as one: the head's factors are the embedding's, transposed
  // (PEFT's tied_adapter).
  tensors.erase("base_model.model.lm_head.lora_A.weight");
  tensors.erase("base_model.model.lm_head.lora_B.weight");
  expect_error({"lm_head"});
  base.config.tied_head = true;
  config["ensure_weight_tying"] = true;
  const auto tied = good();
  const LoraPair& head = tied->head_pair();
  EXPECT_EQ(head.in, 8);
  EXPECT_EQ(head.out, 6);
  for (int r = 0; r < 2; ++r) {
    for (int i = 0; i < 8; ++i) EXPECT_EQ(number(head.a, head.dtype, r * 8 + i), b.at(i, r));
    for (int o = 0; o < 6; ++o) EXPECT_EQ(number(head.b_t, head.dtype, r * 6 + o), a.at(r, o));
  }
}

TEST_F(LoadTest, ReplacedBiasesBecomeDifferences) {
  config["bias"] = "all";
  tensors[kQ0 + "base_layer.bias"] = matrix({8}, 5);
  tensors[kLayer + "1.self_attn.k_proj.bias"] = matrix({4}, 6);
  EXPECT_NE(error().find("not at hand"), std::string::npos);
  give_biases();
  full_bias(Module::kQ);
  EXPECT_NE(error().find("k_proj"), std::string::npos);  // the base has none there
  full_bias(Module::kK);
  const auto adapter = good();
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(adapter->pair(0, Module::kQ).bias_delta[i], 5 + 0.25f * static_cast<float>(i) - 10);
  EXPECT_EQ(adapter->pair(1, Module::kK).rank, 0);
  EXPECT_EQ(adapter->pair(1, Module::kK).out, 4);
  EXPECT_EQ(adapter->pair(1, Module::kK).bias_delta[0], -4.0f);
  config["bias"] = "lora_only";
  expect_error({"k_proj", "bias"});
  config["bias"] = "none";
  expect_error({"bias"});
}

TEST_F(LoadTest, SavedTensors) {
  config["modules_to_save"] = {"norm", "lm_head", "embed_tokens"};
  tensors["base_model.model.model.norm.weight"] = matrix({8}, 1, "BF16");
  for (const char* layer : {"0", "1"}) {
    tensors[kLayer + layer + ".input_layernorm.weight"] = matrix({8}, 2);
    tensors[kLayer + layer + ".post_attention_layernorm.weight"] = matrix({8}, 3);
  }
  tensors["base_model.model.lm_head.weight"] = matrix({9, 8}, 4, "F16");
  expect_error({"model.embed_tokens", "missing"});
  tensors["base_model.model.model.embed_tokens.weight"] = matrix({6, 8}, 40);
  expect_error({"embedding has 6", "head 9"});
  tensors["base_model.model.lm_head.weight"] = matrix({6, 8}, 4, "F16");
  const auto adapter = good();  // "norm" means every norm, as in PEFT
  EXPECT_EQ(adapter->saved.norm(LayerNorm::kFfnInput, 1)[0], 3.0f);
  EXPECT_EQ(adapter->vocab, 6);
}

TEST_F(LoadTest, SavedTensorsOfAResizedVocabulary) {
  config["modules_to_save"] = {"model.norm", "input_layernorm", "lm_head", "embed_tokens"};
  tensors["base_model.model.model.norm.weight"] = matrix({8}, 1, "BF16");
  for (const char* layer : {"0", "1"}) tensors[kLayer + layer + ".input_layernorm.weight"] = matrix({8}, 2);
  tensors["base_model.model.lm_head.weight"] = matrix({9, 8}, 4, "F16");
  tensors["base_model.model.model.embed_tokens.weight"] = matrix({9, 8}, 40);
  const auto adapter = good();
  EXPECT_EQ(adapter->vocab, 9);
  EXPECT_EQ(adapter->saved.final_norm[3], 1.75f);
  ASSERT_EQ(adapter->saved.norms[static_cast<size_t>(LayerNorm::kInput)].size(), 2u);
  EXPECT_EQ(adapter->saved.norm(LayerNorm::kInput, 1)[1], 2.25f);
  EXPECT_TRUE(adapter->saved.norm(LayerNorm::kFfnInput, 1) == nullptr);
  ASSERT_EQ(adapter->saved.lm_head.rows, 9);
  EXPECT_EQ(adapter->saved.lm_head.dtype, DType::kF16);
  ASSERT_EQ(adapter->saved.lm_head.panels.size(), 1u);
  EXPECT_EQ(number(adapter->saved.lm_head.panels[0].data, DType::kF16, 71), 4 + 0.25f * 71);
  EXPECT_EQ(number(adapter->saved.embed.panels[0].data, DType::kF32, 8), 42.0f);
  tensors.erase("base_model.model.model.norm.weight");
  expect_error({"model.norm"});
}

// A tied model: PEFT gives embed_tokens a copy of its own, the head keeps the base's
// rows; unless both were saved as base weights.
TEST_F(LoadTest, TiedModels) {
  base.config.tied_head = true;
  config["modules_to_save"] = {"embed_tokens"};
  tensors["base_model.model.model.embed_tokens.weight"] = matrix({6, 8}, 40);
  EXPECT_TRUE(good()->saved.lm_head.empty());
  config["ensure_weight_tying"] = true;
  const auto follows = good();
  ASSERT_EQ(follows->saved.lm_head.rows, 6);
  EXPECT_EQ(follows->saved.lm_head.panels[0].data, follows->saved.embed.panels[0].data);
  config["ensure_weight_tying"] = false;
  config.erase("modules_to_save");
  const auto adapter = good();  // save_embedding_layers: the tied base itself was changed
  EXPECT_EQ(adapter->saved.lm_head.panels[0].data, adapter->saved.embed.panels[0].data);
}

TEST_F(LoadTest, TokenRowsAreSorted) {
  config["trainable_token_indices"] = {5, 0, 3};
  tensors["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = matrix({3, 8}, 10);
  const auto adapter = good();
  EXPECT_EQ(adapter->saved.embed_tokens, (std::vector<TokenId>{0, 3, 5}));
  EXPECT_TRUE(adapter->saved.head_tokens.empty());
  EXPECT_EQ(adapter->saved.embed_rows[0], 12.0f);      // token 0 is the second row of the file
  EXPECT_EQ(adapter->saved.embed_rows[8], 14.0f);      // token 3 the third
  EXPECT_EQ(adapter->saved.embed_rows[2 * 8], 10.0f);  // token 5 the first
  base.config.tied_head = true;
  EXPECT_EQ(good()->saved.head_tokens, (std::vector<TokenId>{0, 3, 5}));
  config["trainable_token_indices"] = {{"embed_tokens", {5, 0, 3}}, {"lm_head", {1}}};
  expect_error({"lm_head", "trainable_tokens_delta"});
  tensors["base_model.model.lm_head.token_adapter.trainable_tokens_delta"] = matrix({1, 8}, 70);
  EXPECT_EQ(good()->saved.head_tokens, std::vector<TokenId>{1});
  config["trainable_token_indices"] = {{"embed_tokens", {5, 0, 6}}};
  expect_error({"6"});
  config["trainable_token_indices"] = {{"q_proj", {1}}};
  expect_error({"trainable_token_indices", "q_proj"});
  config.erase("trainable_token_indices");
  expect_error({"trainable_tokens_delta"});
}

TEST_F(LoadTest, WhatDoesNotFitIsNamed) {
  const Tensors plain = tensors;
  const auto changed = [&](const std::function<void()>& change, const std::vector<std::string>& words) {
    tensors = plain;
    change();
    expect_error(words);
  };
  const std::string a = kQ0 + "lora_A.weight", b = kQ0 + "lora_B.weight";
  changed([&] { tensors.erase(b); }, {"lora_B", "missing"});
  changed([&] { tensors.erase(a); }, {"lora_A", "missing"});
  changed([&] { tensors[a] = matrix({2, 9}, 0); }, {a, "[2, 9]", "[2, 8]"});
  changed([&] { tensors[b] = matrix({9, 2}, 0); }, {b, "[9, 2]", "[8, 2]"});
  changed([&] { tensors[b] = matrix({8, 3}, 0); }, {"q_proj", "[8, 3]", "[2, 8]"});
  changed([&] { tensors[a] = matrix({3, 8}, 0), tensors[b] = matrix({8, 3}, 0); }, {"rank 3", "rank 2"});
  changed([&] { tensors[a] = matrix({16}, 0); }, {a});
  changed([&] { tensors[a].values[9] = std::nanf(""); }, {a, "index 9"});
  changed([&] { tensors[b].values[15] = std::numeric_limits<float>::infinity(); }, {b, "index 15"});
  changed([&] { tensors[kLayer + "0.self_attn.v_proj.lora_A.weight"] = matrix({2, 8}, 0); }, {"v_proj", "target"});
  changed([&] { tensors[kLayer + "0.self_attn.q_proj.lora_magnitude_vector"] = matrix({8}, 0); },
          {"lora_magnitude_vector"});
  changed([&] { tensors[kLayer + "2.self_attn.q_proj.lora_A.weight"] = matrix({2, 8}, 0); }, {"layers.2"});
  changed([&] { tensors[kLayer + "0.input_layernorm.weight"] = matrix({8}, 0); },
          {"input_layernorm", "modules_to_save"});
  changed([&] { tensors[kQ0 + "lora_B.bias"] = matrix({8}, 0); }, {"lora_bias"});
  changed([&] { tensors.clear(); }, {"q_proj"});
  tensors = plain;
  config["target_modules"] = {"q_proj", "v_proj"};
  expect_error({"target_modules", "v_proj"});
  config["target_modules"] = {"wqkv"};
  expect_error({"target_modules", "wqkv"});
  config["target_modules"] = {"q_proj"};
  config["modules_to_save"] = {"score"};
  expect_error({"modules_to_save", "score"});
  config["modules_to_save"] = {"up_proj"};
  expect_error({"modules_to_save", "up_proj"});
  config.erase("modules_to_save");
  config["lora_bias"] = true;
  expect_error({"lora_bias", "missing"});
  config["lora_bias"] = false;
  config["lora_alpha"] = 1e300;
  expect_error({"scaling"});
}

TEST_F(LoadTest, NotStrictReportsInsteadOfRefusing) {
  config["use_dora"] = true;
  config["target_modules"] = {"q_proj", "v_proj", "wqkv"};
  tensors[kQ0 + "lora_magnitude_vector"] = matrix({8}, 0);
  tensors[kLayer + "1.self_attn.q_proj.lora_A.weight"] = matrix({2, 8}, 0);  // excluded by layers_to_transform
  auto adapter = load({.strict = false});
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  std::string report;
  for (const std::string& line : adapter->adapter->report) report += line + "\n";
  for (const char* word : {"use_dora", "wqkv", "lora_magnitude_vector", "layers.1.self_attn.q_proj", "v_proj"}) {
    EXPECT_NE(report.find(word), std::string::npos) << report;
  }
  EXPECT_EQ(adapter->adapter->pair(0, Module::kQ).rank, 2);
  EXPECT_EQ(adapter->adapter->pair(1, Module::kQ).rank, 0);
  // What makes the numbers wrong stays an error.
  tensors[kQ0 + "lora_A.weight"] = matrix({2, 9}, 0);
  EXPECT_FALSE(load({.strict = false}).ok());
}

TEST_F(LoadTest, ABiasAloneIsNoPair) {
  tensors[kLayer + "1.self_attn.q_proj.lora_B.bias"] = matrix({8}, 0);
  config.erase("layers_to_transform");
  expect_error({"layers.1.self_attn.q_proj.lora_B.bias", "\"lora_bias\": false"});
  auto adapter = load({.strict = false});
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ(adapter->adapter->pair(0, Module::kQ).rank, 2);
  EXPECT_EQ(adapter->adapter->pair(1, Module::kQ).rank, 0);
  std::string report;
  for (const std::string& line : adapter->adapter->report) report += line + "\n";
  for (const char* words : {"layers.1.self_attn.q_proj.lora_B.bias", "targets 1 modules without tensors"})
    EXPECT_NE(report.find(words), std::string::npos) << report;
  config["lora_bias"] = true;
  tensors[kQ0 + "lora_B.bias"] = matrix({8}, 0);
  expect_error({"layers.1.self_attn.q_proj", "lora_A is missing"});
}

// It would answer as the base under another name.
TEST_F(LoadTest, WhatChangesNothingIsNoAdapter) {
  const auto refused = [&](AdapterLoadOptions options, const std::vector<std::string>& words) {
    const auto adapter = load(options);
    ASSERT_FALSE(adapter.ok());
    EXPECT_EQ(adapter.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& word : words)
      EXPECT_NE(adapter.error().message.find(word), std::string::npos) << adapter.error().message;
  };
  config["target_modules"] = {"wqkv"};  // and the tensors of q_proj are for no target
  refused({.strict = false}, {"/a: changes nothing", "\"target_modules\" names \"wqkv\""});
  tensors.clear();
  for (const bool strict : {true, false}) {
    config["target_modules"] = Json::array();
    refused({.strict = strict}, {"/a: changes nothing", "targets no module"});
    config["target_modules"] = {"q_proj"};
    config["exclude_modules"] = {"q_proj"};
    refused({.strict = strict}, {"/a: changes nothing", "targets no module"});
    config.erase("exclude_modules");
  }
  config["target_modules"] = Json::array();
  config["modules_to_save"] = {"model.norm"};
  tensors["base_model.model.model.norm.weight"] = matrix({8}, 1);
  EXPECT_TRUE(load().ok());
}

// Names are the file's; a console, a log and a listing show what is said of them.
TEST_F(LoadTest, WhatIsSaidIsPrintable) {
  const std::vector<std::string> names = {"two\nlines", "\x1b[31mred", "turned \u202e round",
                                          std::string(3000, '\x01')};
  for (const std::string& name : names) {
    const Tensors plain = tensors;
    tensors[name] = matrix({1}, 0);
    const std::string message = error();
    EXPECT_TRUE(is_printable(message)) << message;
    const auto loaded = load({.strict = false});
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_FALSE(loaded->adapter->report.empty());
    for (const std::string& sentence : loaded->adapter->report) EXPECT_TRUE(is_printable(sentence)) << sentence;
    tensors = plain;
  }
  // A text that is cut is cut between two characters, or says what is left of one.
  for (size_t shift = 0; shift < 4; ++shift) {
    config["r"] = std::string(shift, 'x');
    for (int i = 0; i < 40; ++i) config["r"] = config["r"].get<std::string>() + "\u20ac";
    const std::string message = error();
    EXPECT_TRUE(is_printable(message)) << message;
  }
  files.put("/a/adapter_config.json", "{\"r\": \"\xff\"}");
  for (const std::string& path : {std::string("/a"), std::string("/no\nsuch")}) {
    const auto loaded = load_adapter(files, path, base, {}, AdapterVersionId{1});
    ASSERT_FALSE(loaded.ok());
    EXPECT_TRUE(is_printable(loaded.error().message)) << loaded.error().message;
  }
  EXPECT_TRUE(is_printable(adapter_stamp(files, "/no\nsuch").error().message));
}

TEST_F(LoadTest, AHeaderLargerThanAnyAdaptersIsNotRead) {
  tensors.clear();
  for (int i = 0; i < 100'000; ++i)
    tensors["base_model.model.no.such.module.of.any.base." + std::to_string(i)] = matrix({1}, 0);
  const auto refused = load({.strict = false});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge) << refused.error().message;
  EXPECT_NE(refused.error().message.find("header"), std::string::npos) << refused.error().message;
}

TEST_F(LoadTest, MemoryIsBoundedBeforeAllocation) {
  const auto refused = load({.bytes_max = 100});
  ASSERT_TRUE(refused.ok()) << refused.error().message;
  EXPECT_EQ(refused->adapter, nullptr);
  EXPECT_EQ(refused->bytes_needed, good()->bytes);
  const auto loaded = load({.bytes_max = good()->bytes});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_NE(loaded->adapter, nullptr);
  EXPECT_EQ(loaded->bytes_needed, 0);
}

TEST_F(LoadTest, DigestAndStampFollowEveryByte) {
  const Digest first = good()->digest;
  EXPECT_EQ(good()->digest, first);
  const FileStamp stamp = *adapter_stamp(files, "/a");
  tensors[kQ0 + "lora_A.weight"].values[3] += 1;
  const Digest changed = good()->digest;
  EXPECT_NE(changed, first);
  EXPECT_NE(*adapter_stamp(files, "/a"), stamp);
  config["lora_alpha"] = 7;
  EXPECT_NE(good()->digest, changed);
  EXPECT_EQ(digest_hex(first).size(), 64u);
}

TEST_F(LoadTest, SaysWhatAFolderIsInstead) {
  const auto code_and_words = [&](const std::string& path, ErrorCode code, const std::string& word) {
    auto adapter = load_adapter(files, path, base, {}, AdapterVersionId{1});
    ASSERT_FALSE(adapter.ok()) << path;
    EXPECT_EQ(adapter.error().code, code) << adapter.error().message;
    EXPECT_NE(adapter.error().message.find(word), std::string::npos) << adapter.error().message;
    EXPECT_FALSE(adapter_stamp(files, path).ok());
  };
  code_and_words("/none", ErrorCode::kNotFound, "does not exist");
  files.put("/model/config.json", "{}");
  code_and_words("/model", ErrorCode::kInvalidArgument, "whole model");
  files.put("/pickle/adapter_config.json", config.dump());
  code_and_words("/pickle", ErrorCode::kNotFound, "adapter_model.safetensors");
  files.put("/pickle/adapter_model.bin", "x");
  code_and_words("/pickle", ErrorCode::kUnsupported, "pickle");
  files.put("/x/notes.txt", "x");
  code_and_words("/x", ErrorCode::kNotFound, "adapter_config.json");
  code_and_words("/x/notes.txt", ErrorCode::kInvalidArgument, "directory");
}

TEST_F(LoadTest, ReadFaultsAreErrors) {
  good();
  const int64_t size = static_cast<int64_t>(safetensors(tensors).size());
  for (const FileFaults& faults : {FileFaults{.fail_open = true}, FileFaults{.fail_reads_from_byte = size - 1},
                                   FileFaults{.end_at_byte = size - 1}}) {
    files.set_faults("/a/adapter_model.safetensors", faults);
    EXPECT_FALSE(load_adapter(files, "/a", base, {}, AdapterVersionId{1}).ok());
  }
}

TEST(PeftMap, Names) {
  ModelConfig config{.layers = 2};
  use_qk_norms(config);
  const auto parse = [&](const char* name) { return parse_peft_name(name, config); };
  EXPECT_EQ(parse("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight").module.key,
            "model.layers.1.mlp.down_proj");
  EXPECT_EQ(parse("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight").part, Part::kLoraB);
  EXPECT_EQ(parse("base_model.model.lm_head.base_layer.weight").part, Part::kBaseWeight);
  EXPECT_EQ(parse("base_model.model.lm_head.base_layer.weight").module.site, Site::kHead);
  EXPECT_EQ(parse("base_model.model.lm_head.weight").module.unembed, false);
  const TensorRef unembed = parse("base_model.model.model.unembed_tokens.lora_A.mine.weight");
  EXPECT_EQ(unembed.module.key, "lm_head");
  EXPECT_EQ(unembed.module.unembed, true);
  EXPECT_EQ(unembed.part, Part::kLoraA);
  EXPECT_EQ(unembed.adapter, "mine");
  for (const char* name :
       {"", "x", "base_model.model.model.layers.2.mlp.up_proj.lora_A.weight",
        "base_model.model.model.layers.01.mlp.up_proj.lora_A.weight", "model.layers.-1.mlp.up_proj.lora_A.weight",
        "layers.1mlp.up_proj.lora_A.weight", "layers.1.mlp.up_proj.lora_A.two.names.weight",
        "layers.1.mlp.up_proj.lora_A..weight", "layers.1.mlp.up_proj.lora_A.", "lora_A.default.weight",
        "layers.1.mlp.up_proj.lora_A.default", "model.embed_tokens.lora_embedding_A.weight",
        "layers..mlp.up_proj.lora_A.weight", ".weight", "layers.99999999999.mlp.up_proj.weight"}) {
    EXPECT_EQ(parse(name).part, Part::kUnknown) << name;
  }
}

TEST(PeftMap, NamesInsideOfOtherModelsAndOfAnMlpWithoutAGate) {
  ModelConfig config{.layers = 2};
  for (const char* inside : {"model.language_model.layers.1.", "language_model.model.layers.1.", "model.layers.1."}) {
    const TensorRef tensor =
        parse_peft_name("base_model.model." + std::string(inside) + "mlp.up_proj.lora_A.weight", config);
    EXPECT_EQ(tensor.module.key, "model.layers.1.mlp.up_proj") << inside;
  }
  EXPECT_EQ(parse_module("model.visual.blocks.0.mlp.fc1", config).site, Site::kUnknown);
  EXPECT_EQ(parse_module("model.layers.0.mlp.c_fc", config).site, Site::kUnknown);
  config.gated = false;
  EXPECT_EQ(parse_module("model.layers.0.mlp.c_fc", config).module, Module::kUp);
  EXPECT_EQ(parse_module("model.layers.0.mlp.c_proj", config).module, Module::kDown);
  EXPECT_EQ(parse_module("model.layers.0.mlp.up_proj", config).module, Module::kUp) << "GGUF files' name";
  for (const char* gate : {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.gate_up_proj"})
    EXPECT_EQ(parse_module(gate, config).site, Site::kUnknown) << gate;
}

// A norm that was trained with its bias: half of it would be another model.
TEST_F(LoadTest, ASavedBiasOfANormIsRefusedAndNotLeftOut) {
  base.config.centred_norms = true;
  config["modules_to_save"] = {"norm"};
  tensors["base_model.model.model.norm.weight"] = matrix({8}, 1);
  tensors["base_model.model.model.norm.bias"] = matrix({8}, 2);
  expect_error({"model.norm.bias", "is not one that a LoRA adapter of this base model can have"});
}

}  // namespace
}  // namespace loralei
