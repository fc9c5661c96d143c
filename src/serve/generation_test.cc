// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

TEST_F(ApiTest, ChatAnswersWhole) {
  start();
  const HttpResponse answer =
      post("/v1/chat/completions", chat(R"("seed":7,"temperature":0.5,"top_k":3,"max_tokens":40)"),
           {{"X-Request-Id", "mine-1"}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.header("x-request-id"), "mine-1");
  const BodyJson json = BodyJson::parse(answer.body);
  EXPECT_EQ(json["choices"][0]["message"]["content"], kScripted);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["model"], "base");
  EXPECT_EQ(json["system_fingerprint"], "fp_test");
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
  EXPECT_EQ(json["usage"]["completion_tokens"], ids(kScripted).size() + 1);
  const Submit submit = engine.wait_submit(0);
  EXPECT_EQ(json["usage"]["prompt_tokens"], submit.prompt.size());
  EXPECT_NE(tokenizer->decode(submit.prompt, {.skip_special = false}).find("hi"), std::string::npos);
  EXPECT_EQ(submit.sampling.seed, 7u);
  EXPECT_EQ(submit.sampling.temperature, 0.5f);
  EXPECT_EQ(submit.sampling.top_k, 3);
  EXPECT_EQ(submit.max_tokens, 40);
  EXPECT_TRUE(logs("request kind=chat id=mine-1 adapter=- ")) << log.text();
}

TEST_F(ApiTest, ChatStreams) {
  start();
  const auto all = events("/v1/chat/completions", chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_GE(all.size(), 5u);
  EXPECT_EQ(all.back(), "[DONE]");
  const BodyJson first = BodyJson::parse(all[0]);
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(first["usage"].is_null());
  std::string content;
  for (size_t i = 1; i + 3 < all.size(); ++i) {
    const BodyJson chunk = BodyJson::parse(all[i]);  // a split code point would not parse
    content += chunk["choices"][0]["delta"]["content"].get<std::string>();
    EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  }
  EXPECT_EQ(content, kScripted);
  const BodyJson last = BodyJson::parse(all[all.size() - 3]);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(last["choices"][0]["delta"].empty());
  const BodyJson usage = BodyJson::parse(all[all.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], ids(kScripted).size() + 1);
}

TEST_F(ApiTest, StopStringsAcrossTokens) {
  start();
  for (const bool stream : {false, true}) {
    for (const bool include : {false, true}) {
      const std::string body =
          R"({"prompt":"x","max_tokens":50,"stop":["never","rld! "],"logprobs":0,"include_stop_str_in_output":)" +
          std::string(include ? "true" : "false") + (stream ? R"(,"stream":true})" : "}");
      std::string got, reason;
      size_t logprobs = 0;
      if (stream) {
        for (const std::string& event : events("/v1/completions", body)) {
          if (event == "[DONE]") continue;
          const BodyJson chunk = BodyJson::parse(event);
          got += chunk["choices"][0]["text"].get<std::string>();
          if (chunk["choices"][0]["logprobs"].is_object()) logprobs += chunk["choices"][0]["logprobs"]["tokens"].size();
          if (!chunk["choices"][0]["finish_reason"].is_null()) reason = chunk["choices"][0]["finish_reason"];
        }
      } else {
        const BodyJson json = BodyJson::parse(post("/v1/completions", body).body);
        got = json["choices"][0]["text"];
        reason = json["choices"][0]["finish_reason"];
        logprobs = json["choices"][0]["logprobs"]["tokens"].size();
      }
      EXPECT_EQ(got, include ? "Hello, w\xC3\xB6rld! " : "Hello, w\xC3\xB6");
      EXPECT_EQ(reason, "stop");
      EXPECT_GT(logprobs, 0u);
      EXPECT_LT(logprobs, ids(kScripted).size());
    }
  }
}

TEST_F(ApiTest, ChoicesPromptsAndEcho) {
  start();
  engine.script = [this](const Submit& submit, int choice) {
    return ids(" c" + std::to_string(choice) + "p" + std::to_string(submit.prompt.size()));
  };
  const BodyJson json = BodyJson::parse(
      post("/v1/completions", R"({"prompt":["a b","a b c d e f"],"n":2,"max_tokens":30,"echo":true,"logprobs":1})")
          .body);
  ASSERT_EQ(json["choices"].size(), 4u) << json.dump();
  const auto first = ids("a b"), second = ids("a b c d e f");
  for (size_t i = 0; i < 4; ++i) {
    const auto& prompt = i < 2 ? first : second;
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], std::string(i < 2 ? "a b" : "a b c d e f") + " c" + std::to_string(i % 2) +
                                              "p" + std::to_string(prompt.size()));
    const BodyJson& logprobs = json["choices"][i]["logprobs"];
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_EQ(logprobs["tokens"].size(), logprobs["text_offset"].size());
    EXPECT_GT(logprobs["tokens"].size(), prompt.size());
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], first.size() + second.size());
  const BodyJson echo =
      BodyJson::parse(post("/v1/completions", R"({"prompt":[1,2,3],"max_tokens":0,"echo":true,"logprobs":0})").body);
  EXPECT_EQ(echo["choices"][0]["logprobs"]["tokens"].size(), 3u) << echo.dump();
  EXPECT_EQ(echo["choices"][0]["finish_reason"], "length");
}

TEST_F(ApiTest, ATokenLimitOfMinusOneIsNone) {
  start();
  size_t n = 0;
  for (const char* field : {"max_tokens", "n_predict"}) {
    const std::string limit = "\"" + std::string(field) + "\":-1";
    EXPECT_EQ(post("/v1/completions", R"({"prompt":[1,2,3],)" + limit + "}").status, 200);
    EXPECT_EQ(engine.wait_submit(n++).max_tokens, engine.length - 3);
    EXPECT_EQ(post("/v1/chat/completions", chat(limit)).status, 200);
    const Submit submit = engine.wait_submit(n++);
    EXPECT_EQ(submit.max_tokens, engine.length - static_cast<int64_t>(submit.prompt.size()));
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt":[1,2,3]})").status, 200);
  EXPECT_EQ(engine.wait_submit(n).max_tokens, 16);
}

TEST_F(ApiTest, EveryPromptHasTheContextToItself) {
  start();
  const BodyJson prompts = {std::vector<TokenId>(500, 1), std::vector<TokenId>{1, 2}};
  EXPECT_EQ(post("/v1/completions", BodyJson{{"prompt", prompts}, {"min_tokens", 12}}.dump()).status, 200);
  for (const size_t prompt : {0, 1}) {
    EXPECT_EQ(engine.wait_submit(prompt).max_tokens, prompt == 0 ? engine.length - 500 : 16);
    EXPECT_EQ(engine.wait_submit(prompt).min_tokens, 12);
  }
  EXPECT_EQ(post("/v1/completions", BodyJson{{"prompt", prompts}, {"max_tokens", -1}}.dump()).status, 200);
  EXPECT_EQ(engine.wait_submit(2).max_tokens, engine.length - 500);
  EXPECT_EQ(engine.wait_submit(3).max_tokens, engine.length - 2);
  // A number that was asked for is owed to every prompt.
  EXPECT_EQ(post("/v1/completions", BodyJson{{"prompt", prompts}, {"max_tokens", 13}}.dump()).status, 400);
}

TEST_F(ApiTest, MoreTokensAtLeastThanThereCanBeAreRefused) {
  start();
  const BodyJson prompts = {std::vector<TokenId>(500, 1), std::vector<TokenId>{1, 2}};
  struct Case {
    const char* path;
    std::string body, wanted, limit;
  };
  for (const Case& one :
       {Case{"/v1/completions", R"({"prompt":"x","min_tokens":50})", " 50,", " 16 "},
        Case{"/v1/completions", BodyJson{{"prompt", prompts}, {"min_tokens", 14}}.dump(), " 14,", " 12 "},
        Case{"/v1/chat/completions", chat(R"("min_tokens":512)"), " 512,", "room for"}}) {
    const HttpResponse answer = post(one.path, one.body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(error_of(answer, "param"), "min_tokens");
    for (const std::string& part : {one.wanted, one.limit})
      EXPECT_NE(error_of(answer, "message").find(part), std::string::npos) << answer.body;
  }
}

TEST_F(ApiTest, AnEchoThatMultipliesBeyondMeasureIsRefused) {
  engine.length = 20'000;
  start();
  BodyJson body = {{"prompt", std::vector<TokenId>(8000, 1)}, {"echo", true}, {"logprobs", 20}, {"n", 128}};
  body["max_tokens"] = 0;
  const HttpResponse answer = post("/v1/completions", body.dump());
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(error_of(answer, "param"), "echo");
  for (const char* part : {" 8000 ", " 128 ", " 20 ", "Lower 'n' or 'logprobs'"})
    EXPECT_NE(error_of(answer, "message").find(part), std::string::npos) << answer.body;
  body["n"] = 2;
  EXPECT_EQ(post("/v1/completions", body.dump()).status, 200);
}

TEST_F(ApiTest, ASeedOfMinusOneIsRandom) {
  start();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(post("/v1/chat/completions", chat(R"("seed":-1)")).status, 200);
  EXPECT_NE(engine.wait_submit(0).sampling.seed, engine.wait_submit(1).sampling.seed);
}

TEST_F(ApiTest, EqualPromptsOfARequestAreDrawnApartUnlessTheClientChoseTheSeed) {
  start();
  for (const bool seeded : {false, true}) {
    const std::string body = R"({"prompt":["a","a","a"],"temperature":1)" + std::string(seeded ? R"(,"seed":7})" : "}");
    EXPECT_EQ(post("/v1/completions", body).status, 200);
    std::set<uint64_t> seeds;
    for (size_t i = 0; i < 3; ++i) seeds.insert(engine.wait_submit((seeded ? 3 : 0) + i).sampling.seed);
    EXPECT_EQ(seeds.size(), seeded ? 1u : 3u);
    EXPECT_EQ(seeds.contains(7), seeded);
  }
}

TEST_F(ApiTest, SpecialTokensOfTheTokenizerOnRequest) {
  tokenizer =
      Tokenizer::from_directory(std::string(LORALEI_SOURCE_DIR) + "/tests/vectors/tokenizers/bl-added-tokens").value();
  text = TextModel::make(tokenizer, ChatTemplate::builtin("chatml").value(), "base").value();
  start();
  size_t n = 0;
  const auto first = [&](const char* path, const std::string& body) {
    EXPECT_EQ(post(path, body).status, 200);
    return engine.wait_submit(n++).prompt.front();
  };
  const TokenId bos = tokenizer->find_token("<s>").value();
  EXPECT_NE(first("/v1/chat/completions", chat()), bos);
  EXPECT_EQ(first("/v1/chat/completions", chat(R"("add_special_tokens":true)")), bos);
  EXPECT_EQ(first("/v1/embeddings", R"({"input":"a"})"), bos);
  EXPECT_NE(first("/v1/embeddings", R"({"input":"a","add_special_tokens":false})"), bos);
}

TEST_F(ApiTest, ATopPOfZeroLeavesTheBestToken) {
  start();
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("top_p":0)")).status, 200);
  EXPECT_GT(engine.wait_submit(0).sampling.top_p, 0.0f);  // the engine takes no 0
  EXPECT_LT(engine.wait_submit(0).sampling.top_p, 1e-30f);
}

TEST_F(ApiTest, ErrorsBeforeWork) {
  start();
  struct Case {
    std::string path, body;
    int status;
    std::string field, value;
  };
  const std::vector<Case> cases = {
      {"/v1/chat/completions", "{", 400, "code", "invalid_json"},
      {"/v1/chat/completions", chat(R"("model":"nobody")"), 404, "code", "model_not_found"},
      {"/v1/chat/completions", chat(R"("adapter_id":"nobody")"), 404, "param", "adapter_id"},
      {"/v1/chat/completions", chat(R"("lora":[{"id":3}])"), 404, "param", "lora"},
      {"/v1/chat/completions", chat(R"("max_tokens":5000)"), 400, "code", "context_length_exceeded"},
      {"/v1/chat/completions", chat(R"("temperature":-1)"), 400, "param", "temperature"},
      {"/v1/completions", R"({"prompt":[99999999]})", 400, "param", "prompt"},
      {"/v1/completions", R"({"prompt":[1999999]})", 400, "param", "prompt"},
      {"/v1/completions", R"({"prompt":"x","logit_bias":{"2000000":1}})", 400, "param", "logit_bias"},
      {"/v1/embeddings", R"({"input":""})", 400, "param", "input"},
      {"/v1/nothing", "{}", 404, "type", "not_found_error"},
      {"/v1/models", "{}", 405, "type", "invalid_request_error"},
  };
  for (const Case& one : cases) {
    const HttpResponse answer = post(one.path, one.body);
    EXPECT_EQ(answer.status, one.status) << one.path << one.body << answer.body;
    EXPECT_FALSE(answer.header("x-request-id").empty());
    EXPECT_EQ(error_of(answer, one.field.c_str()), one.value) << one.body;
  }
  const std::string message = error_of(post("/v1/completions", R"({"prompt":"a b c","max_tokens":600})"), "message");
  EXPECT_NE(message.find("512"), std::string::npos) << message;
  EXPECT_NE(message.find("600"), std::string::npos) << message;
  HttpClient c = client();
  EXPECT_EQ(c.request("POST", "/v1/completions", {{"Content-Type", "text/plain"}}, "{}")->status, 415);
}

TEST_F(ApiTest, AFullQueueIs429) {
  engine.next_submit = Error{ErrorCode::kOverloaded, "The queue is full."};
  start();
  const HttpResponse answer = post("/v1/chat/completions", chat());
  EXPECT_EQ(answer.status, 429);
  EXPECT_FALSE(answer.header("retry-after").empty());
  EXPECT_EQ(error_of(answer, "type"), "rate_limit_error");
  EXPECT_TRUE(counts("loralei_requests_refused_total{reason=\"queue_full\"} 1"));
  EXPECT_TRUE(counts("loralei_request_latency_seconds_count 0"));
  engine.next_submit = {};
  EXPECT_EQ(post("/v1/chat/completions", chat()).status, 200);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":["a","b"]})").status, 200);
  EXPECT_TRUE(counts("loralei_request_latency_seconds_count 2"));
  EXPECT_TRUE(counts("loralei_request_params_n_count 1"));
}

// The queue of the engine holds less than the request has parts, and the others
// must not be shut out.
TEST_F(ApiTest, PartsOfARequestGoDownAWindowAtATime) {
  engine.hold_tokens = true;
  engine.max_running = 4;
  start();
  std::string texts = "\"a\"";
  for (int i = 1; i < 10; ++i) texts += ",\"a\"";
  size_t submits = 0;
  for (const std::string path : {"/v1/embeddings", "/v1/completions"}) {
    const bool embedding = path == "/v1/embeddings";
    HttpResponse answer;
    std::thread client(
        [&] { answer = post(path, "{\"" + std::string(embedding ? "input" : "prompt") + "\":[" + texts + "]}"); });
    for (int i = 0; i < 10; ++i) {
      TokenEvent event;
      event.id = engine.wait_submit(submits++).id;
      event.embedding = {3.0f, 4.0f};
      event.has_token = !embedding;
      event.token = ids("a")[0];
      event.end = EndReason::kLength;
      engine.emit(std::move(event));
    }
    client.join();
    EXPECT_EQ(answer.status, 200) << answer.body;
    const BodyJson body = BodyJson::parse(answer.body);
    EXPECT_EQ(body[embedding ? "data" : "choices"].size(), 10u);
  }
}

TEST_F(ApiTest, ARequestHoldsNoMoreThanAWindowOfTheQueueAndEndsWhileDraining) {
  engine.hold_tokens = true;
  start();
  std::string texts = "\"a\"";
  for (int i = 1; i < 100; ++i) texts += ",\"a\"";
  HttpResponse answer;
  std::thread client([&] { answer = post("/v1/embeddings", "{\"input\":[" + texts + "]}"); });
  for (size_t i = 0; i < 100; ++i) {
    TokenEvent event;
    event.id = engine.wait_submit(i).id;
    if (i == 0) server->begin_drain();
    EXPECT_LE(engine.stats().running, static_cast<int32_t>(SubmitWindow::kParts));
    event.embedding = {3.0f, 4.0f};
    event.end = EndReason::kStop;
    engine.emit(std::move(event));
  }
  client.join();
  EXPECT_EQ(answer.status, 200) << answer.body;
}

TEST_F(ApiTest, ADisconnectCancels) {
  engine.hold_tokens = true;
  start();
  for (const bool stream : {false, true}) {
    HttpClient c = client();
    const std::string body = chat(stream ? R"("stream":true)" : "");
    ASSERT_TRUE(c.send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + body)
                    .ok());
    const Submit submit = engine.wait_submit(stream ? 1 : 0);
    engine.emit(submit.id, ids("a")[0]);
    if (stream) {
      ASSERT_TRUE(c.read_raw(20).ok());
    }
    c.close();
    EXPECT_TRUE(engine.wait_cancelled(submit.id));
  }
}

TEST_F(ApiTest, AChoiceThatHitAStopStringIsNotComputedOn) {
  engine.hold_tokens = true;
  start();
  HttpClient c = client();
  const std::string body = R"({"prompt":"x","n":2,"max_tokens":50,"stop":["a"]})";
  ASSERT_TRUE(
      c.send_raw(
           "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body)
          .ok());
  const Submit submit = engine.wait_submit(0);
  TokenEvent event;
  event.id = submit.id;
  event.choice = 1;
  event.has_token = true;
  event.token = ids("a")[0];
  engine.emit(event);
  EXPECT_TRUE(engine.wait_cancelled(submit.id, 1));
  c.close();
}

TEST_F(ApiTest, AnErrorAfterHeadersIsAnEvent) {
  engine.hold_tokens = true;
  start();
  std::thread producer([&] {
    const Submit submit = engine.wait_submit(0);
    engine.emit(submit.id, ids("a")[0]);
    TokenEvent event;
    event.id = submit.id;
    event.end = EndReason::kError;
    event.error = internal_error("It broke.");
    engine.emit(event);
  });
  const auto all = events("/v1/chat/completions", chat(R"("stream":true)"));
  producer.join();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(BodyJson::parse(all.back())["error"]["message"], "It broke.");
}

TEST_F(ApiTest, AnErrorBeforeHeadersIsAStatus) {
  engine.hold_tokens = true;
  start();
  std::thread producer([&] {
    TokenEvent event;
    event.id = engine.wait_submit(0).id;
    event.end = EndReason::kError;
    event.error = corrupt("The adapter's file is broken.");
    engine.emit(event);
  });
  const HttpResponse answer = post("/v1/chat/completions", chat(R"("stream":true)"));
  producer.join();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(error_of(answer, "message"), "The adapter's file is broken.");
}

TEST_F(ApiTest, SilentStreamsGetAPing) {
  engine.hold_tokens = true;
  options.ping_interval_ms = 1;
  start();
  HttpClient c = client();
  const std::string body = chat(R"("stream":true)");
  ASSERT_TRUE(c.send_raw("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                         "application/json\r\nContent-Length: " +
                         std::to_string(body.size()) + "\r\n\r\n" + body)
                  .ok());
  std::string got;
  while (got.find(": ping\n\n") == std::string::npos) {
    auto byte = c.read_raw(1);
    ASSERT_TRUE(byte.ok() && !byte->empty()) << got;
    got += *byte;
  }
  EXPECT_TRUE(got.starts_with("HTTP/1.1 200"));
}

TEST_F(ApiTest, ManyAtOnce) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 3; ++k) {
        if (i % 2 == 0) {
          right += BodyJson::parse(post("/v1/chat/completions", chat()).body)["choices"][0]["message"]["content"] ==
                   kScripted;
        } else {
          right += events("/v1/chat/completions", chat(R"("stream":true)")).back() == "[DONE]";
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 96);
}

}  // namespace
}  // namespace loralei
