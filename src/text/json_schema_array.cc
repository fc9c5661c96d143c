// SPDX-License-Identifier: Apache-2.0
// Arrays: items by position, the rest, and how many.
#include <algorithm>

#include "text/json_schema_compiler.h"

namespace loralei::schema {

Status SchemaCompiler::add_array(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path) {
  TRY_ASSIGN(const int64_t min, read_count(schema, "minItems", 0, path));
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
  if (std::max({min, max, fixed}) > kMaxGrammarStates / 4)
    return too_large_at(path, "arrays of more than " + std::to_string(kMaxGrammarStates / 4) +
                                  " counted items are not supported; use smaller counts, or leave 'maxItems' out");
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
