// SPDX-License-Identifier: Apache-2.0
#include "hub/hub_listing.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

const std::string kCommit(40, 'a');

std::string answer(const std::string& files, const std::string& commit = kCommit) {
  return R"({"id": "org/name", "sha": ")" + commit + R"(", "siblings": [)" + files + "]}";
}
std::string file(const std::string& name) { return R"({"rfilename": ")" + name + R"("})"; }

TEST(HubListing, IsRead) {
  const auto listing =
      parse_hub_listing(answer(file("a/b.gguf") + R"(, {"rfilename": "c", "size": 7, "lfs": {"sha256": "x"}})"), "it");
  ASSERT_TRUE(listing.ok());
  EXPECT_EQ(listing->commit, kCommit);
  ASSERT_EQ(listing->files.size(), 2u);
  EXPECT_EQ(listing->files[0].path, "a/b.gguf");
  EXPECT_EQ(listing->files[0].bytes, -1);
  EXPECT_EQ(listing->find("c")->bytes, 7);
  EXPECT_EQ(listing->find("d"), nullptr);
  EXPECT_TRUE(parse_hub_listing(answer(file("Config.json") + "," + file("config.json")), "it").ok());
  EXPECT_TRUE(parse_hub_listing(answer(file("..a") + "," + file("a..b") + "," + file("\xc3\xa4")), "it").ok());
}

TEST(HubListing, HostileNamesAreRefused) {
  for (const char* bad : {"", ".", "..", "../x", "a/../b", "a/..", "/etc/passwd", "a//b", "a/", "a\\\\b", "a\\nb",
                          "a\\u0000", "a\\u001bb", "a\\u202eb", "./a"}) {
    EXPECT_FALSE(parse_hub_listing(answer(file("config.json") + "," + file(bad)), "it").ok()) << bad;
  }
  EXPECT_FALSE(parse_hub_listing(answer(file(std::string(256, 'x'))), "it").ok());
  EXPECT_FALSE(parse_hub_listing(answer(file("a") + "," + file("a")), "it").ok());
}

TEST(HubListing, WhatIsNoListIsRefused) {
  for (const std::string& bad : std::vector<std::string>{
           "", "[]", "{}", "null", R"({"sha": "x", "siblings": []})", answer("", "../" + std::string(37, 'a')),
           answer("1"), answer("{}"), answer(R"({"rfilename": 1})"), answer(R"({"rfilename": "a", "size": -1})"),
           answer(R"({"rfilename": "a", "size": 1e300})"),
           answer(R"({"rfilename": "a", "size": 18446744073709551615})"), R"({"sha": ")" + kCommit + R"("})",
           R"({"sha": ")" + kCommit + R"(", "siblings": {}})"}) {
    EXPECT_FALSE(parse_hub_listing(bad, "it").ok()) << bad;
  }
}

TEST(HubListing, IsBounded) {
  std::string files;
  for (size_t i = 0; i < kMaxHubFiles; ++i) files += (i == 0 ? "" : ",") + file(std::to_string(i));
  EXPECT_TRUE(parse_hub_listing(answer(files), "it").ok());
  EXPECT_EQ(parse_hub_listing(answer(files + "," + file("x")), "it").error().code, ErrorCode::kTooLarge);
  EXPECT_FALSE(parse_hub_listing(answer(file("a")) + std::string(kMaxHubListBytes, ' '), "it").ok());
}

TEST(HubListing, AnEtagIsADigest) {
  const std::string sha256(64, 'b'), sha1(40, 'c');
  for (const std::string& etag : {sha256, "\"" + sha256 + "\"", "W/\"" + sha256 + "\""})
    EXPECT_EQ(parse_hub_digest(etag).value(), sha256);
  EXPECT_EQ(parse_hub_digest("\"" + sha1 + "\"").value(), sha1);
  for (const std::string& bad : std::vector<std::string>{"", "\"\"", "../" + sha1.substr(3), std::string(41, 'a'),
                                                         std::string(64, 'A'), sha256 + "-7", "\"" + sha1})
    EXPECT_FALSE(parse_hub_digest(bad).ok()) << bad;
}

}  // namespace
}  // namespace loralei
