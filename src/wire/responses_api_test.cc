// SPDX-License-Identifier: Apache-2.0
#include "wire/responses_api.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace loralei {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest chat_of(const std::string& fields) {
  auto request = parse_responses_request("{" + fields + "}");
  EXPECT_TRUE(request.ok()) << request.error().message;
  return request.ok() ? std::move(request->chat) : ChatRequest{};
}
ApiError refusal_of(const std::string& fields) {
  auto request = parse_responses_request("{" + fields + "}");
  EXPECT_FALSE(request.ok()) << fields;
  return request.ok() ? ApiError{} : request.error();
}

TEST(ResponsesRequest, AStringIsAUsersMessageBehindTheInstructions) {
  const ChatRequest chat = chat_of(
      R"("model":"a","instructions":"Be brief.","input":"Hi","max_output_tokens":9,"temperature":0.5,"top_k":3,"store":true)");
  ASSERT_EQ(chat.prompt.messages.size(), 2u);
  EXPECT_EQ(chat.prompt.messages[0].role, "system");
  EXPECT_EQ(chat.prompt.messages[0].content, "Be brief.");
  EXPECT_EQ(chat.prompt.messages[1].role, "user");
  EXPECT_EQ(chat.prompt.messages[1].content, "Hi");
  EXPECT_EQ(chat.common.model.model, "a");
  EXPECT_EQ(chat.common.max_tokens, 9);
  EXPECT_EQ(chat.common.temperature, 0.5);
  EXPECT_EQ(chat.common.top_k, 3);
  EXPECT_TRUE(chat.common.unknown_fields.empty());
}

TEST(ResponsesRequest, ItemsOfOneTurnAreOneMessage) {
  const ChatRequest chat = chat_of(R"("input":[
      {"role":"developer","content":"d"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}],"encrypted_content":null},
      {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
      {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":"one"},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
      {"type":"function_call","call_id":"c3","name":"f","arguments":"{}"}])");
  const auto& m = chat.prompt.messages;
  ASSERT_EQ(m.size(), 6u);
  EXPECT_EQ(m[0].role, "developer");
  EXPECT_EQ(m[1].content, "a\nb");
  EXPECT_EQ(m[2].role, "assistant");
  EXPECT_EQ(m[2].content, "I look.");
  EXPECT_EQ(m[2].more, R"({"reasoning_content":"Hm."})");
  ASSERT_EQ(m[2].tool_calls.size(), 2u);
  EXPECT_EQ(m[2].tool_calls[0].arguments, R"({"x":1})");
  EXPECT_EQ(m[2].tool_calls[1].name, "g");
  EXPECT_EQ(m[3].role, "tool");
  EXPECT_EQ(m[3].tool_call_id, "c1");
  EXPECT_EQ(m[4].content, "two");
  EXPECT_EQ(m[5].role, "assistant");
  EXPECT_FALSE(m[5].has_content);
  EXPECT_EQ(m[5].tool_calls[0].id, "c3");
}

TEST(ResponsesRequest, ToolsAndFormsAreTheChatApis) {
  const ChatRequest chat = chat_of(
      R"("input":"x","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"},"strict":true}],
      "tool_choice":{"type":"function","name":"f"},"parallel_tool_calls":false,
      "text":{"format":{"type":"json_schema","name":"n","schema":{"type":"integer"},"strict":true},"verbosity":"low"},
      "reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"])");
  ASSERT_EQ(chat.prompt.tools.size(), 1u);
  EXPECT_EQ(chat.prompt.tools[0].name, "f");
  EXPECT_EQ(chat.prompt.tools[0].parameters, R"({"type":"object"})");
  EXPECT_TRUE(chat.prompt.tools[0].strict);
  EXPECT_EQ(chat.tool_choice, WireToolChoice::kFunction);
  EXPECT_EQ(chat.tool_choice_name, "f");
  EXPECT_FALSE(chat.parallel_tool_calls);
  EXPECT_EQ(chat.common.output.format, OutputFormat::kJsonSchema);
  EXPECT_EQ(chat.common.output.schema, R"({"type":"integer"})");
  EXPECT_EQ(chat.common.output.strict, true);
  EXPECT_EQ(chat.prompt.reasoning_effort, "low");
  EXPECT_FALSE(chat.common.logprobs);
  const ChatRequest probable =
      chat_of(R"("input":"x","include":["message.output_text.logprobs"],"top_logprobs":2,"adapter_id":"a","frob":1)");
  EXPECT_TRUE(probable.common.logprobs);
  EXPECT_EQ(probable.common.top_logprobs, 2);
  EXPECT_EQ(probable.common.model.adapters.at(0).name, "a");
  EXPECT_EQ(probable.common.unknown_fields, std::vector<std::string>{"frob"});
}

TEST(ResponsesRequest, WhatCannotBeIsRefusedByName) {
  for (const auto& [fields, param, part] : std::vector<std::array<std::string, 3>>{
           {R"("input":"x","previous_response_id":"resp_1")", "previous_response_id", "whole conversation"},
           {R"("input":"x","conversation":"conv_1")", "conversation", "whole conversation"},
           {R"("input":"x","prompt":{"id":"p"})", "prompt", "instructions"},
           {R"("input":"x","background":true)", "background", "stream"},
           {R"("input":[{"type":"item_reference","id":"m"}])", "input[0].type", "whole conversation"},
           {R"("input":[{"type":"web_search_call","id":"m"}])", "input[0].type", "function_call"},
           {R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}])", "input[0].content[0]",
            "text only"},
           {R"("input":[{"role":"user","content":[{"type":3}]}])", "input[0].content[0]", "text only"},
           {R"("input":"x","tools":[{"type":3}])", "tools[0].type", "functions"},
           {R"("input":"x","tool_choice":{"type":3})", "tool_choice.type", "string"},
           {R"("input":"x","tools":[{"type":"web_search"}])", "tools[0].type", "functions"},
           {R"("input":"x","top_logprobs":2)", "top_logprobs", "include"},
           {R"("input":"x","truncation":"middle")", "truncation", "auto"},
           {R"("input":"x","messages":[])", "messages", "'input'"},
           {R"("input":"x","max_tokens":3)", "max_tokens", "'max_output_tokens'"},
           {R"("input":"x","n":2)", "n", "one choice"},
           {R"("input":[])", "input", "items"},
           {R"("input":3)", "input", "string"},
           {R"("input":[3])", "input[0]", "object"},
           {R"("model":"x")", "input", "missing"}}) {
    const ApiError error = refusal_of(fields);
    EXPECT_EQ(error.status, 400) << fields;
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
  }
}

std::unique_ptr<AnswerForm> answer_to(const std::string& fields) {
  auto request = parse_responses_request("{" + fields + "}");
  EXPECT_TRUE(request.ok());
  return make_responses_answer({"1", 7, "m", "fp"}, std::move(request->echo));
}

std::vector<Json> events_of(const std::string& frames) {
  std::vector<Json> events;
  size_t at = 0;
  while (at < frames.size()) {
    const size_t end = frames.find("\n\n", at);
    const std::string frame = frames.substr(at, end - at);
    const size_t line = frame.find("\ndata: ");
    EXPECT_TRUE(frame.starts_with("event: ")) << frame;
    events.push_back(Json::parse(frame.substr(line + 7)));
    EXPECT_EQ(frame.substr(7, line - 7), events.back()["type"]) << frame;
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
    at = end + 2;
  }
  return events;
}
std::vector<std::string> types_of(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"].get<std::string>().substr(9));
  return types;
}

TEST(ResponsesAnswer, StreamsReasoningTextAndCallsInTheirOrder) {
  const auto form = answer_to(R"("input":"x","instructions":"i","metadata":{"k":"v"},"temperature":0)");
  std::string frames;
  form->begin(frames, {});
  const auto piece = [&](AnswerPiece one) { form->piece(frames, 0, std::move(one), {}); };
  piece({.reasoning = "H"});
  piece({.reasoning = "m."});
  piece({.content = "I look."});
  piece({.tools = {{0, "c1", "f", "{\"x\""}}});
  piece({.tools = {{0, "", "", ":1}"}, {1, "c2", "g", "{}"}}});
  piece({.finish = FinishReason::kToolCalls});
  form->end(frames, {10, 20, 4, 3});
  const auto events = events_of(frames);
  EXPECT_EQ(types_of(events), (std::vector<std::string>{"created",
                                                        "in_progress",
                                                        "output_item.added",
                                                        "content_part.added",
                                                        "reasoning_text.delta",
                                                        "reasoning_text.delta",
                                                        "reasoning_text.done",
                                                        "content_part.done",
                                                        "output_item.done",
                                                        "output_item.added",
                                                        "content_part.added",
                                                        "output_text.delta",
                                                        "output_text.done",
                                                        "content_part.done",
                                                        "output_item.done",
                                                        "output_item.added",
                                                        "function_call_arguments.delta",
                                                        "function_call_arguments.delta",
                                                        "function_call_arguments.done",
                                                        "output_item.done",
                                                        "output_item.added",
                                                        "function_call_arguments.delta",
                                                        "function_call_arguments.done",
                                                        "output_item.done",
                                                        "completed"}));
  EXPECT_EQ(events[2]["output_index"], 0);
  EXPECT_EQ(events[9]["output_index"], 1);
  EXPECT_EQ(events[20]["output_index"], 3);
  EXPECT_EQ(events[18]["arguments"], R"({"x":1})");
  const Json response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["id"], "resp_1");
  EXPECT_EQ(response["instructions"], "i");
  EXPECT_EQ(response["metadata"]["k"], "v");
  EXPECT_EQ(response["temperature"], 0);
  ASSERT_EQ(response["output"].size(), 4u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(response["output"][2]["call_id"], "c1");
  EXPECT_EQ(response["output"][3]["name"], "g");
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  EXPECT_EQ(response["usage"]["total_tokens"], 30);
  EXPECT_EQ(response["store"], false);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(response["output"][i]["status"], "completed");
}

TEST(ResponsesAnswer, ACutOffOneIsIncomplete) {
  const auto form = answer_to(R"("input":"x")");
  std::string frames;
  form->begin(frames, {});
  form->piece(frames, 0, {.content = "Half"}, {});
  form->piece(frames, 0, {.finish = FinishReason::kLength}, {});
  form->end(frames, {1, 2});
  const auto events = events_of(frames);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events.back()["response"]["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(events.back()["response"]["output"][0]["status"], "incomplete");
}

TEST(ResponsesAnswer, AnErrorInAStreamIsItsEnd) {
  const auto form = answer_to(R"("input":"x")");
  std::string frames;
  form->begin(frames, {});
  form->piece(frames, 0, {.content = "Half"}, {});
  form->error(frames, api_error_of_status(503, "The server stops."));
  const auto events = events_of(frames);
  EXPECT_EQ(events[events.size() - 2]["message"], "The server stops.");
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "The server stops.");
}

TEST(ResponsesAnswer, AnEmptyOneHasAnEmptyMessage) {
  const auto form = answer_to(R"("input":"x")");
  std::string frames;
  form->begin(frames, {});
  form->piece(frames, 0, {.finish = FinishReason::kStop}, {});
  form->end(frames, {});
  EXPECT_EQ(events_of(frames).back()["response"]["output"][0]["content"][0]["text"], "");
}

TEST(ResponsesAnswer, AWholeOneHasTheSameItems) {
  const auto form = answer_to(R"("input":"x")");
  AnswerChoice choice;
  choice.reasoning_content = "Hm.";
  choice.content = "Yes";
  choice.tool_calls = {{"c1", "f", "{}"}};
  choice.finish = FinishReason::kToolCalls;
  WireLogprob token;
  token.chosen = {std::string_view("Yes"), -0.5f};
  choice.logprobs = std::vector<WireLogprob>{token};
  std::vector<AnswerChoice> choices;
  choices.push_back(std::move(choice));
  const Json response = Json::parse(whole_response(*form->whole(std::move(choices), {1, 2, 0, 1})));
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Yes");
  EXPECT_EQ(response["output"][1]["content"][0]["logprobs"][0]["token"], "Yes");
  EXPECT_EQ(response["output"][2]["arguments"], "{}");
  EXPECT_EQ(response["status"], "completed");
}

TEST(ResponsesAnswer, WhatItRepeatsOfItsRequestIsBounded) {
  const std::string large(kMaxRepeatedBytes, 'x');
  auto request = parse_responses_request(R"({"input":"x","instructions":")" + large + R"(","metadata":{"k":"v"}})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->echo.instructions, "null");
  EXPECT_EQ(request->chat.prompt.messages[0].content, large);
}

}  // namespace
}  // namespace loralei
