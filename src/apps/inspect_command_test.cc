// SPDX-License-Identifier: Apache-2.0
// `loralei inspect` on the demo's adapters and on a GGUF one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/command_test_util.h"
#include "apps/options.h"

namespace loralei {
namespace {

const std::string kAdapter = std::string(LORALEI_SOURCE_DIR) + "/demo/adapters/shout";

std::string inspect(std::vector<std::string> words, int* code = nullptr) {
  words.insert(words.begin(), "inspect");
  const testing_support::Said said = testing_support::say(words, add_inspect_command);
  if (code != nullptr) *code = said.exit_code;
  return said.out + said.err + said.refused_as;
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Inspect, AFileOfAnAdapterStandsForItsFolder) {
  const std::string whole = inspect({kAdapter});
  EXPECT_TRUE(holds(whole, "rank / alpha")) << whole;
  EXPECT_EQ(inspect({kAdapter + "/adapter_model.safetensors"}), whole);
  EXPECT_EQ(inspect({kAdapter + "/adapter_config.json"}), whole);
}

TEST(Inspect, NoFileOfAnAdapterLeadsOut) {
  namespace fs = std::filesystem;
  const fs::path top = fs::path(testing::TempDir()) / ("loralei-inspect-" + std::to_string(::getpid()));
  fs::create_directories(top / "adapter");
  fs::copy_file(kAdapter + "/adapter_config.json", top / "config", fs::copy_options::overwrite_existing);
  fs::copy_file(kAdapter + "/adapter_model.safetensors", top / "adapter/adapter_model.safetensors");
  fs::create_symlink("../config", top / "adapter/adapter_config.json");
  fs::create_symlink("adapter", top / "named");
  const std::string refused = inspect({(top / "adapter").string()});
  fs::rename(top / "config", top / "adapter/adapter_config.json");
  const std::string shown = inspect({(top / "named/").string()});
  fs::remove_all(top);
  EXPECT_TRUE(holds(refused, "adapter_config.json' is a link to '../config', which leads out of")) << refused;
  EXPECT_TRUE(holds(shown, "rank / alpha")) << shown;
}

// An adapter for the golden model that a test may change.
class InspectOnBase : public testing::Test {
 protected:
  InspectOnBase() {
    std::filesystem::create_directories(folder_);
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
      std::filesystem::copy_file(kGolden + "adapters/gqa-qv-r8/" + name, folder_ / name,
                                 std::filesystem::copy_options::overwrite_existing);
  }
  ~InspectOnBase() override { std::filesystem::remove_all(folder_); }
  std::string on_base(int& code) { return inspect({folder_.string(), "--base", kGolden + "models/llama-gqa"}, &code); }
  void set(const std::string& before, const std::string& after) {
    std::ifstream in(folder_ / "adapter_config.json");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t place = text.find(before);
    ASSERT_NE(place, std::string::npos) << text;
    std::ofstream(folder_ / "adapter_config.json") << text.replace(place, before.size(), after);
  }

  const std::string kGolden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/";
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("loralei-inspect-base-" + std::to_string(::getpid()));
};

TEST_F(InspectOnBase, WhatStrictModeWouldRefuseFails) {
  int code = 7;
  std::string shown = on_base(code);
  EXPECT_EQ(code, 0) << shown;
  for (const char* words : {"norm of change", "yes, completely", "on 2"}) EXPECT_TRUE(holds(shown, words)) << shown;
  set("\"use_dora\": false", "\"use_dora\": true");
  shown = on_base(code);
  EXPECT_EQ(code, 1);
  for (const char* words : {"only with --adapter-strict=false", "use_dora", "Not applied"})
    EXPECT_TRUE(holds(shown, words)) << shown;
  set("\"LORA\"", "\"VERA\"");  // nothing helps
  shown = on_base(code);
  EXPECT_EQ(code, 1);
  EXPECT_FALSE(holds(shown, "--adapter-strict")) << shown;
}

TEST_F(InspectOnBase, APickleIsNamed) {
  std::filesystem::rename(folder_ / "adapter_model.safetensors", folder_ / "adapter_model.bin");
  for (const std::string& path : {folder_.string(), (folder_ / "adapter_model.bin").string()}) {
    for (const bool with_base : {false, true}) {
      int code = 0;
      std::vector<std::string> words = {path};
      if (with_base) words.insert(words.end(), {"--base", kGolden + "models/llama-gqa"});
      const std::string shown = inspect(words, &code);
      EXPECT_EQ(code, 1) << path;
      EXPECT_TRUE(holds(shown, "Python pickle") && holds(shown, "save_file")) << shown;
    }
  }
}

// All that is missing is said, not only the first.
TEST(Inspect, OfARefusedModelAllThatIsMissingIsSaid) {
  namespace fs = std::filesystem;
  const fs::path model = fs::path(testing::TempDir()) / ("loralei-inspect-model-" + std::to_string(::getpid()));
  const std::string golden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/llama-gqa/";
  fs::create_directories(model);
  fs::copy_file(golden + "model.safetensors", model / "model.safetensors");
  std::ifstream in(golden + "config.json");
  std::string config((std::istreambuf_iterator<char>(in)), {});
  const size_t brace = config.find('{');
  config.insert(brace + 1, "\"alibi\": true, \"clip_qkv\": 8.0,");
  std::ofstream(model / "config.json") << config;
  int code = 0;
  const std::string two = inspect({model.string()}, &code);
  EXPECT_EQ(code, 1);
  for (const char* words : {"LlamaForCausalLM", "\"alibi\": true", "\"clip_qkv\": 8.0", "2 things are missing"})
    EXPECT_TRUE(holds(two, words)) << two;
  const size_t name = config.find("LlamaForCausalLM");
  ASSERT_NE(name, std::string::npos);
  std::ofstream(model / "config.json") << config.replace(name, 5, "Unheard");
  const std::string three = inspect({model.string()}, &code);
  fs::remove_all(model);
  EXPECT_EQ(code, 1);
  for (const char* words : {"\"UnheardForCausalLM\" is not supported", "\"alibi\": true", "3 things are missing"})
    EXPECT_TRUE(holds(three, words)) << three;
}

TEST(Inspect, AnAdapterOfMlxIsShownAndApplied) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("loralei-inspect-mlx-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "adapter_config.json")
      << R"({"fine_tune_type": "lora", "lora_parameters": {"rank": 1, "scale": 20.0}, "model": "org/some"})";
  std::string header =
      R"({"model.layers.1.self_attn.o_proj.lora_a":{"dtype":"F16","shape":[64,1],"data_offsets":[0,128]},)"
      R"("model.layers.1.self_attn.o_proj.lora_b":{"dtype":"F16","shape":[1,64],"data_offsets":[128,256]}})";
  const uint64_t size = header.size();
  std::ofstream(folder / "adapters.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), sizeof size) << header << std::string(256, '\x11');
  const std::string shown = inspect({folder.string()});
  const std::string golden = std::string(LORALEI_SOURCE_DIR) + "/tests/golden/models/llama-gqa";
  const std::string applied = inspect({folder.string(), "--base", golden});
  fs::remove_all(folder);
  for (const char* words : {"of mlx-lm, lora", "org/some", "\"scale\":20.0"}) EXPECT_TRUE(holds(shown, words)) << shown;
  for (const char* words : {"o_proj", "on 1", "yes, completely"}) EXPECT_TRUE(holds(applied, words)) << applied;
}

TEST(Inspect, ABudgetIsForModels) {
  EXPECT_TRUE(holds(inspect({"/no/such/model", "--memory-budget", "0.5"}), "less than a byte"));
  EXPECT_EQ(inspect({"/no/such/model", "--residency", "flex"}), "RequiresError");
  EXPECT_TRUE(holds(inspect({kAdapter, "--memory-budget", "1GiB"}), "says nothing about an adapter"));
  EXPECT_TRUE(holds(inspect({"/no/such/model", "--memory-budget", "much"}), "--memory-budget: "));
}

TEST(Inspect, AGgufAdapterIsShownWithoutItsBase) {
  const auto raw = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto text = [&](const std::string& value) { return raw(uint64_t{value.size()}) + value; };
  const std::string path = testing::TempDir() + "/loralei-inspect-" + std::to_string(::getpid()) + ".gguf";
  std::ofstream(path) << "GGUF" + raw(uint32_t{3}) + raw(uint64_t{0}) + raw(uint64_t{2}) + text("general.type") +
                             raw(uint32_t{8}) + text("adapter") + text("general.architecture") + raw(uint32_t{8}) +
                             text("llama");
  const std::string shown = inspect({path});
  std::filesystem::remove(path);
  EXPECT_TRUE(holds(shown, "GGUF file") && holds(shown, "llama") && holds(shown, "--base MODEL")) << shown;
}

}  // namespace
}  // namespace loralei
