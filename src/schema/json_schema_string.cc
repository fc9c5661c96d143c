// SPDX-License-Identifier: Apache-2.0
// Strings: lengths, patterns, and the patterns that formats stand for.
#include <algorithm>

#include "schema/json_schema_compiler.h"
#include "schema/json_schema_regex.h"

namespace loralei::schema {

namespace {

struct Format {
  std::string_view name;
  std::string_view pattern;
};
#define LORALEI_DATE \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define LORALEI_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LORALEI_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define LORALEI_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LORALEI_HEX "[0-9a-fA-F]{1,4}"
// Each pattern is a part of what the format allows (29 February, comments in addresses
// and the like are left out).
constexpr Format kFormats[] = {
    {"date", "^" LORALEI_DATE "$"},
    {"time", "^" LORALEI_TIME "$"},
    {"date-time", "^" LORALEI_DATE "T" LORALEI_TIME "$"},
    {"duration",
     "^P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)"
     "?|"
     "[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"email", "^[A-Za-z0-9_+%-]+(\\.[A-Za-z0-9_+%-]+)*@" LORALEI_LABEL "(\\." LORALEI_LABEL ")+$"},
    {"hostname", "^" LORALEI_LABEL "(\\." LORALEI_LABEL ")*$"},
    {"ipv4", "^(" LORALEI_OCTET "\\.){3}" LORALEI_OCTET "$"},
    {"ipv6", "^((" LORALEI_HEX ":){7}" LORALEI_HEX "|(" LORALEI_HEX ":){1,7}:|(" LORALEI_HEX ":){1,6}:" LORALEI_HEX
             "|(" LORALEI_HEX ":){1,5}(:" LORALEI_HEX "){1,2}|(" LORALEI_HEX ":){1,4}(:" LORALEI_HEX
             "){1,3}|(" LORALEI_HEX ":){1,3}(:" LORALEI_HEX "){1,4}|(" LORALEI_HEX ":){1,2}(:" LORALEI_HEX
             "){1,5}|" LORALEI_HEX ":(:" LORALEI_HEX "){1,6}|:(:" LORALEI_HEX "){1,7}|::)$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:(//[A-Za-z0-9._~!$&'()*+,;=:@%-]+)?[A-Za-z0-9._~!$&'()*+,;=:@/?%#-]*$"},
};
#undef LORALEI_DATE
#undef LORALEI_TIME
#undef LORALEI_LABEL
#undef LORALEI_OCTET
#undef LORALEI_HEX

constexpr int64_t kMaxCountedNodes = 100000;
constexpr int64_t kPatternByteWork = 16;  // to read a class, its characters are put in order

Result<CharAutomaton> read_pattern(const std::string& pattern, int64_t min, int64_t max, const std::string& path) {
  Result<CharAutomaton> parsed = parse_regex(pattern, RegexMode::kSearch);
  if (!parsed.ok()) return std::move(parsed).error().with_context("schema at " + path);
  if (min == 0 && max < 0) return parsed;
  CharAutomaton counted = with_length(*parsed, min, max, kMaxCountedNodes);
  if (counted.nodes.empty())
    return too_large_at(path, "the pattern together with its length limits is too large; use smaller counts");
  return counted;
}

}  // namespace

Status SchemaCompiler::add_string(GrammarStateId from, GrammarStateId to, const Json& schema, const std::string& path) {
  TRY_ASSIGN(int64_t min, read_count(schema, "minLength", 0, path));
  TRY_ASSIGN(int64_t max, read_count(schema, "maxLength", -1, path));
  for (int64_t* length : {&min, &max}) {
    if (*length < kMaxGrammarStates) continue;
    if (!leave_open(path, length == &min ? "minLength" : "maxLength"))
      return too_large_at(path, "string lengths above " + std::to_string(kMaxGrammarStates) +
                                    " are not supported; use smaller ones, or leave 'maxLength' out");
    *length = length == &min ? 0 : -1;
  }
  std::optional<std::string> pattern;
  if (schema.contains("pattern")) {
    if (!schema["pattern"].is_string()) return at_path(path, "'pattern' must be a string");
    pattern = schema["pattern"].get<std::string>();
  }
  if (schema.contains("format")) {
    if (!schema["format"].is_string()) return at_path(path, "'format' must be a string");
    const std::string& name = schema["format"].get_ref<const std::string&>();
    const auto* format =
        std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.name == name; });
    // Formats that are not known are annotations. Beside a pattern, which says more,
    // a known one stands in for what patterns cannot say here.
    if (format != std::end(kFormats)) {
      if (pattern) TRY(work_.spend(kPatternByteWork * static_cast<int64_t>(pattern->size()), path));
      if (!pattern || !parse_regex(*pattern, RegexMode::kSearch).ok()) pattern = format->pattern;
    }
  }
  if (!pattern && max >= 0 && max < min) return {};  // nothing is that long: no way to the end
  TRY_ASSIGN(const GrammarRuleId rule, string_rule(pattern ? &*pattern : nullptr, min, max, path));
  b_.add_call(from, rule, to);
  return {};
}

Result<GrammarRuleId> SchemaCompiler::string_rule(const std::string* pattern, int64_t min, int64_t max,
                                                  const std::string& path) {
  if (pattern == nullptr && min == 0 && max < 0) return any_string();
  std::tuple key(pattern ? std::optional(*pattern) : std::nullopt, min, max);
  if (const auto known = strings_.find(key); known != strings_.end()) return known->second;
  CharAutomaton automaton;
  if (pattern != nullptr) {
    TRY(work_.spend(kPatternByteWork * static_cast<int64_t>(pattern->size()), path));
    Result<CharAutomaton> read = read_pattern(*pattern, min, max, path);
    if (!read.ok()) {
      if (!leave_open(path, "pattern")) return std::move(read).error();
      return string_rule(nullptr, min, max, path);
    }
    automaton = std::move(read).value();
  }
  const GrammarRuleId rule = b_.add_rule();
  strings_.emplace(std::move(key), rule);
  GrammarStateId at = b_.literal(b_.start(rule), "\"");
  if (pattern != nullptr) {
    at = chars_.add_automaton(at, automaton, CharForm::kJsonString);
    b_.end_rule(b_.literal(at, "\""));
    return rule;
  }
  const GrammarRuleId any = chars_.any_json_char();
  for (int64_t i = 0; i < min; ++i) at = b_.call(at, any);
  const GrammarStateId close = b_.add_state();
  for (int64_t i = min; i < max; ++i) {
    b_.add_empty(at, close);
    at = b_.call(at, any);
  }
  if (max < 0) {
    const GrammarStateId loop = b_.add_state();
    b_.add_empty(at, loop);
    b_.add_call(loop, any, loop);
    at = loop;
  }
  b_.add_empty(at, close);
  b_.end_rule(b_.literal(close, "\""));
  return rule;
}

}  // namespace loralei::schema
