// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_name.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string told(const std::string& text) {
  const auto name = parse_hub_name(text);
  if (!name.ok()) return "error";
  if (!*name) return "path";
  return (*name)->repository + " " + (*name)->revision + " " + (*name)->file;
}

TEST(HubName, IsWrittenInSomeWays) {
  EXPECT_EQ(told("org/name"), "org/name main ");
  EXPECT_EQ(told("hf://org/name"), "org/name main ");
  EXPECT_EQ(told("Qwen/Qwen2.5-0.5B_x"), "Qwen/Qwen2.5-0.5B_x main ");
  EXPECT_EQ(told("org/name@v1.0"), "org/name v1.0 ");
  EXPECT_EQ(told("org/name@refs/pr/1"), "org/name refs/pr/1 ");
  EXPECT_EQ(told("org/name:Q4_K_M"), "org/name main Q4_K_M");
  EXPECT_EQ(told("hf://org/name@v1:name-Q8_0.gguf"), "org/name v1 name-Q8_0.gguf");
  EXPECT_EQ(parse_hub_name("hf://org/name@v1:Q8_0").value()->text(), "org/name@v1:Q8_0");
  EXPECT_EQ(parse_hub_name("org/name@main").value()->text(), "org/name");
}

TEST(HubName, AnythingElseIsAPath) {
  for (const char* path : {"",
                           "name",
                           "/org/name",
                           "./name",
                           "../name",
                           "~/name",
                           "a/b/c",
                           "org/",
                           "/name",
                           "org//name",
                           "org/na me",
                           "org/na--me",
                           "org/..",
                           "org/.name",
                           "org/name.",
                           "-org/name",
                           "org/name@",
                           "org/name@../x",
                           "org/name@/x",
                           "org/name@x/",
                           "org/name@x//y",
                           "org/name@.x",
                           "org/name:",
                           "org/name:../x",
                           "org/name:a/b",
                           "org/name:Q8@v1",
                           "org/name\n",
                           "org\\name",
                           "https://org/name",
                           "org/name@x y"}) {
    EXPECT_EQ(told(path), "path") << path;
    EXPECT_EQ(told(std::string("hf://") + path), "error") << path;
  }
  EXPECT_EQ(told("org/" + std::string(97, 'x')), "path");
  EXPECT_EQ(told("org/name@" + std::string(257, 'x')), "path");
}

TEST(HubName, ACommitIsFortyDigits) {
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456789abcdef0123456789abcdef0123456"));
  EXPECT_FALSE(is_commit("../3456789abcdef0123456789abcdef01234567"));
}

}  // namespace
}  // namespace loralei
