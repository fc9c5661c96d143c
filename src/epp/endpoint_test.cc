// SPDX-License-Identifier: Apache-2.0
#include "epp/endpoint.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string form_of(std::string_view text) {
  const auto address = parse_endpoint(text);
  return address ? address_text(*address) : "nothing";
}

TEST(Endpoint, HasOneForm) {
  EXPECT_EQ(form_of("10.0.0.1:8080"), "10.0.0.1:8080");
  EXPECT_EQ(form_of(" 10.0.0.1:08080\t"), "10.0.0.1:8080");
  EXPECT_EQ(form_of("[::1]:80"), "[::1]:80");
  EXPECT_EQ(form_of("[0:0:0:0:0:0:0:1]:80"), "[::1]:80");
  EXPECT_EQ(form_of("[FD00::00A]:80"), "[fd00::a]:80");
  EXPECT_EQ(numeric_address({"[::1]", 80}), numeric_address({"::1", 80}));
  EXPECT_EQ(numeric_address({"127.0.0.1", 80}), (UpstreamAddress{"127.0.0.1", 80}));
}

TEST(Endpoint, IsNoNameAndNothingElse) {
  for (const std::string_view text : {"",
                                      ":",
                                      ":80",
                                      "10.0.0.1",
                                      "10.0.0.1:",
                                      "10.0.0.1:0",
                                      "10.0.0.1:65536",
                                      "10.0.0.1:-1",
                                      "10.0.0.1:80x",
                                      "10.0.0.1:+80",
                                      "localhost:80",
                                      "010.0.0.1:80",
                                      "10.0.0:80",
                                      "::1:80",
                                      "[::1:80",
                                      "::1]:80",
                                      "[]:80",
                                      "10.0.0.1 :80",
                                      "10.0.0.1:99999999999999999999",
                                      "10.0.0.1:80,10.0.0.2:80"})
    EXPECT_EQ(form_of(text), "nothing") << text;
  EXPECT_EQ(form_of(std::string_view("10.0.0.1\0:80", 12)), "nothing");
  EXPECT_EQ(form_of(std::string(100'000, '1') + ":80"), "nothing");
  EXPECT_FALSE(numeric_address({"localhost", 80}));
}

}  // namespace
}  // namespace loralei
