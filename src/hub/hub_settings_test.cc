// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include <map>

#include "sys/memory_file_system.h"

namespace loralei {
namespace {

class HubSettingsTest : public testing::Test {
 protected:
  Result<HubSettings> read(std::map<std::string, std::string> variables) {
    variables.try_emplace("HOME", "/home/me");
    return read_hub_settings(files_, [variables](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  }
  std::string cache(const std::map<std::string, std::string>& variables) { return read(variables)->cache_dir; }
  std::string token(const std::map<std::string, std::string>& variables) {
    const auto settings = read(variables);
    return settings.ok() ? settings->token : "error: " + settings.error().message;
  }
  MemoryFileSystem files_;
};

TEST_F(HubSettingsTest, TheCacheIsWhereTheLibraryHasIt) {
  EXPECT_EQ(cache({}), "/home/me/.cache/huggingface/hub");
  EXPECT_EQ(cache({{"XDG_CACHE_HOME", "/c"}}), "/c/huggingface/hub");
  EXPECT_EQ(cache({{"XDG_CACHE_HOME", "/c"}, {"HF_HOME", "~/h"}}), "/home/me/h/hub");
  EXPECT_EQ(cache({{"HF_HOME", "/h"}, {"HF_HUB_CACHE", "/x"}}), "/x");
  EXPECT_EQ(cache({{"HF_HOME", "/h"}, {"HF_HUB_CACHE", ""}}), "/h/hub");
}

TEST_F(HubSettingsTest, TheHubIsTheDefaultOneOrAnother) {
  EXPECT_EQ(read({})->endpoint.origin(), kDefaultHubEndpoint);
  EXPECT_EQ(read({})->endpoint.target, "");
  const auto mirror = read({{"HF_ENDPOINT", "http://mirror:81/hf/"}});
  EXPECT_EQ(mirror->endpoint.text(), "http://mirror:81/hf");
  for (const char* bad : {"mirror", "file:///x", "https://h/?x"})
    EXPECT_FALSE(read({{"HF_ENDPOINT", bad}}).ok()) << bad;
}

TEST_F(HubSettingsTest, ATokenComesFromAVariableOrAFile) {
  EXPECT_EQ(token({}), "");
  files_.put("/home/me/.cache/huggingface/token", " hf_file\n");
  EXPECT_EQ(token({}), "hf_file");
  EXPECT_EQ(token({{"HF_TOKEN", "hf_one "}}), "hf_one");
  EXPECT_EQ(token({{"HF_TOKEN", ""}}), "hf_file");
  files_.put("/t", "hf_other");
  EXPECT_EQ(token({{"HF_TOKEN_PATH", "/t"}}), "hf_other");
  const std::string bad = token({{"HF_TOKEN", "secret\r\nX: y"}});
  EXPECT_TRUE(bad.starts_with("error: The variable HF_TOKEN")) << bad;
  EXPECT_EQ(bad.find("secret"), std::string::npos);
  files_.put("/t", std::string(5000, 'x'));
  EXPECT_TRUE(token({{"HF_TOKEN_PATH", "/t"}}).starts_with("error: "));
}

TEST_F(HubSettingsTest, OfflineIsSaidInSomeWays) {
  EXPECT_FALSE(read({})->offline);
  for (const char* yes : {"1", "true", "YES", "on"}) EXPECT_TRUE(read({{"HF_HUB_OFFLINE", yes}})->offline) << yes;
  for (const char* no : {"", "0", "no", "off"}) EXPECT_FALSE(read({{"HF_HUB_OFFLINE", no}})->offline) << no;
}

TEST_F(HubSettingsTest, ProxiesAreKept) {
  const auto settings = read({{"https_proxy", "p:1"}, {"HF_TOKEN", "t"}});
  EXPECT_EQ(settings->variable("https_proxy"), "p:1");
  EXPECT_FALSE(settings->variable("no_proxy"));
  EXPECT_FALSE(settings->variable("HF_TOKEN"));
}

}  // namespace
}  // namespace loralei
