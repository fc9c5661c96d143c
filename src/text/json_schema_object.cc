// SPDX-License-Identifier: Apache-2.0
// Objects with their properties, and references.
#include <algorithm>
#include <unordered_set>

#include "text/jinja_text.h"
#include "text/json_schema_compiler.h"

namespace loralei::schema {

namespace {

// Every string but the names: the names as a tree of characters, left at any point by another character or by ending
// early.
CharAutomaton names_other_than(const std::vector<std::string_view>& names) {
  CharAutomaton out;
  out.start = out.add_node();
  out.end = out.add_node();
  const int loose = out.add_node();
  out.nodes[loose].edges.emplace_back(CharSet::all(), loose);
  out.nodes[loose].empties.push_back(out.end);
  std::vector<std::map<char32_t, int>> children(out.nodes.size());
  std::vector<bool> is_name(out.nodes.size(), false);
  for (const std::string_view name : names) {
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

Result<GrammarRuleId> SchemaCompiler::property_rule(std::string_view name, const Json& schema,
                                                    const std::string& path) {
  TRY_ASSIGN(const GrammarRuleId value, compile(schema, below(path, "properties", name)));
  const GrammarRuleId rule = b_.add_rule();
  b_.end_rule(b_.call(b_.call(b_.literal(b_.start(rule), json_string(name) + ":"), space()), value));
  return rule;
}

// A property whose name is none of the declared ones.
Result<GrammarRuleId> SchemaCompiler::other_property_rule(const std::vector<std::string_view>& declared,
                                                          const Json& schema, const std::string& path) {
  const std::string place = below(path, "additionalProperties");
  TRY_ASSIGN(const GrammarRuleId value, compile(schema, place));
  const GrammarRuleId rule = b_.add_rule();
  GrammarStateId at = b_.start(rule);
  if (declared.empty()) {
    at = b_.call(at, any_string());
  } else {
    int64_t bytes = 0;
    for (const std::string_view name : declared) bytes += static_cast<int64_t>(name.size());
    if (bytes > kMaxPropertyNameBytes)
      return too_large_at(place, "the names of the other properties have more than " +
                                     std::to_string(kMaxPropertyNameBytes) +
                                     " bytes together; shorten them, or set 'additionalProperties' to false");
    TRY(work_.spend(bytes, place));
    at =
        b_.literal(chars_.add_automaton(b_.literal(at, "\""), names_other_than(declared), CharForm::kJsonString), "\"");
  }
  b_.end_rule(b_.call(b_.call(b_.literal(at, ":"), space()), value));
  return rule;
}

// Properties in the schema's order. first[i]: nothing written yet, property i may come; later[i]: the same behind a
// property.
Status SchemaCompiler::add_object(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path) {
  static const Json kAnything(true);
  const bool has_properties = schema.contains("properties");
  if (has_properties && !schema["properties"].is_object())
    return at_path(path, "'properties' must be an object of schemas");
  const bool says_other = schema.contains("additionalProperties");
  const Json& other = says_other ? schema["additionalProperties"] : kAnything;
  std::vector<std::string_view> names;
  std::vector<const Json*> values;  // beside names
  std::unordered_set<std::string_view> declared;
  const auto declare = [&](std::string_view name, const Json& value) {
    if (!declared.insert(name).second) return;
    names.push_back(name);
    values.push_back(&value);
  };
  if (has_properties) {
    for (const auto& [name, value] : schema["properties"].items()) declare(name, value);
  }
  const bool has_other = says_other ? other != false : !has_properties;
  std::unordered_set<std::string_view> required;
  if (schema.contains("required")) {
    // Draft 3 wrote a boolean beside each property; here it would say nothing about this object.
    if (!schema["required"].is_array()) return at_path(path, "'required' must be a list of property names");
    TRY(work_.spend(work_of(schema["required"]), path));
    for (const Json& item : schema["required"]) {
      if (!item.is_string()) return at_path(path, "'required' must be a list of property names");
      const std::string& name = item.get_ref<const std::string&>();
      required.insert(name);
      if (!has_other && declared.count(name) == 0)
        return at_path(path, "'" + name + "' is required, but is none of the properties and no others are allowed");
      declare(name, other);
    }
  }
  if (names.size() > static_cast<size_t>(kMaxSchemaProperties)) {
    return at_path(path,
                   "an object of more than " + std::to_string(kMaxSchemaProperties) + " properties is not supported");
  }
  const GrammarStateId open = b_.call(b_.literal(from, "{"), space());
  GrammarStateId first = open;
  GrammarStateId later = b_.add_state();
  bool can_be_first = true;  // no required property lies before
  for (size_t i = 0; i < names.size(); ++i) {
    TRY_ASSIGN(const GrammarRuleId pair, property_rule(names[i], *values[i], path));
    const bool is_required = required.count(names[i]) > 0;
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
    TRY_ASSIGN(const GrammarRuleId pair, other_property_rule(names, other, path));
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
  TRY(work_.spend(work_of(schema), path));
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) return schema;
  TRY(check_keywords(schema, path));
  Json out = schema;
  out.erase("$ref");
  out.erase("allOf");
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) return at_path(path, "'$ref' must be a string");
    TRY_ASSIGN(const Json* target, find_reference(schema["$ref"].get<std::string>(), path));
    TRY_ASSIGN(const Json flat, flatten(*target, path, depth + 1));
    TRY_ASSIGN(out, merge_schemas(out, flat, path, depth, work_));
  }
  if (!schema.contains("allOf")) return out;
  if (!schema["allOf"].is_array() || schema["allOf"].empty()) return at_path(path, "'allOf' must be a list of schemas");
  int index = 0;
  for (const Json& part : schema["allOf"]) {
    const std::string place = below(path, "allOf", std::to_string(index++));
    TRY_ASSIGN(const Json flat, flatten(part, place, depth + 1));
    TRY_ASSIGN(out, merge_schemas(out, flat, place, depth, work_));
  }
  return out;
}

}  // namespace loralei::schema
