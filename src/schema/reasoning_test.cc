// SPDX-License-Identifier: Apache-2.0
#include "schema/reasoning.h"

#include <gtest/gtest.h>

#include <random>

#include "schema/tool_calls.h"

namespace loralei {
namespace {

const ReasoningForm kThink = *reasoning_form("think");

// "reasoning|content". At every single cut, byte by byte, and at random cuts:
// always the same.
std::string split(const ReasoningForm& form, ReasoningBegin begin, const std::string& text) {
  const auto run = [&](const std::vector<size_t>& cuts) {
    ReasoningStream stream({form, begin});
    std::string reasoning, content;
    const auto push = [&](std::string_view piece, bool last) {
      const auto out = stream.push(piece, last);
      EXPECT_TRUE(content.empty() || out.reasoning.empty()) << "reasoning behind content";
      reasoning += out.reasoning;
      content += out.content;
    };
    size_t at = 0;
    for (const size_t cut : cuts) {
      push(std::string_view(text).substr(at, cut - at), false);
      at = cut;
    }
    push(std::string_view(text).substr(at), true);
    return reasoning + "|" + content;
  };
  const std::string whole = run({});
  std::vector<size_t> every;
  for (size_t i = 1; i < text.size(); ++i) {
    EXPECT_EQ(run({i}), whole) << "cut at " << i;
    every.push_back(i);
  }
  EXPECT_EQ(run(every), whole);
  EXPECT_EQ(run({text.size()}), whole) << "an empty last piece";
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<size_t> cuts;
    for (const size_t i : every) {
      if (random() % 3 == 0) cuts.push_back(i);
    }
    EXPECT_EQ(run(cuts), whole);
  }
  return whole;
}

TEST(ReasoningStream, TellsReasoningFromContent) {
  using B = ReasoningBegin;
  const auto think = [](B begin, const std::string& text) { return split(kThink, begin, text); };
  EXPECT_EQ(think(B::kMaybe, "<think>\nWhat is asked?\n\nTwo.\n</think>\n\nIt is 2.\n"),
            "What is asked?\n\nTwo.|It is 2.\n");
  EXPECT_EQ(think(B::kInside, "Two.</think>It is 2."), "Two.|It is 2.");
  EXPECT_EQ(think(B::kInside, "\n\n<think>\n\nTwo. </think> It is 2."), "Two.|It is 2.") << "opened twice";
  EXPECT_EQ(think(B::kInside, "a<think>b</think>c"), "a<think>b|c");
  EXPECT_EQ(think(B::kInside, "a < b </thinking </think>c</think>"), "a < b </thinking|c</think>");
  EXPECT_EQ(think(B::kMaybe, "<think></think>x"), "|x");
  EXPECT_EQ(think(B::kMaybe, "<think>\n\n</think>\n\nx"), "|x");
}

TEST(ReasoningStream, LeavesTextWithoutMarksAsItIs) {
  using B = ReasoningBegin;
  for (const std::string text : {"", " ", "  It is 2.\n", "<thin", " <thinker> ", "a <think>b</think>"})
    EXPECT_EQ(split(kThink, B::kMaybe, text), "|" + text);
  EXPECT_EQ(split(kThink, B::kContent, "a <think>b</think>"), "|a <think>b</think>");
  EXPECT_EQ(split(kThink, B::kContent, "\n\nIt is 2.\n"), "|It is 2.\n") << "white space behind the prompt's mark";
}

TEST(ReasoningStream, ATextThatEndsBeforeItsReasoningHasNoContent) {
  using B = ReasoningBegin;
  EXPECT_EQ(split(kThink, B::kInside, "Let me see </th"), "Let me see </th|");
  EXPECT_EQ(split(kThink, B::kInside, "Let me see \n"), "Let me see|");
  EXPECT_EQ(split(kThink, B::kMaybe, "<think> "), "|");
  EXPECT_EQ(split(kThink, B::kInside, ""), "|");
  EXPECT_EQ(split(kThink, B::kInside, "<thi"), "<thi|");
}

TEST(ReasoningStream, EveryFormHasItsMarks) {
  const auto round_trip = [](std::string_view name) {
    const ReasoningForm form = *reasoning_form(name);
    return split(form, ReasoningBegin::kMaybe, std::string(form.open) + " why " + std::string(form.close) + " so");
  };
  for (const std::string_view name : reasoning_form_names()) EXPECT_EQ(round_trip(name), "why|so") << name;
  EXPECT_EQ(reasoning_form("deepseek-r1")->open, "<think>");
  EXPECT_EQ(reasoning_form("mistral")->close, "[/THINK]");
  EXPECT_FALSE(reasoning_form("openai_gptoss2"));
}

// Channels: what an answer without reasoning begins with is no part of it.
TEST(ReasoningStream, ChannelsAreNoContent) {
  using B = ReasoningBegin;
  const ReasoningForm form = *reasoning_form("gpt-oss");
  const std::string final = "<|channel|>final<|message|>";
  EXPECT_EQ(split(form, B::kMaybe, "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant" + final + "It is 2."),
            "Two.|It is 2.");
  EXPECT_EQ(split(form, B::kMaybe, final + "It is 2."), "|It is 2.");
  EXPECT_EQ(split(form, B::kMaybe, " " + final + "\n" + final), "|" + final) << "once";
  EXPECT_EQ(split(form, B::kMaybe, "It is 2."), "|It is 2.");
  EXPECT_EQ(split(form, B::kMaybe, "<|channel|>fin"), "|<|channel|>fin");
  EXPECT_EQ(split(form, B::kMaybe, "<|channel|>analysis<|message|>Two.<|end|>"), "Two.<|end|>|");
  EXPECT_EQ(detect_reasoning_form("'<|channel|>analysis<|message|>' '<|channel|>final<|message|>'")->open, form.open);
  EXPECT_EQ(reasoning_begin(form, "<|end|><|start|>assistant", ""), B::kMaybe);
  EXPECT_EQ(reasoning_begin(form, "<|end|><|start|>assistant" + final, ""), B::kContent);
}

TEST(ReasoningStream, TellsWhetherItIsInside) {
  ReasoningStream stream({kThink, ReasoningBegin::kMaybe});
  EXPECT_FALSE(stream.inside());
  (void)stream.push("<think>", false);
  EXPECT_TRUE(stream.inside());
  (void)stream.push("a</think>", false);
  EXPECT_FALSE(stream.inside());
}

TEST(DetectReasoningForm, ByTheMarksOfATemplate) {
  EXPECT_EQ(detect_reasoning_form("{% if '</think>' in content %}")->open, "<think>");
  EXPECT_EQ(detect_reasoning_form("{{ '<think>\\n' }}")->close, "</think>");
  EXPECT_EQ(detect_reasoning_form("[THINK]x[/THINK]")->open, "[THINK]");
  EXPECT_EQ(detect_reasoning_form("'<seed:think>' + r + '</seed:think>'")->open, "<seed:think>");
  EXPECT_EQ(detect_reasoning_form("◁think▷◁/think▷")->close, "◁/think▷");
  EXPECT_FALSE(detect_reasoning_form("{{ messages[0].content }} please think"));
}

TEST(ReasoningBegin, FollowsFromThePrompt) {
  using B = ReasoningBegin;
  EXPECT_EQ(reasoning_begin(kThink, "<|assistant|>\n", ""), B::kMaybe);
  EXPECT_EQ(reasoning_begin(kThink, "<|assistant|>\n<think>\n", ""), B::kInside);
  EXPECT_EQ(reasoning_begin(kThink, "<|assistant|>\n<think>\n\n</think>\n\n", ""), B::kContent);
  EXPECT_EQ(reasoning_begin(*reasoning_form("deepseek_r1"), "<|assistant|>\n", ""), B::kInside);
  EXPECT_EQ(reasoning_begin(*reasoning_form("deepseek_r1"), "<|assistant|></think>", ""), B::kContent);
  EXPECT_EQ(reasoning_begin(kThink, "...It is", "It is"), B::kContent) << "an answer that is gone on with";
  EXPECT_EQ(reasoning_begin(kThink, "...<think>Let", "<think>Let"), B::kInside);
  EXPECT_EQ(reasoning_begin(kThink, "...", "<think>Let</think>It is"), B::kContent);
  EXPECT_EQ(reasoning_begin(kThink, "<|assistant|>\n", " \n"), B::kMaybe);
}

// Whether the grammar reads the text; `ends`: and whether it may end there.
struct Reading {
  bool reads = false, ends = false;
};
Reading read(const GrammarForm& form, const std::string& text) {
  auto program = compile_form(form);
  EXPECT_TRUE(program.ok());
  std::vector<GrammarToken> tokens;
  for (int byte = 1; byte < 256; ++byte) tokens.push_back({byte, std::string(1, static_cast<char>(byte)), {}});
  tokens.push_back({256, "", GrammarToken::Kind::kEnd});
  auto trie = VocabTrie::build(std::move(tokens), 257);
  EXPECT_TRUE(trie.ok());
  GrammarState state(*program, *trie);
  for (const char c : text) {
    if (!state.advance(static_cast<unsigned char>(c))) return {};
  }
  return {true, state.advance(256)};
}

TEST(BehindReasoning, TheAnswerHasItsFormBehindIt) {
  const GrammarForm answer = GrammarForm::schema(R"({"type":"object","properties":{"a":{"type":"integer"}},)"
                                                 R"("required":["a"]})");
  const auto held = [&](ReasoningBegin begin) { return behind_reasoning({kThink, begin}, answer, true); };
  const GrammarForm inside = held(ReasoningBegin::kInside), maybe = held(ReasoningBegin::kMaybe);
  EXPECT_TRUE(read(inside, "Any text. </think>\n\n{\"a\": 1}").ends);
  EXPECT_FALSE(read(inside, "Any text. </think>\n\nAny text").reads);
  EXPECT_TRUE(read(inside, "{\"a\": 1}").reads) << "is reasoning";
  EXPECT_FALSE(read(inside, "{\"a\": 1}").ends) << "the answer may not be left out";
  EXPECT_FALSE(read(inside, "Any text. </think>\n\n").ends);
  EXPECT_TRUE(read(maybe, "<think>\nAny text. </think>\n\n{\"a\": 1}").ends);
  EXPECT_TRUE(read(maybe, "{\"a\": 1}").ends);
  EXPECT_FALSE(read(maybe, "Any text").reads);
  EXPECT_FALSE(read(maybe, "<think>{\"a\": 1}").ends);
  const GrammarForm content = held(ReasoningBegin::kContent);
  EXPECT_TRUE(read(content, "{\"a\": 1}").ends);
  EXPECT_FALSE(read(content, "<think>").reads);
}

TEST(BehindReasoning, AnAnswerWithAMarkOfItsOwnHasIt) {
  const ReasoningForm form = *reasoning_form("gpt_oss");
  const GrammarForm held = behind_reasoning({form, ReasoningBegin::kMaybe}, GrammarForm::literal("yes"), true);
  EXPECT_TRUE(read(held, std::string(form.answer) + "yes").ends);
  EXPECT_TRUE(read(held, std::string(form.open) + "Hm." + std::string(form.close) + "yes").ends);
  EXPECT_FALSE(read(held, "yes").reads);
}

TEST(BehindReasoning, CallsAreHeldToTheirFormBehindItAlone) {
  const std::vector<Tool> tools = {{"f", R"({"type":"object","properties":{"x":{"type":"integer"}}})", false}};
  const GrammarForm calls = tool_grammar_form(ToolCallForm::kHermes, tools, {}).value();
  for (const ReasoningBegin begin : {ReasoningBegin::kInside, ReasoningBegin::kMaybe}) {
    const std::string open = begin == ReasoningBegin::kMaybe ? "<think>" : "";
    const GrammarForm form = behind_reasoning({kThink, begin}, calls, false);
    const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    EXPECT_TRUE(read(form, open + "A <tool_call> may help.</think>\n" + call).ends);
    EXPECT_TRUE(read(form, open + "A <tool_call> may help.</think> No.").ends);
    EXPECT_TRUE(read(form, open + "Hm").ends);
    EXPECT_FALSE(read(form, open + "Hm</think><tool_call>\n{\"name\": \"g\"").reads);
  }
  EXPECT_TRUE(read(behind_reasoning({kThink, ReasoningBegin::kMaybe}, calls, false), "No.").ends);
}

}  // namespace
}  // namespace loralei
