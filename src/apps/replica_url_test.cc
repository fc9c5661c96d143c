// SPDX-License-Identifier: Apache-2.0
#include "apps/replica_url.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string address(const std::string& text) {
  const auto parsed = parse_replica_url(text);
  return parsed.ok() ? parsed->host + " " + std::to_string(parsed->port) : "";
}

TEST(ReplicaUrl, IsReadInTheWaysThatItIsTyped) {
  EXPECT_EQ(address("http://10.0.0.1:9000"), "10.0.0.1 9000");
  EXPECT_EQ(address("http://gpu-1:9000/"), "gpu-1 9000");
  EXPECT_EQ(address("gpu-1"), "gpu-1 8080");
  EXPECT_EQ(address("[::1]:81"), "::1 81");
  EXPECT_EQ(address("http://[::1]"), "::1 8080");
}

TEST(ReplicaUrl, IsRefusedWithWhatToType) {
  for (const char* text : {"", "http://", ":80", "a:", "a:x", "a:0", "a:65536", "a:80x", "::1", "[::1", "[::1]80",
                           "[::1]:", "http://a/v1", "http://user@a", "https://a", "a b"}) {
    const auto parsed = parse_replica_url(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.error().message.find("http://HOST:PORT"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace loralei
