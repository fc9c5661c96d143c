// SPDX-License-Identifier: Apache-2.0
#include "wire/responses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "wire/errors.h"
#include "wire/json_out.h"

namespace loralei {
namespace {

using Json = nlohmann::json;

const ResponseHead kHead{"id-1", 1700000000, "adapter", "fp"};

TEST(Errors, EveryCodeHasARow) {
  for (int i = 0; i < kErrorCodeCount; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const ErrorRow& row = error_row(code);
    EXPECT_GE(row.status, 400) << error_code_name(code);
    EXPECT_LT(row.status, 600);
    EXPECT_NE(std::string(row.type), "");
    const Json body = Json::parse(error_body(to_api_error({code, "message \"x\""}, "p")));
    EXPECT_EQ(body["error"]["message"], "message \"x\"");
    EXPECT_EQ(body["error"]["param"], "p");
    EXPECT_TRUE(body["error"].contains("type") && body["error"].contains("code"));
  }
  EXPECT_EQ(error_row(ErrorCode::kNotFound).status, 404);
  EXPECT_EQ(error_row(ErrorCode::kCancelled).status, 409);
  EXPECT_EQ(error_row(ErrorCode::kOverloaded).status, 429);
  EXPECT_EQ(error_row(ErrorCode::kUnauthenticated).status, 401);
  EXPECT_EQ(error_row(ErrorCode::kForbidden).status, 403);
  EXPECT_EQ(error_row(ErrorCode::kInvalidArgument).status, 400);
}

TEST(Errors, NullsAndVllmForm) {
  const Json plain = Json::parse(error_body(api_error_of_status(431, "x\xff")));
  EXPECT_TRUE(plain["error"]["param"].is_null() && plain["error"]["code"].is_null());
  const Json hostile = Json::parse(error_body(vllm_error(400, "a\n\x1b[2J\xE2\x80\xAE" + std::string(1 << 20, 'x'))));
  const auto told = hostile["error"]["message"].get<std::string>();
  EXPECT_TRUE(told.starts_with("a\\n\\x1b[2J\\u202exxx")) << told;
  EXPECT_LT(told.size(), 10'000u);
  const Json vllm = Json::parse(error_body(vllm_error(404, "gone")));
  EXPECT_EQ(vllm["error"]["code"], 404);
  EXPECT_EQ(vllm["error"]["type"], "NotFoundError");
}

TEST(JsonOut, EscapesAndReplaces) {
  std::string all;
  for (int c = 1; c < 128; ++c) all += static_cast<char>(c);
  JsonOut out;
  out.string(all + "\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(Json::parse(out.text()).get<std::string>(), all + "\xC3\xA9\xF0\x9F\x98\x80");
  for (const char* broken : {"a\xFFz", "a\xE2\x82z", "a\xED\xA0\x80z", "a\xC0\x80z", "a\xF5\x80\x80\x80z"}) {
    JsonOut one;
    one.string(broken);
    EXPECT_EQ(Json::parse(one.text()).get<std::string>(), "a\xEF\xBF\xBDz");
  }
  JsonOut numbers;
  numbers.begin_array()
      .real(0.1)
      .real(0.1f)
      .real(std::nan(""))
      .real(HUGE_VAL)
      .number(int64_t{-5})
      .boolean(true)
      .end_array();
  EXPECT_EQ(numbers.text(), "[0.1,0.1,null,null,-5,true]");
}

TEST(Chat, ResponseHasOpenAiShape) {
  AnswerChoice text{0, "hello", "", {}, FinishReason::kStop, {}};
  AnswerChoice call{1, "", "", {{"call_1", "f", R"({"a":1})"}}, FinishReason::kToolCalls, {}};
  text.logprobs = std::vector<WireLogprob>{
      {{"\xE2\x82", -0.5f}, true, {{"\xE2\x82", -0.5f}, {"x", -std::numeric_limits<float>::infinity()}}}};
  const Json json = Json::parse(chat_response(kHead, {text, call}, {7, 3, 4}));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "adapter");
  EXPECT_EQ(json["system_fingerprint"], "fp");
  const Json& first = json["choices"][0];
  EXPECT_EQ(first["message"]["content"], "hello");
  EXPECT_EQ(first["finish_reason"], "stop");
  EXPECT_EQ(first["logprobs"]["content"][0]["bytes"], Json::parse("[226,130]"));
  EXPECT_EQ(first["logprobs"]["content"][0]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(first["logprobs"]["content"][0]["top_logprobs"][1]["logprob"], -9999.0);
  const Json& second = json["choices"][1];
  EXPECT_TRUE(second["message"]["content"].is_null() && second["logprobs"].is_null());
  EXPECT_EQ(second["message"]["tool_calls"][0]["function"]["arguments"], R"({"a":1})");
  EXPECT_EQ(json["usage"]["total_tokens"], 10);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

TEST(Chat, ChunksOfAStream) {
  ChatDelta role;
  role.role = true;
  Json json = Json::parse(chat_chunk(kHead, role, {true, {}}));
  EXPECT_EQ(json["object"], "chat.completion.chunk");
  EXPECT_EQ(json["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_TRUE(json["usage"].is_null() && json.contains("usage"));
  ChatDelta tool;
  tool.tool_call = {0, "call_1", "f", "{\"a"};
  json = Json::parse(chat_chunk(kHead, tool));
  EXPECT_FALSE(json.contains("usage"));
  EXPECT_EQ(json["choices"][0]["delta"]["tool_calls"],
            Json::parse(R"([{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a"}}])"));
  tool.tool_call = {1, "", "", "\":"};
  json = Json::parse(chat_chunk(kHead, tool));
  EXPECT_EQ(json["choices"][0]["delta"]["tool_calls"], Json::parse(R"([{"index":1,"function":{"arguments":"\":"}}])"));
  ChatDelta last;
  last.finish = FinishReason::kLength;
  json = Json::parse(chat_chunk(kHead, last));
  EXPECT_TRUE(json["choices"][0]["delta"].empty());
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  json = Json::parse(chat_usage_chunk(kHead, {1, 2, 0}));
  EXPECT_TRUE(json["choices"].empty());
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
  EXPECT_EQ(sse_event("{}"), "data: {}\n\n");
}

// Beside every finish reason, and nowhere else.
TEST(Choices, StopReasonsAreNullStringsOrIds) {
  const std::vector<std::pair<StopReason, Json>> cases = {{{}, nullptr}, {"\n\n", "\n\n"}, {7, 7}};
  for (const auto& [reason, wanted] : cases) {
    AnswerChoice whole{0, "a", "", {}, FinishReason::kStop, {}, reason};
    ChatDelta delta;
    CompletionChoice text{0, "a", FinishReason::kStop, {}, reason};
    delta.finish = FinishReason::kStop;
    delta.stop_reason = reason;
    for (const std::string& answer : {chat_response(kHead, {whole}, {}), chat_chunk(kHead, delta),
                                      completion_response(kHead, {text}, {}), completion_chunk(kHead, text)}) {
      EXPECT_EQ(Json::parse(answer)["choices"][0].at("stop_reason"), wanted);
    }
  }
  EXPECT_FALSE(Json::parse(chat_chunk(kHead, {}))["choices"][0].contains("stop_reason"));
}

TEST(Completion, LogprobsWithOffsets) {
  CompletionChoice choice{0, "a\xC3\xA9z", FinishReason::kStop, {}};
  choice.logprobs = std::vector<WireLogprob>{{{"a", 0}, false, {}, 0},
                                             {{"\xC3", -1}, true, {{"\xC3", -1.f}}, 1},
                                             {{"\xA9", -2}, true, {}, 1},
                                             {{"z", -3}, true, {}, 2}};
  const Json json = Json::parse(completion_response(kHead, {choice}, {1, 3, 0}));
  const Json& logprobs = json["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0,1,1,2]"));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["tokens"][1], "bytes:\\xc3");
  EXPECT_EQ(logprobs["top_logprobs"][1]["bytes:\\xc3"], -1.0);
  EXPECT_EQ(json["choices"][0]["text"], "a\xC3\xA9z");
  const Json chunk = Json::parse(completion_chunk(kHead, {2, "x", FinishReason::kNone, {}}));
  EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(chunk["object"], "text_completion");
}

TEST(Completion, TopLogprobsHoldTheChosenToken) {
  CompletionChoice choice{0, "abc", FinishReason::kStop, {}};
  choice.logprobs = std::vector<WireLogprob>{{{"a", -1}, true, {}},
                                             {{"b", -4}, true, {{"x", -0.25f}, {"y", -0.5f}}},
                                             {{"c", -0.25f}, true, {{"c", -0.25f}, {"y", -0.5f}}}};
  const std::string text = completion_response(kHead, {choice}, {1, 3, 0});
  EXPECT_NE(text.find(R"("top_logprobs":[{"a":-1},{"x":-0.25,"y":-0.5,"b":-4},{"c":-0.25,"y":-0.5}])"),
            std::string::npos)
      << text;
}

TEST(Embeddings, FloatsAndBase64AreTheSameValues) {
  const std::vector<std::vector<float>> values = {{1.0f, -0.5f}, {0.1f, 3e-9f}};
  const Json floats = Json::parse(embedding_response(kHead, values, false, 5));
  EXPECT_EQ(floats["data"][1]["embedding"][0].get<float>(), 0.1f);
  EXPECT_EQ(floats["data"][1]["embedding"][1].get<float>(), 3e-9f);
  const Json packed = Json::parse(embedding_response(kHead, values, true, 5));
  EXPECT_EQ(packed["data"][0]["embedding"], "AACAPwAAAL8=");
  EXPECT_EQ(packed["usage"]["total_tokens"], 5);
}

TEST(Listings, ModelsAdaptersTokens) {
  const Json models = Json::parse(model_list({{"base", 1, "/m", "", 2048}, {"a", 2, "/a", "base", 2048}}));
  EXPECT_TRUE(models["data"][0]["parent"].is_null());
  EXPECT_EQ(models["data"][1]["parent"], "base");
  EXPECT_EQ(models["data"][1]["root"], "/a");
  EXPECT_EQ(models["data"][1]["permission"][0]["object"], "model_permission");
  EXPECT_EQ(models["data"][1]["max_model_len"], 2048);
  AdapterRow row;
  row.name = "a";
  row.notes = {"q,v"};
  row.modules = {{"q_proj", 22}, {"lm_head", 1}};
  EXPECT_TRUE(Json::parse(adapter_list({row}))["data"][0]["change_norm"].is_null());
  row.change_norm = HUGE_VAL;
  EXPECT_TRUE(Json::parse(adapter_list({row}))["data"][0]["change_norm"].is_null());
  row.change_norm = 1.5;
  const Json adapters = Json::parse(adapter_list({row}));
  EXPECT_EQ(adapters["data"][0]["notes"][0], "q,v");
  EXPECT_EQ(adapters["data"][0]["modules"], Json({{"q_proj", 22}, {"lm_head", 1}}));
  EXPECT_EQ(adapters["data"][0]["change_norm"], 1.5);
  EXPECT_TRUE(adapters["data"][0]["error"].is_null());
  for (const char* field : {"load_s", "keep_score", "left"}) EXPECT_TRUE(adapters["data"][0][field].is_null()) << field;
  row.load_s = 0.25;
  row.keep_score = 0.5;
  row.recent_uses = 2;
  row.left = "for want of memory";
  const Json left = Json::parse(adapter_list({row}))["data"][0];
  EXPECT_EQ(left["load_s"], 0.25);
  EXPECT_EQ(left["keep_score"], 0.5);
  EXPECT_EQ(left["recent_uses"], 2);
  EXPECT_EQ(left["left"], "for want of memory");
  const std::vector<std::string> pieces = {"\xFF"};
  const Json tokens = Json::parse(tokenize_response({9}, 100, &pieces));
  EXPECT_EQ(tokens["count"], 1);
  EXPECT_EQ(tokens["token_strs"][0], "\xEF\xBF\xBD");
  EXPECT_EQ(lora_loaded_text("x"), "Success: LoRA adapter 'x' added successfully.");
}

}  // namespace
}  // namespace loralei
