// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages and what goes with it, through the server.
#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

class MessagesRouteTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    const char* source =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}<tool_call>{% endif %}"
        "{% if add_generation_prompt %}<think>{% endif %}";
    text = TextModel::make(tokenizer, ChatTemplate::parse(source).value(), "base").value();
    engine.script = [this](const Submit&, int) {
      return ids("Hm.</think>I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>");
    };
  }
  static std::string body(const std::string& more = "") {
    return R"({"max_tokens":200,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":{"type":"object"}}])" +
           more + "}";
  }
  static std::string type_of(const HttpResponse& answer) {
    const BodyJson error = BodyJson::parse(answer.body, nullptr, false);
    EXPECT_EQ(error["type"], "error") << answer.body;
    EXPECT_EQ(error["request_id"], answer.header("request-id"));
    EXPECT_FALSE(answer.header("request-id").empty());
    return error["error"]["type"];
  }
};

TEST_F(MessagesRouteTest, AnswersWithBlocks) {
  start();
  const HttpResponse answer = post("/v1/messages", body());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const BodyJson message = BodyJson::parse(answer.body);
  ASSERT_EQ(message["content"].size(), 3u) << answer.body;
  EXPECT_EQ(message["content"][0]["thinking"], "Hm.");
  EXPECT_EQ(message["content"][1]["text"], "I look.");
  EXPECT_EQ(message["content"][2]["input"]["x"], 1);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_FALSE(answer.header("request-id").empty());
}

TEST_F(MessagesRouteTest, StreamsWhatItAnswersWhole) {
  start();
  std::string said, thought, input;
  BodyJson last;
  for (const std::string& event : events("/v1/messages?beta=true", body(R"(,"stream":true)"))) {
    last = BodyJson::parse(event);
    if (last["type"] != "content_block_delta") continue;
    const BodyJson& delta = last["delta"];
    if (delta["type"] == "text_delta") said += delta["text"].get<std::string>();
    if (delta["type"] == "thinking_delta") thought += delta["thinking"].get<std::string>();
    if (delta["type"] == "input_json_delta") input += delta["partial_json"].get<std::string>();
  }
  EXPECT_EQ(last["type"], "message_stop");
  EXPECT_EQ(thought, "Hm.");
  EXPECT_EQ(said, "I look.");
  EXPECT_EQ(BodyJson::parse(input)["x"], 1);
}

TEST_F(MessagesRouteTest, AStopSequenceAndTheLimitAreTold) {
  engine.script = [this](const Submit&, int) { return ids("Hm.</think>One, two, three"); };
  start();
  const auto ends = [&](const std::string& more) {
    const HttpResponse answer = post("/v1/messages", R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}");
    const BodyJson message = BodyJson::parse(answer.body);
    return message["stop_reason"].get<std::string>() + " " + message["stop_sequence"].dump();
  };
  EXPECT_EQ(ends(R"("max_tokens":200,"stop_sequences":["two"])"), "stop_sequence \"two\"");
  EXPECT_EQ(ends(R"("max_tokens":2)"), "max_tokens null");
  EXPECT_EQ(ends(R"("max_tokens":200)"), "end_turn null");
}

TEST_F(MessagesRouteTest, CountsWhatItWouldCompute) {
  start();
  const HttpResponse counted = post("/v1/messages/count_tokens", body());
  ASSERT_EQ(counted.status, 200) << counted.body;
  post("/v1/messages", body());
  EXPECT_EQ(BodyJson::parse(counted.body)["input_tokens"], engine.wait_submit(0).prompt.size());
}

TEST_F(MessagesRouteTest, ErrorsAreItsOwn) {
  start();
  EXPECT_EQ(type_of(post("/v1/messages", R"({"messages":[{"role":"user","content":"hi"}]})")), "invalid_request_error");
  EXPECT_EQ(type_of(post("/v1/messages", "{")), "invalid_request_error");
  EXPECT_EQ(type_of(post("/v1/messages", body(R"(,"model":"nobody")"))), "not_found_error");
  EXPECT_EQ(error_of(post("/v1/chat/completions", "{"), "type"), "invalid_request_error") << "the other API's stay";
  EXPECT_EQ(BodyJson::parse(post("/v1/chat/completions", "{").body).contains("request_id"), false);
}

TEST_F(MessagesRouteTest, KeysMayComeAsXApiKey) {
  options.api_keys = {"k1", "k2"};
  start();
  HttpClient c = client();
  EXPECT_EQ(type_of(post("/v1/messages", body())), "authentication_error");
  EXPECT_EQ(post("/v1/messages", body(), {{"x-api-key", "k1"}}).status, 200);
  EXPECT_EQ(post("/v1/messages", body(), {{"Authorization", "Bearer k1"}}).status, 200);
  EXPECT_EQ(post("/v1/chat/completions", chat(), {{"x-api-key", "k2"}}).status, 200);
  EXPECT_EQ(post("/v1/messages", body(), {{"x-api-key", "no"}}).status, 401);
  EXPECT_EQ(post("/v1/messages", body(), {{"x-api-key", "k1"}, {"Authorization", "Bearer no"}}).status, 401);
  EXPECT_EQ(engine.wait_submit(0).cache_salt, engine.wait_submit(1).cache_salt) << "one key, whatever its header";
  EXPECT_NE(engine.wait_submit(0).cache_salt, engine.wait_submit(2).cache_salt);
}

TEST_F(MessagesRouteTest, ModelsAreListedAsItsClientsReadThem) {
  start();
  HttpClient c = client();
  const auto listed = c.request("GET", "/v1/models", {{"anthropic-version", "2023-06-01"}}, "");
  ASSERT_TRUE(listed.ok());
  const BodyJson models = BodyJson::parse(listed->body);
  EXPECT_EQ(models["data"][0]["id"], "base");
  EXPECT_EQ(models["data"][0]["type"], "model");
  EXPECT_EQ(models["has_more"], false);
  EXPECT_EQ(models["first_id"], "base");
  const auto one = c.request("GET", "/v1/models/base", {{"anthropic-version", "2023-06-01"}}, "");
  EXPECT_EQ(BodyJson::parse(one->body)["display_name"], "base");
  const auto none = c.request("GET", "/v1/models/nobody", {{"anthropic-version", "2023-06-01"}}, "");
  EXPECT_EQ(type_of(*none), "not_found_error");
  EXPECT_EQ(BodyJson::parse(get("/v1/models").body)["object"], "list");
}

}  // namespace
}  // namespace loralei
