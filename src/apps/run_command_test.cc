// SPDX-License-Identifier: Apache-2.0
// `loralei run` on the demo model.
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

namespace fs = std::filesystem;

class RunCommand : public testing::Test {
 protected:
  void SetUp() override {
    adapter_ = fs::path(testing::TempDir()) / ("loralei-run-" + std::to_string(::getpid()));
    fs::remove_all(adapter_);
    fs::copy(fs::path(LORALEI_SOURCE_DIR) / "demo/adapters/shout", adapter_);
  }
  void TearDown() override { fs::remove_all(adapter_); }

  // What it says on standard error: how many tokens there were, or what is wrong.
  std::string run(const std::vector<std::string>& more = {}) {
    const std::string model = std::string(LORALEI_SOURCE_DIR) + "/demo/model";
    std::vector<std::string> words = {
        "run", model, "--adapter", adapter_.string(),         "-t", "1", "-n", "1", "--temp", "0",
        "-c",  "64",  "-p",        "Mara bought 42 red lamps"};
    words.insert(words.end(), more.begin(), more.end());
    const std::vector<std::string> notes;  // which the command borrows
    const auto add = [&notes](CLI::App& app, int& exit_code) { add_run_command(app, exit_code, notes); };
    const testing_support::Said said = testing_support::say(words, add);
    return said.err + said.refusal;
  }
  void write_template(const std::string& text) {
    std::ofstream(adapter_ / "tokenizer_config.json") << R"({"chat_template":")" << text << "\"}";
  }
  static bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  fs::path adapter_;
};

TEST_F(RunCommand, AnAdaptersOwnChatTemplateIsUsed) {
  EXPECT_FALSE(holds(run(), "[2 prompt tokens"));
  write_template("{{ bos_token }}a");
  EXPECT_TRUE(holds(run(), "[2 prompt tokens")) << run();
  write_template("{% if %}");
  EXPECT_TRUE(holds(run(), "the chat template of adapter")) << run();
}

TEST_F(RunCommand, WhatWouldHaveNoEffectIsRefused) {
  for (std::string option : {"--system", "--chat-template"}) {
    std::string refusal = run({"--raw", option, "chatml"});
    EXPECT_TRUE(holds(refusal, "excludes") && holds(refusal, "--raw") && holds(refusal, option)) << refusal;
  }
  EXPECT_TRUE(holds(run({"--max-num-seqs", "4"}), "--max-num-seqs"));
}

}  // namespace
}  // namespace loralei
