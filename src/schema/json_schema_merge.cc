// SPDX-License-Identifier: Apache-2.0
// Keywords: which are annotations, which are refused, and how two schemas become one
// (allOf, siblings of $ref).
#include <algorithm>

#include "schema/json_schema_compiler.h"

namespace loralei::schema {

namespace {

constexpr std::string_view kAnnotations[] = {
    "title",           "description",   "default",       "example",      "examples", "$schema",   "$id",
    "$comment",        "$anchor",       "$vocabulary",   "deprecated",   "readOnly", "writeOnly", "contentMediaType",
    "contentEncoding", "contentSchema", "discriminator", "externalDocs", "xml",      "strict",    "name",
    "$defs",           "definitions"};

constexpr std::string_view kSupported[] = {"type",
                                           "enum",
                                           "const",
                                           "properties",
                                           "required",
                                           "additionalProperties",
                                           "items",
                                           "prefixItems",
                                           "additionalItems",
                                           "minItems",
                                           "maxItems",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "minimum",
                                           "maximum",
                                           "multipleOf",
                                           "uniqueItems",
                                           "minProperties",
                                           "maxProperties",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "anyOf",
                                           "oneOf",
                                           "allOf",
                                           "$ref",
                                           "nullable"};

bool is_in(const std::string& keyword, const auto& names) {
  return std::find(std::begin(names), std::end(names), keyword) != std::end(names);
}

// Every name is a string.
bool excludes_no_name(const Json& names) {
  if (!names.is_object()) return names == true;
  return std::all_of(names.items().begin(), names.items().end(), [](const auto& item) {
    return is_annotation(item.key()) || (item.key() == "type" && item.value() == "string");
  });
}

Error conflict(const std::string& keyword, const std::string& path) {
  return invalid_argument("schema at " + path + ": '" + keyword +
                          "' is given twice with different values (allOf, or beside $ref or anyOf), "
                          "which cannot be merged; write one schema that says both");
}

Json intersect(const Json& a, const Json& b) {
  Json out = Json::array();
  for (const Json& item : a) {
    if (std::find(b.begin(), b.end(), item) != b.end()) out.push_back(item);
  }
  return out;
}

int64_t pairs_of(const Json& a, const Json& b) {
  return static_cast<int64_t>(a.size()) * static_cast<int64_t>(b.size());
}

Json as_array(const Json& value) { return value.is_array() ? value : Json::array({value}); }

// "integer" lies inside "number".
Json intersect_types(const Json& a, const Json& b) {
  Json out = Json::array();
  const Json left = as_array(a);
  const Json right = as_array(b);
  const auto has = [](const Json& types, const char* name) {
    return std::find(types.begin(), types.end(), name) != types.end();
  };
  for (const Json& type : left) {
    if (std::find(right.begin(), right.end(), type) != right.end())
      out.push_back(type);
    else if (type == "integer" && has(right, "number"))
      out.push_back(type);
    else if (type == "number" && has(right, "integer"))
      out.push_back("integer");
  }
  return out;
}

Json merge_properties(Json a, const Json& b) {
  for (const auto& [name, schema] : b.items()) {
    if (!a.contains(name))
      a[name] = schema;
    else if (a[name] != schema)
      a[name] = Json::object({{"allOf", Json::array({a[name], schema})}});
  }
  return a;
}

bool has_names_of(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return false;
  for (const auto& [name, schema] : b.items()) {
    if (!a.contains(name)) return false;
  }
  return true;
}

// Keywords of which the greater, or the lesser, of two numbers says both.
constexpr std::string_view kLeast[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
constexpr std::string_view kMost[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};

}  // namespace

// One keyword that both schemas have, with different values. False: no value fits both.
Result<bool> SchemaCompiler::merge_keyword(Json& out, const std::string& keyword, const Json& a, const Json& b,
                                           const std::string& path) {
  TRY(work_.spend(pairs_of(a, b), path));  // members and items are found by looking at all
  const auto nothing = [&]() -> Result<bool> {
    if (reading_ == SchemaReading::kOpen) return false;
    return conflict(keyword, path);
  };
  if (keyword == "type") {
    out[keyword] = intersect_types(a, b);
    if (out[keyword].empty()) return nothing();
  } else if (keyword == "properties" && a.is_object() && b.is_object()) {
    out[keyword] = merge_properties(a, b);
  } else if (keyword == "required" && a.is_array() && b.is_array()) {
    for (const Json& name : b) {
      if (std::find(out[keyword].begin(), out[keyword].end(), name) == out[keyword].end()) out[keyword].push_back(name);
    }
  } else if (keyword == "enum" && a.is_array() && b.is_array()) {
    out[keyword] = intersect(a, b);
    if (out[keyword].empty()) return nothing();
  } else if (keyword == "const") {
    return nothing();
  } else if (is_in(keyword, kLeast) && a.is_number() && b.is_number()) {
    if (b > a) out[keyword] = b;
  } else if (is_in(keyword, kMost) && a.is_number() && b.is_number()) {
    if (b < a) out[keyword] = b;
  } else if (keyword == "uniqueItems" && a.is_boolean() && b.is_boolean()) {
    out[keyword] = true;
  } else if (keyword == "nullable" && a.is_boolean() && b.is_boolean()) {
    out[keyword] = false;
  } else if (keyword == "additionalProperties" && (a == true || b == true)) {
    out[keyword] = a == true ? b : a;
  } else if (keyword == "allOf" && a.is_array() && b.is_array()) {
    for (const Json& part : b) out[keyword].push_back(part);
  } else {
    if (!leave_open(path, keyword)) return conflict(keyword, path);  // the first alone says less
  }
  return true;
}

namespace {

// Keywords that are not held to, but say nothing with this value.
bool says_nothing(const std::string& keyword, const Json& value) {
  return (keyword == "propertyNames" && excludes_no_name(value)) || (keyword == "not" && value == false);
}

bool is_held_to(const std::string& keyword, const Json& value) {
  return is_in(keyword, kSupported) || is_annotation(keyword) || (keyword == "not" && allows_everything(value));
}

}  // namespace

bool is_annotation(const std::string& keyword) { return is_in(keyword, kAnnotations) || keyword.rfind("x-", 0) == 0; }

Status SchemaCompiler::check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    if (is_held_to(keyword, value) || says_nothing(keyword, value)) continue;
    if (!leave_open(path, keyword))
      return at_path(path, "the keyword '" + keyword +
                               "' is not supported; leave it out, or move what it says into the description");
  }
  return {};
}

Json known_part(const Json& schema, std::initializer_list<const char*> except) {
  Json out = Json::object();
  for (const auto& [keyword, value] : schema.items()) {
    const bool excepted =
        std::any_of(except.begin(), except.end(), [&, &key = keyword](const char* name) { return key == name; });
    // Patterns of names are not held to, but say that there are other properties than
    // those that are named.
    if (!excepted && (is_held_to(keyword, value) || keyword == "patternProperties")) out[keyword] = value;
  }
  return out;
}

Status WorkBudget::spend(int64_t work, const std::string& path) {
  left_ -= std::min(left_, work);
  if (left_ > 0) return {};
  return too_large_at(path,
                      "here the schema has repeated itself too often: its references, allOf, lists or patterns are too "
                      "large together; write it with fewer or smaller ones");
}

int64_t work_of(const Json& value) {
  constexpr size_t kBytesOfOne = 16;
  int64_t work = 1;
  if (value.is_string()) work += static_cast<int64_t>(value.get_ref<const std::string&>().size() / kBytesOfOne);
  if (value.is_object()) {
    for (const auto& [name, part] : value.items()) work += static_cast<int64_t>(name.size() / kBytesOfOne);
  }
  if (value.is_structured()) {
    for (const Json& part : value) work += work_of(part);
  }
  return work;
}

Result<Json> SchemaCompiler::merge_schemas(const Json& a, const Json& b, const std::string& path, int depth) {
  TRY(work_.spend(work_of(a) + work_of(b), path));
  if (depth > kMaxSchemaDepth)
    return invalid_argument("schema at " + path + ": it is nested too deep or refers to itself through allOf");
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  if (!a.is_object() || !b.is_object())
    return invalid_argument("schema at " + path + ": a schema must be an object or a boolean");
  // "additionalProperties" speaks about the properties beside it: merged only where
  // the other side names no more than these, and none of them less where it restricts
  // its own others.
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    if (!one->contains("additionalProperties") || (*one)["additionalProperties"] == true) continue;
    if (!other->contains("properties") && (!other->contains("additionalProperties") ||
                                           (*other)["additionalProperties"] == (*one)["additionalProperties"]))
      continue;
    bool fits = other->contains("properties") && one->contains("properties");
    if (fits) {
      const Json& names = (*one)["properties"];
      const Json& others = (*other)["properties"];
      TRY(work_.spend(pairs_of(names, others), path));
      const bool restricts = other->contains("additionalProperties") && (*other)["additionalProperties"] != true;
      fits = has_names_of(names, others) && (!restricts || has_names_of(others, names));
    }
    // Left open, the names of both are allowed, and beside them what the first says.
    if (!fits && !leave_open(path, "additionalProperties")) return conflict("additionalProperties", path);
  }
  Json out = a;
  for (const auto& [keyword, value] : b.items()) {
    if (!a.contains(keyword)) {
      out[keyword] = value;
    } else if (a[keyword] != value && !is_annotation(keyword)) {
      TRY_ASSIGN(const bool some, merge_keyword(out, keyword, a[keyword], value, path));
      if (!some) return Json(false);
    }
  }
  return out;
}

}  // namespace loralei::schema
