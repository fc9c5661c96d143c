// SPDX-License-Identifier: Apache-2.0
#include "text/json_members.h"

#include <gtest/gtest.h>

#include <array>

#include "base/allocation_counter.h"
#include "base/prng.h"

namespace loralei {
namespace {

constexpr std::array<std::string_view, 2> kTwo{"one", "two"};
constexpr int64_t kMany = 1 << 20;

Json members(const std::string& text) {
  auto read = parse_json_members(text, "a.json", kTwo, kMany);
  EXPECT_TRUE(read.ok()) << read.error().message;
  return read.ok() ? *read : Json();
}

std::string refusal(const std::string& text, int64_t max_values = kMany) {
  const auto read = parse_json_members(text, "a.json", kTwo, max_values);
  return read.ok() ? "" : read.error().message;
}

TEST(JsonMembers, OnlyWhatIsNamedIsBuilt) {
  EXPECT_EQ(members(R"({"zero":{"one":1},"one":[1,{"x":null}],"three":[[2]],"two":{"one":"a","zero":true}})"),
            Json::parse(R"({"one":[1,{"x":null}],"two":{"one":"a","zero":true}})"));
  EXPECT_EQ(members(R"({"o\u006ee":-1.5,"two":""})"), Json::parse(R"({"one":-1.5,"two":""})")) << "names as they read";
  EXPECT_EQ(members(R"({"one":[1,2],"one":{"a":1}})"), Json::parse(R"({"one":{"a":1}})")) << "the last counts";
  EXPECT_EQ(members(R"({"x":[{"one":1}]})"), Json::object());
  EXPECT_EQ(members("{}"), Json::object());
  const auto all = parse_json_members(R"({"x":1,"one":{"y":[]}})", "a.json", std::nullopt, kMany);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all, Json::parse(R"({"x":1,"one":{"y":[]}})"));
}

TEST(JsonMembers, WhatIsReadPastMustBeSound) {
  for (const char* text : {"", "{", R"({"x":[1,})", R"({"x":"\ud800"})", R"({"one":1} 2)", R"({"x":tru,"one":1})"})
    EXPECT_NE(refusal(text).find("not valid JSON"), std::string::npos) << text << ": " << refusal(text);
  for (const char* text : {"[]", R"([{"one":1}])", "1", R"("one")", "null"})
    EXPECT_NE(refusal(text).find("not a JSON object"), std::string::npos) << text << ": " << refusal(text);
  EXPECT_NE(refusal(R"({"x":)" + std::string(200, '[') + std::string(200, ']') + "}").find("nested"),
            std::string::npos);
}

TEST(JsonMembers, ValuesAreCountedWhereTheyAreBuilt) {
  std::string list = "[";
  for (int i = 0; i < 1000; ++i) list += "0,";
  list.back() = ']';
  EXPECT_EQ(refusal(R"({"x":)" + list + R"(,"one":[1,2]})", 10), "");
  EXPECT_NE(refusal(R"({"one":)" + list + "}", 1000).find("more than 1000 values"), std::string::npos);
}

// Whatever is in it: what was asked for before is no less than what was held at once.
TEST(JsonMembers, AsksForWhatItTakes) {
  Prng random(20261127);
  std::vector<std::string> pieces{"1",
                                  "[]",
                                  "{}",
                                  "\"\"",
                                  "[[1]]",
                                  R"({"a":1})",
                                  R"({"content":"<x>","id":5,"lstrip":false})",
                                  '"' + std::string(300, 'x') + '"',
                                  '"' + std::string(100'000, 'x') + '"',
                                  R"("\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4")"};
  for (int round = 0; round < 60; ++round) {
    std::string value = "[";
    const size_t bytes = 1000 + random.below(200'000);
    const bool mixed = round >= 2 * static_cast<int>(pieces.size());
    while (value.size() < bytes)
      value += pieces[mixed ? random.below(pieces.size()) : static_cast<size_t>(round) % pieces.size()] + ",";
    value.back() = ']';
    const bool skipped = round % 3 == 2;
    const std::string text = (skipped ? R"({"x":)" : R"({"one":)") + value + R"(,"two":0})";
    int64_t taken = 0;
    const TakeMemory take = [&taken](int64_t more) {
      taken += more;
      return Status();
    };
    testing_support::start_counting_allocations();
    {
      const auto read = parse_json_members(text, "a.json", kTwo, kMany, take);
      EXPECT_TRUE(read.ok());
    }
    const auto seen = testing_support::stop_counting_allocations();
    EXPECT_EQ(seen.live_bytes, 0);
    EXPECT_LE(seen.peak_bytes, taken + 16 * 1024) << "round " << round << " " << text.substr(0, 80);
    if (skipped) {
      EXPECT_LE(taken, 8 * 100'000 + 512 * 1024) << "what is read past costs nothing";
    }
  }
}

TEST(JsonMembers, ARefusalEndsIt) {
  std::string list = R"({"one":[0)";
  for (int i = 0; i < 100'000; ++i) list += ",[]";
  list += "]}";
  int64_t taken = 0;
  const TakeMemory take = [&taken](int64_t more) -> Status {
    if (taken + more > 1'000'000) return Error{ErrorCode::kOverloaded, "there is no more"};
    taken += more;
    return {};
  };
  testing_support::start_counting_allocations();
  const auto read = parse_json_members(list, "a.json", kTwo, kMany, take);
  const auto seen = testing_support::stop_counting_allocations();
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(read.error().message, "reading a.json: there is no more");
  EXPECT_LE(seen.peak_bytes, 1'100'000);
}

}  // namespace
}  // namespace loralei
