// SPDX-License-Identifier: Apache-2.0
#include "serve/request_slo.h"

#include <gtest/gtest.h>

#include <map>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

Parsed<RequestSlo> parse(HttpHeaders headers) {
  HttpHead head;
  head.headers = std::move(headers);
  return parse_request_slo(head);
}

TEST(RequestSlo, TimesAreMillisecondsInTwoHeaders) {
  auto none = parse({{"Host", "h"}});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->ttft_ns, 0);
  EXPECT_EQ(none->tpot_ns, 0);
  auto both = parse({{"X-LLM-D-SLO-TTFT-MS", "250"}, {"x-llm-d-slo-tpot-ms", "12.5"}});
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->ttft_ns, 250'000'000);
  EXPECT_EQ(both->tpot_ns, 12'500'000);
  EXPECT_EQ(parse({{"x-llm-d-slo-ttft-ms", "3600000"}})->ttft_ns, 3'600'000'000'000);
  EXPECT_EQ(parse({{"x-llm-d-slo-ttft-ms", "0.0000000001"}})->ttft_ns, 1) << "asked for, though nobody can have it";
}

TEST(RequestSlo, WhatIsNoTimeIsRefusedWithTheHeadersName) {
  for (const char* value : {"", "0", "-5", "+5", "1e3", "0x10", "soon", "5 ms", "3600000.5", "nan", "inf", "1,5"}) {
    auto parsed = parse({{"x-llm-d-slo-tpot-ms", value}});
    ASSERT_FALSE(parsed.ok()) << value;
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_NE(parsed.error().message.find("x-llm-d-slo-tpot-ms"), std::string::npos) << parsed.error().message;
    EXPECT_NE(parsed.error().message.find("milliseconds"), std::string::npos) << parsed.error().message;
  }
  EXPECT_FALSE(parse({{"x-llm-d-slo-ttft-ms", "5"}, {"X-llm-d-slo-ttft-ms", "5"}}).ok()) << "twice";
}

TEST(RequestSlo, TheTimeOnTheWayToTheEngineIsPartOfIt) {
  EXPECT_EQ(slo_left({.ttft_ns = 100, .tpot_ns = 7}, 30).ttft_ns, 70);
  EXPECT_EQ(slo_left({.ttft_ns = 100, .tpot_ns = 7}, 30).tpot_ns, 7);
  EXPECT_EQ(slo_left({.ttft_ns = 100}, 300).ttft_ns, 1) << "it is counted as missed";
  EXPECT_EQ(slo_left({.tpot_ns = 7}, 300).ttft_ns, 0);
}

// Where a request asks the engine for something, the engine is told what it wants of time
// and by an opaque number who sent it.
TEST_F(ApiTest, WishesAndClientsTravelDown) {
  options.api_keys = {"one", "two"};
  start();
  const std::string turns = R"("messages":[{"role":"user","content":"hi"}])";
  const std::pair<const char*, std::string> asked[] = {
      {"/v1/chat/completions", "{" + turns + "}"},
      {"/v1/completions", R"({"prompt":"hi"})"},
      {"/v1/embeddings", R"({"input":"hi"})"},
      {"/v1/responses", R"({"model":"base","input":"hi"})"},
      {"/v1/messages", R"({"model":"base","max_tokens":4,)" + turns + "}"},
  };
  size_t sent = 0;
  std::map<std::string, ClientId> clients;
  for (const auto& [path, body] : asked) {
    SCOPED_TRACE(path);
    for (const char* key : {"one", "two"}) {
      const HttpHeaders headers = {{"Authorization", std::string("Bearer ") + key},
                                   {"x-llm-d-slo-ttft-ms", "3600000"},
                                   {"x-llm-d-slo-tpot-ms", "20"}};
      EXPECT_EQ(post(path, body, headers).status, 200);
      const Submit submit = engine.wait_submit(sent++);
      EXPECT_GT(submit.slo.ttft_ns, 1'000'000'000);
      EXPECT_LT(submit.slo.ttft_ns, 3'600'000'000'000) << "less what it took until here";
      EXPECT_EQ(submit.slo.tpot_ns, 20'000'000);
      EXPECT_NE(submit.client, ClientId{});
      const auto [of_key, fresh] = clients.emplace(key, submit.client);
      EXPECT_EQ(submit.client, of_key->second);
      if (fresh && clients.size() == 2) {
        EXPECT_NE(clients.begin()->second, clients.rbegin()->second);
      }
    }
    const HttpResponse refused = post(path, body, {{"Authorization", "Bearer one"}, {"x-llm-d-slo-ttft-ms", "soon"}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("x-llm-d-slo-ttft-ms"), std::string::npos) << refused.body;
  }
}

TEST_F(ApiTest, WithoutKeysEverybodyIsOneClient) {
  start();
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"hi"})", {{"Authorization", "Bearer any"}}).status, 200);
  const Submit submit = engine.wait_submit(0);
  EXPECT_EQ(submit.client, ClientId{});
  EXPECT_EQ(submit.slo.ttft_ns, 0);
}

}  // namespace
}  // namespace loralei
