// SPDX-License-Identifier: Apache-2.0
#include "http/proxy.h"

#include <gtest/gtest.h>

#include <map>

namespace loralei {
namespace {

std::string proxy(const char* url, const std::map<std::string, std::string>& variables) {
  const auto variable = [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const auto found = proxy_of(*parse_http_url(url), variable);
  if (!found.ok()) return "error: " + found.error().message;
  if (!*found) return "none";
  return (*found)->host + ":" + std::to_string((*found)->port) +
         ((*found)->authorization.empty() ? "" : " " + (*found)->authorization);
}

TEST(HttpProxy, VariablesNameIt) {
  EXPECT_EQ(proxy("https://a/", {}), "none");
  EXPECT_EQ(proxy("https://a/", {{"https_proxy", ""}}), "none");
  EXPECT_EQ(proxy("https://a/", {{"https_proxy", "http://p:3128"}}), "p:3128");
  EXPECT_EQ(proxy("https://a/", {{"HTTPS_PROXY", "p:3128/"}}), "p:3128");
  EXPECT_EQ(proxy("https://a/", {{"https_proxy", "p:1"}, {"HTTPS_PROXY", "q:2"}}), "p:1");
  EXPECT_EQ(proxy("https://a/", {{"http_proxy", "p:1"}}), "none");
  EXPECT_EQ(proxy("http://a/", {{"http_proxy", "p:1"}}), "p:1");
  EXPECT_EQ(proxy("http://a/", {{"HTTP_PROXY", "p:1"}}), "none");
  EXPECT_EQ(proxy("http://a/", {{"ALL_PROXY", "p:1"}}), "p:1");
  EXPECT_EQ(proxy("https://a/", {{"https_proxy", "p"}}), "p:1080");
  EXPECT_EQ(proxy("https://a/", {{"https_proxy", "http://[::1]:3128"}}), "::1:3128");
  EXPECT_EQ(proxy("https://a/", {{"https_proxy", "http://me:p%40ss@p:1"}}), "p:1 Basic bWU6cEBzcw==");
}

TEST(HttpProxy, WhatCannotBeAskedIsRefusedWithoutItsPassword) {
  for (const char* bad : {"socks5://secret@p:1", "https://p:1", "http://secret@p:x", "http://%zzsecret@p:1"}) {
    const std::string told = proxy("https://a/", {{"https_proxy", bad}});
    EXPECT_TRUE(told.starts_with("error: ")) << bad;
    EXPECT_NE(told.find("https_proxy"), std::string::npos) << told;
    EXPECT_EQ(told.find("secret"), std::string::npos) << told;
  }
}

TEST(HttpProxy, SomeHostsAreAskedDirectly) {
  EXPECT_EQ(proxy("https://a.b/", {{"https_proxy", "p:1"}, {"no_proxy", "b"}}), "none");
  EXPECT_EQ(proxy("https://a.b/", {{"https_proxy", "p:1"}, {"NO_PROXY", "c"}}), "p:1");
  EXPECT_TRUE(asked_directly("*", "x"));
  EXPECT_TRUE(asked_directly("x, .Example.com", "hub.example.COM"));
  EXPECT_TRUE(asked_directly("example.com", "example.com"));
  EXPECT_TRUE(asked_directly("[::1]", "::1"));
  EXPECT_FALSE(asked_directly("example.com", "badexample.com"));
  EXPECT_FALSE(asked_directly("hub.example.com", "example.com"));
  EXPECT_FALSE(asked_directly(", ,", "x"));
}

}  // namespace
}  // namespace loralei
