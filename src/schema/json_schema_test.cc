// SPDX-License-Identifier: Apache-2.0
#include "schema/json_schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/prng.h"
#include "base/utf8.h"
#include "schema/json_schema_chars.h"
#include "schema/json_schema_oracle.h"
#include "schema/json_schema_regex.h"

namespace loralei {
namespace {

using namespace testing_support;

std::shared_ptr<const VocabTrie> byte_vocabulary() {
  std::vector<GrammarToken> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({byte, std::string(1, static_cast<char>(byte)), GrammarToken::Kind::kText});
  const char* longer[] = {"{\"", "\":", "\": ", "\", \"", "\"}", "true", "null",
                          "10",  "0.5", "ab",   "},",     "]",   "\",",  "-1"};
  for (const char* text : longer)
    tokens.push_back({static_cast<int32_t>(tokens.size()), text, GrammarToken::Kind::kText});
  tokens.push_back({static_cast<int32_t>(tokens.size()), "", GrammarToken::Kind::kEnd});
  const auto size = static_cast<int64_t>(tokens.size());
  return VocabTrie::build(std::move(tokens), size).value();
}

const std::shared_ptr<const VocabTrie>& vocabulary() {
  static const auto vocab = byte_vocabulary();
  return vocab;
}

bool accepts(const GrammarPtr& program, std::string_view text) {
  GrammarState state(program, vocabulary());
  for (const char c : text) {  // byte by byte: every prefix must be readable
    if (!state.advance(static_cast<uint8_t>(c))) return false;
  }
  return state.accepting();
}

GrammarPtr compiled(const std::string& schema) {
  auto program = compile_json_schema(schema);
  EXPECT_TRUE(program.ok()) << schema << "\n" << (program.ok() ? "" : program.error().message);
  return program.ok() ? std::move(program).value() : compile_json_value().value();
}

void expect_texts(const std::string& schema, const std::vector<std::string>& good,
                  const std::vector<std::string>& bad) {
  const GrammarPtr program = compiled(schema);
  for (const std::string& text : good) EXPECT_TRUE(accepts(program, text)) << schema << "\nshould allow " << text;
  for (const std::string& text : bad) EXPECT_FALSE(accepts(program, text)) << schema << "\nshould refuse " << text;
}

TEST(JsonSchema, AcceptsValidDocumentsAndRefusesOthers) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int valid = 0;
  for (const char* schema_text : kSchemas) {
    const Json schema = Json::parse(schema_text);
    const GrammarPtr program = compiled(schema_text);
    const Validator validator{schema};
    for (int i = 0; i < 150; ++i) {
      const Json value = in_order(schema, value_for(schema, schema, random, 0));
      const bool expected = validator.valid(schema, value);
      valid += expected;
      const std::string text = written(value, i % 3);
      ASSERT_EQ(accepts(program, text), expected) << schema_text << "\n" << text;
    }
  }
  // A fair part must be valid, or nothing was tried (expected: about half of 4,800).
  EXPECT_GT(valid, 1000);
}

TEST(JsonSchema, WhatTheGrammarWritesIsValid) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<uint32_t> mask(vocabulary()->mask_words());
  for (const char* schema_text : kSchemas) {
    const Json schema = Json::parse(schema_text);
    const GrammarPtr program = compiled(schema_text);
    const Validator validator{schema};
    for (int round = 0; round < 12; ++round) {
      GrammarState state(program, vocabulary());
      std::string text;
      for (int step = 0; step < 4000 && !state.accepting(); ++step) {
        ASSERT_TRUE(state.fill_mask(mask)) << schema_text << "\na dead end after " << text;
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < vocabulary()->vocab_size() - 1; ++id) {
          if ((mask[id / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
        }
        // Closers are liked, so that documents end.
        int32_t chosen = allowed[random() % allowed.size()];
        for (const char closer : std::string_view("}]\"")) {
          if (random() % 3 != 0 && std::find(allowed.begin(), allowed.end(), closer) != allowed.end()) chosen = closer;
        }
        GrammarState before = state;
        ASSERT_TRUE(state.advance(chosen));
        static const char* kLonger[] = {"{\"", "\":", "\": ", "\", \"", "\"}", "true", "null",
                                        "10",  "0.5", "ab",   "},",     "]",   "\",",  "-1"};
        text += chosen < 256 ? std::string(1, static_cast<char>(chosen)) : kLonger[chosen - 256];
      }
      if (!state.accepting()) continue;
      const Json value = Json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << schema_text << "\n" << text;
      ASSERT_TRUE(validator.valid(schema, value)) << schema_text << "\n" << text;
    }
  }
}

TEST(JsonSchema, NumbersAreExact) {
  const double bounds[] = {-20, -12.5, -3, -1, -0.5, 0, 0.25, 1, 1.5, 9, 10, 12.75, 99, 100, 105};
  const char* numbers[] = {"-100",  "-21",    "-20", "-20.0",   "-20.01", "-13",   "-12.5", "-12.51", "-12.49",
                           "-12",   "-4",     "-3",  "-2.99",   "-1",     "-1.0",  "-0.51", "-0.5",   "-0.50",
                           "-0.49", "-0.001", "0",   "0.0",     "0.001",  "0.24",  "0.25",  "0.250",  "0.26",
                           "0.9",   "1",      "1.0", "1.00001", "1.5",    "1.49",  "1.51",  "8.999",  "9",
                           "9.0",   "9.01",   "10",  "10.5",    "11",     "12.75", "12.7",  "12.8",   "98.9",
                           "99",    "99.5",   "100", "104",     "105",    "105.0", "105.1", "106",    "1000"};
  for (const double low : bounds) {
    for (const double high : bounds) {
      for (const bool exclusive : {false, true}) {
        Json schema{{"type", "number"}};
        schema[exclusive ? "exclusiveMinimum" : "minimum"] = low;
        schema[exclusive ? "exclusiveMaximum" : "maximum"] = high;
        Json integers = schema;
        integers["type"] = "integer";
        const auto program = compile_json_schema(schema.dump());
        const auto whole = compile_json_schema(integers.dump());
        for (const char* text : numbers) {
          const double value = std::strtod(text, nullptr);
          const bool inside = exclusive ? value > low && value < high : value >= low && value <= high;
          ASSERT_EQ(program.ok() && accepts(program.value(), text), inside) << schema << " " << text;
          const bool is_whole = std::string_view(text).find('.') == std::string_view::npos;
          ASSERT_EQ(whole.ok() && accepts(whole.value(), text), inside && is_whole) << integers << " " << text;
        }
      }
    }
  }
}

// A reader of doubles takes every number: none is so large that it becomes infinite.
TEST(JsonSchema, NumbersAreFinite) {
  const std::string longest(100, '9');
  for (const char* schema : {R"({"type": "number"})", R"({"type": ["number", "null"]})", "{}"}) {
    expect_texts(
        schema,
        {"1e5", "1E+05", "-2.5e-7", "0e0", "1e-999", "9e99", "1e199", longest, "-" + longest + ".25", longest + "e199"},
        {"1e200", "1E31910", "1e0200", "2e+1000", "1e-1000", "1e", "1e+", longest + "0", longest + "0.5"});
  }
  for (const char* schema : {R"({"type": "integer"})", R"({"minimum": 5, "type": "integer"})",
                             R"({"exclusiveMinimum": 1234567, "type": "number"})"}) {
    expect_texts(schema, {"7654321", longest}, {longest + "0", longest + "00", "1e9"});
  }
  expect_texts(R"({"maximum": -5, "type": "integer"})", {"-" + longest}, {"-" + longest + "0"});
}

TEST(JsonSchema, StringsAreWhatJsonAllows) {
  expect_texts(R"({"type": "string"})",
               {R"("")", R"("a\u00e9\n\/")", R"("\ud83d\ude00")", "\"\xf0\x9f\x99\x82\"", "\"\x7f\""},
               {R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")", "\"\n\"", "\"\xff\"", "\"\xc0\x80\"",
                "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", R"("\x")", R"("\u00g0")", "\"a"});
  expect_texts(R"({"type": "string", "maxLength": 2})", {R"("\ud83d\ude00é")", R"("\n\u0000")"},
               {R"("abc")", R"("\ud83d\ude00ab")"});
  expect_texts(R"({"type": "string", "pattern": "^[^a]\\n\"$"})", {R"("b\n\"")", R"("\\\n\"")"}, {R"("a\n\"")"});
  expect_texts(R"({"type": "object", "properties": {"a\"b\n": {}}, "required": ["a\"b\n"]})", {R"({"a\"b\n": 1})"},
               {R"({"a": 1})"});
}

TEST(JsonSchema, Formats) {
  expect_texts(R"({"type": "string", "format": "date"})", {R"("2024-02-28")", R"("1999-12-31")"},
               {R"("2024-02-30")", R"("2024-13-01")", R"("24-01-01")"});
  expect_texts(R"({"type": "string", "format": "date-time"})",
               {R"("2024-02-28T23:59:59Z")", R"("2024-02-28T23:59:59.123+01:00")"},
               {R"("2024-02-28")", R"("2024-02-28T24:00:00Z")"});
  expect_texts(R"({"type": "string", "format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
               {R"("123e4567")"});
  expect_texts(R"({"type": "string", "format": "email"})", {R"("a.b@c.de")"}, {R"("a@b@c.de")", R"("a")"});
  expect_texts(R"({"type": "string", "format": "ipv4"})", {R"("255.0.10.199")"},
               {R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"});
  expect_texts(R"({"type": "string", "format": "ipv6"})", {R"("::")", R"("2001:db8::1")", R"("1:2:3:4:5:6:7:8")"},
               {R"("1:2")", R"("1::2::3")"});
  expect_texts(R"({"type": "string", "format": "uri"})", {R"("https://a.example/b?c=d#e")", R"("urn:x:y")"},
               {R"("no uri")"});
  expect_texts(R"({"type": "string", "format": "duration"})", {R"("P1DT2H")", R"("P3W")"}, {R"("P")", R"("PT")"});
  expect_texts(R"({"type": "string", "format": "byte", "maxLength": 2})", {R"("")", R"("?!")"}, {R"("abc")"});
}

// As generators write them: the pattern says what the format means, or more than
// can be held to here.
TEST(JsonSchema, FormatsBesidePatterns) {
  expect_texts(R"({"type": "string", "format": "uuid", "pattern": "^[0-9a-f]{2}$"})", {R"("0f")"},
               {R"("0F")", R"("123e4567-e89b-12d3-a456-426614174000")"});
  expect_texts(R"~({"type": "string", "format": "email", "pattern": "^(?!\\.)[a-z.]+@[a-z.]+$"})~", {R"("a.b@c.de")"},
               {R"("a")"});
  EXPECT_FALSE(compile_json_schema(R"~({"type": "string", "format": "cuid", "pattern": "^(?!\\.)a"})~").ok());
}

TEST(JsonSchema, PropertyNamesThatExcludeNoneSayNothing) {
  for (const char* names : {"true", "{}", R"({"type": "string", "description": "d"})"}) {
    expect_texts(R"({"type": "object", "propertyNames": )" + std::string(names) +
                     R"(, "additionalProperties": {"type": "integer"}})",
                 {R"({"a": 1})"}, {R"({"a": "b"})"});
  }
  EXPECT_FALSE(compile_json_schema(R"({"type": "object", "propertyNames": {"pattern": "^a"}})").ok());
}

TEST(JsonSchema, AClosedObjectWithAlternatives) {
  expect_texts(
      R"({"type": "object", "properties": {"kind": {"type": "string"}, "a": {"type": "integer"}, "b": {"type": "string"}},
          "required": ["kind"], "additionalProperties": false, "oneOf": [
          {"properties": {"kind": {"const": "a"}}, "required": ["a"]},
          {"properties": {"kind": {"const": "b"}}, "required": ["b"]}]})",
      {R"({"kind": "a", "a": 1})", R"({"kind": "b", "b": "x"})"},
      {R"({"kind": "a"})", R"({"kind": "a", "b": "x"})", R"({"kind": "a", "a": 1, "c": 2})"});
  for (const char* part :
       {R"({"properties": {"c": {}}})", R"({"properties": {"a": {}}, "additionalProperties": {}})"}) {
    EXPECT_FALSE(compile_json_schema(R"({"properties": {"a": {}, "b": {}}, "additionalProperties": false, "anyOf": [)" +
                                     std::string(part) + "]}")
                     .ok());
  }
}

TEST(JsonSchema, WhiteSpaceIsBounded) {
  const GrammarPtr program = compile_json_object().value();
  EXPECT_TRUE(accepts(program, "{\n  \"a\": [\n    1\n  ]\n}"));
  EXPECT_FALSE(accepts(program, "{  \"a\": 1}"));
  EXPECT_FALSE(accepts(program, "{\n\n\"a\": 1}"));
  EXPECT_FALSE(accepts(program, "{\n" + std::string(200, ' ') + "\"a\": 1}"));
  EXPECT_FALSE(accepts(program, " {}"));
  EXPECT_FALSE(accepts(program, "[]"));
  EXPECT_TRUE(accepts(compile_json_value().value(), "[]"));
}

TEST(JsonSchema, RefusesWhatItCannotHoldTo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "array", "items": {"properties": {"q": {"uniqueItems": true}}}})", "'uniqueItems'"},
      {R"({"type": "array", "items": {"properties": {"q": {"uniqueItems": true}}}})", "#/items/properties/q"},
      {R"({"uniqueItems": 1})", "'uniqueItems'"},
      {R"({"multipleOf": 0.01})", "'multipleOf'"},
      {R"({"multipleOf": 101})", "'multipleOf'"},
      {R"({"multipleOf": 0})", "'multipleOf'"},
      {R"({"multipleOf": "2"})", "'multipleOf'"},
      {R"({"minProperties": 2})", "'minProperties'"},
      {R"({"maxProperties": 2147483647})", "counted properties"},
      {R"({"not": {}})", "no text at all"},
      {R"({"not": {"type": "string"}})", "'not'"},
      {R"({"if": {}})", "'if'"},
      {R"({"patternProperties": {}})", "'patternProperties'"},
      {R"({"requierd": ["a"]})", "'requierd'"},
      {R"({"type": "strin"})", "'strin'"},
      {R"({"type": 3})", "'type'"},
      {R"({"enum": [1], "minimum": 0})", "'minimum'"},
      {R"({"$ref": "http://example/x"})", "'$ref'"},
      {R"({"$ref": "#/nope"})", "points at nothing"},
      {R"({"$ref": "#"})", "refers to itself"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
      {R"({"allOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself"},
      {R"({"$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}}, "$ref": "#/$defs/a"})",
       "no text at all"},
      {R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "'type'"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "'pattern'"},
      {R"({"minimum": 3, "maximum": 2})", "no text at all"},
      {R"({"minimum": 1e300})", "19"},
      {R"({"minLength": -1})", "'minLength'"},
      {R"({"required": ["a"], "additionalProperties": false})", "'a' is required"},
      {R"~({"pattern": "(?=a)"})~", "look-around"},
      {R"({"pattern": "a\\b"})", "boundary"},
      {R"({"pattern": "(a)\\1"})", "back-reference"},
      {R"({"pattern": "a$b"})", "in its middle"},
      {R"({"pattern": "(a"})", "not closed"},
      {R"({"pattern": "((a{1000}){1000}){1000}"})", "states"},
      {R"({"pattern": "(((){90000}){90000}){90000}a{9999999}"})", "count above"},
      {R"({"maxLength": 2147483647})", "not supported"},
      {R"({"items": {"type": "object"}, "minItems": 99999999})", "not supported"},
      {R"(["a"])", "object or a boolean"},
      {R"({"a": )", "not valid JSON"},
      {R"(false)", "no text at all"},
  };
  for (const auto& [schema, message] : cases) {
    const auto program = compile_json_schema(schema);
    ASSERT_FALSE(program.ok()) << schema;
    EXPECT_NE(program.error().message.find(message), std::string::npos) << schema << "\n" << program.error().message;
  }
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  EXPECT_FALSE(compile_json_schema(deep).ok());
  std::string exploding = R"({"$ref": "#/$defs/a0", "$defs": {)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref": "#/$defs/a)" + std::to_string(i + 1) + R"("})";
    exploding += R"("a)" + std::to_string(i) + R"(": {"anyOf": [{"allOf": [)" + next +
                 R"(, {"title": "x"}]}, {"allOf": [)" + next + R"(, {"title": "y"}]}]},)";
  }
  exploding += R"("a40": {"type": "null"}}})";
  EXPECT_FALSE(compile_json_schema(exploding).ok());
}

struct OpenCase {
  const char* schema;
  const char* keyword;  // left open
  const char* path;     // null: whatever it is
  std::vector<const char*> good;
  std::vector<const char*> bad;  // what is known all the same is held to
};

// Each is refused where nothing may be left open.
TEST(JsonSchema, WhatNoGrammarExpressesIsLeftOpen) {
  const OpenCase cases[] = {
      {R"({"properties": {"q": {"type": "array", "items": {"type": "number"}, "uniqueItems": true}}})",
       "uniqueItems",
       "#/properties/q",
       {R"({"q": [1, 1]})", "{}"},
       {R"({"q": ["a"]})", R"({"r": 1})"}},
      {R"({"items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}, "uniqueItems": true})",
       "uniqueItems",
       "#",
       {"[3, 3]"},
       {"[17]"}},
      {R"({"items": {"enum": [{"a": 1}, {"a": 2}]}, "uniqueItems": true})", "uniqueItems", "#", {"[]"}, {"[1]"}},
      {R"({"items": {"enum": [1, 2]}, "prefixItems": [true], "uniqueItems": true})",
       "uniqueItems",
       "#",
       {R"(["a", 1, 1])"},
       {R"(["a", 3])"}},
      {R"({"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 2})",
       "minProperties",
       "#",
       {R"({"a": "1", "b": "2"})"},
       {R"({"a": "1"})", R"({"a": 1, "b": 2})"}},
      {R"({"properties": {"a": {}, "v": {"type": "integer"}}, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["v"]}})",
       "then",
       "#",
       {R"({"a": 1})", R"({"a": 1, "v": 2})"},
       {R"({"v": "x"})"}},
      {R"({"type": "object", "patternProperties": {"^A": {"type": "string"}}, "additionalProperties": false})",
       "patternProperties",
       "#",
       {R"({"A": "x"})", "{}"},
       {"[]"}},
      {R"({"properties": {"a": {"type": "null"}}, "patternProperties": {"^A": {}}})",
       "patternProperties",
       "#",
       {R"({"a": null, "A": "x"})"},
       {R"({"a": 1})"}},
      {R"({"allOf": [{"properties": {"a": {"type": "null"}}, "patternProperties": {"^A": {}}}, {"required": ["a"]}]})",
       "patternProperties",
       "#",
       {R"({"a": null, "A": "x"})"},
       {R"({"A": 1})"}},
      {R"({"properties": {"a": {}}, "required": ["a", "b"], "additionalProperties": false})",
       "required",
       "#",
       {R"({"a": 1, "b": 2})"},
       {R"({"a": 1})", R"({"a": 1, "b": 2, "c": 3})"}},
      {R"({"type": "string", "pattern": "\\bfoo\\b"})", "pattern", "#", {R"("any")"}, {"1"}},
      {R"({"type": "string", "pattern": "^\\p{L}+$", "maxLength": 2})", "pattern", "#", {R"("é1")"}, {R"("abc")"}},
      {R"~({"items": {"pattern": "(?i)a"}})~", "pattern", "#/items", {R"(["b"])"}, {"[1]"}},
      {R"({"type": "string", "pattern": "(a"})", "pattern", "#", {R"("b")"}, {"1"}},
      {R"({"type": "string", "pattern": "((a{1000}){1000}){1000}"})", "pattern", "#", {R"("b")"}, {"1"}},
      {R"({"type": "string", "maxLength": 2147483647, "minLength": 2})", "maxLength", "#", {R"("ab")"}, {R"("a")"}},
      {R"({"items": {"type": "null"}, "maxItems": 99999999})", "maxItems", "#", {"[null]"}, {"[1]"}},
      {R"({"type": "integer", "maximum": 18446744073709551615, "minimum": 0})", "maximum", "#", {"7"}, {"-7"}},
      {R"({"type": "integer", "multipleOf": 101, "minimum": 0})", "multipleOf", "#", {"7"}, {"-7", "0.5"}},
      {R"({"type": "number", "multipleOf": 0.01})", "multipleOf", "#", {"0.125"}, {"null"}},
      {R"({"type": "string", "not": {"const": "a"}})", "not", "#", {R"("a")"}, {"1"}},
      {R"({"type": "string", "enum": ["a", ""], "minLength": 1})", "minLength", "#", {R"("a")"}, {R"("b")"}},
      {R"({"items": {"$ref": "http://example/x"}})", "$ref", "#/items", {"[1]"}, {"1"}},
      {R"({"items": {"$ref": "#/nope", "type": "null"}})", "$ref", "#/items", {"[null]"}, {"[1]"}},
      {R"({"allOf": [{"$ref": "#"}, {"type": "null"}]})", "$ref", nullptr, {"null"}, {"1"}},
      {R"({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]})", "pattern", "#/allOf/1", {R"("ab")"}, {R"("b")"}},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}]})",
       "additionalProperties",
       "#/allOf/1",
       {R"({"a": 1})", "{}"},
       {R"({"c": 1})"}},
      {R"({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "number", "maximum": 9}]})",
       "oneOf",
       "#",
       {"5", "0.5"},
       {"99.5", "null"}},
      {R"({"oneOf": [{"type": "string", "nullable": true}, {"type": "integer", "nullable": true}]})",
       "oneOf",
       "#",
       {"1", "null"},
       {"true"}},
      {R"({"oneOf": [{"properties": {"k": {"const": 1}}}, {"properties": {"k": {"const": 2}}}]})",
       "oneOf",
       "#",
       {"{}", R"({"k": 2})"},
       {R"({"k": 3})"}},
  };
  for (const OpenCase& one : cases) {
    LeftOpen left_open;
    const auto program = compile_json_schema(one.schema, {}, SchemaReading::kOpen, &left_open);
    ASSERT_TRUE(program.ok()) << one.schema << "\n" << program.error().message;
    EXPECT_TRUE(std::any_of(
        left_open.places.begin(), left_open.places.end(),
        [&](const auto& place) { return place.keyword == one.keyword && (!one.path || place.path == one.path); }))
        << one.schema << "\n"
        << (left_open.places.empty() ? "nothing" : left_open.places[0].path + " " + left_open.places[0].keyword);
    for (const char* text : one.good) EXPECT_TRUE(accepts(*program, text)) << one.schema << "\nshould allow " << text;
    for (const char* text : one.bad) EXPECT_FALSE(accepts(*program, text)) << one.schema << "\nshould refuse " << text;
    const auto strict = compile_json_schema(one.schema, {}, SchemaReading::kStrict);
    ASSERT_FALSE(strict.ok()) << one.schema;
    EXPECT_NE(strict.error().message.find(one.path ? one.path : one.keyword), std::string::npos)
        << strict.error().message;
    const bool is_one_of = std::string_view(one.keyword) == "oneOf";
    EXPECT_EQ(compile_json_schema(one.schema).ok(), is_one_of) << one.schema;
  }
}

// Leaving one keyword open changes nothing about the others, and where there is
// none, nothing at all.
TEST(JsonSchema, WhatIsExpressedIsHeldToBesideWhatIsNot) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::pair<const char*, const char*> keywords[] = {
      {"if", R"({"type": "null"})"},      {"contains", "true"},
      {"not", R"({"type": "boolean"})"},  {"dependentRequired", R"({"a": ["b"]})"},
      {"unevaluatedProperties", "false"}, {"no such keyword", "1"}};
  for (const char* schema_text : kSchemas) {
    const Json schema = Json::parse(schema_text);
    const GrammarPtr program = compiled(schema_text);
    LeftOpen nothing;
    const auto open = compile_json_schema(schema_text, {}, SchemaReading::kOpen, &nothing);
    ASSERT_TRUE(open.ok()) << schema_text << "\n" << open.error().message;
    EXPECT_TRUE(nothing.places.empty()) << schema_text << "\n" << nothing.places[0].keyword;
    EXPECT_TRUE(compile_json_schema(schema_text, {}, SchemaReading::kStrict).ok()) << schema_text;
    const auto& [keyword, value] = keywords[random() % std::size(keywords)];
    Json more = schema;
    more[keyword] = Json::parse(value);
    LeftOpen left_open;
    const auto beside = compile_json_schema(more.dump(), {}, SchemaReading::kOpen, &left_open);
    ASSERT_TRUE(beside.ok()) << more << "\n" << beside.error().message;
    ASSERT_FALSE(left_open.places.empty()) << more;
    EXPECT_EQ(left_open.places[0].keyword, keyword) << more;
    for (int i = 0; i < 60; ++i) {
      const std::string text = written(in_order(schema, value_for(schema, schema, random, 0)), i % 3);
      ASSERT_EQ(accepts(*open, text), accepts(program, text)) << schema_text << "\n" << text;
      ASSERT_EQ(accepts(*beside, text), accepts(program, text)) << more << "\n" << text;
    }
  }
}

TEST(JsonSchema, WhatIsNoSchemaIsNeverLeftOpen) {
  for (const char* schema :
       {R"({"type": "colour"})", R"({"type": 3})", R"({"minLength": -1})", R"({"required": "a"})", R"({"enum": 1})",
        R"({"properties": []})", R"({"items": {"multipleOf": -1}})", R"({"uniqueItems": "yes"})", R"(["a"])", R"({)",
        R"({"anyOf": []})", R"({"minimum": "1"})"}) {
    EXPECT_FALSE(compile_json_schema(schema, {}, SchemaReading::kOpen).ok()) << schema;
  }
}

TEST(JsonSchema, PlacesLeftOpenAreBounded) {
  std::string schema = R"({"properties": {)";
  for (int i = 0; i < 400; ++i)
    schema += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(": {")" + std::string(900, 'k') + R"(": 1})";
  LeftOpen left_open;
  ASSERT_TRUE(compile_json_schema(schema + "}}", {}, SchemaReading::kOpen, &left_open).ok());
  EXPECT_EQ(left_open.places.size(), kMaxPlacesLeftOpen);
  EXPECT_EQ(left_open.more, 400 - static_cast<int64_t>(kMaxPlacesLeftOpen));
  EXPECT_LT(left_open.places[0].keyword.size(), 100u);
  std::string deep = R"({"if": 1})";
  for (int i = 0; i < 50; ++i) deep = R"({"properties": {")" + std::string(60, 'n') + R"(": )" + deep + "}}";
  left_open = {};
  ASSERT_TRUE(compile_json_schema(deep, {}, SchemaReading::kOpen, &left_open).ok());
  ASSERT_EQ(left_open.places.size(), 1u);
  EXPECT_LT(left_open.places[0].path.size(), 600u);
}

// Alternatives of which two can hold together are found, whatever tells the others apart.
TEST(JsonSchema, BranchesThatExcludeEachOther) {
  const auto is_exact = [](const std::string& branches, const std::string& beside = "") {
    const std::string schema = R"({"$defs": {"A": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
                                             "B": {"properties": {"k": {"const": "b"}}}, "T": {"type": "array"}},)" +
                               beside + R"("oneOf": [)" + branches + "]}";
    LeftOpen left_open;
    const auto open = compile_json_schema(schema, {}, SchemaReading::kOpen, &left_open);
    EXPECT_TRUE(open.ok()) << schema << (open.ok() ? "" : open.error().message);
    EXPECT_EQ(left_open.places.empty(), compile_json_schema(schema, {}, SchemaReading::kStrict).ok()) << schema;
    return left_open.places.empty();
  };
  EXPECT_TRUE(is_exact(R"({"type": "integer"}, {"type": ["string", "null"]}, {"$ref": "#/$defs/T"})"));
  EXPECT_FALSE(is_exact(R"({"type": "integer"}, {"type": ["number", "null"]})"));
  EXPECT_TRUE(is_exact(R"({"const": 1}, {"enum": [2, "a"]}, {"const": "b"}, {"enum": [null]})"));
  EXPECT_FALSE(is_exact(R"({"const": 1}, {"enum": [2, 1.0]})"));
  EXPECT_TRUE(is_exact(R"({"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"})")) << "one of them requires it";
  EXPECT_FALSE(is_exact(R"({"$ref": "#/$defs/B"}, {"properties": {"k": {"const": "c"}}})")) << "neither does";
  EXPECT_TRUE(is_exact(R"({"$ref": "#/$defs/B"}, {"properties": {"k": {"const": "c"}}})",
                       R"("properties": {"k": {"type": "string"}}, "required": ["k"],)"))
      << "what stands beside them does";
  EXPECT_TRUE(is_exact(R"({"allOf": [{"$ref": "#/$defs/A"}], "title": "x"}, {"$ref": "#/$defs/B"})"));
  EXPECT_TRUE(is_exact(R"({"properties": {"o": {"$ref": "#/$defs/A"}}, "required": ["o"]},
                          {"properties": {"o": {"$ref": "#/$defs/B"}}})"));
  EXPECT_FALSE(is_exact(R"({"$ref": "#/$defs/A", "nullable": true}, {"$ref": "#/$defs/B", "nullable": true})"));
  EXPECT_TRUE(is_exact(R"({"$ref": "#/$defs/A", "nullable": true}, {"$ref": "#/$defs/B"})"));
  EXPECT_TRUE(is_exact(R"({"not": {}}, {"type": "string"}, false, {"type": "null"})"));
  EXPECT_FALSE(is_exact(R"({"minLength": 3}, {"properties": {"a": {}}})", R"("type": "string",)"));
  EXPECT_FALSE(is_exact(R"({"type": "string"}, {"type": "string"})"));
  std::string many = R"({"const": -1})";
  for (int i = 0; i < 300; ++i) many += R"(,{"const": )" + std::to_string(i) + R"(, "title": "t"})";
  EXPECT_TRUE(is_exact(many));
}

TEST(JsonSchema, MultiplesAreExact) {
  for (const int64_t multiple : {1, 2, 3, 7, 10, 25, 64, 97, 100, 250, 9000}) {
    for (const int64_t low : {-20000, -7, 0, 1, 12, 999}) {
      for (const int64_t high : {-8, 0, 99, 1001, 31234}) {
        const std::string bounds =
            R"(, "minimum": )" + std::to_string(low) + R"(, "maximum": )" + std::to_string(high) + "}";
        const std::string schema = R"({"type": "integer", "multipleOf": )" + std::to_string(multiple);
        const auto both = compile_json_schema(schema + bounds);
        const auto free = compile_json_schema(schema + "}");
        ASSERT_TRUE(free.ok()) << free.error().message;
        for (const int64_t near : {low, high, int64_t{0}, multiple, 3 * multiple, -multiple}) {
          for (int64_t value = near - 12; value <= near + 12; ++value) {
            const bool fits = value % multiple == 0;
            const std::string text = std::to_string(value);
            const bool inside = value >= low && value <= high;
            ASSERT_EQ(both.ok() && accepts(*both, text), fits && inside) << schema << bounds << " " << text;
            ASSERT_EQ(accepts(*free, text), fits) << schema << " " << text;
          }
        }
      }
    }
  }
  expect_texts(R"({"type": "integer", "multipleOf": 25})", {"0", "999999999999999975"},
               {"-0", "025", "00", "999999999999999970", "2.5e1", "1000000000000000000"});
  EXPECT_FALSE(compile_json_schema(R"({"multipleOf": 10, "minimum": 1, "maximum": 9})").ok());
}

// What merging would copy and compare is counted, not begun: each of these would take
// minutes or for ever.
TEST(JsonSchema, MergingIsBounded) {
  const auto expect_refused = [](const std::string& schema) {
    const auto program = compile_json_schema(schema);
    ASSERT_FALSE(program.ok());
    EXPECT_EQ(program.error().code, ErrorCode::kTooLarge) << program.error().message;
  };
  std::string doubling = R"({"allOf": [{"$ref": "#/$defs/a0"}, {"title": "x"}], "$defs": {)";
  for (int i = 0; i < 30; ++i) {
    const std::string next = R"({"$ref": "#/$defs/a)" + std::to_string(i + 1) + R"("})";
    doubling += R"("a)" + std::to_string(i) + R"(": {"allOf": [)" + next + ", " + next + "]},";
  }
  expect_refused(doubling + R"("a30": {"type": "null"}}})");
  const auto list = [](const std::string& keyword, const std::string& item) {
    std::string text = R"({")" + keyword + R"(": [)" + item;
    for (int i = 1; i < 100'000; ++i) text += "," + item;
    return text + "]}";
  };
  expect_refused(R"({"allOf": [)" + list("enum", "0") + "," + list("enum", "1") + "]}");
  expect_refused(R"({"allOf": [)" + list("required", "\"\"") + "," + list("required", "\"a\"") + "]}");
  std::string alternatives = R"({"title": ")" + std::string(10'000, 'x') + R"(", "properties": {)";
  for (int i = 0; i < 400; ++i)
    alternatives += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(": {"enum": [1, 2, 3]})";
  alternatives += R"(}, "anyOf": [{"type": "object"})";
  for (int i = 0; i < 19'000; ++i) alternatives += R"(,{"type": "object"})";
  expect_refused(alternatives + "]}");
}

TEST(JsonSchema, AnnotationsAreAccepted) {
  expect_texts(
      R"({"$schema": "x", "$id": "y", "title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": false,
                   "readOnly": true, "$comment": "c", "x-order": 3, "type": "integer", "nullable": true})",
      {"1", "null"}, {"\"a\""});
}

TEST(JsonSchema, RegexAndChoice) {
  const GrammarPtr regex = compile_regex(R"((\d{1,3}\.){3}\d{1,3}|[^\x00-\x7f]+|"q")").value();
  for (const char* text : {"1.22.333.4", "é🙂", "\"q\""}) EXPECT_TRUE(accepts(regex, text)) << text;
  for (const char* text : {"1.22.333", "a", "1.2.3.4x", "", "\xff"}) EXPECT_FALSE(accepts(regex, text)) << text;
  const GrammarPtr choice = compile_choice({"yes", "yesterday", "no"}).value();
  for (const char* text : {"yes", "yesterday", "no"}) EXPECT_TRUE(accepts(choice, text)) << text;
  for (const char* text : {"y", "yest", "nope", ""}) EXPECT_FALSE(accepts(choice, text)) << text;
  EXPECT_FALSE(compile_choice({}).ok());
  EXPECT_FALSE(compile_choice({""}).ok());
}

// Every way in which the text can be read is a state of its own, and every token leads to
// other sets of them: a mask would take 12 s and a gigabyte.
TEST(JsonSchema, AMaskThatTakesTooMuchIsGivenUp) {
  std::vector<GrammarToken> tokens{{0, "", GrammarToken::Kind::kEnd}};
  const std::string letters = "abcdefghijklmnopqrstuvwxyz ";
  for (const char a : letters) {
    for (const char b : letters) {
      for (const char c : letters) tokens.push_back({static_cast<int32_t>(tokens.size()), std::string{a, b, c}});
    }
  }
  const auto size = static_cast<int64_t>(tokens.size());
  const auto vocab = VocabTrie::build(std::move(tokens), size).value();
  std::string some = "[a-z ]";
  for (int i = 0; i < 60; ++i) some += "|()";
  std::string hostile = "((" + some + ")?){200}";
  for (char c = 'a'; c <= 'z'; ++c) hostile += std::string("|.*") + c + ".{30}";
  std::vector<uint32_t> mask(vocab->mask_words());
  GrammarState state(compile_regex(hostile).value(), vocab);
  const int64_t before = state.work();
  EXPECT_FALSE(state.fill_mask(mask));
  EXPECT_TRUE(state.too_ambiguous());
  EXPECT_TRUE(std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; }));
  EXPECT_LT(state.work() - before, kMaxMaskWork + kMaxMaskWork / 8);
  // Usual forms are far from that.
  GrammarState usual(compile_regex("([a-z]{3,10} ){2,20}").value(), vocab);
  EXPECT_TRUE(usual.fill_mask(mask));
  EXPECT_LT(usual.work(), kMaxMaskWork / 20);
}

// A class of thousands of characters, repeated tens of thousands of times, is held once.
TEST(JsonSchema, RepeatedClassesAreHeldOnce) {
  std::string pattern = "[";
  for (char32_t c = 0x4E00; c < 0x4E00 + 2 * 5000; c += 2) utf8_append(pattern, c);
  const auto automaton = schema::parse_regex(pattern + "]{20000}", schema::RegexMode::kWhole);
  ASSERT_TRUE(automaton.ok()) << automaton.error().message;
  const schema::CharSet* first = nullptr;
  int edges = 0;
  for (const auto& node : automaton->nodes) {
    for (const auto& [set, to] : node.edges) {
      if (first == nullptr) first = &set;
      ASSERT_TRUE(set.shares_ranges_with(*first));
      ++edges;
    }
  }
  EXPECT_EQ(edges, 20000);
  EXPECT_EQ(first->ranges().size(), 5000u);
  const auto longer = schema::with_length(*automaton, 0, 3, 100'000);
  for (const auto& node : longer.nodes) {
    for (const auto& [set, to] : node.edges) ASSERT_TRUE(set.shares_ranges_with(*first));
  }
}

// Against a set of all numbers up to a bound.
TEST(JsonSchema, CharSetsAreSets) {
  Prng prng(31);
  for (int round = 0; round < 300; ++round) {
    schema::CharSet set;
    std::set<char32_t> naive;
    for (uint64_t i = prng.below(30); i-- > 0;) {
      const auto low = static_cast<char32_t>(0xD700 + prng.below(0xA00));
      const auto high = static_cast<char32_t>(low + prng.below(40));
      const schema::CharSet before = set;
      const schema::CharSet::Ranges ranges = before.ranges();
      set.add(low, high);
      EXPECT_EQ(before.ranges(), ranges) << "copies stay as they are";
      for (char32_t c = low; c <= high; ++c) {
        if (c < 0xD800 || c > 0xDFFF) naive.insert(c);
      }
    }
    schema::CharSet::Ranges want;
    for (const char32_t c : naive) {
      if (!want.empty() && want.back().second + 1 == c)
        want.back().second = c;
      else
        want.emplace_back(c, c);
    }
    ASSERT_EQ(set.ranges(), want) << "seed 31, round " << round;
    EXPECT_EQ(set.empty(), want.empty());
  }
}

TEST(JsonSchema, FormsPutPartsTogether) {
  const GrammarForm call = GrammarForm::sequence(
      {GrammarForm::literal("<c>"), GrammarForm::schema(R"({"type": "integer"})"), GrammarForm::literal("</c>")});
  const GrammarPtr several = compile_form(GrammarForm::repeat(call, GrammarForm::literal(";"), 1, -1)).value();
  EXPECT_TRUE(accepts(several, "<c>1</c>;<c>22</c>"));
  EXPECT_FALSE(accepts(several, "<c>1</c>;"));
  EXPECT_FALSE(accepts(several, ""));
  const GrammarPtr two = compile_form(GrammarForm::repeat(call, GrammarForm::literal(""), 0, 2)).value();
  EXPECT_TRUE(accepts(two, ""));
  EXPECT_TRUE(accepts(two, "<c>1</c><c>2</c>"));
  EXPECT_FALSE(accepts(two, "<c>1</c><c>2</c><c>3</c>"));
  const GrammarForm rest =
      GrammarForm::sequence({GrammarForm::schema(R"({"type": "integer"})"), GrammarForm::literal("</c>")});
  const GrammarPtr free = compile_form(GrammarForm::triggered("<c>", rest, false)).value();
  EXPECT_TRUE(accepts(free, "free <c text"));
  EXPECT_TRUE(accepts(free, "one <c>1</c> two <c>2</c>"));
  EXPECT_FALSE(accepts(free, "one <c>x"));
  EXPECT_FALSE(accepts(free, "one <c>1"));
  const GrammarPtr once = compile_form(GrammarForm::triggered("<c>", rest, true)).value();
  EXPECT_TRUE(accepts(once, "one <c>1</c>"));
  EXPECT_FALSE(accepts(once, "one <c>1</c> "));
}

// A tree's objects look each name up among all before it: an object of a megabyte's names
// would take half a minute.
TEST(JsonSchema, ObjectsOfVeryManyFieldsAreRefusedBeforeTheyAreRead) {
  const auto object_of = [](int fields) {
    std::string json = "{";
    for (int i = 0; i < fields; ++i) json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
    return json + "}";
  };
  EXPECT_TRUE(check_json_shape(object_of(kMaxJsonFields)).ok());
  EXPECT_FALSE(check_json_shape(object_of(kMaxJsonFields + 1)).ok());
  EXPECT_TRUE(check_json_shape("[" + object_of(kMaxJsonFields) + "," + object_of(kMaxJsonFields) + "]").ok());
  EXPECT_FALSE(check_json_shape("[{}," + object_of(kMaxJsonFields + 1) + "]").ok());
  EXPECT_TRUE(check_json_shape("{\"" + std::string(9999, ':') + "\":1}").ok()) << "what strings hold is not looked at";
  EXPECT_TRUE(check_json_shape("}}]]:").ok()) << "what is no JSON the parser refuses";
  const auto refused = compile_json_schema(R"({"x":)" + object_of(90'000) + "}");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("more than 2000 fields"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace loralei
