// SPDX-License-Identifier: Apache-2.0
#include "serve/tool_call_stream.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace loralei {
namespace {

struct Case {
  ToolCallForm form;
  std::string text;
};

// What clients put together, with what must hold of every chunk checked on the way.
struct Client {
  std::string content;
  std::map<int, ToolCall> calls;

  void take(const ToolCallStream::Piece& piece, const std::string& where) {
    content += piece.content;
    std::set<int> seen;
    for (const ToolCallDelta& delta : piece.deltas) {
      EXPECT_TRUE(seen.insert(delta.index).second) << "two entries of one call: " << where;
      const auto [call, first] = calls.try_emplace(delta.index);
      EXPECT_EQ(delta.id.empty(), !first) << where;
      EXPECT_EQ(delta.name.empty(), !first) << where;
      EXPECT_FALSE(delta.arguments.empty()) << "a piece that says nothing: " << where;
      if (first) call->second = {delta.id, delta.name, ""};
      call->second.arguments += delta.arguments;
    }
  }
};

void expect_same(const Case& one, const std::vector<size_t>& cuts, const std::string& where) {
  ToolCallStream whole(one.form, "x"), cut(one.form, "x");
  const std::string content = whole.push(one.text, true).content;
  const std::vector<ToolCall> calls = whole.take_calls();
  Client client;
  size_t begin = 0;
  for (const size_t end : cuts) {
    client.take(cut.push(std::string_view(one.text).substr(begin, end - begin), false), where);
    begin = end;
  }
  client.take(cut.push(std::string_view(one.text).substr(begin), true), where);
  EXPECT_EQ(client.content, content) << where;
  EXPECT_EQ(cut.ends_with_calls(), whole.ends_with_calls()) << where;
  ASSERT_EQ(client.calls.size(), calls.size()) << where;
  for (size_t i = 0; i < calls.size(); ++i) {
    const ToolCall& call = client.calls[static_cast<int>(i)];
    EXPECT_EQ(call.id, calls[i].id) << where;
    EXPECT_EQ(call.name, calls[i].name) << where;
    EXPECT_EQ(call.arguments, calls[i].arguments) << where;
  }
}

const Case kCases[] = {
    {ToolCallForm::kHermes,
     "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a}{\\\" b\", \"y\": [1, "
     "{\"z\": null}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n"
     "</tool_call>"},
    {ToolCallForm::kHermes,
     "<tool_call>{\"arguments\":\n{\"x\" : {\"name\": \"no\"}} , \"name\" : \"f\"}</tool_call> "
     "and <tool_call>{\"name\":\"g\",\"arguments\":{\"a\":1}}</tool_call>"},
    {ToolCallForm::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"cut of"},
    {ToolCallForm::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"g"},
    {ToolCallForm::kHermes, "<tool_call>no call</tool_call> <tool_call>{\"name\": \"now\"}</tool_call>"},
    {ToolCallForm::kLlama3,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"parameters\": {\"y\": "
     "2}, \"name\": \"g\"}"},
    {ToolCallForm::kLlama3, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"x\": [true]}}"},
    {ToolCallForm::kMistral,
     "So. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"arguments\": {}, "
     "\"name\": \"g\"},{\"name\": \"h\", \"arguments\": {\"y\": 2}}]"},
};

TEST(ToolCallStream, PiecesJoinToTheWholeWhereverTheTextIsCut) {
  for (const Case& one : kCases) {
    expect_same(one, {}, one.text);
    std::vector<size_t> every;
    for (size_t i = 1; i < one.text.size(); ++i) {
      expect_same(one, {i}, "cut at " + std::to_string(i) + " of " + one.text);
      every.push_back(i);
    }
    expect_same(one, every, "every byte of " + one.text);
  }
}

TEST(ToolCallStream, PiecesJoinToTheWholeAtRandomCuts) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const Case& one = kCases[random() % std::size(kCases)];
    const uint32_t longest = 1 + random() % 40;
    std::vector<size_t> cuts;
    for (size_t at = 1 + random() % longest; at < one.text.size(); at += 1 + random() % longest) cuts.push_back(at);
    expect_same(one, cuts, "seed " + std::to_string(seed) + " of " + one.text);
    if (HasFailure()) return;
  }
}

TEST(ToolCallStream, AWholeCallInTheLastPieceIsOneDelta) {
  ToolCallStream stream(ToolCallForm::kHermes, "x");
  const auto piece = stream.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>", true);
  ASSERT_EQ(piece.deltas.size(), 1u);
  EXPECT_EQ(piece.deltas[0].id, "call_x_0");
  EXPECT_EQ(piece.deltas[0].name, "f");
  EXPECT_EQ(piece.deltas[0].arguments, "{\"x\": 1}");
}

TEST(ToolCallStream, ATextThatEndsInsideACallDoesNotEndWithCalls) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"ab\"}}</tool_call>";
  const size_t closed = call.rfind("}}") + 1;
  for (size_t size = 0; size <= call.size(); ++size) {
    ToolCallStream one(ToolCallForm::kHermes, "x");
    one.push(call.substr(0, size), true);
    EXPECT_EQ(one.ends_with_calls(), size >= closed) << call.substr(0, size);
    const size_t marker = std::string("<tool_call>").size();
    ToolCallStream two(ToolCallForm::kHermes, "x");
    two.push(call + "\n" + call.substr(0, size), true);
    EXPECT_EQ(two.ends_with_calls(), size < marker || size >= closed) << call.substr(0, size);
  }
}

}  // namespace
}  // namespace loralei
