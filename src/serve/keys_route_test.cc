// SPDX-License-Identifier: Apache-2.0
// Keys with names on the routes: who is told what, and what it costs them.
#include "serve/server_test_util.h"

namespace loralei {
namespace {

NamedKey key_of(const std::string& name) {
  NamedKey key;
  key.name = name;
  key.sha256 = key_digest("sk-" + name);
  return key;
}

class KeysTest : public ApiTest {
 protected:
  HttpResponse ask(const std::string& name, const std::string& body = R"({"prompt":"hi","max_tokens":4})",
                   const std::string& path = "/v1/completions") {
    return post(path, body, {{"Authorization", "Bearer sk-" + name}});
  }
};

TEST_F(KeysTest, EveryRouteThatComputesCounts) {
  NamedKey few = key_of("few");
  few.requests_per_minute = 7;
  options.named_keys = {few};
  start();
  const std::vector<std::pair<std::string, std::string>> routes = {
      {"/v1/completions", R"({"prompt":"hi","max_tokens":4})"},
      {"/v1/chat/completions", chat()},
      {"/v1/chat/completions", chat(R"("stream":true)")},
      {"/v1/embeddings", R"({"input":"hi"})"},
      {"/v1/messages", R"({"model":"base","max_tokens":4,"messages":[{"role":"user","content":"hi"}]})"},
      {"/tokenize", R"({"prompt":"hi"})"},
      {"/v1/completions", R"({"prompt":)"},
  };
  int left = 7;
  for (const auto& [path, body] : routes) {
    const HttpResponse answer = ask("few", body, path);
    EXPECT_EQ(answer.status, path == routes.back().first && body == routes.back().second ? 400 : 200)
        << path << answer.body;
    EXPECT_EQ(answer.header("x-ratelimit-remaining-requests"), std::to_string(--left)) << path;
  }
  const HttpResponse refused = ask("few");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(error_of(refused, "code"), "rate_limit_exceeded");
  int retries = 0;
  for (const auto& [name, value] : refused.headers) retries += equals_ignoring_case(name, "retry-after") ? 1 : 0;
  EXPECT_EQ(retries, 1);
  EXPECT_TRUE(logs("key=few"));
  EXPECT_EQ(log.text().find("sk-few"), std::string::npos);
  EXPECT_TRUE(counts("loralei_key_requests_total{key=\"few\"} 7"));
  EXPECT_TRUE(counts("loralei_key_refused_total{key=\"few\",reason=\"requests\"} 1"));
  EXPECT_TRUE(counts("loralei_key_requests_running{key=\"few\"} 0"));
}

TEST_F(KeysTest, TokensComeBackBeforeTheClientHearsOfTheEnd) {
  NamedKey key = key_of("a");
  key.tokens_per_minute = 60;
  key.max_running = 1;
  options.named_keys = {key};
  start();
  for (int i = 0; i < 6; ++i) {
    const std::string stream = i % 2 == 0 ? "" : R"(,"stream":true)";
    const HttpResponse answer = ask("a", R"({"prompt":"x","max_tokens":1)" + stream + "}");
    EXPECT_EQ(answer.status, 200) << i << answer.body;
    EXPECT_EQ(answer.header("x-ratelimit-limit-tokens"), "60");
  }
  EXPECT_EQ(ask("a", R"({"prompt":"x","max_tokens":100})").status, 413);
  EXPECT_TRUE(counts("loralei_key_generation_tokens_total{key=\"a\"} 6"));
}

TEST_F(KeysTest, AKeyIsItselfAcrossFiles) {
  options.named_keys = {key_of("a"), key_of("b")};
  start();
  EXPECT_EQ(ask("a").status, 200);
  EXPECT_EQ(ask("b").status, 200);
  const Submit a = engine.wait_submit(0), b = engine.wait_submit(1);
  EXPECT_NE(a.client, b.client);
  EXPECT_NE(a.cache_salt, b.cache_salt);
  server->use_keys({key_of("c"), key_of("b"), key_of("a")});
  EXPECT_EQ(ask("a").status, 200);
  const Submit again = engine.wait_submit(2);
  EXPECT_EQ(again.client, a.client);
  EXPECT_EQ(again.cache_salt, a.cache_salt) << "and so are its prefixes";
  server->use_keys({key_of("c")});
  EXPECT_EQ(ask("a").status, 401);
}

TEST_F(KeysTest, OneKeyAloneHasPrefixesOfItsOwn) {
  options.named_keys = {key_of("a")};
  start();
  EXPECT_EQ(ask("a").status, 200);
  EXPECT_NE(engine.wait_submit(0).cache_salt, "") << "another file may bring others";
}

}  // namespace
}  // namespace loralei
