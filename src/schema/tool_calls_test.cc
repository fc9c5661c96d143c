// SPDX-License-Identifier: Apache-2.0
#include "schema/tool_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>

namespace loralei {
namespace {

using Kind = ToolCallEvent::Kind;

// "content|[0 name]{arguments}" ...: events in one line, pieces joined.
std::string shown(const std::vector<ToolCallEvent>& events) {
  std::string out;
  const ToolCallEvent* last = nullptr;
  for (const ToolCallEvent& event : events) {
    const bool joins = last != nullptr && last->kind == event.kind;
    switch (event.kind) {
      case Kind::kContent:
        out += (joins ? "" : "c:") + event.text;
        break;
      case Kind::kCallBegin:
        out += "[" + std::to_string(event.index) + " " + event.text + "]";
        break;
      case Kind::kArguments:
        out += event.text;
        break;
      case Kind::kCallEnd:
        out += "/" + std::to_string(event.index) + ";";
        break;
    }
    last = &event;
  }
  return out;
}

// At every single cut, byte by byte, and at random cuts: always the same.
std::string parse(ToolCallForm form, const std::string& text) {
  const auto run = [&](const std::vector<size_t>& cuts) {
    ToolCallParser parser(form);
    std::vector<ToolCallEvent> events;
    size_t begin = 0;
    for (const size_t cut : cuts) {
      for (ToolCallEvent& event : parser.push(std::string_view(text).substr(begin, cut - begin)))
        events.push_back(std::move(event));
      begin = cut;
    }
    for (ToolCallEvent& event : parser.push(std::string_view(text).substr(begin))) events.push_back(std::move(event));
    for (ToolCallEvent& event : parser.finish()) events.push_back(std::move(event));
    return shown(events);
  };
  const std::string whole = run({});
  std::vector<size_t> every;
  for (size_t i = 1; i < text.size(); ++i) {
    EXPECT_EQ(run({i}), whole) << "cut at " << i;
    every.push_back(i);
  }
  EXPECT_EQ(run(every), whole);
  return whole;
}

TEST(ToolCallParser, Hermes) {
  const auto hermes = [](const std::string& text) { return parse(ToolCallForm::kHermes, text); };
  EXPECT_EQ(hermes("Just text, a < b <tool_cal"), "c:Just text, a < b <tool_cal");
  EXPECT_EQ(hermes("  two \n"), "c:  two \n");
  EXPECT_EQ(hermes(""), "");
  EXPECT_EQ(hermes("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}{\\\"\", \"b\": [1, {}]}}\n</tool_call>"),
            "[0 f]{\"a\": \"}{\\\"\", \"b\": [1, {}]}/0;");
  EXPECT_EQ(hermes("Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                   "{}}\n</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":{}}</tool_call>\n"),
            "c:Let me see.[0 f]{}/0;[1 g]{}/1;");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> and then"), "[0 f]{}/0;c: and then");
  EXPECT_EQ(hermes("<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call>"), "[0 f]{\"x\": 1}/0;");
  EXPECT_EQ(hermes("<tool_call>no json</tool_call>!"), "c:no json!");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"), "[0 f]{\"a\": 1/0;");
  EXPECT_EQ(hermes("<tool_call>{\"na"), "c:{\"na");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}} oops"), "[0 f]{}/0;c:oops");
}

TEST(ToolCallParser, Llama3) {
  const auto llama = [](const std::string& text) { return parse(ToolCallForm::kLlama3, text); };
  EXPECT_EQ(llama("Plain {text}"), "c:Plain {text}");
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": {\"a\": 1}}"), "[0 f]{\"a\": 1}/0;");
  EXPECT_EQ(llama("<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}"),
            "[0 f]{\"a\": 1}/0;[1 g]{}/1;");
  EXPECT_EQ(llama("{\"answer\": 42}"), "c:{\"answer\": 42}");
  EXPECT_EQ(llama("{\"name\": 3}"), "c:{\"name\": 3}");
  EXPECT_EQ(llama("\n{\"name\": \"f\", \"parameters\": {}}\n"), "[0 f]{}/0;");
  EXPECT_EQ(llama("<|python"), "c:<|python");
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": {}}\n</s>"), "[0 f]{}/0;c:\n</s>");
}

TEST(ToolCallParser, Mistral) {
  const auto mistral = [](const std::string& text) { return parse(ToolCallForm::kMistral, text); };
  EXPECT_EQ(mistral("Just text [TOOL_CAL"), "c:Just text [TOOL_CAL");
  EXPECT_EQ(mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]}\"}}]"), "[0 f]{\"a\": \"]}\"}/0;");
  EXPECT_EQ(mistral("So. [TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{}}, {\"name\": \"g\", \"arguments\": {}}] \n"),
            "c:So.[0 f]{}/0;[1 g]{}/1;");
  EXPECT_EQ(mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}] and"), "[0 f]{}/0;c: and");
  EXPECT_EQ(mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1"), "[0 f]{\"a\": 1/0;");
  EXPECT_EQ(mistral("[TOOL_CALLS][1]"), "c:[1]");
  EXPECT_EQ(mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 2]"), "[0 f]{}/0;c:, 2]");
}

// The object of a call, in every form: any order, any white space, other members beside.
TEST(ToolCallParser, ObjectsAreReadHoweverTheyAreWritten) {
  struct Written {
    const char* object;
    const char* events;
  };
  const Written cases[] = {
      {R"({"name":"f","arguments":{"a":1}})", R"([0 f]{"a":1}/0;)"},
      {" {\n\t\"name\" \r\n:\t\"f\" , \"arguments\"\n: {\"a\" : 1 } \n } ", R"([0 f]{"a" : 1 }/0;)"},
      {R"({"arguments": {"a": "}"}, "name": "f"})", R"([0 f]{"a": "}"}/0;)"},
      {"{ \"parameters\" :\n{\"name\": {\"name\": 3}} , \"name\" : \"f\" }", R"([0 f]{"name": {"name": 3}}/0;)"},
      {R"({"type": "function", "name": "f", "arguments": {}, "id": [1, {"x": "]"}], "n": -1.5e3})", "[0 f]{}/0;"},
      {R"({"id": 12 , "ok": true, "no":null, "arguments": {"a": []}, "x": "\\\"", "name": "f"})",
       R"([0 f]{"a": []}/0;)"},
      {R"({"name": "\u0066\"", "arguments": {}})", R"([0 f"]{}/0;)"},
      {R"({"name": "f", "name": "g", "arguments": {"a": 1}, "arguments": {"a": 2}})", R"([0 f]{"a": 1}/0;)"}};
  for (const Written& one : cases) {
    const std::string object = one.object;
    EXPECT_EQ(parse(ToolCallForm::kHermes, "<tool_call>" + object + "</tool_call>"), one.events) << object;
    EXPECT_EQ(parse(ToolCallForm::kLlama3, object), one.events) << object;
    EXPECT_EQ(parse(ToolCallForm::kMistral, "[TOOL_CALLS] [" + object + " ]\n"), one.events) << object;
  }
}

TEST(ToolCallParser, WhatIsNoCallIsContent) {
  for (const std::string object :
       {R"({"arguments": {"a": 1}})", R"({"arguments": {"a": 1}, "name": 3})", R"({"name": "f", "arguments": [1]})",
        R"({"name" "f"})", R"({"name": "f", "arguments": "{}"})", R"({name: "f"})", "{}", R"({"a": 1 2})",
        R"({"a": nul:l})", R"([{"name": "f"}])", R"({"name": "\x", "arguments": {}})"}) {
    EXPECT_EQ(parse(ToolCallForm::kHermes, "<tool_call>" + object + "</tool_call>"), "c:" + object);
    EXPECT_EQ(parse(ToolCallForm::kLlama3, object), "c:" + object);
    EXPECT_EQ(parse(ToolCallForm::kMistral, "[TOOL_CALLS][" + object + "]"), "c:[" + object + "]");
  }
}

TEST(ToolCallParser, IdsAreWhatTheFormsTemplatesTake) {
  EXPECT_EQ(tool_call_id(ToolCallForm::kHermes, "x_0_1"), "call_x_0_1");
  const std::string id = tool_call_id(ToolCallForm::kMistral, "x_0_1");
  EXPECT_EQ(id.size(), 9u);
  EXPECT_TRUE(std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0; })) << id;
  EXPECT_NE(id, tool_call_id(ToolCallForm::kMistral, "x_0_2"));
}

std::shared_ptr<const VocabTrie> vocabulary() {
  std::vector<GrammarToken> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({byte, std::string(1, static_cast<char>(byte)), GrammarToken::Kind::kText});
  tokens.push_back({256, "<tool_call>", GrammarToken::Kind::kSpecial});
  tokens.push_back({257, "<|python_tag|>", GrammarToken::Kind::kSpecial});
  tokens.push_back({258, "", GrammarToken::Kind::kEnd});
  tokens.push_back({259, "[TOOL_CALLS]", GrammarToken::Kind::kSpecial});
  return VocabTrie::build(std::move(tokens), 260).value();
}

const std::vector<Tool> kTools = {
    {"get_weather", R"({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})"},
    {"now", ""}};

std::string verdict(ToolCallForm form, const ToolChoice& choice, std::string_view text) {
  const auto program = compile_tool_grammar(form, kTools, choice);
  if (!program.ok()) return program.error().message;
  GrammarState state(program.value(), vocabulary());
  for (size_t i = 0; i < text.size(); ++i) {
    if (!state.advance(static_cast<uint8_t>(text[i]))) return "refused at " + std::to_string(i);
  }
  return state.complete() ? "complete" : state.accepting() ? "may end" : "goes on";
}

TEST(ToolGrammar, Hermes) {
  const std::string call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>";
  ToolChoice choice;
  const auto says = [&](const std::string& text) { return verdict(ToolCallForm::kHermes, choice, text); };
  EXPECT_EQ(says(""), "may end");
  EXPECT_EQ(says("No need, a<b."), "may end");
  EXPECT_EQ(says("So: " + call), "may end");
  EXPECT_EQ(says(call + "\n" + call), "may end");
  EXPECT_EQ(says("<tool_call>x"), "refused at 11");
  EXPECT_EQ(says("<tool_call>\n{\"name\": \"nope"), "refused at 24");
  EXPECT_EQ(says("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}"), "refused at 50");
  choice.parallel = false;
  EXPECT_EQ(says(call), "complete");
  EXPECT_EQ(says(call + "\n"), "refused at " + std::to_string(call.size()));
  choice.mode = ToolChoiceMode::kRequired;
  EXPECT_EQ(says("No"), "refused at 0");
  EXPECT_EQ(says(""), "goes on");
  EXPECT_EQ(says(call), "complete");
  choice.parallel = true;
  EXPECT_EQ(says(call), "may end");
  EXPECT_EQ(says(call + "\n" + call), "may end");
  choice = {ToolChoiceMode::kNamed, "now", true};
  EXPECT_EQ(says(call), "refused at 22");
  EXPECT_EQ(says("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"), "may end");
  EXPECT_EQ(says("<tool_call>\n{\"name\": \"now\", \"arguments\": {\"any"), "refused at 42");
  choice.name = "then";
  EXPECT_NE(says("").find("'then', which is none of the tools"), std::string::npos);
}

TEST(ToolGrammar, Llama3) {
  const std::string call = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Ulm\"}}";
  ToolChoice choice;
  const auto says = [&](const std::string& text) { return verdict(ToolCallForm::kLlama3, choice, text); };
  EXPECT_EQ(says("Hello {"), "may end");
  EXPECT_EQ(says(""), "may end");
  EXPECT_EQ(says("<b>"), "may end");
  EXPECT_EQ(says(call + "; " + call), "may end");
  EXPECT_EQ(says("<|python_tag|>" + call), "may end");
  EXPECT_EQ(says("{\"city\""), "refused at 2");
  choice = {ToolChoiceMode::kRequired, "", false};
  EXPECT_EQ(says(call), "complete");
  EXPECT_EQ(says("Hello"), "refused at 0");
}

TEST(ToolGrammar, Mistral) {
  const std::string call = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\"}}";
  ToolChoice choice;
  const auto says = [&](const std::string& text) { return verdict(ToolCallForm::kMistral, choice, text); };
  EXPECT_EQ(says("Hello [{"), "may end");
  EXPECT_EQ(says("[TOOL_CALLS][" + call + "]"), "complete");
  EXPECT_EQ(says("[TOOL_CALLS] [" + call + ", " + call + "]"), "complete");
  EXPECT_EQ(says("[TOOL_CALLS]x"), "refused at 12");
  choice = {ToolChoiceMode::kRequired, "", false};
  EXPECT_EQ(says("Hello"), "refused at 0");
  EXPECT_EQ(says("[TOOL_CALLS][" + call + "]"), "complete");
  EXPECT_EQ(says("[TOOL_CALLS][" + call + ","), "refused at " + std::to_string(13 + call.size()));
}

// Where the model chooses to call, it may write the call as JSON allows; where it must,
// the name chooses what follows.
TEST(ToolGrammar, AChosenCallMayHaveAnyOrderAndWhiteSpace) {
  struct Form {
    ToolCallForm form;
    std::string key, open, close;
  };
  const Form forms[] = {{ToolCallForm::kHermes, "arguments", "<tool_call>", "</tool_call>"},
                        {ToolCallForm::kLlama3, "parameters", "", ""},
                        {ToolCallForm::kMistral, "arguments", "[TOOL_CALLS][", "]"}};
  for (const Form& one : forms) {
    const auto refused = [&](const std::string& object, const ToolChoice& choice) {
      return verdict(one.form, choice, one.open + object + one.close).substr(0, 7) == "refused";
    };
    const std::string city = R"({"city": "Ulm"})", weather = R"("get_weather")", key = "\"" + one.key + "\"";
    const std::string good[] = {
        "{\"name\":" + weather + "," + key + ":" + city + "}",
        "\n{\n  \"name\" : " + weather + ",\r\n\t" + key + "\t:\n" + city + "\n}\n",
        "{" + key + ": " + city + ", \"name\": " + weather + "}",
        " { " + key + " :\n  " + city + "\n, \"name\" :" + weather + " } ",
        "{" + key + ": {}, \"name\": \"now\"}",
    };
    for (const std::string& object : good) {
      EXPECT_EQ(verdict(one.form, {}, one.open + object + one.close).substr(0, 3),
                one.form == ToolCallForm::kMistral ? "com" : "may")
          << object;
      EXPECT_TRUE(refused(object, {ToolChoiceMode::kRequired, "", true})) << object;
    }
    const std::string bad[] = {
        "{" + key + ": {}, \"name\": " + weather + "}",                       // without what it requires
        "{" + key + ": " + city + ", \"name\": \"now\"}",                     // another tool's
        "{" + key + ": " + city + "}",                                        // of nobody
        "{\"name\": " + weather + "}",                                        //
        "{\"name\": \"now\", \"name\": \"now\"}",                             //
        "{" + std::string(500, ' ') + "\"name\": \"now\", " + key + ": {}}",  // without end
    };
    for (const std::string& object : bad) EXPECT_TRUE(refused(object, {})) << object;
  }
}

// Each tool's schema is met twice, by the name before and behind it, and
// is compiled once.
TEST(ToolGrammar, BothOrdersDoNotDoubleAGrammar) {
  std::vector<Tool> tools;
  for (int i = 0; i < 20; ++i) {
    tools.push_back(
        {"tool" + std::to_string(i), R"({"type": "object", "properties": {"x": {"type": "string", "maxLength": )" +
                                         std::to_string(2000 + i) + "}}}"});
  }
  const auto states = [&](ToolChoiceMode mode) {
    return static_cast<double>(
        compile_tool_grammar(ToolCallForm::kHermes, tools, {mode, "", true}).value()->state_count());
  };
  EXPECT_LT(states(ToolChoiceMode::kAuto), 1.1 * states(ToolChoiceMode::kRequired));
}

// As many tools as a request may have, all alike until the name comes last.
TEST(ToolGrammar, ManyToolsStayApartBehindTheirArguments) {
  std::vector<Tool> tools;
  for (int i = 0; i < kMaxTools; ++i) {
    tools.push_back({"tool" + std::to_string(i),
                     R"({"type": "object", "properties": {"text": {"type": "string"}, "x": {"const": )" +
                         std::to_string(i) + R"(}}, "required": ["text", "x"]})"});
  }
  GrammarState state(compile_tool_grammar(ToolCallForm::kHermes, tools, {}).value(), vocabulary());
  ASSERT_TRUE(
      state.advance_bytes("<tool_call>\n{\"arguments\": {\"text\": \"some words\", \"x\": 77}, \"name\": \"tool"));
  EXPECT_FALSE(state.allows('8'));
  EXPECT_TRUE(state.advance_bytes("77\"}\n</tool_call>"));
  EXPECT_TRUE(state.accepting());
}

TEST(ToolGrammar, MarkersMayBeSpecialTokens) {
  for (const ToolChoiceMode mode : {ToolChoiceMode::kAuto, ToolChoiceMode::kRequired}) {
    ToolChoice choice;
    choice.mode = mode;
    GrammarState hermes(compile_tool_grammar(ToolCallForm::kHermes, kTools, choice).value(), vocabulary());
    EXPECT_TRUE(hermes.advance(256));
    EXPECT_FALSE(hermes.allows(256));
    EXPECT_TRUE(hermes.advance_bytes("\n{\"name\": \"now\", \"arguments\": {"));
    EXPECT_FALSE(hermes.allows(256));
    GrammarState llama(compile_tool_grammar(ToolCallForm::kLlama3, kTools, choice).value(), vocabulary());
    EXPECT_TRUE(llama.advance(257));
    EXPECT_FALSE(llama.allows(257));
    EXPECT_TRUE(llama.allows('{'));
    GrammarState mistral(compile_tool_grammar(ToolCallForm::kMistral, kTools, choice).value(), vocabulary());
    EXPECT_TRUE(mistral.advance(259));
    EXPECT_FALSE(mistral.allows(259));
    EXPECT_TRUE(mistral.allows('['));
  }
}

TEST(ToolGrammar, ReadsToolsAndNamesWhatIsWrong) {
  const auto tools = read_tools(
      R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])");
  ASSERT_TRUE(tools.ok());
  EXPECT_EQ(tools.value()[0].name, "f");
  EXPECT_EQ(tools.value()[0].parameters, R"({"type":"object"})");
  EXPECT_FALSE(tools.value()[0].strict);
  EXPECT_TRUE(read_tools(R"([{"function": {"name": "f", "strict": true}}])").value()[0].strict);
  const std::pair<const char*, const char*> bad[] = {
      {"{}", "must be a JSON array"},
      {"[1]", "tools[0]"},
      {R"([{"type": "code", "function": {"name": "f"}}])", "type other than"},
      {R"([{"function": {}}])", "needs a 'name'"},
      {R"([{"function": {"name": "a b"}}])", "'a b'"},
      {R"([{"function": {"name": "a", "parameters": {"type": "string"}}}])", "must have the type object"},
      {R"([{"function": {"name": "a"}}, {"function": {"name": "a"}}])", "two tools"}};
  for (const auto& [text, message] : bad) {
    const auto result = read_tools(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  }
  std::vector<Tool> two{{"ok", ""}, {"bad", R"({"type": "object", "minProperties": 2})"}};
  LeftOpen left_open;
  EXPECT_TRUE(compile_tool_grammar(ToolCallForm::kHermes, two, {}, {}, &left_open).ok());
  ASSERT_EQ(left_open.places.size(), 1u);
  EXPECT_EQ(left_open.places[0].schema, "the parameters of the tool 'bad'");
  EXPECT_EQ(left_open.places[0].path + left_open.places[0].keyword, "#minProperties");
  two[1].strict = true;
  const auto grammar = compile_tool_grammar(ToolCallForm::kHermes, two, {});
  ASSERT_FALSE(grammar.ok());
  EXPECT_NE(grammar.error().message.find("tool 'bad'"), std::string::npos) << grammar.error().message;
  EXPECT_NE(grammar.error().message.find("'minProperties'"), std::string::npos) << grammar.error().message;
}

TEST(ToolGrammar, DetectsTheForm) {
  EXPECT_EQ(detect_tool_call_form("{% for t in tools %}<tool_call>\\n"), ToolCallForm::kHermes);
  EXPECT_EQ(detect_tool_call_form("{% if tools %}Respond in the format {\"name\": function name, \"parameters\": "
                                  "dictionary of argument name and its value}."),
            ToolCallForm::kLlama3);
  EXPECT_EQ(detect_tool_call_form("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]["), ToolCallForm::kMistral);
  EXPECT_EQ(detect_tool_call_form("{% if tools %}{% endif %}[TOOL_CALLS]f[ARGS]"), std::nullopt) << "another form";
  EXPECT_EQ(detect_tool_call_form("{{ tools }}<|tool_call_start|>"), std::nullopt) << "a form that is not known";
  EXPECT_EQ(detect_tool_call_form("{{ messages }}"), std::nullopt);
  EXPECT_TRUE(takes_single_calls_only("raise_exception(\"This model only supports single tool-calls at once!\")"));
  EXPECT_FALSE(takes_single_calls_only("<tool_call>"));
}

}  // namespace
}  // namespace loralei
