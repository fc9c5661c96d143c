// SPDX-License-Identifier: Apache-2.0
#include "wire/messages_api.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

namespace loralei {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest chat_of(const std::string& fields) {
  auto request = parse_messages_request(R"({"max_tokens":9,)" + fields + "}");
  EXPECT_TRUE(request.ok()) << request.error().message;
  return request.ok() ? std::move(*request) : ChatRequest{};
}

TEST(MessagesRequest, IsAChat) {
  const ChatRequest chat = chat_of(
      R"("model":"a","system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
      "messages":[{"role":"user","content":"Hi"}],"stop_sequences":["X"],"temperature":0.5,"top_k":3,"stream":true,
      "metadata":{"user_id":"u"},"thinking":{"type":"enabled","budget_tokens":1024},"frob":1)");
  ASSERT_EQ(chat.prompt.messages.size(), 2u);
  EXPECT_EQ(chat.prompt.messages[0].role, "system");
  EXPECT_EQ(chat.prompt.messages[0].content, "Be brief.");
  EXPECT_EQ(chat.prompt.messages[1].content, "Hi");
  EXPECT_EQ(chat.common.max_tokens, 9);
  EXPECT_EQ(chat.common.stop, std::vector<std::string>{"X"});
  EXPECT_EQ(chat.common.top_k, 3);
  EXPECT_TRUE(chat.common.stream);
  EXPECT_EQ(chat.prompt.enable_thinking, true);
  EXPECT_FALSE(chat.prompt.continue_final_message);
  EXPECT_EQ(chat.common.unknown_fields, std::vector<std::string>{"frob"});
}

TEST(MessagesRequest, CallsAndTheirResultsAreMessagesOfTheirOwn) {
  const ChatRequest chat = chat_of(R"("messages":[
      {"role":"user","content":"a"},
      {"role":"user","content":[{"type":"text","text":"b"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"s"},{"type":"redacted_thinking","data":"x"},
         {"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"f","input":{"x":1}},
         {"type":"tool_use","id":"t2","name":"g","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"one"},
         {"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"two"}]},
         {"type":"text","text":"And?"}]}],
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}},{"type":"custom","name":"g","input_schema":{"type":"object"}}],
      "tool_choice":{"type":"tool","name":"g","disable_parallel_tool_use":true})");
  const auto& m = chat.prompt.messages;
  ASSERT_EQ(m.size(), 5u);
  EXPECT_EQ(m[0].content, "a\nb");
  EXPECT_EQ(m[1].content, "I look.");
  EXPECT_EQ(m[1].more, R"({"reasoning_content":"Hm."})");
  ASSERT_EQ(m[1].tool_calls.size(), 2u);
  EXPECT_EQ(m[1].tool_calls[0].arguments, R"({"x":1})");
  EXPECT_EQ(m[2].role, "tool");
  EXPECT_EQ(m[2].tool_call_id, "t1");
  EXPECT_EQ(m[3].content, "two");
  EXPECT_EQ(m[3].more, R"({"is_error":true})");
  EXPECT_EQ(m[4].role, "user");
  EXPECT_EQ(m[4].content, "And?");
  ASSERT_EQ(chat.prompt.tools.size(), 2u);
  EXPECT_EQ(chat.prompt.tools[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(chat.tool_choice, WireToolChoice::kFunction);
  EXPECT_EQ(chat.tool_choice_name, "g");
  EXPECT_FALSE(chat.parallel_tool_calls);
}

TEST(MessagesRequest, AFinalMessageOfTheAssistantIsGoneOnWith) {
  const ChatRequest chat =
      chat_of(R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"It is"}])");
  EXPECT_TRUE(chat.prompt.continue_final_message);
  EXPECT_FALSE(chat.prompt.add_generation_prompt);
}

TEST(MessagesRequest, OutputHasAForm) {
  for (const char* field :
       {R"("output_format":{"type":"json_schema","schema":{"type":"integer"}})",
        R"("output_config":{"format":{"type":"json_schema","schema":{"type":"integer"}},"effort":"low"})"}) {
    const ChatRequest chat = chat_of(R"("messages":[{"role":"user","content":"a"}],)" + std::string(field));
    EXPECT_EQ(chat.common.output.format, OutputFormat::kJsonSchema);
    EXPECT_EQ(chat.common.output.schema, R"({"type":"integer"})");
  }
}

TEST(MessagesRequest, WhatCannotBeIsRefusedByName) {
  const std::string user = R"("messages":[{"role":"user","content":"a"}])", max = R"("max_tokens":9,)";
  for (const auto& [body, param, part] : std::vector<std::array<std::string, 3>>{
           {user, "max_tokens", "missing"},
           {max + R"("messages":[])", "messages", "empty"},
           {max + R"("messages":[{"role":"system","content":"a"}])", "messages[0].role", "field of its own"},
           {max + R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0]",
            "image"},
           {max + R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text",
            "string"},
           {max + R"("messages":[{"role":"user","content":[3]}])", "messages[0].content[0]", "text"},
           {max + R"("messages":[{"role":"user"}])", "messages[0].content", "missing"},
           {max + R"("messages":[{"role":"user","content":[{"type":3}]}])", "messages[0].content[0]", "'?'"},
           {max + R"("messages":[{"role":"assistant","content":[[]]}])", "messages[0].content[0]", "'?'"},
           {max + R"("messages":[{"role":"user","content":[{"type":"tool_result"}]}])",
            "messages[0].content[0].tool_use_id", "missing"},
           {max + user + R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}])", "tools[0].type",
            "Anthropic's own"},
           {max + user + R"(,"tool_choice":{"type":"some"})", "tool_choice.type", "any"},
           {max + user + R"(,"thinking":{"type":"some"})", "thinking.type", "adaptive"},
           {max + user + R"(,"mcp_servers":[{"url":"u"}])", "mcp_servers", "leave it out"},
           {max + user + R"(,"logprobs":true)", "logprobs", "/v1/chat/completions"},
           {max + user + R"(,"output_format":{"type":"text"})", "output_format.type", "json_schema"},
           {max + user + R"(,"n":2)", "n", "one answer"}}) {
    auto request = parse_messages_request("{" + body + "}");
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_EQ(request.error().param, param) << body;
    EXPECT_NE(request.error().message.find(part), std::string::npos) << request.error().message;
  }
  EXPECT_TRUE(parse_count_tokens_request("{" + user + "}").ok());
}

std::vector<Json> events_of(const std::string& frames) {
  std::vector<Json> events;
  size_t at = 0;
  while (at < frames.size()) {
    const size_t end = frames.find("\n\n", at);
    const std::string frame = frames.substr(at, end - at);
    const size_t line = frame.find("\ndata: ");
    events.push_back(Json::parse(frame.substr(line + 7)));
    EXPECT_EQ(frame.substr(7, line - 7), events.back()["type"]) << frame;
    at = end + 2;
  }
  return events;
}

TEST(MessagesAnswer, StreamsBlocksInTheirOrder) {
  const auto form = make_messages_answer({"1", 7, "m", "fp"});
  std::string frames;
  form->begin(frames, {});
  frames += form->ping();
  form->begin_choice(frames, 0, {10, 1, 4});
  const auto piece = [&](AnswerPiece one) { form->piece(frames, 0, std::move(one), {}); };
  piece({.reasoning = "Hm."});
  piece({.content = "I look"});
  piece({.content = "."});
  piece({.tools = {{0, "c1", "f", "{\"x\""}}});
  piece({.tools = {{0, "", "", ":1}"}, {1, "c2", "g", "{}"}}});
  piece({.finish = FinishReason::kToolCalls});
  form->end(frames, {10, 20, 4});
  std::string shown;
  const auto events = events_of(frames);
  for (const Json& event : events) {
    shown += event["type"].get<std::string>();
    if (event.contains("index")) shown += " " + std::to_string(event["index"].get<int>());
    if (event.contains("delta") && event["delta"].contains("type"))
      shown += " " + event["delta"]["type"].get<std::string>();
    shown += "\n";
  }
  EXPECT_EQ(shown,
            "ping\nmessage_start\n"
            "content_block_start 0\ncontent_block_delta 0 thinking_delta\ncontent_block_delta 0 "
            "signature_delta\ncontent_block_stop 0\n"
            "content_block_start 1\ncontent_block_delta 1 text_delta\ncontent_block_delta 1 "
            "text_delta\ncontent_block_stop 1\n"
            "content_block_start 2\ncontent_block_delta 2 input_json_delta\ncontent_block_delta 2 "
            "input_json_delta\ncontent_block_stop 2\n"
            "content_block_start 3\ncontent_block_delta 3 input_json_delta\ncontent_block_stop 3\n"
            "message_delta\nmessage_stop\n");
  EXPECT_EQ(events[1]["message"]["usage"]["input_tokens"], 6);
  EXPECT_EQ(events[1]["message"]["usage"]["cache_read_input_tokens"], 4);
  const Json& last = events[events.size() - 2];
  EXPECT_EQ(last["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(last["usage"]["output_tokens"], 20);
}

TEST(MessagesAnswer, AWholeOneSaysWhyItEnded) {
  const auto whole = [](AnswerChoice choice) {
    std::vector<AnswerChoice> choices;
    choices.push_back(std::move(choice));
    return Json::parse(
        whole_response(*make_messages_answer({"1", 7, "m", "fp"})->whole(std::move(choices), {10, 20, 4})));
  };
  AnswerChoice stopped;
  stopped.reasoning_content = "Hm.";
  stopped.content = "Yes";
  stopped.stop_reason = std::string("X");
  Json message = whole(stopped);
  EXPECT_EQ(message["content"][0]["thinking"], "Hm.");
  EXPECT_EQ(message["content"][1]["text"], "Yes");
  EXPECT_EQ(message["stop_reason"], "stop_sequence");
  EXPECT_EQ(message["stop_sequence"], "X");
  EXPECT_EQ(message["usage"]["input_tokens"], 6);
  AnswerChoice calls;
  const std::string behind_the_end("{\"x\": 1}\0more", 13);  // the parser reads no further than the NUL
  calls.tool_calls = {{"c1", "f", "{\"x\": 1}"}, {"c2", "g", "{\"cut"}, {"c3", "h", behind_the_end}};
  calls.finish = FinishReason::kLength;
  message = whole(calls);
  EXPECT_EQ(message["content"][0]["input"]["x"], 1);
  EXPECT_EQ(message["content"][1]["input"], Json::object());
  EXPECT_EQ(message["content"][2]["input"], Json::object());
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_TRUE(message["stop_sequence"].is_null());
}

TEST(MessagesAnswer, ErrorsHaveItsTypes) {
  for (const auto& [status, type] : std::vector<std::pair<int, std::string>>{{400, "invalid_request_error"},
                                                                             {401, "authentication_error"},
                                                                             {403, "permission_error"},
                                                                             {404, "not_found_error"},
                                                                             {413, "request_too_large"},
                                                                             {429, "rate_limit_error"},
                                                                             {500, "api_error"},
                                                                             {503, "overloaded_error"}}) {
    const Json body = Json::parse(anthropic_error_body(api_error_of_status(status, "No \"."), "r1"));
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_EQ(body["error"]["message"], "No \".");
    EXPECT_EQ(body["request_id"], "r1");
  }
  std::string frames;
  make_messages_answer({"1", 7, "m", "fp"})->error(frames, api_error_of_status(503, "Stopped."));
  EXPECT_EQ(events_of(frames)[0]["error"]["type"], "overloaded_error");
}

}  // namespace
}  // namespace loralei
