// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses through the server.
#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

class ResponsesRouteTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    const char* source =
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}<tool_call>{% endif %}<think>";
    text = TextModel::make(tokenizer, ChatTemplate::parse(source).value(), "base").value();
    engine.script = [this](const Submit&, int) {
      return ids("Hm.</think>I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>");
    };
    start();
  }
  static std::string body(const std::string& more = "") {
    return R"({"input":"hi","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}])" + more + "}";
  }
};

TEST_F(ResponsesRouteTest, AnswersWithItems) {
  const HttpResponse answer = post("/v1/responses", body());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const BodyJson response = BodyJson::parse(answer.body);
  ASSERT_EQ(response["output"].size(), 3u) << answer.body;
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(response["output"][2]["name"], "f");
  EXPECT_EQ(BodyJson::parse(response["output"][2]["arguments"].get<std::string>()), BodyJson::parse(R"({"x":1})"));
  EXPECT_EQ(response["status"], "completed");
  EXPECT_GT(response["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_NE(tokenizer->decode(engine.wait_submit(0).prompt).find("user: hi"), std::string::npos);
}

TEST_F(ResponsesRouteTest, StreamsWhatItAnswersWhole) {
  std::string text, reasoning, arguments;
  BodyJson last;
  for (const std::string& event : events("/v1/responses", body(R"(,"stream":true)"))) {
    last = BodyJson::parse(event);
    if (last["type"] == "response.output_text.delta") text += last["delta"].get<std::string>();
    if (last["type"] == "response.reasoning_text.delta") reasoning += last["delta"].get<std::string>();
    if (last["type"] == "response.function_call_arguments.delta") arguments += last["delta"].get<std::string>();
  }
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(text, "I look.");
  EXPECT_EQ(last["response"]["output"][2]["arguments"], arguments);
  const BodyJson whole = BodyJson::parse(post("/v1/responses", body()).body);
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], text);
  EXPECT_EQ(whole["usage"]["output_tokens"], last["response"]["usage"]["output_tokens"]);
}

TEST_F(ResponsesRouteTest, RefusesAsTheChatApiDoes) {
  EXPECT_EQ(post("/v1/responses", R"({"input":"hi","model":"nobody"})").status, 404);
  const HttpResponse wrong = post("/v1/responses", R"({"input":"hi","previous_response_id":"resp_1"})");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(error_of(wrong, "param"), "previous_response_id");
  engine.script = [this](const Submit&, int) { return ids("Half"); };
  const BodyJson cut = BodyJson::parse(post("/v1/responses", R"({"input":"hi","max_output_tokens":1})").body);
  EXPECT_EQ(cut["status"], "incomplete");
}

}  // namespace
}  // namespace loralei
