// SPDX-License-Identifier: Apache-2.0
// Objects with their properties, and references.
#include <algorithm>

#include "text/jinja_text.h"
#include "text/json_schema_compiler.h"

namespace loralei::schema {

namespace {

// Every string but the names: the names as a tree of characters, left at any point by another character or by ending
// early.
CharAutomaton names_other_than(const Json& names) {
  CharAutomaton out;
  out.start = out.add_node();
  out.end = out.add_node();
  const int loose = out.add_node();
  out.nodes[loose].edges.emplace_back(CharSet::all(), loose);
  out.nodes[loose].empties.push_back(out.end);
  std::vector<std::map<char32_t, int>> children(out.nodes.size());
  std::vector<bool> is_name(out.nodes.size(), false);
  for (const auto& [name, schema] : names.items()) {
    int at = out.start;
    for (const char32_t c : jinja::decode_utf8(name)) {
      const auto [place, fresh] = children[at].emplace(c, static_cast<int>(out.nodes.size()));
      at = place->second;
      if (!fresh) continue;
      out.add_node();
      children.emplace_back();
      is_name.push_back(false);
    }
    is_name[at] = true;
  }
  for (int node = 0; node < static_cast<int>(out.nodes.size()); ++node) {
    if (node == out.end || node == loose) continue;
    CharSet onward;
    for (const auto& [c, child] : children[node]) {
      onward.add(c, c);
      out.nodes[node].edges.emplace_back(CharSet(c, c), child);
    }
    out.nodes[node].edges.emplace_back(onward.inverse(), loose);
    if (!is_name[node]) out.nodes[node].empties.push_back(out.end);
  }
  return out;
}

}  // namespace

Result<GrammarRuleId> SchemaCompiler::property_rule(const std::string& name, const Json& schema,
                                                    const std::string& path) {
  TRY_ASSIGN(const GrammarRuleId value, compile(schema, path + "/properties/" + name));
  const GrammarRuleId rule = b_.add_rule();
  b_.end_rule(b_.call(b_.call(b_.literal(b_.start(rule), json_string(name) + ":"), space()), value));
  return rule;
}

// A property whose name is none of the declared ones.
Result<GrammarRuleId> SchemaCompiler::other_property_rule(const Json* declared, const Json& schema,
                                                          const std::string& path) {
  TRY_ASSIGN(const GrammarRuleId value, compile(schema, path + "/additionalProperties"));
  const GrammarRuleId rule = b_.add_rule();
  GrammarStateId at = b_.start(rule);
  if (declared == nullptr || declared->empty()) {
    at = b_.call(at, any_string());
  } else {
    at = b_.literal(chars_.add_automaton(b_.literal(at, "\""), names_other_than(*declared), CharForm::kJsonString),
                    "\"");
  }
  b_.end_rule(b_.call(b_.call(b_.literal(at, ":"), space()), value));
  return rule;
}

// Properties in the schema's order. first[i]: nothing written yet, property i may come; later[i]: the same behind a
// property.
Status SchemaCompiler::add_object(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path) {
  const bool has_properties = schema.contains("properties");
  if (has_properties && !schema["properties"].is_object())
    return at_path(path, "'properties' must be an object of schemas");
  Json properties = has_properties ? schema["properties"] : Json::object();
  std::vector<std::string> required;
  if (schema.contains("required")) {
    // Draft 3 wrote a boolean beside each property; here it would say nothing about this object.
    if (!schema["required"].is_array()) return at_path(path, "'required' must be a list of property names");
    for (const Json& name : schema["required"]) {
      if (!name.is_string()) return at_path(path, "'required' must be a list of property names");
      required.push_back(name.get<std::string>());
    }
  }
  const bool has_other =
      schema.contains("additionalProperties") ? schema["additionalProperties"] != false : properties.empty();
  const Json other = schema.contains("additionalProperties") ? schema["additionalProperties"] : Json(true);
  for (const std::string& name : required) {
    if (properties.contains(name)) continue;
    if (!has_other)
      return at_path(path, "'" + name + "' is required, but is none of the properties and no others are allowed");
    properties[name] = other;
  }
  if (properties.size() > static_cast<size_t>(kMaxSchemaProperties)) {
    return at_path(path,
                   "an object of more than " + std::to_string(kMaxSchemaProperties) + " properties is not supported");
  }
  const GrammarStateId open = b_.call(b_.literal(from, "{"), space());
  GrammarStateId first = open;
  GrammarStateId later = b_.add_state();
  bool can_be_first = true;  // no required property lies before
  for (const auto& [name, value] : properties.items()) {
    TRY_ASSIGN(const GrammarRuleId pair, property_rule(name, value, path));
    const bool is_required = std::find(required.begin(), required.end(), name) != required.end();
    const GrammarStateId next_later = b_.add_state();
    b_.add_call(b_.call(b_.literal(later, ","), space()), pair, next_later);
    if (can_be_first) b_.add_call(first, pair, next_later);
    if (is_required) {
      can_be_first = false;
    } else {
      b_.add_empty(later, next_later);
    }
    later = next_later;
  }
  if (has_other) {
    TRY_ASSIGN(const GrammarRuleId pair, other_property_rule(properties.empty() ? nullptr : &properties, other, path));
    const GrammarStateId more = b_.add_state();
    b_.add_empty(later, more);
    b_.add_call(b_.call(b_.literal(more, ","), space()), pair, more);
    if (can_be_first) b_.add_call(first, pair, more);
    later = more;
  }
  const GrammarStateId close = b_.add_state();
  b_.add_range(close, '}', '}', to);
  b_.add_call(later, space(), close);
  if (can_be_first) b_.add_empty(first, close);
  return {};
}

Result<const Json*> SchemaCompiler::find_reference(const std::string& reference, const std::string& path) const {
  if (reference.empty() || reference[0] != '#') {
    return at_path(path, "'$ref' must point into this schema ('#/$defs/NAME'); '" + reference + "' does not");
  }
  const Json* at = root_;
  for (size_t begin = 1; begin < reference.size();) {
    if (reference[begin] != '/') return at_path(path, "the '$ref' '" + reference + "' is no JSON pointer");
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    std::string token;
    for (size_t i = begin + 1; i < end; ++i) {
      const std::string_view rest = std::string_view(reference).substr(i, end - i);
      const bool is_hex = rest.size() >= 3 && rest[0] == '%' &&
                          std::isxdigit(static_cast<unsigned char>(rest[1])) != 0 &&
                          std::isxdigit(static_cast<unsigned char>(rest[2])) != 0;
      if (is_hex) {
        token += static_cast<char>(std::stoi(std::string(rest.substr(1, 2)), nullptr, 16));
        i += 2;
      } else if (rest.substr(0, 2) == "~0" || rest.substr(0, 2) == "~1") {
        token += rest[1] == '0' ? '~' : '/';
        ++i;
      } else {
        token += rest[0];
      }
    }
    const bool is_index = at->is_array() && !token.empty() && token.size() < 8 &&
                          std::all_of(token.begin(), token.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (at->is_object() && at->contains(token))
      at = &(*at)[token];
    else if (is_index && std::stoul(token) < at->size())
      at = &(*at)[std::stoul(token)];
    else
      return at_path(path, "the '$ref' '" + reference + "' points at nothing");
    begin = end;
  }
  return at;
}

Result<Json> SchemaCompiler::flatten(const Json& schema, const std::string& path, int depth) {
  if (depth > kMaxSchemaDepth) return at_path(path, "it refers to itself through $ref and allOf");
  TRY(merges_.spend(count_parts(schema)));
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) return schema;
  TRY(check_keywords(schema, path));
  Json out = schema;
  out.erase("$ref");
  out.erase("allOf");
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) return at_path(path, "'$ref' must be a string");
    TRY_ASSIGN(const Json* target, find_reference(schema["$ref"].get<std::string>(), path));
    TRY_ASSIGN(const Json flat, flatten(*target, path, depth + 1));
    TRY_ASSIGN(out, merge_schemas(out, flat, path, depth, merges_));
  }
  if (!schema.contains("allOf")) return out;
  if (!schema["allOf"].is_array() || schema["allOf"].empty()) return at_path(path, "'allOf' must be a list of schemas");
  int index = 0;
  for (const Json& part : schema["allOf"]) {
    const std::string place = path + "/allOf/" + std::to_string(index++);
    TRY_ASSIGN(const Json flat, flatten(part, place, depth + 1));
    TRY_ASSIGN(out, merge_schemas(out, flat, place, depth, merges_));
  }
  return out;
}

}  // namespace loralei::schema
