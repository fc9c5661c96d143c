// SPDX-License-Identifier: Apache-2.0
#include "store/fleet_homes.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

TEST(FleetHomes, AreReadAsTheyWereWritten) {
  const std::vector<NamedHomes> homes = {
      {"a \"b\"", {"10.0.0.1:80"}}, {"b", {}}, {"c/d", {"[::1]:1", "10.0.0.1:80", "host:2"}}};
  const auto read = parse_fleet_homes(fleet_homes_text(homes));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, homes);
  EXPECT_TRUE(parse_fleet_homes(fleet_homes_text({}))->empty());
}

TEST(FleetHomes, ThoseThatFitAreTold) {
  std::vector<NamedHomes> homes;
  for (int i = 0; i < 5000; ++i) {
    char digits[8];
    std::snprintf(digits, sizeof digits, "%04d", i);
    homes.push_back({digits + std::string(300, 'x'), {"host" + std::to_string(i) + ":80"}});
  }
  const std::string text = fleet_homes_text(homes);
  EXPECT_LE(text.size(), kFleetHomesBytesMost);
  const auto read = parse_fleet_homes(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_GT(read->size(), 1000u);
  EXPECT_EQ(*read, std::vector<NamedHomes>(homes.begin(), homes.begin() + static_cast<ptrdiff_t>(read->size())));
}

TEST(FleetHomes, OfAStrangerAreRefused) {
  const auto refused = [](const std::string& text) {
    const auto read = parse_fleet_homes(text);
    return read.ok() ? "" : read.error().message;
  };
  EXPECT_NE(refused(""), "");
  EXPECT_EQ(refused(R"({"homes": {}})"), "they have no format");
  EXPECT_EQ(refused(R"({"format": 2})"), "they were written by a newer version of Loralei");
  EXPECT_EQ(refused(R"({"format": 1})"), "they name no adapters");
  EXPECT_EQ(refused(R"({"format": 1, "homes": {"a": 3}})"), "an adapter's homes are no list");
  for (const char* home : {"0", "-1", "1.5", "1e300", "\"x\"", "null"}) {
    const std::string text = R"({"format": 1, "replicas": [], "homes": {"a": [)" + std::string(home) + "]}}";
    EXPECT_EQ(refused(text), "an adapter's home is no replica") << home;
  }
  EXPECT_EQ(refused(R"({"format": 1, "replicas": [""], "homes": {}})"), "a replica has no address");
  EXPECT_EQ(refused(R"({"format": 1, "replicas": ["a:1"], "homes": {"": [0]}})"), "an adapter has no name");
}

}  // namespace
}  // namespace loralei
