// SPDX-License-Identifier: Apache-2.0
#include "text/json_schema.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "text/jinja_text.h"

namespace loralei {
namespace {

using Json = nlohmann::ordered_json;

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

// --- a tiny validator: the meaning of the keywords, written straight from the specification

struct Validator {
  const Json& root;

  bool type_fits(const Json& value, const std::string& type) const {
    // The reader turns integers of many digits into floats.
    if (type == "integer")
      return value.is_number_integer() || (value.is_number_float() && std::fabs(value.get<double>()) > 1e15);
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    return type == "array" ? value.is_array() : value.is_object();
  }

  bool number_fits(const Json& s, double v) const {
    return !(s.contains("minimum") && v < s["minimum"].get<double>()) &&
           !(s.contains("maximum") && v > s["maximum"].get<double>()) &&
           !(s.contains("exclusiveMinimum") && v <= s["exclusiveMinimum"].get<double>()) &&
           !(s.contains("exclusiveMaximum") && v >= s["exclusiveMaximum"].get<double>());
  }

  bool string_fits(const Json& s, const std::string& v) const {
    const int64_t size = jinja::code_point_count(v);
    if (s.contains("minLength") && size < s["minLength"].get<int64_t>()) return false;
    if (s.contains("maxLength") && size > s["maxLength"].get<int64_t>()) return false;
    return !s.contains("pattern") || std::regex_search(v, std::regex(s["pattern"].get<std::string>()));
  }

  bool array_fits(const Json& s, const Json& v) const {
    if (s.contains("minItems") && v.size() < s["minItems"].get<size_t>()) return false;
    if (s.contains("maxItems") && v.size() > s["maxItems"].get<size_t>()) return false;
    const size_t prefix = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < prefix ? !valid(s["prefixItems"][i], v[i]) : s.contains("items") && !valid(s["items"], v[i]))
        return false;
    }
    return true;
  }

  static void collect_names(const Json& s, Json& names) {
    if (s.contains("properties")) names.update(s["properties"]);
    for (const char* keyword : {"allOf", "anyOf"}) {
      if (!s.contains(keyword)) continue;
      for (const Json& part : s[keyword]) collect_names(part, names);
    }
  }

  bool object_fits(const Json& s, const Json& v, bool is_part) const {
    Json documented = Json::object();
    collect_names(s, documented);
    if (s.contains("required")) {
      for (const Json& name : s["required"]) {
        if (!v.contains(name.get<std::string>())) return false;
      }
    }
    for (const auto& [name, item] : v.items()) {
      if (s.contains("properties") && s["properties"].contains(name)) {
        if (!valid(s["properties"][name], item)) return false;
      } else if (s.contains("additionalProperties")) {
        if (!valid(s["additionalProperties"], item)) return false;
      } else if (!is_part && !documented.empty() && !documented.contains(name)) {
        return false;  // our reading: only what is documented, here or in a part
      }
    }
    return true;
  }

  bool valid(const Json& s, const Json& v, bool is_part = false) const {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref")) {
      const std::string reference = s["$ref"].get<std::string>();
      return valid(reference == "#" ? root : root[Json::json_pointer(reference.substr(1))], v);
    }
    if (s.contains("allOf")) {
      for (const Json& part : s["allOf"]) {
        if (!valid(part, v, true)) return false;
      }
    }
    if (s.contains("anyOf")) {
      bool some = false;
      for (const Json& part : s["anyOf"]) some |= valid(part, v, true);
      if (!some) return false;
    }
    if (s.contains("const") && v != s["const"]) return false;
    if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end()) return false;
    if (s.contains("type")) {
      bool some = false;
      if (s["type"].is_string())
        some = type_fits(v, s["type"].get<std::string>());
      else
        for (const Json& type : s["type"]) some |= type_fits(v, type.get<std::string>());
      if (!some) return false;
    }
    if (v.is_number()) return number_fits(s, v.get<double>());
    if (v.is_string()) return string_fits(s, v.get<std::string>());
    if (v.is_array()) return array_fits(s, v);
    return !v.is_object() || object_fits(s, v, is_part);
  }
};

const char* const kSchemas[] = {
    R"({})",
    R"({"type": "object"})",
    R"({"type": "string"})",
    R"({"type": "integer"})",
    R"({"type": "number"})",
    R"({"type": ["string", "null", "integer"]})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}}, "required": ["b"]})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}}, "required": ["a"], "additionalProperties": true})",
    R"({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 12}})",
    R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
    R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"}})",
    R"({"type": "array", "items": {"type": "array", "items": {"enum": [1, "x", null]}}})",
    R"({"type": "string", "minLength": 2, "maxLength": 4})",
    R"({"type": "string", "pattern": "^a[bc]*d$"})",
    R"({"type": "string", "pattern": "b+"})",
    R"({"type": "string", "pattern": "^(ab|c){1,2}", "maxLength": 5})",
    R"({"type": "integer", "minimum": -12, "maximum": 105})",
    R"({"type": "integer", "exclusiveMinimum": 7})",
    R"({"type": "integer", "maximum": -3})",
    R"({"type": "number", "minimum": 0, "maximum": 1})",
    R"({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 2.25})",
    R"({"type": "number", "minimum": -3.75, "maximum": -0.5})",
    R"({"type": "number", "exclusiveMinimum": 0})",
    R"({"enum": ["red", "re", {"k": [1, 2]}, 4, null, 1.5]})",
    R"({"const": {"a": [true, "x\n"]}})",
    R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {"type": "object", "properties": {"x": {"type": "null"}}}]})",
    R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "v": {"type": "integer"}}, "required": ["next"]})",
    R"({"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"})",
    R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"maximum": 5}, "b": {"type": "string"}}}]})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"properties": {"b": {"const": "z"}}}]})",
};

Json random_value(std::mt19937& random, int depth) {
  static const char* kWords[] = {"a",    "b",  "ab",           "abcd",    "red",  "re", "x", "", "acbd",
                                 "abab", "ca", "Größe 🙂", "q\"\\\n", "next", "v",  "k", "z"};
  switch (random() % (depth > 2 ? 6 : 8)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<int64_t>(random() % 30) - 15;
    case 3:
      return (static_cast<int64_t>(random() % 33) - 16) / 4.0 + 0.125;
    case 4:
      return static_cast<int64_t>(random() % 300) - 150;
    case 5:
      return kWords[random() % std::size(kWords)];
    case 6: {
      Json out = Json::array();
      for (size_t i = random() % 4; i > 0; --i) out.push_back(random_value(random, depth + 1));
      return out;
    }
    default: {
      Json out = Json::object();
      static const char* kNames[] = {"a", "b", "c", "ab", "next", "v", "x", "k"};
      for (const char* name : kNames) {
        if (random() % 4 == 0) out[name] = random_value(random, depth + 1);
      }
      return out;
    }
  }
}

// A value near the schema, so that a fair part is valid.
Json value_for(const Json& root, const Json& s, std::mt19937& random, int depth) {
  if (s.is_boolean() || random() % 12 == 0 || depth > 5) return random_value(random, depth);
  if (s.contains("$ref")) {
    const std::string reference = s["$ref"].get<std::string>();
    return value_for(root, reference == "#" ? root : root[Json::json_pointer(reference.substr(1))], random, depth + 1);
  }
  if (s.contains("allOf")) {
    Json out = Json::object();
    for (const Json& part : s["allOf"]) {
      const Json value = value_for(root, part, random, depth + 1);
      if (value.is_object()) out.update(value);
    }
    return out;
  }
  if (s.contains("enum")) return s["enum"][random() % s["enum"].size()];
  if (s.contains("const")) return s["const"];
  if (s.contains("anyOf") && random() % 2 == 0)
    return value_for(root, s["anyOf"][random() % s["anyOf"].size()], random, depth + 1);
  std::string type = s.contains("type") && s["type"].is_string() ? s["type"].get<std::string>() : "";
  if (s.contains("type") && s["type"].is_array()) type = s["type"][random() % s["type"].size()].get<std::string>();
  if (type == "object" || s.contains("properties")) {
    Json out = Json::object();
    if (s.contains("properties")) {
      for (const auto& [name, schema] : s["properties"].items()) {
        if (random() % 3 != 0) out[name] = value_for(root, schema, random, depth + 1);
      }
    }
    if (s.contains("anyOf")) out["b"] = random() % 2 == 0 ? Json(1) : Json("z");
    const bool more = s.contains("additionalProperties") || !s.contains("properties");
    if (more && random() % 2 == 0) {
      out["k"] = s.contains("additionalProperties") ? value_for(root, s["additionalProperties"], random, depth + 1)
                                                    : random_value(random, depth + 1);
    }
    return out;
  }
  if (type == "array") {
    Json out = Json::array();
    for (size_t i = 0, n = random() % 4; i < n; ++i) {
      const bool in_prefix = s.contains("prefixItems") && i < s["prefixItems"].size();
      out.push_back(in_prefix             ? value_for(root, s["prefixItems"][i], random, depth + 1)
                    : s.contains("items") ? value_for(root, s["items"], random, depth + 1)
                                          : random_value(random, depth + 1));
    }
    return out;
  }
  for (int i = 0; i < 20; ++i) {
    Json value = random_value(random, 3);
    if ((type == "string" && value.is_string()) || (type == "integer" && value.is_number_integer()) ||
        (type == "number" && value.is_number()))
      return value;
  }
  return random_value(random, depth);
}

// The declared properties of the outermost object in the schema's order, the others behind them: what our grammars
// want.
Json in_order(const Json& schema, const Json& value) {
  if (!value.is_object()) return value;
  Json declared = Json::object();
  Validator::collect_names(schema, declared);
  Json out = Json::object();
  for (const auto& [name, unused] : declared.items()) {
    if (value.contains(name)) out[name] = value[name];
  }
  for (const auto& [name, item] : value.items()) out[name] = item;
  return out;
}

std::string written(const Json& value, int style) {
  if (style == 2) return value.dump(2);
  std::string text = value.dump();
  if (style == 0) return text;
  std::string out;  // json.dumps' style: a blank behind commas and colons
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (in_string && text[i] == '\\') {
      out += text[++i];
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (!in_string && (text[i] == ',' || text[i] == ':')) out += ' ';
  }
  return out;
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
  EXPECT_FALSE(compile_json_schema(R"({"type": "string", "format": "phone"})").ok());
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
      {R"({"multipleOf": 2})", "'multipleOf'"},
      {R"({"not": {}})", "'not'"},
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

}  // namespace
}  // namespace loralei
