// SPDX-License-Identifier: Apache-2.0
// `loralei inspect` on the demo's adapters and on a GGUF one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/options.h"

namespace loralei {
namespace {

const std::string kAdapter = std::string(LORALEI_SOURCE_DIR) + "/demo/adapters/shout";

std::string inspect(std::vector<std::string> words) {
  CLI::App app;
  int exit_code = 0;
  add_inspect_command(app, exit_code);
  words.insert(words.begin(), "inspect");
  std::reverse(words.begin(), words.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::string refusal;  // the parser's
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    refusal = error.get_name();
  }
  return testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr() + refusal;
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
