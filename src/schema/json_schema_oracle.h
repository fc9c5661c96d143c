// SPDX-License-Identifier: Apache-2.0
// For tests of schemas: what the keywords mean, schemas that use them, and values that
// satisfy them or nearly do.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>

#include "base/utf8.h"

namespace loralei::testing_support {

using Json = nlohmann::ordered_json;

// --- a tiny validator: what the keywords mean, straight from the specification

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

  static bool is_multiple(const Json& v, int64_t of) {
    return v.is_number_integer() ? v.get<int64_t>() % of == 0
                                 : std::fmod(v.get<double>(), static_cast<double>(of)) == 0;
  }

  bool number_fits(const Json& s, double v) const {
    return !(s.contains("minimum") && v < s["minimum"].get<double>()) &&
           !(s.contains("maximum") && v > s["maximum"].get<double>()) &&
           !(s.contains("exclusiveMinimum") && v <= s["exclusiveMinimum"].get<double>()) &&
           !(s.contains("exclusiveMaximum") && v >= s["exclusiveMaximum"].get<double>());
  }

  bool string_fits(const Json& s, const std::string& v) const {
    const int64_t size = static_cast<int64_t>(utf8_decode(v).size());
    if (s.contains("minLength") && size < s["minLength"].get<int64_t>()) return false;
    if (s.contains("maxLength") && size > s["maxLength"].get<int64_t>()) return false;
    return !s.contains("pattern") || std::regex_search(v, std::regex(s["pattern"].get<std::string>()));
  }

  bool array_fits(const Json& s, const Json& v) const {
    if (s.contains("minItems") && v.size() < s["minItems"].get<size_t>()) return false;
    if (s.contains("maxItems") && v.size() > s["maxItems"].get<size_t>()) return false;
    if (s.contains("uniqueItems") && s["uniqueItems"] == true) {
      for (size_t i = 0; i < v.size(); ++i) {
        for (size_t k = 0; k < i; ++k) {
          if (v[i] == v[k]) return false;
        }
      }
    }
    const size_t prefix = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < prefix ? !valid(s["prefixItems"][i], v[i]) : s.contains("items") && !valid(s["items"], v[i]))
        return false;
    }
    return true;
  }

  static void collect_names(const Json& s, Json& names) {
    if (s.contains("properties")) names.update(s["properties"]);
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      if (!s.contains(keyword)) continue;
      for (const Json& part : s[keyword]) collect_names(part, names);
    }
    if (!names.is_object() || !s.contains("required")) return;
    for (const Json& name : s["required"]) {
      if (!names.contains(name.get<std::string>())) names[name.get<std::string>()] = true;
    }
  }

  bool object_fits(const Json& s, const Json& v, bool is_part) const {
    Json documented;  // null where no "properties" is given
    collect_names(s, documented);
    if (s.contains("minProperties") && v.size() < s["minProperties"].get<size_t>()) return false;
    if (s.contains("maxProperties") && v.size() > s["maxProperties"].get<size_t>()) return false;
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
      } else if (!is_part && !documented.is_null() && !documented.contains(name)) {
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
    if (s.contains("oneOf")) {
      int count = 0;
      for (const Json& part : s["oneOf"]) count += valid(part, v, true);
      if (count != 1) return false;
    }
    if (s.contains("not") && valid(s["not"], v, true)) return false;
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
    if (v.is_number() && s.contains("multipleOf") && !is_multiple(v, s["multipleOf"].get<int64_t>())) return false;
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
    R"({"type": "object", "properties": {}})",
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
    R"({"type": "object", "properties": {"k": {"type": "string"}, "a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["k"], "additionalProperties": false, "anyOf": [{"properties": {"k": {"const": "a"}}, "required": ["a"]}, {"properties": {"k": {"const": "b"}}, "required": ["b"], "additionalProperties": true}]})",
    R"({"anyOf": [{"not": {}}, {"type": "string"}, {"not": true}]})",
    R"({"type": "object", "properties": {"a": {"not": {}}, "b": {"not": false, "type": "integer"}}})",
    R"({"type": "array", "items": {"enum": ["a", "ab", 1, null, 1.0]}, "uniqueItems": true})",
    R"({"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": true, "minItems": 1, "maxItems": 2})",
    R"({"$defs": {"c": {"type": "string", "enum": ["red", "re", "a", 4, "b", "c"]}}, "type": "array", "items": {"$ref": "#/$defs/c"}, "uniqueItems": true, "minItems": 2})",
    R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 1})",
    R"({"type": "integer", "multipleOf": 3})",
    R"({"type": "integer", "multipleOf": 7, "minimum": -100, "maximum": 60})",
    R"({"type": "integer", "multipleOf": 50, "exclusiveMinimum": 0})",
    R"({"type": "integer", "multipleOf": 4, "maximum": -9})",
    R"({"type": "number", "multipleOf": 12})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["v", "a", "b"]})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"], "additionalProperties": {"type": "string"}})",
    R"({"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "object", "properties": {"x": {"type": "null"}}}]})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "oneOf": [{"properties": {"k": {"const": "a"}}, "required": ["k"]}, {"properties": {"k": {"enum": ["b", "x"]}}, "required": ["k"]}]})",
    R"({"oneOf": [{"const": "red"}, {"enum": ["re", 4]}, {"type": "null"}]})",
    R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}, "v": {}}, "required": ["b"], "minProperties": 2, "maxProperties": 3})",
    R"({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1})",
    R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1})",
    R"({"type": "object", "properties": {"a": {}}, "additionalProperties": true, "minProperties": 1, "maxProperties": 2})",
    R"({"type": "object", "maxProperties": 0})",
    R"({"allOf": [{"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}, {"maxProperties": 1, "minProperties": 1}]})",
};

inline Json random_value(std::mt19937& random, int depth) {
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
inline Json value_for(const Json& root, const Json& s, std::mt19937& random, int depth) {
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
  if (s.contains("oneOf") && (!s.contains("properties") || random() % 2 == 0))
    return value_for(root, s["oneOf"][random() % s["oneOf"].size()], random, depth + 1);
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
    if (s.contains("oneOf")) out["k"] = random() % 2 == 0 ? Json("a") : Json("x");
    if (s.contains("required")) {
      for (const Json& name : s["required"]) {
        const auto& text = name.get_ref<const std::string&>();
        const bool declared = s.contains("properties") && s["properties"].contains(text);
        if (!declared && !out.contains(text) && random() % 3 != 0) out[text] = random_value(random, depth + 1);
      }
    }
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

// The declared properties of the outermost object in the schema's order, the others
// behind them: what our grammars want.
inline Json in_order(const Json& schema, const Json& value) {
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

inline std::string written(const Json& value, int style) {
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

}  // namespace loralei::testing_support
