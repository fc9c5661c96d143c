// SPDX-License-Identifier: Apache-2.0
#include "apps/conversation.h"

#include <gtest/gtest.h>

#include "formats/json_util.h"

namespace loralei {
namespace {

using Kind = ChatOrder::Kind;

TEST(ChatOrders, AreToldFromWhatIsSaid) {
  const auto read = [](const char* line) {
    const ChatOrder order = read_chat_order(line);
    return std::pair(order.kind, order.text);
  };
  EXPECT_EQ(read("Hello /adapter x"), std::pair(Kind::kSay, std::string("Hello /adapter x")));
  EXPECT_EQ(read("  kept as typed "), std::pair(Kind::kSay, std::string("  kept as typed ")));
  EXPECT_EQ(read(" /adapter  my one "), std::pair(Kind::kAdapter, std::string("my one")));
  EXPECT_EQ(read("/adapter"), std::pair(Kind::kAdapter, std::string()));
  EXPECT_EQ(read("/set temperature 0.2"), std::pair(Kind::kSet, std::string("temperature 0.2")));
  EXPECT_EQ(read("/quit"), std::pair(Kind::kQuit, std::string()));
  EXPECT_EQ(read("//etc is a folder"), std::pair(Kind::kSay, std::string("/etc is a folder")));
  EXPECT_EQ(read("/adapters"), std::pair(Kind::kUnknown, std::string("adapters")));
  EXPECT_EQ(read("/"), std::pair(Kind::kUnknown, std::string()));
}

TEST(ConversationTest, ARequestHoldsWhatWasSaid) {
  Conversation talk("base");
  talk.set_system("Be \"short\".");
  talk.ask("One?");
  talk.answered("Two.");
  talk.ask("Three?\n\xFF");
  ASSERT_TRUE(talk.set("temperature 0.25").ok());
  ASSERT_TRUE(talk.set("max_tokens 7").ok());
  const Json body = Json::parse(talk.request());
  EXPECT_EQ(body["model"], "base");
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["temperature"], 0.25);
  EXPECT_EQ(body["max_tokens"].dump(), "7");
  ASSERT_EQ(body["messages"].size(), 4u);
  EXPECT_EQ(body["messages"][0]["content"], "Be \"short\".");
  EXPECT_EQ(body["messages"][3]["role"], "user");
  EXPECT_EQ(body["messages"][3]["content"], "Three?\n\xEF\xBF\xBD");
  EXPECT_EQ(Json::parse(talk.saved()), body["messages"]);
  ASSERT_TRUE(talk.set("temperature").ok());
  EXPECT_FALSE(Json::parse(talk.request()).contains("temperature"));
}

TEST(ConversationTest, QuestionsAreTakenBack) {
  Conversation talk("base");
  EXPECT_FALSE(talk.undo());
  EXPECT_EQ(talk.again(), std::nullopt);
  talk.ask("One?");
  talk.take_back_question();
  EXPECT_EQ(talk.turns(), 0u);
  talk.ask("One?");
  talk.answered("1");
  talk.take_back_question();
  EXPECT_EQ(talk.turns(), 2u) << "it was answered";
  EXPECT_EQ(talk.again(), "One?");
  EXPECT_EQ(talk.turns(), 0u);
  talk.ask("One?");
  talk.answered("1");
  talk.ask("Two?");
  EXPECT_TRUE(talk.undo());
  EXPECT_EQ(talk.turns(), 2u);
}

TEST(ConversationTest, SettingsHaveNamesAndBounds) {
  Conversation talk("base");
  for (const char* wrong :
       {"temperature hot", "temperature -1", "temperature 101", "temperature nan", "top_p 1.5", "max_tokens 0",
        "max_tokens 1.5", "max_tokens 1e30", "seed -1", "heat 1", "", "temperature 0.5x"})
    EXPECT_FALSE(talk.set(wrong).ok()) << wrong;
  for (const char* right : {"temperature 0", "temperature 100", "top_p 1", "max_tokens 16777216", "seed 0"})
    EXPECT_TRUE(talk.set(right).ok()) << right;
  EXPECT_EQ(talk.set("temperature 101").error().message, "temperature is a number from 0 to 100");
  EXPECT_EQ(Json::parse(talk.request())["temperature"], 100) << "what was wrong has changed nothing";
}

}  // namespace
}  // namespace loralei
