// SPDX-License-Identifier: Apache-2.0
#include "cost/profile.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(Profile, DevicesAreWrittenAndReadAgain) {
  ASSERT_GE(device_names().size(), 3u);
  for (const std::string& name : device_names()) {
    const Profile device = *device_profile(name);
    EXPECT_EQ(check_step_model(device.step), "") << name;
    const auto read = parse_profile(profile_text(device), "it");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, device);
  }
  EXPECT_EQ(device_profile("a10-llama2-7b")->model.layers, 32);
  EXPECT_TRUE(device_profile("a10-llama2-7b")->assist.has_value());
  EXPECT_FALSE(device_profile("a40").has_value());
  Profile bare = *device_profile("a40-llama2-7b");  // as measured without adapters, on cores
  bare.disk.reset();
  bare.link.reset();
  bare.model.adapter_bytes_per_rank = 0;
  bare.assist = AssistCost{1e-4, 2e-8, 2048, {{8, 1e6}, {64, 1.5e5}}};
  const auto read = parse_profile(profile_text(bare), "it");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, bare);
}

TEST(Profile, WhatHelpersDoIsInOrderAndAboveNothing) {
  Profile profile = *device_profile("a40-llama2-7b");
  for (const auto& points : std::vector<std::vector<AssistCost::Point>>{
           {{8, 0}}, {{8, -1}}, {{16, 5}, {8, 5}}, {{8, 5}, {8, 5}}, {{0, 5}}}) {
    profile.assist = AssistCost{1e-4, 2e-8, 2048, points};
    const auto read = parse_profile(profile_text(profile), "p.json");
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.error().message.find("\"rows_per_second\" must be a list of points"), std::string::npos)
        << read.error().message;
  }
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = profile_text(*device_profile("a40-llama2-7b"));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Profile, WhatIsWrongIsSaidWithFileAndLine) {
  const std::pair<std::string, std::string> cases[] = {
      {with("\"loralei-profile\"", "\"vidur\""), "p.json:2: \"format\" must be \"loralei-profile\""},
      {with("\"version\": 1", "\"version\": 2"), "p.json:3: \"version\" must be a whole number between 1 and 1"},
      {with("\"kv_bytes_per_token\": 524288", "\"kv_bytes_per_token\": 0"), "\"kv_bytes_per_token\" must be"},
      {with("\"kv_bytes_per_token\": 524288", "\"kv_bytes_per_tok\": 524288"), "\"kv_bytes_per_token\" is missing"},
      {with("\"any_adapter\": 0.0", "\"any_adaptor\": 0.0"), "there is no \"any_adaptor\" in a profile"},
      {with("\"any_adapter\": 0.0", "\"any_adapter\": -1"), "\"any_adapter\" must be a number of at least 0"},
      {with("\"any_adapter\": 0.0", "\"any_adapter\": \"x\""), "\"any_adapter\" must be a number of at least 0"},
      {with("\"at_once\": 2", "\"at_once\": 0"), "\"at_once\" must be a whole number between 1 and 1024"},
      {with("\"linear\"", "\"linear\": 3, \"linear2\""), "\"linear\" must be a list of at most"},
      {with("\"adapter_bytes_per_rank\"", "\"layers\": -1, \"adapter_bytes_per_rank\""),
       "\"layers\" must be a whole number between 0 and 1024"},
      {with("\"link\"", "\"assist\": {\"message_seconds\": 0, \"row_seconds_per_rank\": 0}, \"link\""),
       "\"row_seconds_per_rank\" must be a number of at least 1e-12"},
      {"{\"format\": \"loralei-profile\",\n \"version\": 1,\n", "p.json"},
      {"[]", "p.json"},
      {"", "p.json"}};
  for (const auto& [text, sentence] : cases) {
    const auto read = parse_profile(text, "p.json");
    ASSERT_FALSE(read.ok()) << sentence;
    EXPECT_NE(read.error().message.find(sentence), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find("p.json"), std::string::npos) << read.error().message;
  }
}

TEST(Profile, RandomChangesNeverCrash) {
  const std::string good = profile_text(*device_profile("h100-llama2-7b"));
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    std::string text = good;
    for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
      const size_t at = random.below(text.size());
      if (random.below(3) == 0) {
        text.erase(at, 1 + random.below(20));
      } else {
        text[at] =
            static_cast<char>(random.below(3) == 0 ? random.below(256) : "0123456789-.eE\"[]{},: "[random.below(22)]);
      }
      if (text.empty()) text = "{";
    }
    const auto read = parse_profile(text, "it");
    if (read.ok()) {
      EXPECT_EQ(check_step_model(read->step), "");
    }
  }
}

// The A40's linear part against the table that it was made of.
TEST(Profile, TheA40ReproducesItsTable) {
  const char* const named = std::getenv("LORALEI_SHARED_DATA");
  const std::string path = std::string(named != nullptr ? named : LORALEI_SOURCE_DIR "/../shared/data") +
                           "/profiles/vidur_llama2_7b_a40.csv";
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << "the table " << path << " is not here";
  const Profile a40 = *device_profile("a40-llama2-7b");
  std::string line;
  std::getline(file, line);
  ASSERT_EQ(line.find("tensor_parallel,num_tokens,emb_ms,"), 0u) << line;
  int checked = 0;
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::vector<double> values;
    for (std::string cell; std::getline(cells, cell, ',');) values.push_back(std::stod(cell));
    ASSERT_EQ(values.size(), 12u) << line;
    if (values[0] != 1) continue;
    double layer_ms = 0;
    for (size_t column = 3; column < values.size(); ++column) layer_ms += values[column];
    const double seconds = (32 * layer_ms + values[2]) * 1e-3;
    const auto tokens = static_cast<int32_t>(values[1]);
    EXPECT_NEAR(a40.step.linear_s(tokens) / seconds, 1, 0.05) << tokens << " tokens";
    ++checked;
  }
  EXPECT_EQ(checked, 259);
}

}  // namespace
}  // namespace loralei
