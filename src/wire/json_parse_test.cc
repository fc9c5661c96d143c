// SPDX-License-Identifier: Apache-2.0
// What a body takes while it becomes a tree is no more than was said before.
#include <gtest/gtest.h>

#include "base/allocation_counter.h"
#include "base/prng.h"
#include "wire/json_in.h"
#include "wire/requests.h"

namespace loralei {
namespace {

// The most that parsing holds beside what was there.
int64_t parse_peak(const std::string& body, bool& ok) {
  testing_support::start_counting_allocations();
  {
    const auto tree = parse_json_object(body);
    ok = tree.ok();
  }
  const auto seen = testing_support::stop_counting_allocations();
  EXPECT_EQ(seen.live_bytes, 0);
  return seen.peak_bytes;
}

std::string repeated(const std::string& text, size_t bytes) {
  std::string out = R"({"messages":[)";
  while (out.size() < bytes) out += text + ",";
  out.back() = ']';
  return out + "}";
}

TEST(JsonParse, TakesNoMoreThanWasSaid) {
  constexpr size_t kBytes = 256 * 1024;
  for (const std::string& text :
       {std::string("1"), std::string("-1.5e3"), std::string("[]"), std::string("{}"), std::string("\"\""),
        std::string("[[[[1]]]]"), std::string(R"({"a":1})"), std::string(R"({"a":{"b":{"c":[]}}})"),
        std::string(R"({"role":"user","content":"What is it?"})"), std::string("true"), std::string("null"),
        '"' + std::string(1000, 'x') + '"', '"' + std::string(200'000, 'x') + '"', std::string(R"("\u00e4\n\\")"),
        R"({"a":")" + std::string(40, 'y') + R"(","b":[1,2,3],"c":{"d":null}})"}) {
    const std::string body = repeated(text, kBytes);
    bool ok = false;
    const int64_t peak = parse_peak(body, ok);
    EXPECT_TRUE(ok) << text.substr(0, 40);
    EXPECT_LE(peak, json_parse_bytes(body)) << text.substr(0, 40);
  }
}

// A long body is mostly one text, or token ids.
TEST(JsonParse, TakesLittleForWhatLongBodiesHold) {
  const std::string text = R"({"prompt":")" + std::string(8 << 20, 'x') + R"("})";
  bool ok = false;
  EXPECT_LE(parse_peak(text, ok), 6 * static_cast<int64_t>(text.size()));
  EXPECT_TRUE(ok);
  EXPECT_LE(json_parse_bytes(text), json_parse_bytes_of_length(static_cast<int64_t>(text.size())));
  const std::string ids = repeated("12345", 1 << 20);
  EXPECT_LE(parse_peak(ids, ok), 9 * static_cast<int64_t>(ids.size()));
  EXPECT_TRUE(ok);
}

// 170 MiB in a body of 8 before.
TEST(JsonParse, RefusesMoreValuesThanAnyRequestHas) {
  for (const char* text : {"[]", "{}", "\"\""}) {
    bool ok = true;
    const std::string body = repeated(text, 8 << 20);
    EXPECT_LT(parse_peak(body, ok), 2 << 20) << text;
    EXPECT_FALSE(ok);
    EXPECT_NE(shape_of_json(body).too_complex.find("more than 262144"), std::string::npos);
  }
}

std::string random_json(Prng& random, int depth) {
  const auto space = [&] { return random() % 4 == 0 ? " \n" : ""; };
  switch (depth > 0 ? random() % 7 : random() % 5) {
    case 0:
      return std::to_string(static_cast<int64_t>(random()));
    case 1:
      return "-0.25e-2";
    case 2:
      return random() % 2 ? "true" : "null";
    case 3:
    case 4: {
      std::string out = "\"";
      for (uint64_t i = random() % 40; i > 0; --i) {
        static const char* const kPieces[] = {"a", ",", "[", "]", "{", "}", "\\\"", "\\\\", "\\u20ac", "\xc3\xa4", ":"};
        out += kPieces[random() % 11];
      }
      return out + "\"";
    }
    case 5: {
      std::string out = "[";
      const uint64_t count = random() % 6;
      for (uint64_t i = 0; i < count; ++i)
        out += (i ? "," : "") + std::string(space()) + random_json(random, depth - 1);
      return out + space() + "]";
    }
    default: {
      std::string out = "{";
      const uint64_t count = random() % 6;
      for (uint64_t i = 0; i < count; ++i) {
        out += (i ? "," : "") + std::string(space()) + "\"k" + std::to_string(random() % 8) + "\":" + space();
        out += random_json(random, depth - 1);
      }
      return out + space() + "}";
    }
  }
}

// The library's own parser is the twin.
TEST(JsonParse, BuildsTheTreeOfTheLibrary) {
  const uint64_t seed = 37;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng random(seed);
  for (int i = 0; i < 3000; ++i) {
    std::string body = R"({"x":)" + random_json(random, 6) + R"(,"x2":)" + random_json(random, 3) + "}";
    if (random() % 4 == 0) body[random() % body.size()] = static_cast<char>("{}[],:\"\\1x"[random() % 10]);
    auto tree = parse_json_object(body);
    const OrderedJson twin = OrderedJson::parse(body, nullptr, false);
    ASSERT_EQ(tree.ok(), !twin.is_discarded() && twin.is_object()) << body;
    if (!tree.ok()) continue;
    ASSERT_EQ(tree->dump(), twin.dump()) << body;
    bool ok = false;
    ASSERT_LE(parse_peak(body, ok), json_parse_bytes(body)) << body;
  }
}

}  // namespace
}  // namespace loralei
