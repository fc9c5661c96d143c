// SPDX-License-Identifier: Apache-2.0
// Adapters as PEFT, Tinker and those who save a model's own state write them: other names
// for the same tensors, more names than this base has, embeddings and heads with all they
// were made of. What they compute is tests/golden's question; here that each tensor lands
// where it must, and what is said.
#include <cmath>
#include <cstring>

#include "adapters/load_test_util.h"

namespace loralei {
namespace {

const std::string kTop = "base_model.model.";
const std::string kEmbed = "base_model.model.model.embed_tokens.";
const std::string kHead = "base_model.model.lm_head.";

bool says(const std::vector<std::string>& sentences, const std::string& words) {
  for (const std::string& sentence : sentences)
    if (sentence.find(words) != std::string::npos) return true;
  return false;
}

float saved_number(const WeightView& view, int64_t index) { return number(view.panels[0].data, view.dtype, index); }

class WrittenTest : public LoadTest {
 protected:
  std::shared_ptr<const Adapter> loose() {
    auto loaded = load({.strict = false});
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return loaded.ok() ? loaded->adapter : nullptr;
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    tensors.insert(std::move(node));
  }
  // Embedding and head, of `rows` rows.
  void add_vocabulary(int64_t rows) {
    tensors[kEmbed + "weight"] = matrix({rows, 8}, 100);
    tensors[kHead + "weight"] = matrix({rows, 8}, 500);
  }
  void expect_vocabulary(const Adapter& adapter, int rows, float embed, float head) {
    EXPECT_EQ(adapter.vocab, rows);
    ASSERT_EQ(adapter.saved.embed.rows, rows);
    ASSERT_EQ(adapter.saved.lm_head.rows, rows);
    EXPECT_EQ(saved_number(adapter.saved.embed, 1), embed + 0.25f);
    EXPECT_EQ(saved_number(adapter.saved.lm_head, rows * 8 - 1), head + 0.25f * static_cast<float>(rows * 8 - 1));
  }
};

TEST_F(WrittenTest, AnAdaptersNameInsideOfATensorsIsTaken) {
  config["target_modules"] = {"q_proj", "embed_tokens"};
  config["modules_to_save"] = {"lm_head"};
  config.erase("layers_to_transform");
  config["layers_to_transform"] = nullptr;
  config["exclude_modules"] = {"layers.1.self_attn.q_proj"};
  tensors[kEmbed + "lora_embedding_A"] = matrix({2, 6}, 30);
  tensors[kEmbed + "lora_embedding_B"] = matrix({8, 2}, 60);
  tensors[kHead + "weight"] = matrix({6, 8}, 500);
  const Tensors plain = tensors;
  for (const char* name : {"default", "my_adapter", "0"}) {
    tensors = plain;
    for (const char* part : {"lora_A", "lora_B"}) rename(kQ0 + part + ".weight", kQ0 + part + "." + name + ".weight");
    for (const char* part : {"lora_embedding_A", "lora_embedding_B"}) rename(kEmbed + part, kEmbed + part + "." + name);
    rename(kHead + "weight", kHead + "modules_to_save." + name + ".weight");
    const auto adapter = good();
    ASSERT_TRUE(adapter) << name;
    expect_pair(adapter->pair(0, Module::kQ), plain.at(kQ0 + "lora_A.weight"), plain.at(kQ0 + "lora_B.weight"));
    EXPECT_EQ(adapter->embed_pair().rank, 2);
    EXPECT_EQ(saved_number(adapter->saved.lm_head, 0), 500);
  }
  tensors[kQ0 + "lora_A.weight"] = matrix({2, 8}, 1);  // with a name and without
  expect_error({"mean the same"});
}

TEST_F(WrittenTest, BiasesAndTokenRowsHaveANameInsideToo) {
  config["lora_bias"] = true;
  config["trainable_token_indices"] = {1, 4};
  tensors[kQ0 + "lora_B.me.bias"] = matrix({8}, 7);
  for (const char* part : {"lora_A", "lora_B"}) rename(kQ0 + part + ".weight", kQ0 + part + ".me.weight");
  tensors[kEmbed + "token_adapter.trainable_tokens_delta.me"] = matrix({2, 8}, 3);
  const auto adapter = good();
  ASSERT_TRUE(adapter);
  EXPECT_EQ(adapter->pair(0, Module::kQ).b_bias[1], 7.25f);
  EXPECT_EQ(adapter->saved.embed_tokens.size(), 2u);
}

TEST_F(WrittenTest, OfTwoAdaptersInOneFileNoneIsGuessed) {
  for (const char* part : {"lora_A", "lora_B"}) rename(kQ0 + part + ".weight", kQ0 + part + ".one.weight");
  for (const std::string& other : {kQ0 + "lora_A.two.weight", kQ0 + "lora_magnitude_vector.two.weight",
                                   kLayer + "7.mlp.up_proj.lora_B.two.weight", kHead + "modules_to_save.two.weight"}) {
    tensors[other] = matrix({2, 8}, 1);
    for (const bool strict : {true, false}) {
      const auto loaded = load({.strict = strict});
      ASSERT_FALSE(loaded.ok()) << other;
      EXPECT_NE(loaded.error().message.find("two adapters"), std::string::npos) << loaded.error().message;
      EXPECT_EQ(loaded.error().message.find("--adapter-strict"), std::string::npos) << loaded.error().message;
    }
    tensors.erase(other);
  }
}

TEST_F(WrittenTest, ANameOfTargetModulesThatTheBaseLacksIsNoted) {
  config["target_modules"] = {"q_proj", "qkv", "c_attn", "block.dense"};
  for (const auto& adapter : {good(), loose()}) {
    ASSERT_TRUE(adapter);
    EXPECT_EQ(adapter->pair(0, Module::kQ).rank, 2);
    for (const char* name : {"\"qkv\"", "\"c_attn\"", "\"block.dense\""}) EXPECT_TRUE(says(adapter->report, name));
    EXPECT_TRUE(says(adapter->report, "which this base model lacks"));
    EXPECT_FALSE(says(adapter->report, "Not applied"));
    EXPECT_TRUE(adapter->doubts.empty());
  }
  // Where there are tensors for it something would be left out.
  for (const char* module : {"transformer.c_attn.", "c_attn.", "visual.block.dense."}) {
    const std::string name = kTop + module + "lora_A.weight";
    tensors[name] = matrix({2, 8}, 1);
    expect_error({"target_modules", "is no linear module"});
    EXPECT_TRUE(says(loose()->report, "Not applied: \"target_modules\" names"));
    tensors.erase(name);
  }
  // As in PEFT one of them must mean something.
  config["target_modules"] = {"qkv", "c_attn"};
  expect_error({"target_modules", "qkv"});
}

TEST_F(WrittenTest, AddedTokensOfAWrappedEmbedding) {
  for (const bool tied : {false, true}) {
    base.config.tied_head = tied;
    config["modules_to_save"] = {"embed_tokens"};
    add_vocabulary(9);
    tensors[kEmbed + "modules_to_save.weight"] = matrix({9, 8}, 100);
    tensors[kEmbed + "original_module.weight"] = matrix({9, 8}, 900);
    const auto adapter = good();
    ASSERT_TRUE(adapter);
    expect_vocabulary(*adapter, 9, 100, 500);
    EXPECT_TRUE(says(adapter->report, "2 tensors named modules_to_save or original_module"));
    config["modules_to_save"] = {"embed_tokens", "lm_head"};
    tensors[kHead + "modules_to_save.weight"] = matrix({9, 8}, 500);
    tensors[kHead + "original_module.weight"] = matrix({9, 8}, 900);
    const auto both = good();
    ASSERT_TRUE(both);
    expect_vocabulary(*both, 9, 100, 500);
    for (const std::string& module : {kHead, kEmbed}) tensors.erase(module + "weight");  // a model's own state
    expect_vocabulary(*good(), 9, 100, 500);
    for (const char* part : {"modules_to_save.weight", "original_module.weight"}) tensors.erase(kHead + part);
  }
  // Nobody asked for them.
  config["modules_to_save"] = {"lm_head"};
  expect_error({"embed_tokens", "is not named by \"modules_to_save\""});
}

// The module that is not wrapped reads on what the wrapped one was.
TEST_F(WrittenTest, TheOriginalIsTheOtherOneOfATiedPair) {
  base.config.tied_head = true;
  config["modules_to_save"] = {"embed_tokens"};
  tensors[kEmbed + "modules_to_save.weight"] = matrix({9, 8}, 100);
  tensors[kEmbed + "original_module.weight"] = matrix({9, 8}, 900);
  expect_vocabulary(*good(), 9, 100, 900);
  config["ensure_weight_tying"] = true;  // both are wrapped
  expect_vocabulary(*good(), 9, 100, 100);
  config["ensure_weight_tying"] = false;
  base.config.tied_head = false;
  expect_error({"9 rows", "6"});
}

TEST_F(WrittenTest, AddedTokensAsRows) {
  base.config.tied_head = true;
  config["trainable_token_indices"] = {8, 6, 7};
  for (const std::string& module : {kEmbed, kHead}) {
    tensors[module + "token_adapter.base_layer.weight"] = matrix({9, 8}, 100);
    tensors[module + "token_adapter.trainable_tokens_delta"] = matrix({3, 8}, 40);
  }
  const auto adapter = good();
  ASSERT_TRUE(adapter);
  expect_vocabulary(*adapter, 9, 100, 100);
  EXPECT_EQ(adapter->saved.embed_tokens, (std::vector<TokenId>{6, 7, 8}));
  EXPECT_EQ(adapter->saved.head_tokens, (std::vector<TokenId>{6, 7, 8}));
  EXPECT_EQ(adapter->saved.embed_rows[0], 42.0f);  // the second of the file is token 6's
  base.config.tied_head = false;                   // then the head's rows are nobody's
  expect_error({"lm_head.token_adapter.trainable_tokens_delta", "trainable_token_indices"});
}

TEST_F(WrittenTest, OnePairForBothOfATiedModel) {
  base.config.tied_head = true;
  config["ensure_weight_tying"] = true;
  const Matrix a = matrix({2, 6}, 30), b = matrix({8, 2}, 60);
  tensors[kEmbed + "lora_embedding_A"] = a;
  tensors[kEmbed + "lora_embedding_B"] = b;
  const auto expect_both = [&](const Adapter& adapter) {
    const LoraPair& head = adapter.head_pair();
    ASSERT_EQ(head.rank, 2);
    EXPECT_EQ(adapter.embed_pair().rank, 2);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(number(head.a, head.dtype, r * 8 + i), b.at(i, r));
      for (int64_t o = 0; o < 6; ++o) EXPECT_EQ(number(head.b_t, head.dtype, r * 6 + o), a.at(r, o));
    }
  };
  for (const char* target : {"model.embed_tokens", "embed_tokens", "lm_head"}) {  // each means both
    config["target_modules"] = {"q_proj", target};
    config["layers_to_transform"] = nullptr;
    config["exclude_modules"] = {"layers.1.self_attn.q_proj"};
    expect_both(*good());
    Matrix head_a = matrix({2, 8}, 0), head_b = matrix({6, 2}, 0);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 8; ++i) head_a.values[static_cast<size_t>(r * 8 + i)] = b.at(i, r);
      for (int64_t o = 0; o < 6; ++o) head_b.values[static_cast<size_t>(o * 2 + r)] = a.at(r, o);
    }
    tensors[kHead + "lora_A.weight"] = head_a;
    tensors[kHead + "lora_B.weight"] = head_b;
    expect_both(*good());
    config["alpha_pattern"] = {{"lm_head", 12}};
    EXPECT_EQ(good()->head_pair().scaling, 6.0f);
    for (const char* part : {"lora_A.weight", "lora_B.weight"}) tensors.erase(kHead + part);
    EXPECT_EQ(good()->head_pair().scaling, 6.0f);
    EXPECT_EQ(good()->embed_pair().scaling, 3.0f);
    config.erase("alpha_pattern");
  }
  config["ensure_weight_tying"] = false;
  config["target_modules"] = {"q_proj", "embed_tokens"};
  EXPECT_EQ(good()->head_pair().rank, 0);
}

TEST_F(WrittenTest, TinkerCallsTheHeadOtherwise) {
  const Matrix a = matrix({2, 8}, 1), b = matrix({6, 2}, 10);
  tensors[kTop + "model.unembed_tokens.lora_A.weight"] = a;
  tensors[kTop + "model.unembed_tokens.lora_B.weight"] = b;
  config.erase("layers_to_transform");
  for (const std::string& layer : {kLayer + "1.self_attn.q_proj."}) {
    tensors[layer + "lora_A.weight"] = matrix({2, 8}, 1);
    tensors[layer + "lora_B.weight"] = matrix({8, 2}, 10);
  }
  for (const Json& targets : {Json({"q_proj", "unembed_tokens"}), Json({"q_proj", "model.unembed_tokens"}),
                              Json({"q_proj", "lm_head"}), Json(".*(q_proj|unembed_tokens)")}) {
    config["target_modules"] = targets;
    const auto adapter = good();
    ASSERT_TRUE(adapter) << targets;
    expect_pair(adapter->head_pair(), a, b);
    EXPECT_EQ(adapter->modules.at("lm_head"), 1);
  }
  config["alpha_pattern"] = {{"unembed_tokens", 12}};
  EXPECT_EQ(good()->head_pair().scaling, 6.0f);
  config["target_modules"] = {"q_proj"};
  expect_error({"unembed_tokens", "does not target"});
  // Tinker's own config: all linear modules, and its head is one.
  config["target_modules"] = "all-linear";
  expect_pair(good()->head_pair(), a, b);
  EXPECT_TRUE(says(good()->report, "no tensors of down_proj, gate_proj, k_proj, o_proj, up_proj, v_proj:"));
  const Tensors whole = tensors;
  for (const char* part : {"lora_A.weight", "lora_B.weight"}) tensors.erase(kLayer + "1.self_attn.q_proj." + part);
  expect_error({"without tensors", "layers.1.self_attn.q_proj"});
  tensors = whole;
  for (const char* part : {"lora_A.weight", "lora_B.weight"})
    rename(kTop + "model.unembed_tokens." + part, kHead + part);
  expect_error({"lm_head", "does not target"});
}

TEST_F(WrittenTest, NumbersOfEightBytesBecomeF32) {
  for (auto& [name, tensor] : tensors) tensor.dtype = "F64";
  tensors[kQ0 + "lora_A.weight"].values[3] = 0.1f;
  const auto adapter = good();
  ASSERT_TRUE(adapter);
  EXPECT_EQ(adapter->pair(0, Module::kQ).dtype, DType::kF32);
  expect_pair(adapter->pair(0, Module::kQ), tensors[kQ0 + "lora_A.weight"], tensors[kQ0 + "lora_B.weight"]);
  tensors[kQ0 + "lora_B.weight"].dtype = "BF16";
  expect_pair(good()->pair(0, Module::kQ), tensors[kQ0 + "lora_A.weight"], tensors[kQ0 + "lora_B.weight"]);
  config["modules_to_save"] = {"lm_head", "embed_tokens", "model.norm"};
  add_vocabulary(9);
  tensors[kTop + "model.norm.weight"] = matrix({8}, 2);
  for (auto& [name, tensor] : tensors) tensor.dtype = "F64";
  expect_vocabulary(*good(), 9, 100, 500);
  EXPECT_EQ(good()->saved.final_norm[7], 3.75f);
  // Large ones, in pieces.
  base.config.ffn = 70000;
  config["modules_to_save"] = nullptr;
  config["target_modules"] = {"up_proj"};
  const std::string up = kLayer + "0.mlp.up_proj.";
  tensors = {{up + "lora_A.weight", matrix({2, 8}, 1, "F64")}, {up + "lora_B.weight", matrix({70000, 2}, 0, "F64")}};
  expect_pair(good()->pair(0, Module::kUp), tensors[up + "lora_A.weight"], tensors[up + "lora_B.weight"]);
}

TEST_F(WrittenTest, NumbersBeyondF32AreRefused) {
  tensors[kQ0 + "lora_A.weight"].dtype = "F64";
  const std::string plain = safetensors(tensors);
  files.put("/a/adapter_config.json", config.dump());
  for (const double wrong : {1e300, -1e39, HUGE_VAL, std::nan("")}) {
    std::string bytes = plain;
    const double right = tensors[kQ0 + "lora_A.weight"].values[5];
    const std::string was(reinterpret_cast<const char*>(&right), 8);
    const size_t place = bytes.find(was);
    ASSERT_NE(place, std::string::npos);
    std::memcpy(bytes.data() + place, &wrong, 8);
    files.put("/a/adapter_model.safetensors", bytes);
    const auto loaded = load_adapter(files, "/a", base, {}, AdapterVersionId{1});
    ASSERT_FALSE(loaded.ok()) << wrong;
    EXPECT_NE(loaded.error().message.find("index 5"), std::string::npos) << loaded.error().message;
  }
}

TEST_F(WrittenTest, OtherNumberFormatsAreStillNamed) {
  std::string bytes = safetensors(tensors);
  const size_t place = bytes.find("\"F32\"");
  bytes.replace(place, 5, "\"I32\"");
  files.put("/a/adapter_config.json", config.dump());
  files.put("/a/adapter_model.safetensors", bytes);
  const auto loaded = load_adapter(files, "/a", base, {}, AdapterVersionId{1});
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("number format"), std::string::npos) << loaded.error().message;
}

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\noid "
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e"
    "2393\nsize 12345\n";

TEST_F(WrittenTest, GitLfsPointersAreNamed) {
  const auto expect_pointer = [&](const std::string& path, const std::string& file) {
    for (const bool strict : {true, false}) {
      const auto loaded = load_adapter(files, path, base, {.strict = strict}, AdapterVersionId{1});
      ASSERT_FALSE(loaded.ok());
      for (const std::string& word : {file, std::string("Git LFS pointer"), std::string("git lfs pull")})
        EXPECT_NE(loaded.error().message.find(word), std::string::npos) << loaded.error().message;
    }
  };
  good();
  files.put("/a/adapter_model.safetensors", kPointer);
  expect_pointer("/a", "adapter_model.safetensors");
  good();
  files.put("/a/adapter_config.json", kPointer);
  expect_pointer("/a", "adapter_config.json");
  files.put("/b.gguf", kPointer);
  expect_pointer("/b.gguf", "b.gguf");
}

TEST_F(WrittenTest, PicklesAreNamed) {
  files.put("/a/adapter_config.json", config.dump());
  for (const char* file : {"adapter_model.bin", "mine.bin", "mine.pt", "mine.pth", "it's.bin"})
    files.put(std::string("/a/") + file, "PK");
  for (const char* path : {"/a", "/a/adapter_model.bin", "/a/mine.bin", "/a/mine.pt", "/a/mine.pth", "/a/it's.bin"}) {
    const Status status = check_adapter_files(files, path);
    ASSERT_FALSE(status.ok()) << path;
    for (const char* word : {"Python pickle", "python -c", "save_file", "weights_only=True"})
      EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
    EXPECT_EQ(status.error().message.find("load('it's"), std::string::npos) << status.error().message;
    EXPECT_EQ(load_adapter(files, path, base, {}, AdapterVersionId{1}).error().message, status.error().message);
    EXPECT_EQ(adapter_stamp(files, path).error().message, status.error().message);
  }
}

TEST_F(WrittenTest, ARefusalNamesTheOtherModeWhereItHelps) {
  const std::string flag = "--adapter-strict=false";
  const Tensors plain = tensors;
  const Json settings = config;
  const auto helps = [&](bool wanted) {
    const auto strict = load();
    ASSERT_FALSE(strict.ok());
    EXPECT_EQ(strict.error().message.find(flag) != std::string::npos, wanted) << strict.error().message;
    const auto other = load({.strict = false});
    EXPECT_EQ(other.ok(), wanted);
    EXPECT_TRUE(other.ok() || other.error().message.find(flag) == std::string::npos) << other.error().message;
    tensors = plain;
    config = settings;
  };
  config["use_dora"] = true;
  helps(true);
  tensors[kLayer + "0.mlp.gadget.weight"] = matrix({8}, 0);
  helps(true);
  config["modules_to_save"] = {"score"};
  helps(true);
  config["target_modules"] = {"q_proj", "v_proj"};
  helps(true);
  config["target_modules"] = {"v_proj"};  // nothing is left
  helps(false);
  config["peft_type"] = "VERA";
  helps(false);
  config["use_dora"] = true;
  tensors[kQ0 + "lora_A.weight"] = matrix({2, 9}, 0);  // and that stays wrong
  helps(false);
}

TEST_F(WrittenTest, AnotherBaseIsDoubted) {
  config["base_model_name_or_path"] = "meta/Llama-Tiny";
  EXPECT_TRUE(good()->doubts.empty());  // what this one is called is not known
  for (const char* name : {"llama-tiny", "/models/Llama-Tiny/", "/cache/models--meta--Llama-Tiny/snapshots/0f12",
                           "llama-tiny-Q4_K_M.gguf", "/m/Llama-Tiny.bf16.gguf", "other/llama-tiny-unsloth-bnb-4bit"}) {
    base.names = {"served", name};
    const auto adapter = good();
    EXPECT_TRUE(adapter->doubts.empty()) << name;
    EXPECT_TRUE(says(adapter->report, "Made for the base model \"meta/Llama-Tiny\"."));
  }
  for (const char* name : {"llama", "llama-tiny-chat", "tiny", "/models/llama-tiny/v2", "meta", "llama-tiny-q"}) {
    base.names = {name, "served"};
    const auto adapter = good();
    ASSERT_EQ(adapter->doubts.size(), 1u) << name;
    EXPECT_TRUE(says(adapter->doubts, "meta/Llama-Tiny") && says(adapter->doubts, name));
    EXPECT_TRUE(says(adapter->report, adapter->doubts[0]));
  }
  config.erase("base_model_name_or_path");
  EXPECT_TRUE(good()->doubts.empty());
}

}  // namespace
}  // namespace loralei
