// SPDX-License-Identifier: Apache-2.0
// Arrays: items by position, the rest, how many, and that none comes twice.
#include <algorithm>
#include <map>

#include "schema/json_schema_compiler.h"

namespace loralei::schema {

namespace {

constexpr size_t kMaxDistinct = 64;             // a bit of a number each
constexpr int64_t kMaxDistinctEdges = 1 << 15;  // twelve values, or pairs of 64

// From every set of fewer than `most` of `count` values to those with one more.
int64_t distinct_edges(int64_t count, int64_t most) {
  int64_t edges = 0;
  int64_t sets = 1;  // of `size` values
  for (int64_t size = 0; size < std::min(most, count) && edges <= kMaxDistinctEdges; ++size) {
    edges += sets * (count - size);
    sets = sets * (count - size) / (size + 1);
  }
  return edges;
}

}  // namespace

Result<std::optional<std::vector<std::vector<std::string>>>> SchemaCompiler::listed_texts(const Json& schema,
                                                                                          const std::string& path) {
  using Texts = std::optional<std::vector<std::vector<std::string>>>;
  constexpr int kMaxReferences = 8;
  const Json* at = &schema;
  for (int i = 0; i < kMaxReferences && at->is_object() && at->contains("$ref") && (*at)["$ref"].is_string() &&
                  has_only_annotations(*at, {"$ref"});
       ++i) {
    const Result<const Json*> target = find_reference((*at)["$ref"].get<std::string>(), path);
    if (!target.ok()) return Texts();
    at = *target;
  }
  if (!at->is_object() || !has_only_annotations(*at, {"type", "enum", "const", "nullable"})) return Texts();
  const std::vector<std::string> types = types_of(*at);
  const auto is_small = [](const std::string& type) { return type == "boolean" || type == "null"; };
  Json values = Json::array();
  if (at->contains("const"))
    values.push_back((*at)["const"]);
  else if (at->contains("enum"))
    values = (*at)["enum"];
  else if (!types.empty() && std::all_of(types.begin(), types.end(), is_small))
    values = Json::array({true, false, nullptr});
  else
    return Texts();
  if (!values.is_array() || values.size() > kMaxDistinct) return Texts();
  TRY(work_.spend(work_of(values), path));
  std::vector<Json> firsts;
  std::vector<std::vector<std::string>> texts;
  const auto add = [&](const Json& value) {
    const auto place = std::find(firsts.begin(), firsts.end(), value) - firsts.begin();
    if (place == static_cast<int64_t>(firsts.size())) {
      firsts.push_back(value);
      texts.emplace_back();
    }
    texts[place].push_back(scalar_text(value));
  };
  for (const Json& value : values) {
    if (value.is_structured()) return Texts();  // equal also where their members stand in another order
    if (is_listed(*at, types, value)) add(value);
  }
  if (at->contains("nullable") && (*at)["nullable"] == true) add(nullptr);
  return Texts(std::move(texts));
}

Result<bool> SchemaCompiler::add_distinct(GrammarStateId from, GrammarStateId to, const Json& items, int64_t min,
                                          int64_t max, const std::string& path) {
  TRY_ASSIGN(const auto values, listed_texts(items, path));
  const auto count = values ? static_cast<int64_t>(values->size()) : 0;
  max = max < 0 ? count : std::min(max, count);
  const int64_t edges = distinct_edges(count, max);
  if (!values || values->size() > kMaxDistinct || edges > kMaxDistinctEdges) {
    if (!leave_open(path, "uniqueItems"))
      return at_path(path,
                     "the keyword 'uniqueItems' is supported where the items are booleans or a dozen values of an "
                     "enum; leave it out, or move what it says into the description");
    return false;
  }
  if (max < min) return true;  // there are not so many: no way to the end
  TRY(work_.spend(edges, path));
  std::vector<GrammarRuleId> rules;
  for (const std::vector<std::string>& texts : *values) {
    const GrammarStateId end = b_.add_state();
    b_.end_rule(end);
    rules.push_back(b_.add_rule());
    add_texts(b_.start(rules.back()), texts, end);
  }
  const GrammarStateId close = b_.add_state();
  b_.add_range(close, ']', ']', to);
  const GrammarStateId open = b_.call(b_.literal(from, "["), space());
  if (min == 0) b_.add_empty(open, close);
  std::map<uint64_t, GrammarStateId> sets{{0, open}};
  for (int64_t size = 1; size <= max; ++size) {
    std::map<uint64_t, GrammarStateId> larger;
    for (const auto& [used, behind] : sets) {
      const GrammarStateId at = size == 1 ? behind : b_.call(b_.literal(behind, ","), space());
      for (int64_t i = 0; i < count; ++i) {
        if ((used >> i & 1) != 0) continue;
        const auto [place, fresh] = larger.emplace(used | uint64_t{1} << i, 0);
        if (fresh) place->second = b_.add_state();
        if (fresh && size >= min) b_.add_call(place->second, space(), close);
        b_.add_call(at, rules[i], place->second);
      }
    }
    sets = std::move(larger);
  }
  return true;
}

Status SchemaCompiler::add_array(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path) {
  static const Json kAnything(true);
  TRY_ASSIGN(int64_t min, read_count(schema, "minItems", 0, path));
  TRY_ASSIGN(int64_t max, read_count(schema, "maxItems", -1, path));
  // Draft 7 wrote prefixItems as a list in items, and the rest as additionalItems.
  const bool old_style = schema.contains("items") && schema["items"].is_array();
  const char* prefix_keyword = old_style ? "items" : "prefixItems";
  const char* rest_keyword = old_style ? "additionalItems" : "items";
  std::vector<GrammarRuleId> prefix;
  if (schema.contains(prefix_keyword)) {
    if (!schema[prefix_keyword].is_array()) return at_path(path, "'prefixItems' must be a list of schemas");
    for (const Json& item : schema[prefix_keyword]) {
      TRY_ASSIGN(const GrammarRuleId rule, compile(item, below(path, prefix_keyword, std::to_string(prefix.size()))));
      prefix.push_back(rule);
    }
  }
  const auto fixed = static_cast<int64_t>(prefix.size());
  GrammarRuleId rest = 0;
  if (schema.contains(rest_keyword) && schema[rest_keyword] == false) {
    max = max < 0 ? fixed : std::min(max, fixed);
  } else if (schema.contains(rest_keyword)) {
    TRY_ASSIGN(rest, compile(schema[rest_keyword], below(path, rest_keyword)));
  } else {
    rest = any_value();
  }
  if (max >= 0 && max < min) return {};
  for (int64_t* count : {&min, &max}) {
    if (*count <= kMaxGrammarStates / 4) continue;
    if (!leave_open(path, count == &min ? "minItems" : "maxItems"))
      return too_large_at(path, "arrays of more than " + std::to_string(kMaxGrammarStates / 4) +
                                    " counted items are not supported; use smaller counts, or leave 'maxItems' "
                                    "out");
    *count = count == &min ? 0 : -1;
  }
  if (schema.contains("uniqueItems") && !schema["uniqueItems"].is_boolean())
    return at_path(path, "'uniqueItems' must be true or false");
  if (schema.contains("uniqueItems") && schema["uniqueItems"] == true && (max < 0 || max > 1)) {
    const bool alike = fixed == 0 && schema.contains(rest_keyword);
    TRY_ASSIGN(const bool done, add_distinct(from, to, alike ? schema[rest_keyword] : kAnything, min, max, path));
    if (done) return {};
  }
  const GrammarStateId close = b_.add_state();
  b_.add_range(close, ']', ']', to);
  const GrammarStateId open = b_.call(b_.literal(from, "["), space());
  if (min == 0) b_.add_empty(open, close);
  const int64_t counted = max >= 0 ? max : std::max({min, fixed, int64_t{1}});
  GrammarStateId at = open;
  for (int64_t i = 0; i < counted; ++i) {
    if (i > 0) at = b_.call(b_.literal(at, ","), space());
    at = b_.call(at, i < fixed ? prefix[i] : rest);
    if (i + 1 >= min) b_.add_call(at, space(), close);
  }
  if (max < 0) b_.add_call(b_.call(b_.literal(at, ","), space()), rest, at);
  return {};
}

}  // namespace loralei::schema
