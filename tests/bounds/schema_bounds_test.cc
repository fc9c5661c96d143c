// SPDX-License-Identifier: Apache-2.0
// What a client's schema may cost: small or large, however it repeats itself,
// a compilation stays within a bound on memory and ends soon. Each schema here once took
// hundreds of megabytes, or from seconds to hours.
#include <gtest/gtest.h>

#include "base/allocation_counter.h"
#include "base/units.h"
#include "schema/json_schema.h"

namespace loralei {
namespace {

using testing_support::Allocated;

constexpr int64_t kMaxPeakBytes = 128 * kMiB;
constexpr int64_t kFreeBytes = 2 * kMiB;  // what whoever compiles has asked for beforehand
constexpr int64_t kMaxAllocatedBytes = 1024 * kMiB;

struct Compiled {
  Result<GrammarPtr> program;
  Allocated cost;
};

template <typename Compile>
Compiled measure(Compile compile) {
  testing_support::start_counting_allocations();
  Result<GrammarPtr> program = compile();
  return {std::move(program), testing_support::stop_counting_allocations()};
}

Compiled expect_bounded(const std::string& schema, SchemaReading reading) {
  int64_t taken = kFreeBytes;
  const TakeMemory take = [&taken](int64_t more) {
    taken += more;
    return Status();
  };
  LeftOpen left_open;
  Compiled compiled = measure([&] { return compile_json_schema(schema, take, reading, &left_open); });
  EXPECT_LE(compiled.cost.peak_bytes, kMaxPeakBytes);
  EXPECT_LE(compiled.cost.peak_bytes, taken) << "more than was asked for: " << schema.substr(0, 200);
  EXPECT_LE(compiled.cost.bytes, kMaxAllocatedBytes);
  EXPECT_LE(left_open.places.size(), kMaxPlacesLeftOpen);
  return compiled;
}

// However it is read; what came of it where nothing is left open.
Compiled expect_bounded(const std::string& schema) {
  expect_bounded(schema, SchemaReading::kOpen);
  expect_bounded(schema, SchemaReading::kStrict);
  return expect_bounded(schema, SchemaReading::kGuided);
}

void expect_refused(const std::string& schema, const std::string& message) {
  const Compiled compiled = expect_bounded(schema);
  ASSERT_FALSE(compiled.program.ok());
  const Error& error = compiled.program.error();
  EXPECT_EQ(error.code, ErrorCode::kTooLarge) << error.message;
  EXPECT_NE(error.message.find(message), std::string::npos) << error.message.substr(0, 1000);
  EXPECT_LT(error.message.size(), 2000u);
}

void expect_compiled(const std::string& schema) {
  const Compiled compiled = expect_bounded(schema);
  EXPECT_TRUE(compiled.program.ok()) << compiled.program.error().message.substr(0, 1000);
}

// `count` texts with '%' replaced by their numbers, separated by commas.
std::string list(int count, const std::string& item) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    for (const char c : item) {
      if (c == '%')
        out += std::to_string(i);
      else
        out += c;
    }
  }
  return out;
}

// The inside of a class: `count` characters from `first` on, as JSON writes "\\uXXXX".
std::string escapes(int first, int step, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\\\u%04x", static_cast<unsigned>(first + i * step));
    out += escape;
  }
  return out;
}

TEST(SchemaBounds, CountsAndDigitsFillAGrammarToItsLimit) {
  // A few kilobytes each.
  expect_refused(
      R"({"properties": {"a": {"type": "null"}, "big": {"properties": {)" +
          list(
              500,
              R"("p%": {"anyOf": [{"minimum": -1%e-300, "maximum": 1%e-300}, {"minimum": -2%e-300, "maximum": 2%e-300}]})") +
          "}}}}",
      "#/properties/big/properties/p");
  expect_refused(R"({"properties": {)" + list(60, R"("p%": {"pattern": "^[a-c]{%000}[d-f]{9999}$"})") + "}}",
                 "#/properties/p");
  expect_refused(R"({"properties": {)" + list(60, R"("p%": {"maxLength": 2%000})") + "}}", "#/properties/p");
  expect_refused(R"({"properties": {)" + list(60, R"("p%": {"items": {"type": "null"}, "maxItems": 3%00})") + "}}",
                 "#/properties/p");
}

TEST(SchemaBounds, DistinctItemsMultiplesAndCountedPropertiesAreBounded) {
  expect_refused(
      R"({"properties": {)" +
          list(60, R"("p%": {"items": {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -%]}, "uniqueItems": true})") + "}}",
      "#/properties/p");
  expect_refused(
      R"({"properties": {)" + list(500, R"("p%": {"type": "integer", "multipleOf": 97, "minimum": %})") + "}}",
      "#/properties/p");
  expect_compiled(R"({"anyOf": [)" + list(9000, R"({"multipleOf": 97, "title": "%"})") + "]}");
  expect_compiled(R"({"properties": {)" + list(400, R"("p%": {"type": "null"})") + R"(}, "maxProperties": 100})");
  EXPECT_FALSE(expect_bounded(R"({"properties": {)" + list(400, R"("p%": {"type": "null"})") +
                              R"(}, "additionalProperties": true, "maxProperties": 2000000000})")
                   .program.ok());
  EXPECT_FALSE(expect_bounded(R"({"type": "object", "minProperties": 2000000000})").program.ok());
}

TEST(SchemaBounds, BranchesAreComparedWithinBounds) {
  expect_compiled(R"({"oneOf": [)" + list(1000, R"({"properties": {"k": {"const": %}}, "required": ["k"]})") + "]}");
  expect_compiled(R"({"oneOf": [)" + list(200, R"({"const": "%", "title": "t"})") + "]}");
  // Nothing tells them apart, and finding that out means to look at everything.
  const std::string names = list(900, R"("n%")");
  expect_bounded(R"({"required": [)" + names + R"(], "oneOf": [)" +
                 list(300, R"({"properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "%"]})") + "]}");
  expect_bounded(R"({"$defs": {"e": {"enum": [)" + list(9000, R"("e%")") + R"(]}}, "oneOf": [)" +
                 list(300, R"({"$ref": "#/$defs/e", "title": "%"})") + "]}");
  expect_bounded(R"({"$defs": {")" + std::string(300'000, 'n') + R"(": {"$ref": "#/$defs/)" +
                 std::string(300'000, 'n') + R"("}}, "oneOf": [)" + list(500, R"({"$ref": "#/$defs/x%"})") + "]}");
}

TEST(SchemaBounds, WhatIsLeftOpenIsToldWithinBounds) {
  expect_bounded(R"({"properties": {)" + list(500, R"("p%": {"pattern": "\\b", "if": {}, "maxLength": 2147483647})") +
                 "}}");
  std::string deep = R"({"anyOf": [)" + list(15'000, R"({"if%": 1})") + "]}";
  for (int i = 0; i < 40; ++i) deep = R"({"properties": {")" + std::string(64, 'n') + R"(": )" + deep + "}}";
  expect_bounded(deep);
  expect_bounded(R"({"allOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "null"}]})");
}

// The same part used again and again is compiled once, also with annotations or
// "nullable" beside the reference.
// A range that is open at one end is a chain of a hundred states, once for equal ones.
TEST(SchemaBounds, OpenRangesOfNumbersAreBounded) {
  expect_compiled(R"({"properties": {)" + list(500, R"("p%": {"type": "integer", "minimum": %})") + "}}");
  const std::string types = R"({"type": ["integer", "null"], "minimum": 5})";
  expect_compiled(R"({"anyOf": [)" + list(9000, types) + "]}");
  expect_refused(R"({"anyOf": [)" + list(9000, R"({"type": "integer", "minimum": 7%})") + "]}", "#/anyOf/");
}

TEST(SchemaBounds, EqualReferencesAreCompiledOnce) {
  const std::string pattern = "[" + escapes(0x9000, -2, 2500);
  const std::string defs = R"("$defs": {"s": {"type": "string", "pattern": ")" + pattern + R"(]"}})";
  expect_compiled("{" + defs + R"(, "anyOf": [)" +
                  list(9000, R"({"$ref": "#/$defs/s", "nullable": true, "title": "t%"})") + "]}");
  expect_compiled("{" + defs + R"(, "anyOf": [)" +
                  list(9000, R"({"allOf": [{"$ref": "#/$defs/s"}], "nullable": true})") + "]}");
  // Two references a level: 2^25 of them.
  std::string twice = R"({"$ref": "#/$defs/a0", "nullable": true, "$defs": {)";
  for (int i = 0; i < 25; ++i) {
    const std::string next = R"({"$ref": "#/$defs/a)" + std::to_string(i + 1) + R"(", "nullable": true})";
    twice += R"("a)" + std::to_string(i) + R"(": {"properties": {"x": )" + next + R"(, "y": )" + next + "}},";
  }
  expect_compiled(twice + R"("a25": {"type": "null"}}})");
}

TEST(SchemaBounds, ReferencesThatDifferAreBounded) {
  const std::string pattern = "[" + escapes(0x9000, -2, 2500);
  expect_refused(R"({"$defs": {"s": {"type": "string", "pattern": ")" + pattern + R"(]"}}, "anyOf": [)" +
                     list(9000, R"({"$ref": "#/$defs/s", "minLength": %})") + "]}",
                 "#/anyOf/");
  expect_refused(R"({"$defs": {"s": {"title": ")" + std::string(500'000, 't') + R"(", "type": "string"}}, "anyOf": [)" +
                     list(9000, R"({"$ref": "#/$defs/s", "minLength": %})") + "]}",
                 "#/anyOf/");
}

TEST(SchemaBounds, LongListsAreReadOnce) {
  expect_refused(R"({"anyOf": [)" + list(150'000, "false") + "]}", "parts");
  expect_compiled(R"({"anyOf": [)" + list(19'000, R"({"minLength": 2, "maxLength": 1, "title": "%"})") +
                  R"(, {"type": "null"}]})");
  EXPECT_FALSE(expect_bounded(R"({"type": [)" + list(90'000, R"("a%")") + "]}").program.ok());
  expect_compiled(R"({"enum": [)" + list(9'999, R"("a%")") + "]}");
  expect_compiled(R"({"enum": [)" + list(9'999, R"([0,0,0,0,0,0,0,0,%])") + R"(], "const": [0,0,0,0,0,0,0,0,7]})");
  EXPECT_FALSE(expect_bounded(R"({"properties": {)" + list(400, R"("p%": {"type": "null"})") + R"(}, "required": [)" +
                              list(90'000, R"("q%")") + R"(], "additionalProperties": {"type": "null"}})")
                   .program.ok());
}

// Where a part lies in the schema is told in errors; long names are cut there.
TEST(SchemaBounds, LongNamesAreNotCopiedForEveryPart) {
  expect_compiled(R"({"$defs": {")" + std::string(200'000, 'n') + R"(": {"anyOf": [)" +
                  list(15'000, R"({"type": "null", "title": "%"})") + R"(]}}, "$ref": "#/$defs/)" +
                  std::string(200'000, 'n') + "\"}");
  std::string name;
  for (int i = 0; i < 40'000; ++i) name += "é";
  expect_compiled(R"({"properties": {")" + name + R"(": {"anyOf": [)" +
                  list(15'000, R"({"type": "null", "title": "%"})") + R"(]}}})");
  expect_refused(R"({"properties": {")" + name + R"(": {"maxLength": 2147483647}}})", "#/properties/é");
  expect_refused(R"({"properties": {")" + std::string(200'000, 'n') + R"(": {}}, "additionalProperties": true})",
                 "additionalProperties");
}

TEST(SchemaBounds, NestingCopiesNothing) {
  for (const auto& [open, close] : {std::pair<std::string, std::string>(R"({"properties": {"a": )", "}}"),
                                    {R"({"additionalProperties": )", "}"},
                                    {R"({"nullable": true, "anyOf": [)", "]}"},
                                    {R"({"items": )", "}"}}) {
    std::string schema = R"({"type": "null", "default": [)" + list(200'000, "0") + "]}";
    for (int i = 0; i < 60; ++i) schema = open + schema + close;
    expect_compiled(schema);
  }
}

TEST(SchemaBounds, PatternsAreReadOnce) {
  const std::string anchors = R"("p%": {"pattern": ")" + std::string(16'000, '^') + R"(a%"})";
  expect_compiled(R"({"properties": {)" + list(10, anchors) + "}}");
  std::string empty;
  for (int i = 0; i < 7000; ++i) empty += "()";
  const auto whole = measure([&] { return compile_regex("(" + empty + "a){50000}"); });
  EXPECT_TRUE(whole.program.ok());
  EXPECT_LE(whole.cost.peak_bytes, kMaxPeakBytes);
  // Classes that begin alike and are repeated.
  const std::string classes = escapes(0x4E00, 2, 1100);
  expect_bounded(R"({"properties": {)" + list(100, R"("p%": {"pattern": "^[)" + classes + R"(\\u80%]{2000}$"})") +
                 "}}");
}

TEST(SchemaBounds, ToolsAreBounded) {
  std::string big = R"({"properties": {)" + list(400, R"("p%": {"minimum": -1%e-300, "maximum": 1%e-300})") + "}}";
  std::vector<GrammarForm> parts;
  for (int i = 0; i < 128; ++i) parts.push_back(GrammarForm::schema(big, "tool " + std::to_string(i)));
  const auto compiled = measure([&] { return compile_form(GrammarForm::choice(parts)); });
  EXPECT_FALSE(compiled.program.ok());
  EXPECT_LE(compiled.cost.peak_bytes, kMaxPeakBytes);
}

// Ordinary schemas are far from the limits.
TEST(SchemaBounds, OrdinarySchemasCompile) {
  const auto compiled = expect_bounded(
      R"({"$defs": {"node": {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"},
            "next": {"$ref": "#/$defs/node", "nullable": true, "description": "the one behind"},
            "children": {"type": "array", "items": {"allOf": [{"$ref": "#/$defs/node"}], "nullable": true}},
            "either": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["id"]}},
          "type": "object", "properties": {"root": {"$ref": "#/$defs/node"},)" +
      list(400, R"("p%": {"type": "string", "format": "date-time", "description": "one of them"})") +
      R"(}, "additionalProperties": false})");
  EXPECT_TRUE(compiled.program.ok()) << compiled.program.error().message;
  EXPECT_LE(compiled.cost.peak_bytes, 8 * kMiB);
  expect_compiled(R"({"properties": {)" + list(400, R"("p%": {"type": "string", "maxLength": 1000})") + "}}");
  expect_compiled(R"({"type": "array", "maxItems": 10000, "items": {"type": "string", "maxLength": 50000}})");
  std::vector<std::string> choices;
  for (int i = 0; i < 10'000; ++i) choices.push_back(std::to_string(i * 7919) + " is one of the choices");
  EXPECT_TRUE(measure([&] { return compile_choice(choices); }).program.ok());
}

}  // namespace
}  // namespace loralei
