// SPDX-License-Identifier: Apache-2.0
// Objects with their properties, and references.
#include <algorithm>
#include <unordered_set>

#include "base/utf8.h"
#include "schema/json_schema_compiler.h"

namespace loralei::schema {

namespace {

// Every string but the names: the names as a tree of characters, left at any point by
// another character or by ending early.
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
    for (const char32_t c : utf8_decode(name)) {
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

// What the keywords of an object say together.
struct SchemaCompiler::Object {
  // Of them, in the order in which they are written; those that are required and not
  // declared behind the others.
  std::vector<std::string_view> names;
  std::vector<const Json*> values;
  std::unordered_set<std::string_view> declared;
  std::unordered_set<std::string_view> required;
  const Json* other = nullptr;  // of the values of properties with other names; null: there are none
  int64_t min = 0;              // properties
  int64_t max = -1;             // no limit

  void declare(std::string_view name, const Json& value) {
    if (!declared.insert(name).second) return;
    names.push_back(name);
    values.push_back(&value);
  }
};

namespace {

const Json kAnything(true);

}  // namespace

Result<SchemaCompiler::Object> SchemaCompiler::read_object(const Json& schema, const std::string& path) {
  Object object;
  const bool has_properties = schema.contains("properties");
  if (has_properties && !schema["properties"].is_object())
    return at_path(path, "'properties' must be an object of schemas");
  if (has_properties) {
    for (const auto& [name, value] : schema["properties"].items()) object.declare(name, value);
  }
  const bool says_other = schema.contains("additionalProperties");
  if (schema.contains("patternProperties"))
    object.other = &kAnything;  // left open, where this is reached
  else if (says_other && schema["additionalProperties"] != false)
    object.other = &schema["additionalProperties"];
  else if (!says_other && !has_properties)
    object.other = &kAnything;
  TRY(read_required(object, schema, path));
  if (object.names.size() > static_cast<size_t>(kMaxSchemaProperties)) {
    return at_path(path,
                   "an object of more than " + std::to_string(kMaxSchemaProperties) + " properties is not supported");
  }
  TRY(read_property_counts(object, schema, path));
  return object;
}

Status SchemaCompiler::read_required(Object& object, const Json& schema, const std::string& path) {
  if (!schema.contains("required")) return {};
  // Draft 3 wrote a boolean beside each property; here it would say nothing
  // about this object.
  if (!schema["required"].is_array()) return at_path(path, "'required' must be a list of property names");
  TRY(work_.spend(work_of(schema["required"]), path));
  const bool says_other = schema.contains("additionalProperties");
  for (const Json& item : schema["required"]) {
    if (!item.is_string()) return at_path(path, "'required' must be a list of property names");
    const std::string& name = item.get_ref<const std::string&>();
    object.required.insert(name);
    // Where nothing is said about other properties, being required is enough to be one of
    // those that are known.
    if (says_other && object.other == nullptr && object.declared.count(name) == 0) {
      if (!leave_open(path, "required"))
        return at_path(path, "'" + name + "' is required, but is none of the properties and no others are allowed");
    }
    object.declare(name, says_other && object.other != nullptr ? *object.other : kAnything);
  }
  return {};
}

Status SchemaCompiler::read_property_counts(Object& object, const Json& schema, const std::string& path) {
  TRY_ASSIGN(object.min, read_count(schema, "minProperties", 0, path));
  TRY_ASSIGN(object.max, read_count(schema, "maxProperties", -1, path));
  const auto names = static_cast<int64_t>(object.names.size());
  if (object.min <= static_cast<int64_t>(object.required.size())) object.min = 0;
  if (object.other == nullptr && object.max >= names) object.max = -1;
  // Names that are not declared may be the same name twice, which counts once.
  if (object.other != nullptr && object.min > 1) {
    if (!leave_open(path, "minProperties"))
      return at_path(path,
                     "'minProperties' above 1 is supported where 'properties' names all that may come; use "
                     "'required', or move what it says into the description");
  }
  constexpr int64_t kMaxCounts = kMaxGrammarStates / 8;
  for (int64_t* count : {&object.min, &object.max}) {
    if (*count * (names + 1) <= kMaxCounts) continue;
    const bool is_min = count == &object.min;
    if (!leave_open(path, is_min ? "minProperties" : "maxProperties"))
      return too_large_at(path, "so many counted properties are not supported; use smaller counts");
    *count = is_min ? 0 : -1;
  }
  return {};
}

// at[i]: i properties have been written, and where no more need be told apart,
// at least so many. Before the first there is no comma, and behind a required one that
// was left out no way.
Status SchemaCompiler::add_object(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path) {
  TRY_ASSIGN(const Object object, read_object(schema, path));
  const int64_t most = object.max >= 0 ? object.max : std::max<int64_t>(object.min, 1);
  const GrammarStateId open = b_.call(b_.literal(from, "{"), space());
  bool can_be_first = true;  // no required property lies before
  std::vector<GrammarStateId> at(most + 1, open);
  for (int64_t count = 1; count <= most; ++count) at[count] = b_.add_state();
  const auto add = [&](GrammarRuleId pair, int64_t count, const std::vector<GrammarStateId>& next) {
    if (count == 0 && !can_be_first) return;
    if (count == most && object.max >= 0) return;
    const GrammarStateId begin = count == 0 ? open : b_.call(b_.literal(at[count], ","), space());
    b_.add_call(begin, pair, next[std::min(count + 1, most)]);
  };
  for (size_t i = 0; i < object.names.size(); ++i) {
    TRY_ASSIGN(const GrammarRuleId pair, property_rule(object.names[i], *object.values[i], path));
    const bool is_required = object.required.count(object.names[i]) > 0;
    std::vector<GrammarStateId> next = at;
    for (int64_t count = 1; count <= most; ++count) next[count] = b_.add_state();
    for (int64_t count = 0; count <= most; ++count) {
      add(pair, count, next);
      if (count > 0 && !is_required) b_.add_empty(at[count], next[count]);
    }
    can_be_first = can_be_first && !is_required;
    at = std::move(next);
  }
  if (object.other != nullptr) {
    TRY_ASSIGN(const GrammarRuleId pair, other_property_rule(object.names, *object.other, path));
    std::vector<GrammarStateId> more = at;
    for (int64_t count = 1; count <= most; ++count) b_.add_empty(at[count], more[count] = b_.add_state());
    at = more;
    for (int64_t count = 0; count <= most; ++count) add(pair, count, more);
  }
  const GrammarStateId close = b_.add_state();
  b_.add_range(close, '}', '}', to);
  for (int64_t count = std::max<int64_t>(object.min, 1); count <= most; ++count) b_.add_call(at[count], space(), close);
  if (can_be_first && object.min == 0) b_.add_empty(open, close);
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
  if (depth > kMaxSchemaDepth) {
    if (!leave_open(path, "$ref")) return at_path(path, "it refers to itself through $ref and allOf");
    return Json(true);
  }
  constexpr int64_t kPathWork = 16;  // bytes of it that cost as much as one keyword
  TRY(work_.spend(work_of(schema) + static_cast<int64_t>(path.size()) / kPathWork, path));
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) return schema;
  TRY(check_keywords(schema, path));
  Json out = known_part(schema, {"$ref", "allOf"});
  if (schema.contains("$ref")) {
    if (!schema["$ref"].is_string()) return at_path(path, "'$ref' must be a string");
    const Result<const Json*> target = find_reference(schema["$ref"].get<std::string>(), path);
    if (target.ok()) {
      TRY_ASSIGN(const Json flat, flatten(**target, path, depth + 1));
      TRY_ASSIGN(out, merge_schemas(out, flat, path, depth));
    } else {
      if (!leave_open(path, "$ref")) return target.error();
    }
  }
  if (!schema.contains("allOf")) return out;
  if (!schema["allOf"].is_array() || schema["allOf"].empty()) return at_path(path, "'allOf' must be a list of schemas");
  int index = 0;
  for (const Json& part : schema["allOf"]) {
    const std::string place = below(path, "allOf", std::to_string(index++));
    TRY_ASSIGN(const Json flat, flatten(part, place, depth + 1));
    TRY_ASSIGN(out, merge_schemas(out, flat, place, depth));
  }
  return out;
}

}  // namespace loralei::schema
