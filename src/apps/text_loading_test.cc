// SPDX-License-Identifier: Apache-2.0
#include "apps/text_loading.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

TEST(ChatSettings, ReasoningIsFoundNamedOrLeftAlone) {
  EXPECT_TRUE(read_chat_settings("auto", "")->detect_reasoning);
  const auto named = read_chat_settings("deepseek-r1", "");
  EXPECT_FALSE(named->detect_reasoning);
  EXPECT_EQ(named->reasoning->close, "</think>");
  const auto none = read_chat_settings("none", "");
  EXPECT_FALSE(none->detect_reasoning);
  EXPECT_FALSE(none->reasoning);
  const auto wrong = read_chat_settings("openai_gptoss9", "");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("qwen3"), std::string::npos) << wrong.error().message;
}

TEST(ChatSettings, TemplateKwargsAreAJsonObject) {
  EXPECT_EQ(read_chat_settings("auto", R"({ "enable_thinking" : false })")->template_kwargs,
            R"({"enable_thinking":false})");
  for (const char* wrong : {"x", "[1]", "{", "true"}) EXPECT_FALSE(read_chat_settings("auto", wrong).ok()) << wrong;
}

}  // namespace
}  // namespace loralei
