// SPDX-License-Identifier: Apache-2.0
// Reasoning, from the template's marks to the answer's fields.
#include <gtest/gtest.h>

#include "serve/server_test_util.h"

namespace loralei {
namespace {

constexpr const char* kShows =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    "{{ reasoning_effort }}{% if tools %}<tool_call></tool_call>{{ tools }}{% endif %}";

class ReasoningTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    use(kShows);
    says("<think>\nTwo and two.\n</think>\n\nIt is 4.");
  }
  void use(const std::string& source, ChatSettings settings = {}) {
    text = TextModel::make(tokenizer, ChatTemplate::parse(source).value(), "base", std::move(settings)).value();
  }
  void says(const std::string& answer) {
    engine.script = [this, answer](const Submit&, int) { return ids(answer); };
  }
  BodyJson message(const std::string& more = "") {
    const HttpResponse answer = post("/v1/chat/completions", chat(more));
    EXPECT_EQ(answer.status, 200) << answer.body;
    last_ = BodyJson::parse(answer.body);
    return last_["choices"][0]["message"];
  }
  std::string prompt(size_t request) { return tokenizer->decode(engine.wait_submit(request).prompt); }
  BodyJson last_;
};

TEST_F(ReasoningTest, StandsBesideTheContent) {
  start();
  const BodyJson said = message();
  EXPECT_EQ(said["reasoning_content"], "Two and two.");
  EXPECT_EQ(said["content"], "It is 4.");
  const int64_t all = last_["usage"]["completion_tokens"];
  const int64_t reasoned = last_["usage"]["completion_tokens_details"]["reasoning_tokens"];
  EXPECT_EQ(reasoned, static_cast<int64_t>(ids("<think>\nTwo and two.\n</think>").size()));
  EXPECT_LT(reasoned, all);
}

TEST_F(ReasoningTest, Streams) {
  start();
  std::string reasoned, content;
  for (const std::string& event : events("/v1/chat/completions", chat(R"("stream":true)"))) {
    if (event == "[DONE]") continue;
    const BodyJson delta = BodyJson::parse(event)["choices"][0]["delta"];
    if (delta.contains("content")) content += delta["content"].get<std::string>();
    if (!delta.contains("reasoning_content")) continue;
    EXPECT_EQ(content, "") << "reasoning comes first";
    reasoned += delta["reasoning_content"].get<std::string>();
  }
  EXPECT_EQ(reasoned, "Two and two.");
  EXPECT_EQ(content, "It is 4.");
}

TEST_F(ReasoningTest, MayStayInTheContentOrBeLeftOut) {
  start();
  BodyJson said = message(R"("separate_reasoning":false)");
  EXPECT_FALSE(said.contains("reasoning_content"));
  EXPECT_EQ(said["content"], "<think>\nTwo and two.\n</think>\n\nIt is 4.");
  said = message(R"("include_reasoning":false)");
  EXPECT_FALSE(said.contains("reasoning_content"));
  EXPECT_EQ(said["content"], "It is 4.");
}

TEST_F(ReasoningTest, OfAModelWhoseTemplateMarksNoneIsContent) {
  use("{{ messages[0].content }}");
  start();
  EXPECT_EQ(message()["content"], "<think>\nTwo and two.\n</think>\n\nIt is 4.");
}

TEST_F(ReasoningTest, TheServersFormCountsMoreThanTheTemplates) {
  use(kShows, {.detect_reasoning = false, .reasoning = std::nullopt, .template_kwargs = ""});
  start();
  EXPECT_EQ(message()["content"], "<think>\nTwo and two.\n</think>\n\nIt is 4.");
}

TEST_F(ReasoningTest, AFormMayBeNamedThatTheTemplateDoesNotMark) {
  use("{{ messages[0].content }}", {.detect_reasoning = false, .reasoning = reasoning_form("deepseek_r1")});
  says("Two and two.</think>It is 4.");
  start();
  const BodyJson said = message();
  EXPECT_EQ(said["reasoning_content"], "Two and two.");
  EXPECT_EQ(said["content"], "It is 4.");
}

// gpt-oss: neither channels nor what begins an answer without reasoning are content.
constexpr const char* kChannels =
    "{{ messages[0].content }}{# <|channel|>analysis<|message|> <|channel|>final<|message|> #}";

TEST_F(ReasoningTest, ChannelsAreToldApart) {
  use(kChannels);
  says("<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.");
  start();
  const BodyJson said = message();
  EXPECT_EQ(said["reasoning_content"], "Two and two.");
  EXPECT_EQ(said["content"], "It is 4.");
}

TEST_F(ReasoningTest, AFinalChannelAloneIsContent) {
  use(kChannels);
  says("<|channel|>final<|message|>It is 4.");
  start();
  const BodyJson said = message();
  EXPECT_FALSE(said.contains("reasoning_content")) << said;
  EXPECT_EQ(said["content"], "It is 4.");
}

// The prompt has closed it: what comes is content, also where it speaks of the marks.
TEST_F(ReasoningTest, OneThatIsAskedNotToThinkIsNotSplit) {
  says("<think> is a mark.");
  start();
  const BodyJson said = message(R"("enable_thinking":false)");
  EXPECT_EQ(said["content"], "<think> is a mark.");
  EXPECT_NE(prompt(0).find("</think>"), std::string::npos);
}

TEST_F(ReasoningTest, WhatIsSaidOfItReachesTheTemplate) {
  use(kShows, {.template_kwargs = R"({"enable_thinking":false,"reasoning_effort":"high"})"});
  start();
  size_t asked = 0;
  const auto shown = [&](const std::string& more) {
    message(more);
    return prompt(asked++);
  };
  const auto closed = [](const std::string& text) { return text.find("</think>") != std::string::npos; };
  EXPECT_TRUE(closed(shown("")));
  EXPECT_NE(shown("").find("high"), std::string::npos);
  EXPECT_FALSE(closed(shown(R"("enable_thinking":true)"))) << "the request counts more than the server";
  EXPECT_FALSE(closed(shown(R"("enable_thinking":false,"chat_template_kwargs":{"enable_thinking":true})")));
  EXPECT_TRUE(closed(shown(R"("reasoning_effort":"none")")));
  EXPECT_NE(shown(R"("reasoning_effort":"low")").find("low"), std::string::npos);
  const HttpResponse refused = post("/v1/chat/completions", chat(R"("reasoning_effort":3)"));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error_of(refused, "param"), "reasoning_effort");
}

TEST_F(ReasoningTest, AFieldThatNoTemplateReadsIsTold) {
  use("{{ messages[0].content }}");
  start();
  message(R"("enable_thinking":false)");
  EXPECT_TRUE(logs("'enable_thinking'"));
}

// The first token of the answer may open reasoning although the answer has a form, and
// the form holds behind it.
TEST_F(ReasoningTest, AFormBeginsBehindIt) {
  says("<think>Two.</think>\n\n{\"a\": 4}");
  start();
  const BodyJson said = message(R"("response_format":{"type":"json_object"})");
  EXPECT_EQ(said["reasoning_content"], "Two.");
  EXPECT_EQ(said["content"], "{\"a\": 4}");
  const Submit submit = engine.wait_submit(0);
  ASSERT_TRUE(submit.sampling.grammar && submit.sampling.vocab_trie);
  const auto reads = [&](const Submit& asked, const std::string& answer) {
    GrammarState state(asked.sampling.grammar, asked.sampling.vocab_trie);
    return state.advance_bytes(answer) && state.accepting();
  };
  EXPECT_TRUE(reads(submit, "<think>Two.</think>\n\n{\"a\": 4}"));
  EXPECT_TRUE(reads(submit, "{\"a\": 4}"));
  EXPECT_FALSE(reads(submit, "<think>Two.</think>Four."));
  EXPECT_FALSE(reads(submit, "<think>{\"a\": 4}"));
  // Where the prompt has closed it, the form begins at once; and the two grammars are not
  // taken for each other.
  message(R"("response_format":{"type":"json_object"},"enable_thinking":false)");
  EXPECT_FALSE(reads(engine.wait_submit(1), "<think>Two.</think>\n\n{\"a\": 4}"));
  EXPECT_TRUE(reads(engine.wait_submit(1), "{\"a\": 4}"));
}

TEST_F(ReasoningTest, CallsAreReadBehindItAlone) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  says("<think>" + call + " may help.</think>\n" + call);
  start();
  const BodyJson said = message(R"("tools":[{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(said["reasoning_content"], call + " may help.");
  ASSERT_EQ(said["tool_calls"].size(), 1u) << said.dump();
  EXPECT_EQ(last_["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ReasoningTest, GoesOnWhereAFinalMessageHasOpenedIt) {
  says(" and two.</think>It is 4.");
  start();
  const HttpResponse answer = post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"<think>Two"}],"continue_final_message":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const BodyJson said = BodyJson::parse(answer.body)["choices"][0]["message"];
  EXPECT_EQ(said["reasoning_content"], "and two.");
  EXPECT_EQ(said["content"], "It is 4.");
}

TEST_F(ReasoningTest, ThatIsCutOffHasNoContent) {
  says("<think>Two and two");
  start();
  const BodyJson said = message();
  EXPECT_EQ(said["reasoning_content"], "Two and two");
  EXPECT_TRUE(said["content"].is_null() || said["content"] == "") << said.dump();
}

}  // namespace
}  // namespace loralei
