// SPDX-License-Identifier: Apache-2.0
#include "apps/fleet_flags.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string address(const std::string& advertise, const std::string& host) {
  const auto found = advertised_address({.etcd = "a", .advertise = advertise}, host);
  return found.ok() ? address_text(*found) : found.error().message;
}

TEST(FleetFlags, NamesOfFleetsArePlain) {
  for (const char* name : {"default", "a.b_c-9"}) EXPECT_EQ(refuse_fleet(name), "");
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a b"), std::string(65, 'a')})
    EXPECT_NE(refuse_fleet(name), "") << name;
}

TEST(FleetFlags, AServerIsWhereItListensUnlessItSaysOtherwise) {
  EXPECT_EQ(address("", "127.0.0.1"), "127.0.0.1:0");
  EXPECT_EQ(address("", "::1"), "[::1]:0");
  EXPECT_EQ(address("gpu-7", "0.0.0.0"), "gpu-7:0");
  EXPECT_EQ(address("http://gpu-7", "0.0.0.0"), "gpu-7:0");
  EXPECT_EQ(address("gpu-7:9000", "127.0.0.1"), "gpu-7:9000");
  EXPECT_EQ(address("[fd00::7]", "127.0.0.1"), "[fd00::7]:0");
  EXPECT_EQ(advertised_address({}, "0.0.0.0").value(), UpstreamAddress()) << "nobody is told";
  EXPECT_NE(address("", "0.0.0.0").find("needs --advertise"), std::string::npos);
  EXPECT_TRUE(address("a/b", "127.0.0.1").starts_with("--advertise: "));
}

TEST(FleetFlags, EndpointsAreNamedWithTheirFlag) {
  EXPECT_TRUE(membership_options({}).value().etcd.empty());
  EXPECT_EQ(membership_options({.etcd = "a,b:1", .fleet = "f"}).value().etcd.size(), 2u);
  EXPECT_TRUE(membership_options({.etcd = "a,,b"}).error().message.starts_with("--etcd: "));
}

}  // namespace
}  // namespace loralei
