// SPDX-License-Identifier: Apache-2.0
#include "dashboard/pages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "dashboard/files.h"

namespace loralei {
namespace {

HttpHead asking(const char* name, const char* value) {
  HttpHead head;
  head.method = "GET";
  head.headers = {{name, value}};
  return head;
}

std::set<std::string> matches(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    found.insert((*at)[1].str());
  return found;
}

std::string body_of(std::string_view name) {
  for (const EmbeddedFile& file : embedded_files())
    if (file.name == name) return std::string(file.body);
  return {};
}

TEST(DashboardPages, AreForBrowsersOnly) {
  EXPECT_TRUE(wants_page(asking("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")));
  EXPECT_TRUE(wants_page(asking("accept", "text/html")));
  EXPECT_FALSE(wants_page(asking("Accept", "*/*")));  // curl
  EXPECT_FALSE(wants_page(asking("Accept", "application/json")));
  EXPECT_FALSE(wants_page(HttpHead{}));
}

TEST(DashboardPages, ForbidWhatDoesNotComeFromHere) {
  const HttpResponse page = page_answer({});
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.header("vary"), "Accept");
  EXPECT_EQ(page.header("x-content-type-options"), "nosniff");
  EXPECT_EQ(page.header("referrer-policy"), "no-referrer");
  const std::string policy(page.header("content-security-policy"));
  for (const char* rule : {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
                           "img-src 'self' data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"})
    EXPECT_NE(policy.find(rule), std::string::npos) << rule;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  const auto script = page_file_answer("app.js", {});
  ASSERT_TRUE(script);
  EXPECT_EQ(script->header("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(script->header("content-security-policy"), policy);
  EXPECT_EQ(page_file_answer("style.css", {})->header("content-type"), "text/css; charset=utf-8");
}

TEST(DashboardPages, AreNotSentAgainToWhoHasThem) {
  const HttpResponse page = page_answer({});
  const std::string etag(page.header("etag"));
  ASSERT_EQ(etag.size(), 34u);
  EXPECT_FALSE(page.header("cache-control").empty());
  for (const std::string& sent : {etag, "W/" + etag, "\"other\", " + etag, std::string("*")}) {
    const HttpResponse again = page_answer(asking("If-None-Match", sent.c_str()));
    EXPECT_EQ(again.status, 304) << sent;
    EXPECT_TRUE(again.body.empty());
    EXPECT_EQ(again.header("etag"), etag);
    EXPECT_EQ(again.header("vary"), "Accept");
  }
  EXPECT_EQ(page_answer(asking("If-None-Match", "\"other\"")).status, 200);
  EXPECT_NE(page_file_answer("app.js", {})->header("etag"), etag);
}

TEST(DashboardPages, HaveNoOtherFiles) {
  for (const char* name : {"", "nothing.js", "../pages.cc", "page/app.js", "app.js/"})
    EXPECT_FALSE(page_file_answer(name, {})) << name;
}

// The binary's bytes are those of the files, however long they are.
TEST(DashboardPages, AreTheFilesAsTheyLie) {
  ASSERT_GE(embedded_files().size(), 9u);
  for (const EmbeddedFile& file : embedded_files()) {
    std::ifstream in(std::string(LORALEI_SOURCE_DIR) + "/src/dashboard/page/" + std::string(file.name));
    ASSERT_TRUE(in) << file.name;
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(text.str(), file.body) << file.name;
  }
}

TEST(DashboardPages, NameOnlyFilesThatAreThere) {
  const std::string index = body_of("index.html");
  std::set<std::string> named = matches(index, "(?:src|href)=\"dashboard/([^\"]+)\"");
  EXPECT_EQ(named, (std::set<std::string>{"app.js", "style.css"}));
  for (const EmbeddedFile& file : embedded_files()) {
    if (!file.name.ends_with(".js")) continue;
    named.merge(matches(std::string(file.body), "from \"\\./([^\"]+)\""));
  }
  named.insert("index.html");
  std::set<std::string> there;
  for (const EmbeddedFile& file : embedded_files()) there.emplace(file.name);
  EXPECT_EQ(named, there) << "what is named, and what is there";
}

TEST(DashboardPages, RunNothingInline) {
  const std::string index = body_of("index.html");
  EXPECT_TRUE(matches(index, "(<script(?![^>]* src=)[^>]*>)").empty());
  EXPECT_TRUE(matches(index, "( on[a-z]+=)").empty());
  EXPECT_TRUE(matches(index, "(<style| style=)").empty());
  for (const EmbeddedFile& file : embedded_files()) {
    const std::string body(file.body);
    EXPECT_TRUE(matches(body, "(innerHTML|outerHTML|insertAdjacentHTML|document\\.write|eval\\(|new Function)").empty())
        << file.name;
    EXPECT_EQ(matches(body, "(https?://[^'\" ]+)").size(), file.name == "index.html" ? 1u : 0u)
        << file.name << " names another host";  // the icon's name space is no address
  }
}

TEST(DashboardPages, GiveEveryElementThatScriptsLookForAName) {
  const std::string index = body_of("index.html");
  const std::set<std::string> ids = matches(index, " id=\"([^\"]+)\"");
  std::set<std::string> wanted = matches(index, "(?:aria-labelledby|aria-controls|for)=\"([^\"]+)\"");
  for (const EmbeddedFile& file : embedded_files())
    wanted.merge(matches(std::string(file.body), "byId\\(\"([^\"]+)\"\\)"));
  ASSERT_GT(wanted.size(), 40u);
  for (const std::string& one : wanted) EXPECT_TRUE(ids.contains(one)) << one;
}

}  // namespace
}  // namespace loralei
