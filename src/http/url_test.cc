// SPDX-License-Identifier: Apache-2.0
#include "http/url.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

std::string told(const Result<HttpUrl>& url) { return url.ok() ? url->text() : "error"; }

TEST(HttpUrl, IsTakenApart) {
  const auto url = parse_http_url("HTTPS://Hub.Example:8443/a/b?c=d#e");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "hub.example");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->target, "/a/b?c=d");
  EXPECT_EQ(url->origin(), "https://hub.example:8443");
  EXPECT_EQ(told(parse_http_url("http://a")), "http://a/");
  EXPECT_EQ(told(parse_http_url("http://a?x")), "http://a/?x");
  EXPECT_EQ(told(parse_http_url("https://a:443/")), "https://a/");
  EXPECT_EQ(told(parse_http_url("http://a:443/")), "http://a:443/");
  EXPECT_EQ(told(parse_http_url("http://[::1]:80/x")), "http://[::1]/x");
}

TEST(HttpUrl, WhatIsNoneIsRefused) {
  for (const char* bad :
       {"", "a", "file:///etc/passwd", "ftp://a/", "http://", "http:///x", "https://:1/", "http://a:0/",
        "http://a:65536/", "http://a:1x/", "http://u@a/", "http://u:p@a/", "http://a b/", "http://a/\r\nX: y",
        "http://[::1/", "http://[::1]x/", "http://a%00b/", "javascript:alert(1)", "http://\xc3\xa4/"}) {
    EXPECT_FALSE(parse_http_url(bad).ok()) << bad;
  }
  EXPECT_FALSE(parse_http_url("http://a/" + std::string(20'000, 'x')).ok());
}

TEST(HttpUrl, ARedirectLeadsSomewhere) {
  const HttpUrl from = *parse_http_url("https://a:1/b/c?d=e/f");
  EXPECT_EQ(told(resolve_location(from, "/x?y")), "https://a:1/x?y");
  EXPECT_EQ(told(resolve_location(from, "x")), "https://a:1/b/x");
  EXPECT_EQ(told(resolve_location(from, "x/y:z")), "https://a:1/b/x/y:z");
  EXPECT_EQ(told(resolve_location(from, "//h/x")), "https://h/x");
  EXPECT_EQ(told(resolve_location(from, "http://h/x")), "http://h/x");
  for (const char* bad : {"", "file:///etc/passwd", "file:x", "data:,x", "//", "http:x"})
    EXPECT_EQ(told(resolve_location(from, bad)), "error") << bad;
}

TEST(HttpUrl, AnOriginIsSchemeHostAndPort) {
  const HttpUrl one = *parse_http_url("https://a/x");
  EXPECT_TRUE(one.same_origin(*parse_http_url("https://A:443/y")));
  for (const char* other : {"http://a/x", "https://a:444/x", "https://b/x", "https://a.b/x"})
    EXPECT_FALSE(one.same_origin(*parse_http_url(other))) << other;
}

}  // namespace
}  // namespace loralei
