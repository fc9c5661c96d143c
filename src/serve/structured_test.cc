// SPDX-License-Identifier: Apache-2.0
// Response formats and tools, from the request's field to the engine's grammar and
// back out of the text.
#include <gtest/gtest.h>

#include <map>

#include "base/fixed_byte_budget.h"
#include "serve/server_test_util.h"

namespace loralei {
namespace {

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}}])";

class ToolTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    auto shown = ChatTemplate::parse(
        "{% if tools %}Tools: {{ tools | tojson }} answer in <tool_call></tool_call>\n{% endif %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ");
    ASSERT_TRUE(shown.ok()) << shown.error().message;
    text = TextModel::make(tokenizer, *shown, "base").value();
    engine.script = [this](const Submit&, int) {
      return ids(
          "Sure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": "
          "\"f\", \"arguments\": {\"x\": 2}}\n</tool_call>");
    };
  }
};

TEST_F(ToolTest, CallsComeBackWhole) {
  start();
  const HttpResponse answer = post("/v1/chat/completions", chat(kTools));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const BodyJson choice = BodyJson::parse(answer.body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Sure.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u) << choice.dump();
  const BodyJson& calls = choice["message"]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["name"], "f");
  EXPECT_EQ(BodyJson::parse(calls[0]["function"]["arguments"].get<std::string>()), BodyJson::parse(R"({"x":1})"));
  EXPECT_EQ(BodyJson::parse(calls[1]["function"]["arguments"].get<std::string>()), BodyJson::parse(R"({"x":2})"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  const Submit submit = engine.wait_submit(0);
  EXPECT_TRUE(submit.sampling.grammar && submit.sampling.vocab_trie);
  EXPECT_NE(tokenizer->decode(submit.prompt).find("\"name\": \"f\""), std::string::npos);
}

TEST_F(ToolTest, CallsStream) {
  start();
  std::vector<std::string> names, arguments(2);
  std::string content, reason;
  for (const std::string& event : events("/v1/chat/completions", chat(std::string(kTools) + R"(,"stream":true)"))) {
    if (event == "[DONE]") continue;
    const BodyJson choice = BodyJson::parse(event)["choices"][0];
    if (choice["delta"].contains("content")) content += choice["delta"]["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
    if (!choice["delta"].contains("tool_calls")) continue;
    for (const BodyJson& call : choice["delta"]["tool_calls"]) {
      if (call.contains("id")) names.push_back(call["function"]["name"]);
      arguments.at(call["index"]) += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(content, "Sure.");
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(names, (std::vector<std::string>{"f", "f"}));
  EXPECT_EQ(BodyJson::parse(arguments[0]), BodyJson::parse(R"({"x":1})"));
  EXPECT_EQ(BodyJson::parse(arguments[1]), BodyJson::parse(R"({"x":2})"));
}

// What clients need who read the first entry of a chunk alone, or merge entries
// of one index badly: whatever the tokens' cuts are, also where a whole call, or
// two, come at once.
TEST_F(ToolTest, AChunkHasOneEntryOfACall) {
  const std::string calls =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
      "<tool_call>\n{\"arguments\": {\"x\": 2}, \"name\": \"f\"}\n</tool_call>";
  engine.script = [&](const Submit&, int) { return ids("Sure.\n" + calls); };
  start();
  // With a stop string that nearly comes, all of the text waits for the end.
  for (const std::string& more : {std::string(), ",\"stop\":" + BodyJson("Sure.\n" + calls + "!").dump()}) {
    std::map<int, BodyJson> joined;
    const std::string body = chat(std::string(kTools) + R"(,"stream":true)" + more);
    for (const std::string& event : events("/v1/chat/completions", body)) {
      if (event == "[DONE]") continue;
      const BodyJson delta = BodyJson::parse(event)["choices"][0]["delta"];
      if (!delta.contains("tool_calls")) continue;
      ASSERT_EQ(delta["tool_calls"].size(), 1u) << event;
      const BodyJson& entry = delta["tool_calls"][0];
      const auto [call, first] = joined.try_emplace(entry["index"].get<int>(), entry);
      EXPECT_EQ(entry.contains("id") && entry.contains("type") && entry["function"].contains("name"), first) << event;
      if (first) continue;
      auto& arguments = call->second["function"]["arguments"].get_ref<std::string&>();
      arguments += entry["function"]["arguments"].get<std::string>();
    }
    ASSERT_EQ(joined.size(), 2u);
    EXPECT_EQ(joined[0]["function"]["arguments"], "{\"x\": 1}");
    EXPECT_EQ(joined[1]["function"]["arguments"], "{\"x\": 2}");
  }
}

// The model ran into a stop string, not to the end of its call: as where it
// runs into the limit.
TEST_F(ToolTest, AStopStringInsideACallIsNoEndOfCalls) {
  const std::string done = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
  const std::string second = "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 22, \"STOP\": 3}}\n</tool_call>";
  start();
  struct Case {
    std::string text, stop, reason;
    size_t calls;
  };
  const Case cases[] = {{second, "STOP", "stop", 1},        {second, "22", "stop", 1},
                        {second, "\"name", "stop", 0},      {done + second, "STOP", "stop", 2},
                        {done + second, "2", "stop", 2},    {done, "</tool_call>", "tool_calls", 1},
                        {done, "nowhere", "tool_calls", 1}, {done + "STOP", "STOP", "tool_calls", 1}};
  for (const Case& one : cases) {
    engine.script = [&](const Submit&, int) { return ids(one.text); };
    const std::string body = chat(std::string(kTools) + ",\"stop\":" + BodyJson(one.stop).dump());
    const BodyJson whole = BodyJson::parse(post("/v1/chat/completions", body).body)["choices"][0];
    EXPECT_EQ(whole["finish_reason"], one.reason) << one.stop;
    const size_t calls = whole["message"].contains("tool_calls") ? whole["message"]["tool_calls"].size() : 0;
    EXPECT_EQ(calls, one.calls) << whole.dump();
    BodyJson reason;
    std::string streamed;
    for (const std::string& event :
         events("/v1/chat/completions", body.substr(0, body.size() - 1) + R"(,"stream":true})")) {
      if (event == "[DONE]") continue;
      const BodyJson choice = BodyJson::parse(event)["choices"][0];
      if (!choice["finish_reason"].is_null()) reason = choice;
      if (!choice["delta"].contains("tool_calls")) continue;
      for (const BodyJson& call : choice["delta"]["tool_calls"])
        streamed += call["function"]["arguments"].get<std::string>();
    }
    EXPECT_EQ(reason["finish_reason"], one.reason) << one.stop;
    EXPECT_EQ(reason["stop_reason"], whole["stop_reason"]);
    std::string joined;
    for (size_t i = 0; i < calls; ++i)
      joined += whole["message"]["tool_calls"][i]["function"]["arguments"].get<std::string>();
    EXPECT_EQ(streamed, joined) << one.stop;
  }
}

// Their tokens' log-probabilities go beside the content's, and so does the end's.
TEST_F(ToolTest, EveryTokenOfACallHasItsLogprobs) {
  start();
  const std::string body = chat(std::string(kTools) + R"(,"logprobs":true,"include_stop_str_in_output":true)");
  const BodyJson whole = BodyJson::parse(post("/v1/chat/completions", body).body);
  const BodyJson& entries = whole["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "Sure.");  // the end is no text, even where it is asked for
  EXPECT_EQ(entries.size(), whole["usage"]["completion_tokens"]);
  BodyJson streamed = BodyJson::array();
  for (const std::string& event :
       events("/v1/chat/completions", body.substr(0, body.size() - 1) + R"(,"stream":true})")) {
    if (event == "[DONE]") continue;
    const BodyJson logprobs = BodyJson::parse(event)["choices"][0]["logprobs"];
    if (!logprobs.is_object()) continue;
    for (const BodyJson& entry : logprobs["content"]) streamed.push_back(entry);
  }
  EXPECT_EQ(streamed, entries);
}

TEST_F(ToolTest, MistralsCallsHaveIdsThatItsTemplateTakes) {
  auto shown = ChatTemplate::parse("{% if tools %}[AVAILABLE_TOOLS]{{ tools }}{% endif %}{# [TOOL_CALLS] #}[INST]");
  text = TextModel::make(tokenizer, *shown, "base").value();
  engine.script = [this](const Submit&, int) {
    return ids("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"f\", \"arguments\": {}}]");
  };
  start();
  const HttpResponse answer = post("/v1/chat/completions", chat(kTools));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const BodyJson choice = BodyJson::parse(answer.body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const BodyJson& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u) << choice.dump();
  EXPECT_EQ(calls[0]["function"]["arguments"], "{\"x\": 1}");
  EXPECT_EQ(calls[0]["id"].get<std::string>().size(), 9u);
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST_F(ToolTest, AFormThatIsNotKnownIsRefused) {
  text = TextModel::make(tokenizer, ChatTemplate::parse("{{ tools }}<|tool_call_start|>").value(), "base").value();
  start();
  const HttpResponse answer = post("/v1/chat/completions", chat(kTools));
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(error_of(answer, "message").find("in a form that is not known"), std::string::npos) << answer.body;
}

TEST_F(ToolTest, ATemplateOfSingleCallsGetsNoMore) {
  text =
      TextModel::make(
          tokenizer, ChatTemplate::parse("{{ tools }}<tool_call>{# only supports single tool-calls #}").value(), "base")
          .value();
  start();
  EXPECT_EQ(post("/v1/chat/completions", chat(kTools)).status, 200);
  const Submit submit = engine.wait_submit(0);
  GrammarState state(submit.sampling.grammar, submit.sampling.vocab_trie);
  ASSERT_TRUE(state.advance_bytes("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"));
  EXPECT_TRUE(state.complete());
}

TEST_F(ToolTest, ChoiceNoneHidesTheTools) {
  start();
  const BodyJson json =
      BodyJson::parse(post("/v1/chat/completions", chat(std::string(kTools) + R"(,"tool_choice":"none")")).body);
  EXPECT_NE(json["choices"][0]["message"]["content"].get<std::string>().find("<tool_call>"), std::string::npos);
  const Submit submit = engine.wait_submit(0);
  EXPECT_FALSE(submit.sampling.grammar);
  EXPECT_EQ(tokenizer->decode(submit.prompt).find("Tools:"), std::string::npos);
}

TEST_F(ToolTest, DocumentsReachATemplateThatShowsThemAndNoOther) {
  start();
  const std::string body = chat(R"("documents":[{"title":"Lamps","text":"Red ones."}])");
  for (const char* path : {"/v1/chat/completions", "/tokenize"}) {
    const HttpResponse refused = post(path, body);
    EXPECT_EQ(refused.status, 400) << path;
    EXPECT_NE(error_of(refused, "message").find("shows no documents"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(error_of(post("/v1/chat/completions", body), "param"), "documents");
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("documents":[])")).status, 200);
}

TEST_F(ToolTest, DocumentsAndFieldsOfMessagesAreShown) {
  text = TextModel::make(
             tokenizer,
             ChatTemplate::parse("{% for d in documents %}{{ d.title }}: {{ d.text }} {% endfor %}"
                                 "{% for m in messages %}{{ m.role }} {{ m.thinking }} {{ m.content }} {% endfor %}")
                 .value(),
             "base")
             .value();
  start();
  ASSERT_EQ(post("/v1/chat/completions", R"({"documents":[{"title":"Lamps","text":"Red ones."}],"messages":[
      {"role":"developer","content":"d"},{"role":"assistant","content":"a","thinking":"hm","mood":"good","refusal":null},
      {"role":"user","content":"b","mood":"bad"}]})")
                .status,
            200);
  EXPECT_EQ(tokenizer->decode(engine.wait_submit(0).prompt), "Lamps: Red ones. system  d assistant hm a user  b ");
  EXPECT_TRUE(logs("the unknown field 'messages[].mood'")) << log.text();
  EXPECT_EQ(log.text().find("thinking"), std::string::npos) << log.text();
  EXPECT_EQ(log.text().find("refusal"), std::string::npos) << log.text();
}

TEST_F(ToolTest, WhatCannotBeIsRefused) {
  start();
  EXPECT_EQ(
      post("/v1/chat/completions", chat(std::string(kTools) + R"(,"response_format":{"type":"json_object"})")).status,
      400);
  const HttpResponse schema = post(
      "/v1/chat/completions",
      chat(
          R"("tools":[{"function":{"name":"g","parameters":{"type":"object","properties":{"x":{"type":"colour"}}}}}])"));
  EXPECT_EQ(schema.status, 400);
  EXPECT_EQ(error_of(schema, "param"), "tools");
}

// One of them in a tool of twenty must not refuse the whole request; what is
// told is told once.
TEST_F(ToolTest, WhatNoGrammarExpressesIsLeftOpenUnlessStrict) {
  start();
  const std::pair<const char*, const char*> schemas[] = {
      {R"({"type":"array","items":{"type":"number"},"uniqueItems":true})", "'uniqueItems' at #/properties/x"},
      {R"({"type":"object","minProperties":2})", "'minProperties' at #/properties/x"},
      {R"({"type":"object","patternProperties":{"^a":{"type":"string"}}})", "'patternProperties' at #/properties/x"},
      {R"({"type":"object","properties":{"y":{}},"if":{"required":["y"]},"then":{}})", "'if' at #/properties/x"},
      {R"({"type":"string","pattern":"\\bfoo\\b"})", "'pattern' at #/properties/x"},
      {R"({"type":"string","pattern":"^\\p{L}+$"})", "'pattern' at #/properties/x"},
      {R"({"type":"object","dependentRequired":{"a":["b"]}})", "'dependentRequired' at #/properties/x"},
      {R"({"not":{"type":"string"}})", "'not' at #/properties/x"},
      {R"({"type":"array","contains":{"const":1}})", "'contains' at #/properties/x"},
      {R"({"type":"integer","multipleOf":977})", "'multipleOf' at #/properties/x"},
      {R"({"type":"integer","maximum":9223372036854775807})", "'maximum' at #/properties/x"},
      {R"({"$ref":"other.json#/a"})", "'$ref' at #/properties/x"},
      {R"({"oneOf":[{"minimum":1},{"maximum":9}]})", "'oneOf' at #/properties/x"}};
  for (const auto& [schema, told] : schemas) {
    const auto tools = [&, &schema = schema](const char* strict) {
      return chat(
          R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g")" +
          std::string(strict) + R"(,"parameters":{"type":"object","properties":{"x":)" + std::string(schema) + "}}}}]");
    };
    const std::string line = std::string("schema left open param=tools places=");
    const size_t before = log.text().size();
    EXPECT_EQ(post("/v1/chat/completions", tools("")).status, 200) << schema;
    EXPECT_EQ(post("/v1/chat/completions", tools(R"(,"strict":false)")).status, 200) << schema;
    const std::string all = log.text();
    const size_t first = all.find(line, before);
    ASSERT_NE(first, std::string::npos) << schema << "\n" << all.substr(before);
    EXPECT_NE(all.find(std::string("the parameters of the tool 'g': answers are not held to "), first),
              std::string::npos);
    EXPECT_NE(all.find(told, first), std::string::npos) << told << "\n" << all.substr(before);
    EXPECT_EQ(all.find(line, first + 1), std::string::npos) << "told twice: " << schema;
    const HttpResponse refused = post("/v1/chat/completions", tools(R"(,"strict":true)"));
    EXPECT_EQ(refused.status, 400) << schema;
    EXPECT_EQ(error_of(refused, "param"), "tools");
  }
}

TEST_F(ApiTest, AResponseFormatIsHeldToWhatIsStrict) {
  start();
  const std::string schema = R"({"type":"array","items":{"type":"number"},"uniqueItems":true})";
  const auto format = [&](const std::string& strict) {
    return chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n")" + strict + R"(,"schema":)" +
                schema + "}}");
  };
  EXPECT_EQ(post("/v1/chat/completions", format("")).status, 200);
  EXPECT_TRUE(logs("'uniqueItems' at #"));
  EXPECT_EQ(post("/v1/chat/completions", format(R"(,"strict":null)")).status, 200);
  EXPECT_EQ(post("/v1/chat/completions", format(R"(,"strict":false)")).status, 200);
  EXPECT_EQ(post("/v1/chat/completions", format(R"(,"strict":true)")).status, 400);
  EXPECT_EQ(post("/v1/chat/completions", format(R"(,"strict":"yes")")).status, 400);
  for (const std::string& field :
       {R"("guided_json":)" + schema, R"("json_schema":)" + schema, R"("structured_outputs":{"json":)" + schema + "}",
        R"("response_format":{"type":"json_object","schema":)" + schema + "}"}) {
    EXPECT_EQ(post("/v1/chat/completions", chat(field)).status, 400) << field;
  }
  // Only here a oneOf whose branches overlap is anyOf, without a word.
  const std::string overlapping = R"({"oneOf":[{"minimum":1},{"maximum":9}]})";
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("guided_json":)" + overlapping)).status, 200);
}

TEST_F(ApiTest, ResponseFormatsBecomeGrammars) {
  start();
  for (
      const char* field :
      {R"("response_format":{"type":"json_object"})", R"("guided_regex":"[a-z]+")", R"("guided_choice":["a","b"])",
       R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"a":{"type":"string"}}}}})"}) {
    EXPECT_EQ(post("/v1/chat/completions", chat(field)).status, 200) << field;
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(engine.wait_submit(i).sampling.grammar) << i;
  const HttpResponse bad = post("/v1/completions", R"({"prompt":"x","guided_json":{"type":"colour"}})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(error_of(bad, "param"), "guided_json");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","guided_regex":"("})").status, 400);
}

// Schemas of a hundred bytes whose grammars take megabytes: what is kept of them is
// bounded in bytes, not in number.
TEST(GrammarCache, KeepsABoundedNumberOfBytes) {
  for (const int64_t memory : {int64_t{4} << 30, 512 * kMiB}) {
    CollectingLog log;
    GrammarCache cache(std::make_shared<FixedByteBudget>(memory), log);
    StructuredOutput output;
    output.format = OutputFormat::kJsonSchema;
    for (int i = 0; i < 20; ++i) {
      output.schema = R"({"type": "string", "maxLength": )" + std::to_string(200'000 + i) + "}";
      auto program = cache.of_output(output);
      ASSERT_TRUE(program.ok()) << program.error().message;
      EXPECT_GT((*program)->bytes(), 4 * kMiB);
      EXPECT_GT(cache.bytes_kept(), 0);
      EXPECT_LE(cache.bytes_kept(), std::min(kGrammarBytesKept, memory / 16));
      const int64_t kept = cache.bytes_kept();
      EXPECT_EQ(*cache.of_output(output), *program);  // the latest is always there
      EXPECT_EQ(cache.bytes_kept(), kept);
    }
  }
}

// However many requests hold one of their own, and for as long as they do; compiling one
// takes its share as well.
TEST(GrammarCache, WhatRequestsHoldIsGranted) {
  const auto memory = std::make_shared<FixedByteBudget>(192 * kMiB);
  CollectingLog log;
  auto cache = std::make_unique<GrammarCache>(memory, log);
  StructuredOutput output;
  output.format = OutputFormat::kJsonSchema;
  output.param = "response_format";
  const auto compile = [&](int i) {
    output.schema = R"({"type": "string", "maxLength": )" + std::to_string(200'000 + i) + "}";
    return cache->of_output(output);
  };
  std::vector<GrammarPtr> held;
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 30);
    auto program = compile(i);
    if (program.ok()) {
      held.push_back(*program);
      int64_t bytes = 0;
      for (const GrammarPtr& one : held) bytes += one->bytes();
      EXPECT_GE(memory->taken_bytes(), bytes);
      continue;
    }
    EXPECT_EQ(program.error().status, 429);
    EXPECT_EQ(program.error().param, "response_format");
    EXPECT_NE(program.error().message.find("192.0 MiB"), std::string::npos) << program.error().message;
    break;
  }
  ASSERT_FALSE(held.empty());
  held.clear();
  EXPECT_TRUE(compile(20).ok()) << "the room of those that have ended is free";
  output.schema = R"({"type": "string", "maxLength": 480000})";
  const auto largest = cache->of_output(output);
  EXPECT_TRUE(largest.ok()) << largest.error().message;
  ByteShare others(memory);
  ASSERT_TRUE(others.grow_to(128 * kMiB));
  output.schema = R"({"type": "string", "maxLength": 480001})";
  EXPECT_EQ(cache->of_output(output).error().status, 429);
  others.release();
  const auto small = std::make_shared<FixedByteBudget>(48 * kMiB);
  const auto never = GrammarCache(small, log).of_output(output);
  ASSERT_FALSE(never.ok());
  EXPECT_EQ(never.error().status, 400) << never.error().message;
  EXPECT_EQ(small->taken_bytes(), 0);
  held.clear();
  for (int i = 30; i < 40; ++i) EXPECT_TRUE(compile(i).ok()) << "what nobody uses makes room";
  const GrammarPtr last = *compile(39);
  cache.reset();
  EXPECT_GT(last->state_count(), 0u);
}

}  // namespace
}  // namespace loralei
