// SPDX-License-Identifier: Apache-2.0
// `loralei calibrate-kv` on the demo model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/command_test_util.h"
#include "apps/options.h"
#include "codec/kv_steps.h"
#include "sys/file.h"

namespace loralei {
namespace {

namespace fs = std::filesystem;

class CalibrateKvCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("loralei-calibrate-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(fs::path(LORALEI_SOURCE_DIR) / "demo/model", folder_ / "model");
    std::string text, dialogues;
    for (const std::string word : {"apple", "river", "stone", "lamp", "cloud", "table"}) {
      text += "Q: " + word + " green\nA:" + word + " green\nQ: green " + word + "\nA:green " + word + "\n";
      dialogues += R"({"prompt": "Q: )" + word + R"( river\nA:)" + word + R"( river\nQ: red )" + word +
                   R"( lamp\nA:", "answer": "red )" + word + R"( lamp", "adapter": ""})" + "\n" + R"({"prompt": "Q: )" +
                   word + R"( river\nA:{}\nQ: Mara bought 42 )" + word +
                   R"( lamps\nA:", "answer": "{\"who\": \"Mara\"", "adapter": "json"})" + "\n";
    }
    write("text.txt", text);
    write("text.jsonl", dialogues);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  testing_support::Said calibrate(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"calibrate-kv", path("model"), "-t", "1", "--kv-quality", "80"};
    words.insert(words.end(), more.begin(), more.end());
    return testing_support::say(words, [](CLI::App& app, int& exit_code) { add_calibrate_kv_command(app, exit_code); });
  }
  KvSteps read(const std::string& name) const {
    const auto text = PosixFileSystem().read_all(path(name), kKvStepsBytesMost);
    EXPECT_TRUE(text.ok()) << name;
    auto steps = text.ok() ? parse_kv_steps(*text, name) : Result<KvSteps>(text.error());
    EXPECT_TRUE(steps.ok());
    return steps.ok() ? *steps : KvSteps();
  }
  void expect_refused(const std::vector<std::string>& more, const std::string& part) {
    const testing_support::Said said = calibrate(more);
    EXPECT_EQ(said.exit_code, 1);
    EXPECT_NE(said.err.find(part), std::string::npos) << said.err;
    EXPECT_FALSE(fs::exists(folder_ / "model/kv-steps.json"));
  }
  fs::path folder_;
};

TEST_F(CalibrateKvCommand, WritesBesideTheModel) {
  const testing_support::Said said = calibrate({"--text", path("text.txt"), "--tokens", "512"});
  EXPECT_EQ(said.exit_code, 0) << said.err << said.refusal;
  EXPECT_NE(said.out.find("factor K"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find(path("model/kv-steps.json")), std::string::npos) << said.out;
  const KvSteps steps = read("model/kv-steps.json");
  EXPECT_EQ(steps.name, "model");
  EXPECT_EQ(steps.layers, 4);
  EXPECT_GT(steps.quality.positions, 0);
  EXPECT_TRUE(steps.adapters.empty());
}

TEST_F(CalibrateKvCommand, AdaptersAreMeasuredByTheirNamesAndPrompts) {
  const std::string adapters = std::string(LORALEI_SOURCE_DIR) + "/demo/adapters";
  write("prompts",
        "Mara bought 42 red lamps\n\n"
        R"({"prompt": "Q: apple river\nA:{}\nQ: Mara bought 42 red lamps\nA:"})"
        "\n");
  const testing_support::Said said =
      calibrate({"--text", path("text.jsonl"), "--adapter-dir", adapters, "--adapter", "json", "--adapter",
                 "other=" + adapters + "/cipher", "--prompts", path("prompts"), "--cache-dir", path("cache/deeper")});
  EXPECT_EQ(said.exit_code, 0) << said.err << said.refusal;
  ASSERT_TRUE(fs::is_directory(folder_ / "cache/deeper")) << said.err;
  const fs::path written = fs::directory_iterator(folder_ / "cache/deeper")->path();
  const KvSteps steps = read("cache/deeper/" + written.filename().string());
  EXPECT_EQ(written.filename().string(), steps.fingerprint + ".kv-steps.json");
  ASSERT_EQ(steps.adapters.size(), 2u);
  EXPECT_EQ(steps.adapters[0].name, "json");
  EXPECT_GT(steps.adapters[0].quality.positions, 0);
  EXPECT_EQ(steps.adapters[1].name, "other");
  EXPECT_EQ(steps.adapters[1].quality.positions, 0);  // none of the lines is its
  EXPECT_FALSE(fs::exists(folder_ / "model/kv-steps.json"));
}

TEST_F(CalibrateKvCommand, WhatCannotBeIsRefusedWithASentence) {
  const std::string text = path("text.txt");
  expect_refused({"--text", path("none.txt")}, "there is no such file");
  write("short.txt", "Q: apple\n");
  expect_refused({"--text", path("short.txt")}, "nothing long enough");
  write("broken.jsonl", "{\"prompt\": \"a\"}\n");
  expect_refused({"--text", path("broken.jsonl")}, "broken.jsonl:1");
  write("empty", "\n");
  expect_refused({"--text", text, "--prompts", path("empty")}, "has no prompts");
  expect_refused({"--text", text, "--adapter-dir", path("cache")}, "no such folder");
  expect_refused({"--text", text, "--adapter-dir", path("model")}, "--adapter NAME");
  expect_refused({"--text", text, "--adapter", path("none")}, "none");
  expect_refused({"--text", text, "--kv-cache-dtype", "int8"}, "no steps to choose");
  expect_refused({"--text", text, "--out", path("text.txt/below.json")}, "--out FILE or --cache-dir DIR");
  EXPECT_FALSE(calibrate({}).refusal.empty());
  EXPECT_FALSE(calibrate({"--text", text, "--device", "cuda:0"}).refusal.empty());
}

}  // namespace
}  // namespace loralei
