// SPDX-License-Identifier: Apache-2.0
// Schemas by their keywords and types, and the rules that every schema shares;
// json_schema_string.cc, json_schema_array.cc, json_schema_object.cc and
// json_schema_range.cc have the larger types, json_schema_merge.cc schemas that must hold
// together, json_schema_exclusive.cc those of which one alone may.
#include "schema/json_schema_compiler.h"

#include <algorithm>

namespace loralei::schema {

Error at_path(const std::string& path, const std::string& what) {
  return invalid_argument("schema at " + path + ": " + what);
}

Error too_large_at(const std::string& path, const std::string& what) {
  return too_large("schema at " + path + ": " + what);
}

std::string below(const std::string& path, std::string_view part) {
  constexpr size_t kMaxShown = 64;
  if (part.size() <= kMaxShown) return path + "/" + std::string(part);
  size_t shown = kMaxShown;
  while (shown > 0 && (static_cast<unsigned char>(part[shown]) & 0xC0) == 0x80) --shown;  // not inside a character
  return path + "/" + std::string(part.substr(0, shown)) + "...";
}

std::string below(const std::string& path, std::string_view keyword, std::string_view part) {
  return below(below(path, keyword), part);
}

Result<int64_t> read_count(const Json& schema, const char* keyword, int64_t absent, const std::string& path) {
  if (!schema.contains(keyword)) return absent;
  const Json& value = schema[keyword];
  const bool integral = value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
  if (!integral || value.get<uint64_t>() > INT32_MAX)
    return at_path(path, std::string("'") + keyword + "' must be an integer of at least 0");
  return value.get<int64_t>();
}

namespace {

constexpr size_t kMaxTypes = 8;  // there are seven
constexpr int kMaxIndent = 64;   // blanks after a new line: 16 levels of 4

// Cut where it is very long, not inside a character.
std::string beginning(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return std::string(text.substr(0, most)) + "...";
}
std::string ending(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t begin = text.size() - most;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  return "..." + std::string(text.substr(begin));
}

}  // namespace

bool SchemaCompiler::leave_open(const std::string& path, std::string_view keyword) {
  constexpr size_t kMaxPath = 512, kMaxKeyword = 64;
  if (reading_ != SchemaReading::kOpen) return false;
  if (left_open_ == nullptr) return true;
  LeftOpen::Place place{name_, ending(path, kMaxPath), beginning(keyword, kMaxKeyword)};
  const bool known =
      std::any_of(left_open_->places.begin(), left_open_->places.end(), [&](const LeftOpen::Place& other) {
        return other.keyword == place.keyword && other.path == place.path && other.schema == place.schema;
      });
  if (known) return true;
  if (left_open_->places.size() < kMaxPlacesLeftOpen)
    left_open_->places.push_back(std::move(place));
  else
    ++left_open_->more;
  return true;
}

bool has_only_annotations(const Json& schema, std::initializer_list<const char*> except) {
  for (const auto& [keyword, value] : schema.items()) {
    const bool excepted =
        std::any_of(except.begin(), except.end(), [&, &key = keyword](const char* name) { return key == name; });
    if (!excepted && !is_annotation(keyword)) return false;
  }
  return true;
}

bool allows_everything(const Json& schema) {
  return schema.is_boolean() ? schema.get<bool>() : schema.is_object() && has_only_annotations(schema, {});
}

std::vector<std::string> types_of(const Json& schema) {
  static constexpr std::pair<const char*, const char*> kImplied[] = {
      {"properties", "object"},   {"required", "object"},         {"additionalProperties", "object"},
      {"items", "array"},         {"prefixItems", "array"},       {"minItems", "array"},
      {"maxItems", "array"},      {"minLength", "string"},        {"maxLength", "string"},
      {"pattern", "string"},      {"format", "string"},           {"minimum", "number"},
      {"maximum", "number"},      {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
      {"multipleOf", "number"},   {"uniqueItems", "array"},       {"minProperties", "object"},
      {"maxProperties", "object"}};
  std::vector<std::string> types;
  const auto add = [&](const std::string& type) {
    const bool more = types.size() < kMaxTypes;  // that many hold one that does not exist, which is told
    if (more && std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  };
  if (schema.contains("type")) {
    if (schema["type"].is_string()) add(schema["type"].get<std::string>());
    if (schema["type"].is_array()) {
      for (const Json& type : schema["type"]) add(type.is_string() ? type.get<std::string>() : "?");
    }
    return types;
  }
  for (const auto& [keyword, type] : kImplied) {
    if (schema.contains(keyword)) add(type);
  }
  return types;
}

namespace {

// Of a long pointer the end says most.
std::string shown_reference(const std::string& reference) {
  const size_t slash = reference.rfind('/');
  if (reference.size() <= 128 || slash == std::string::npos || slash == 0) return reference;
  return below("#/...", std::string_view(reference).substr(slash + 1));
}

}  // namespace

bool value_has_type(const Json& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number_float() && value.get<double>() == static_cast<double>(static_cast<int64_t>(
                                                                  std::clamp(value.get<double>(), -9e15, 9e15))));
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

bool is_listed(const Json& schema, const std::vector<std::string>& types, const Json& value) {
  const auto fits = [&](const std::string& type) { return value_has_type(value, type); };
  if (!types.empty() && std::none_of(types.begin(), types.end(), fits)) return false;
  if (!schema.contains("const") || !schema.contains("enum")) return true;
  const Json& listed = schema["enum"];
  return std::find(listed.begin(), listed.end(), value) != listed.end();
}

std::string scalar_text(const Json& value) {
  return value.is_string() ? json_string(value.get<std::string>()) : value.dump();
}

// --- rules that every schema shares

// Nothing, a blank, or a new line with indentation: enough for every usual style, and
// never without end.
GrammarRuleId SchemaCompiler::space() {
  if (space_) return *space_;
  space_ = b_.add_rule();
  const GrammarStateId start = b_.start(*space_);
  const GrammarStateId end = b_.add_state();
  b_.end_rule(start);
  b_.end_rule(end);
  b_.add_range(start, ' ', ' ', end);
  GrammarStateId at = b_.range(start, '\n', '\n');
  b_.end_rule(at);
  for (int i = 0; i < kMaxIndent; ++i) {
    at = b_.range(at, ' ', ' ');
    b_.end_rule(at);
  }
  return *space_;
}

GrammarRuleId SchemaCompiler::any_string() {
  if (any_string_) return *any_string_;
  any_string_ = b_.add_rule();
  const GrammarStateId inside = b_.literal(b_.start(*any_string_), "\"");
  b_.add_call(inside, chars_.any_json_char(), inside);
  b_.end_rule(b_.literal(inside, "\""));
  return *any_string_;
}

GrammarRuleId SchemaCompiler::number_rule(bool is_integer, const NumberRange& range) {
  const auto [known, fresh] = numbers_.emplace(std::pair(is_integer, range), 0);
  if (!fresh) return known->second;
  const GrammarRuleId rule = known->second = b_.add_rule();
  const GrammarStateId end = b_.add_state();
  b_.end_rule(end);
  if (is_integer || range.multiple_of > 0)
    add_integer(b_, b_.start(rule), range, end);
  else
    add_number(b_, b_.start(rule), range, end);
  return rule;
}

GrammarRuleId SchemaCompiler::any_object() {
  if (any_object_) return *any_object_;
  any_object_ = b_.add_rule();
  const GrammarRuleId value = any_value();
  const GrammarStateId first = b_.call(b_.literal(b_.start(*any_object_), "{"), space());
  const GrammarStateId end = b_.add_state();
  b_.end_rule(end);
  b_.add_range(first, '}', '}', end);
  const GrammarStateId behind = b_.call(b_.call(b_.literal(b_.call(first, any_string()), ":"), space()), value);
  // The pair after a comma is the same as the first: go back to before its name.
  const GrammarStateId name = b_.add_state();
  b_.add_call(b_.literal(behind, ","), space(), name);
  const GrammarStateId colon = b_.call(name, any_string());
  b_.add_call(b_.call(b_.literal(colon, ":"), space()), value, behind);
  b_.add_range(b_.call(behind, space()), '}', '}', end);
  return *any_object_;
}

GrammarRuleId SchemaCompiler::any_array() {
  if (any_array_) return *any_array_;
  any_array_ = b_.add_rule();
  const GrammarRuleId value = any_value();
  const GrammarStateId first = b_.call(b_.literal(b_.start(*any_array_), "["), space());
  const GrammarStateId end = b_.add_state();
  b_.end_rule(end);
  b_.add_range(first, ']', ']', end);
  const GrammarStateId behind = b_.call(first, value);
  b_.add_call(b_.call(b_.literal(behind, ","), space()), value, behind);
  b_.add_range(b_.call(behind, space()), ']', ']', end);
  return *any_array_;
}

GrammarRuleId SchemaCompiler::any_value() {
  if (any_value_) return *any_value_;
  any_value_ = b_.add_rule();
  const GrammarStateId start = b_.start(*any_value_);
  const GrammarStateId end = b_.add_state();
  b_.end_rule(end);
  b_.add_call(start, any_object(), end);
  b_.add_call(start, any_array(), end);
  b_.add_call(start, any_string(), end);
  b_.add_call(start, number_rule(false, {}), end);
  add_texts(start, {"true", "false", "null"}, end);
  return *any_value_;
}

void SchemaCompiler::add_texts(GrammarStateId from, std::vector<std::string> texts, GrammarStateId to) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  // Along the branch of the last text: the state behind each of its bytes. `from` itself
  // gets no empty edges into a loop: the branch begins in a state of its own.
  const GrammarStateId root = b_.add_state();
  b_.add_empty(from, root);
  std::vector<GrammarStateId> branch{root};
  std::string previous;
  for (const std::string& text : texts) {
    size_t shared = 0;
    while (shared < previous.size() && shared < text.size() && previous[shared] == text[shared]) ++shared;
    branch.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      branch.push_back(b_.range(branch.back(), static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i])));
    }
    b_.add_empty(branch.back(), to);
    previous = text;
  }
}

GrammarStateId SchemaCompiler::add_fixed(GrammarStateId from, const Json& value) {
  if (!value.is_structured()) return b_.literal(from, scalar_text(value));
  const bool is_object = value.is_object();
  GrammarStateId at = b_.call(b_.literal(from, is_object ? "{" : "["), space());
  bool first = true;
  for (const auto& [name, item] : value.items()) {
    if (!first) at = b_.call(b_.literal(at, ","), space());
    first = false;
    if (is_object) at = b_.call(b_.literal(at, json_string(name) + ":"), space());
    at = add_fixed(at, item);
  }
  if (!first) at = b_.call(at, space());
  return b_.literal(at, is_object ? "}" : "]");
}

// --- schemas

Result<GrammarRuleId> SchemaCompiler::compile_root(const Json& schema, SchemaReading reading, const std::string& name) {
  root_ = &schema;
  reading_ = reading;
  name_ = name;
  references_.clear();
  return compile(schema, "#");
}

Result<GrammarRuleId> SchemaCompiler::compile(const Json& schema, const std::string& path) {
  if (schema.is_boolean() && schema.get<bool>()) return any_value();
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) {
    const GrammarRuleId rule = b_.add_rule();
    TRY(fill(rule, schema, path));
    return rule;
  }
  // What it refers to may refer to it: the rule is known before it is filled.
  TRY(work_.spend(work_of(schema), path));
  std::string key;
  for (const auto& [keyword, value] : schema.items()) {
    if (!is_annotation(keyword)) key += Json(keyword).dump() + ":" + value.dump() + ",";
  }
  const auto [known, fresh] = references_.emplace(std::move(key), 0);
  if (!fresh) return known->second;
  const GrammarRuleId rule = known->second = b_.add_rule();
  if (schema.contains("$ref") && schema["$ref"].is_string() && has_only_annotations(schema, {"$ref"})) {
    const std::string reference = schema["$ref"].get<std::string>();
    const Result<const Json*> target = find_reference(reference, path);
    if (target.ok()) {
      TRY(fill(rule, **target, shown_reference(reference)));
    } else {
      if (!leave_open(path, "$ref")) return target.error();
      b_.end_rule(b_.call(b_.start(rule), any_value()));
    }
  } else {
    TRY(fill(rule, schema, path));
  }
  return rule;
}

Status SchemaCompiler::fill(GrammarRuleId rule, const Json& schema, const std::string& path) {
  if (++nodes_ > kMaxSchemaNodes)
    return too_large_at(path, "it is one part more than the " + std::to_string(kMaxSchemaNodes) +
                                  " parts that a schema may have, those of references counted");
  if (schema.is_boolean()) {
    // "false" allows nothing: the rule is left without an end.
    if (schema.get<bool>()) b_.end_rule(b_.call(b_.start(rule), any_value()));
    return {};
  }
  if (!schema.is_object()) return at_path(path, "a schema must be an object or a boolean");
  if (depth_ >= kMaxSchemaDepth)
    return at_path(path, "schemas nest deeper than " + std::to_string(kMaxSchemaDepth) + " levels");
  TRY(work_.spend(static_cast<int64_t>(schema.size()), path));
  TRY(check_keywords(schema, path));
  ++depth_;
  Status status = fill_keywords(rule, schema, path);
  --depth_;
  if (!status.ok() || !b_.is_full()) return status;
  if (!b_.refusal().ok()) return b_.refusal();
  return too_large_at(path, "with this part the grammar needs more than " + std::to_string(kMaxGrammarStates) +
                                " states or " + std::to_string(kMaxGrammarEdges) +
                                " edges; use smaller counts or a smaller schema");
}

Status SchemaCompiler::fill_keywords(GrammarRuleId rule, const Json& schema, const std::string& path) {
  if (schema.contains("not") && allows_everything(schema["not"])) return {};  // nothing may stand here
  const GrammarStateId start = b_.start(rule);
  const GrammarStateId end = b_.add_state();
  b_.end_rule(end);
  if (schema.contains("$ref") || schema.contains("allOf")) {
    const bool one_part = schema.contains("allOf") && schema["allOf"].is_array() && schema["allOf"].size() == 1 &&
                          has_only_annotations(schema, {"allOf"});
    if (one_part || has_only_annotations(schema, {"$ref"})) {
      const Json& part = one_part ? schema["allOf"][0] : schema;
      TRY_ASSIGN(const GrammarRuleId target, compile(part, one_part ? below(path, "allOf", "0") : path));
      b_.add_call(start, target, end);
      return {};
    }
    TRY_ASSIGN(const Json flat, flatten(schema, path, 0));
    TRY_ASSIGN(const GrammarRuleId target, compile(flat, path));
    b_.add_call(start, target, end);
    return {};
  }
  if (schema.contains("nullable")) {
    if (!schema["nullable"].is_boolean()) return at_path(path, "'nullable' must be true or false");
    if (schema["nullable"].get<bool>()) b_.add_empty(b_.literal(start, "null"), end);
  }
  if (schema.contains("anyOf")) return fill_alternatives(rule, schema, "anyOf", path);
  if (schema.contains("oneOf")) {
    TRY(check_exclusive(schema, path));
    return fill_alternatives(rule, schema, "oneOf", path);
  }
  if (schema.contains("const")) {
    TRY(fill_values(start, end, schema, Json::array({schema["const"]}), path));
    return {};
  }
  if (schema.contains("enum")) return fill_values(start, end, schema, schema["enum"], path);
  const std::vector<std::string> types = types_of(schema);
  if (types.empty()) {
    if (schema.contains("type")) return at_path(path, "'type' must be the name of a type or a list of such names");
    b_.add_call(start, any_value(), end);
    return {};
  }
  for (const std::string& type : types) TRY(fill_type(start, end, type, schema, path));
  return {};
}

Status SchemaCompiler::fill_alternatives(GrammarRuleId rule, const Json& schema, const char* keyword,
                                         const std::string& path) {
  const Json& alternatives = schema[keyword];
  if (!alternatives.is_array() || alternatives.empty())
    return at_path(path, std::string("'") + keyword + "' must be a list of schemas");
  const bool plain = has_only_annotations(schema, {keyword, "nullable"});
  Json base = Json::object();
  if (!plain) {
    TRY(work_.spend(work_of(schema), path));
    base = known_part(schema, {keyword, "nullable"});
  }
  const GrammarStateId end = b_.add_state();
  b_.end_rule(end);
  for (size_t i = 0; i < alternatives.size(); ++i) {
    const std::string place = below(path, keyword, std::to_string(i));
    GrammarRuleId part = 0;
    if (plain) {
      TRY_ASSIGN(part, compile(alternatives[i], place));
    } else {
      TRY_ASSIGN(const Json flat, flatten(alternatives[i], place, 0));
      TRY_ASSIGN(const Json merged, merge_schemas(base, flat, place, 0));
      TRY_ASSIGN(part, compile(merged, place));
    }
    b_.add_call(b_.start(rule), part, end);
  }
  return {};
}

Status SchemaCompiler::fill_values(GrammarStateId from, GrammarStateId to, const Json& schema, const Json& values,
                                   const std::string& path) {
  if (!values.is_array()) return at_path(path, "'enum' must be a list of values");
  if (values.size() > static_cast<size_t>(kMaxListedChoices))
    return at_path(path, "'enum' has more than " + std::to_string(kMaxListedChoices) + " values");
  for (const auto& [keyword, value] : schema.items()) {
    static constexpr std::string_view kBeside[] = {"enum", "const", "type", "nullable"};
    if (is_annotation(keyword) || std::find(std::begin(kBeside), std::end(kBeside), keyword) != std::end(kBeside))
      continue;
    if (!leave_open(path, keyword))
      return at_path(path, "'" + keyword +
                               "' beside 'enum' or 'const' is not supported; list only the values that are "
                               "allowed");
  }
  TRY(work_.spend(work_of(values), path));
  const std::vector<std::string> types = types_of(schema);
  if (schema.contains("const") && schema.contains("enum")) TRY(work_.spend(work_of(schema["enum"]), path));
  std::vector<std::string> texts;
  for (const Json& value : values) {
    if (!is_listed(schema, types, value)) continue;
    if (value.is_structured())
      b_.add_empty(add_fixed(from, value), to);
    else
      texts.push_back(scalar_text(value));
  }
  add_texts(from, std::move(texts), to);
  return {};
}

Status SchemaCompiler::fill_type(GrammarStateId from, GrammarStateId to, const std::string& type, const Json& schema,
                                 const std::string& path) {
  if (type == "string") return add_string(from, to, schema, path);
  if (type == "object") return add_object(from, to, schema, path);
  if (type == "array") return add_array(from, to, schema, path);
  if (type == "integer" || type == "number") {
    TRY_ASSIGN(NumberRange range, read_range(schema, path));
    TRY(read_multiple(range, type == "integer", schema, path));
    b_.add_call(from, number_rule(type == "integer", range), to);
    return {};
  }
  if (type == "boolean") {
    add_texts(from, {"true", "false"}, to);
    return {};
  }
  if (type == "null") {
    b_.add_empty(b_.literal(from, "null"), to);
    return {};
  }
  return at_path(path, "'" + type + "' is no type; use string, number, integer, boolean, null, array or object");
}

}  // namespace loralei::schema
