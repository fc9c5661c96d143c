// SPDX-License-Identifier: Apache-2.0
#include "wire/route_facts.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace loralei {
namespace {

TEST(RouteFacts, AreThoseOfTheBody) {
  const RouteFacts facts = read_route_facts(
      R"({"messages": [{"role": "user", "content": "a, \"b\" } ]"}], "model": "sql", "stream":true,
          "max_tokens": 7, "n": 2, "tools": [{"model": "not me"}]})");
  EXPECT_TRUE(facts.readable);
  EXPECT_EQ(facts.model.model, "sql");
  EXPECT_TRUE(facts.stream);
  EXPECT_EQ(facts.max_tokens, 7);
  EXPECT_EQ(facts.choices, 2);
  EXPECT_EQ(facts.text, R"([{"role": "user", "content": "a, \"b\" } ]"}])");
}

TEST(RouteFacts, NameAdaptersInEveryWayThatServersKnow) {
  EXPECT_EQ(read_route_facts(R"({"adapter_id": "a"})").model.adapters.at(0).name, "a");
  EXPECT_EQ(read_route_facts(R"({"lora_path": "a"})").model.adapters.at(0).name, "a");
  const RouteFacts sum = read_route_facts(R"({"adapters": [{"name": "a", "scale": 0.5}, {"name": "b"}]})");
  ASSERT_EQ(sum.model.adapters.size(), 2u);
  EXPECT_EQ(sum.model.adapters[1].name, "b");
  EXPECT_TRUE(read_route_facts(R"({"adapters": []})").model.names_none);
}

TEST(RouteFacts, TakeTheLastValueOfAKey) {
  EXPECT_EQ(read_route_facts(R"({"model": "a", "model": "b"})").model.model, "b");
}

TEST(RouteFacts, OfNamesWithEscapesAreThoseThatServersRead) {
  EXPECT_EQ(read_route_facts(R"({"mod\u0065l": "a"})").model.model, "a");
  EXPECT_EQ(read_route_facts(R"({"model": "a\"\u00e9"})").model.model, "a\"\xc3\xa9");
}

TEST(RouteFacts, OfWhatServersRefuseAreNotReadable) {
  for (const char* body : {"", "[]", "{", "{}x", R"({"model": 3})", R"({"model" "a"})", R"({"model": "a"} {})",
                           R"({"model": "a",})", R"({"stream": "yes"})", R"({"model": )", R"({"model"})", R"({"a": "b)",
                           R"({"adapter_id": "a", "lora_path": "b"})"}) {
    EXPECT_FALSE(read_route_facts(body).readable) << body;
  }
  EXPECT_TRUE(read_route_facts("{}").readable);
}

TEST(RouteFacts, OfAnyBytesAreFoundWithoutACrash) {
  Prng random(11);
  const std::string alphabet = "{}[]\",:\\ amodelstrue123";
  for (int round = 0; round < 20'000; ++round) {
    std::string body = "{\"model\":";
    for (uint64_t left = random.below(40); left > 0; --left) body += alphabet[random.below(alphabet.size())];
    const RouteFacts facts = read_route_facts(body);
    EXPECT_LE(facts.text.size(), body.size());
  }
}

// What a scan finds is what a parser would have found.
TEST(RouteFacts, OfDeepOrWideBodiesAreFoundInOneScan) {
  std::string body =
      R"({"messages": )" + std::string(100'000, '[') + std::string(100'000, ']') + R"(, "model": "deep"})";
  EXPECT_EQ(read_route_facts(body).model.model, "deep");
  body = R"({"model": ")" + std::string(100'000, 'a') + "\"}";
  EXPECT_FALSE(read_route_facts(body).readable);
}

}  // namespace
}  // namespace loralei
