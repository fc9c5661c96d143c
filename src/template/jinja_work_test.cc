// SPDX-License-Identifier: Apache-2.0
// What rendering costs: every filter, method, test, operator and function of templates
// pays for what it touches. The built-in tables are walked, so that a new one has to say
// here what it works on.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "base/utf8.h"
#include "template/jinja.h"
#include "template/jinja_builtin_names.h"
#include "template/jinja_json.h"
#include "template/jinja_text.h"

namespace loralei {
namespace {

using Names = std::vector<std::string_view>;

struct Cost {
  int64_t work = 0;
  double ns = 0;
  bool ok = false;
  std::string message;
};

// The cheapest of some renders, so that a busy machine does not count.
Cost cost_of(const std::string& source, const JinjaValue& context, const JinjaRenderLimits& limits = {}, int runs = 1) {
  const auto parsed = JinjaTemplate::parse(source);
  EXPECT_TRUE(parsed.ok()) << source << ": " << (parsed.ok() ? "" : parsed.error().message);
  Cost best;
  for (int run = 0; run < runs && parsed.ok(); ++run) {
    Work work;
    JinjaRenderOptions options;
    options.limits = limits;
    options.work = &work;
    const auto begin = std::chrono::steady_clock::now();
    const auto text = (*parsed)->render(context, options);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    if (run == 0 || took.count() < best.ns)
      best = {work.spent(), took.count(), text.ok(), text.ok() ? "" : text.error().message};
  }
  return best;
}

// `text` is long; `other` is as long and equal but for its end; `many` is a list of short
// strings, `rows` one of dicts, `table` a dict of as many entries.
JinjaValue long_values(size_t bytes, const char* unit) {
  std::string text;
  while (text.size() < bytes) text += unit;
  std::vector<JinjaValue> many, rows;
  std::vector<std::pair<std::string, JinjaValue>> table;
  for (size_t i = 0; i < bytes / 64; ++i) {
    const std::string name = "name " + std::to_string(i * 7919 % 10007);
    many.emplace_back(name);
    rows.push_back(jinja_dict({{"a", JinjaValue(name)}, {"n", JinjaValue(static_cast<int64_t>(i % 7))}}));
    table.emplace_back(name + std::to_string(i), JinjaValue(static_cast<int64_t>(i)));
  }
  return jinja_dict({{"text", JinjaValue(text)},
                     {"other", JinjaValue(text.substr(0, text.size() - 1) + "#")},
                     {"half", JinjaValue(text.substr(0, text.size() / 2) + "#")},
                     {"many", jinja_list(std::move(many))},
                     {"rows", jinja_list(std::move(rows))},
                     {"table", jinja_dict(std::move(table))}});
}

// An expression for each name, with what it works on: most touch all of a
// text or of a list.
struct Case {
  std::string name, source;
  bool touches_all = true;  // of what it is given; false: the answer needs a part of it only
};

std::vector<Case> filter_cases() {
  const std::map<std::string_view, std::string> special = {
      {"abs", "-7"},
      {"attr", "table | attr(text)"},
      {"batch", "many | batch(3) | list | length"},
      {"d", "x | d(text)"},
      {"default", "x | default(text)"},
      {"dictsort", "table | dictsort | length"},
      {"filesizeformat", "7777 | filesizeformat"},
      {"first", "many | first"},
      {"format", "text | replace('%', '') | format"},
      {"groupby", "rows | groupby('a') | length"},
      {"items", "table | items | list | length"},
      {"join", "many | join(text[:99]) | length"},
      {"last", "many | last"},
      {"list", "text | list | length"},
      {"map", "many | map('upper') | list | length"},
      {"max", "many | max"},
      {"min", "many | min"},
      {"pprint", "many[:3] | pprint"},
      {"reject", "many | reject('eq', 'x') | list | length"},
      {"rejectattr", "rows | rejectattr('a', 'eq', 'x') | list | length"},
      {"replace", "text | replace('a', 'bcd') | length"},
      {"round", "2.5 | round"},
      {"select", "many | select('ne', 'x') | list | length"},
      {"selectattr", "rows | selectattr('a', 'ne', 'x') | list | length"},
      {"slice", "many | slice(7) | list | length"},
      {"sort", "many | sort | length"},
      {"sum", "rows | sum('n')"},
      {"unique", "rows | unique(attribute='n') | list | length"},
      {"wordwrap", "text | wordwrap(9) | length"}};
  static const std::set<std::string_view> parts = {"abs",   "attr", "d",      "default", "filesizeformat",
                                                   "first", "last", "pprint", "round"};
  std::vector<Case> out;
  for (const std::string_view name : jinja::filter_names()) {
    const auto found = special.find(name);
    const std::string call = "text | " + std::string(name) + (name == "int" || name == "float" ? "" : " | length");
    const std::string source = found == special.end() ? call : found->second;
    out.push_back({"filter " + std::string(name), source, !parts.contains(name)});
  }
  return out;
}

std::vector<Case> method_cases() {
  const std::map<std::string_view, std::string> arguments = {
      {"split", "'a'"},        {"rsplit", "half"},        {"startswith", "other"},  {"endswith", "text"},
      {"replace", "half, ''"}, {"join", "many[:9]"},      {"find", "half"},         {"rfind", "half"},
      {"index", "'#'"},        {"rindex", "half"},        {"count", "half"},        {"zfill", "700000"},
      {"ljust", "700000"},     {"rjust", "700000"},       {"center", "700000"},     {"partition", "half"},
      {"rpartition", "half"},  {"removeprefix", "other"}, {"removesuffix", "text"}, {"strip", "text"}};
  std::vector<Case> out;
  for (const std::string_view name : jinja::string_method_names()) {
    const auto found = arguments.find(name);
    const std::string call = "text." + std::string(name) + "(" + (found == arguments.end() ? "" : found->second) + ")";
    // The first character that is none of them ends these.
    const bool part = name == "isdigit" || name == "isdecimal" || name == "isnumeric" || name == "isalpha" ||
                      name == "isalnum" || name == "isspace";
    out.push_back({"method " + std::string(name), call, !part});
  }
  const std::map<std::string_view, std::string> of_dicts = {{"get", "table.get(text)"}, {"copy", "table.copy()"}};
  for (const std::string_view name : jinja::dict_method_names()) {
    const auto found = of_dicts.find(name);
    out.push_back({"dict method " + std::string(name),
                   found == of_dicts.end() ? "table." + std::string(name) + "() | length" : found->second,
                   name != "copy"});
  }
  for (const std::string_view name : jinja::list_method_names())
    out.push_back({"list method " + std::string(name),
                   "many." + std::string(name) + (name == "copy" ? "()" : "(many[-1])"), name != "copy"});
  return out;
}

std::vector<Case> test_cases() {
  static const std::set<std::string_view> whole = {"lower", "upper", "eq", "==",          "equalto", "ge",
                                                   ">=",    "gt",    ">",  "greaterthan", "in",      "le",
                                                   "<=",    "lt",    "<",  "lessthan",    "ne",      "!="};
  std::vector<Case> out;
  for (const std::string_view name : jinja::test_names()) {
    const bool operand = jinja::is_test_name(name) && std::find(whole.begin(), whole.end(), name) != whole.end() &&
                         name != "lower" && name != "upper";
    std::string source;
    if (operand || name == "sameas")
      source = "[text] | select('" + std::string(name) + "', other) | list | length";
    else if (name == "divisibleby")
      source = "7 is divisibleby 3";
    else
      source = std::string(name == "odd" || name == "even" ? "7" : "text") + " is " + std::string(name);
    out.push_back({"test " + std::string(name), source, whole.contains(name)});
  }
  return out;
}

std::vector<Case> operator_cases() {
  return {{"~", "(text ~ other) | length"},
          {"+", "(text + other) | length"},
          {"+ of lists", "(many + many) | length"},
          {"*", "(text * 3) | length"},
          {"* of one byte", "('a' * 3000000) | length"},
          {"* of a list", "(many * 3) | length"},
          {"%", "('%s' % text) | length"},
          {"==", "text == other"},
          {"== of lists", "many == (many + [])"},
          {"== of dicts", "table == dict(table)"},
          {"<", "text < other"},
          {">=", "text >= other"},
          {"in", "half in text"},
          {"not in", "half not in text"},
          {"in a list", "'x' in many"},
          {"in a dict", "text in table", false},
          {"slice", "text[1:-1] | length"},
          {"slice backwards", "text[::-1] | length"},
          {"slice of a list", "many[1:-1] | length"},
          {"subscript", "text[-1]"},
          {"output", "text }}{{ text"},
          {"output of a list", "many"},
          {"output of a dict", "table"},
          {"for", "'' }}{% for c in text[:9999] %}{{ c }}{% endfor %}{{ text | length"},
          {"for over a list", "'' }}{% for row in rows %}{{ row.a }}{% endfor %}{{ ''"},
          {"set block", "'' }}{% set x %}{{ text }}{% endset %}{{ x"},
          {"macro", "'' }}{% macro m(x) %}{{ x }}{% endmacro %}{{ m(text)"},
          {"namespace", "'' }}{% set n = namespace(**table) %}{{ n.x"},
          {"keyword arguments", "dict(**table) | length"}};
}

std::vector<Case> global_cases() {
  const std::map<std::string_view, Case> known = {
      {"range", {"", "range(50000) | length"}},          {"dict", {"", "dict(table) | length"}},
      {"namespace", {"", "namespace(**table)"}},         {"joiner", {"", "joiner(text)()", false}},
      {"cycler", {"", "cycler(*many)()", true}},         {"strftime_now", {"", "strftime_now('%Y')", false}},
      {"raise_exception", {"", "raise_exception(text)"}}};
  std::vector<Case> out;
  for (const std::string_view name : jinja::global_names()) {
    const auto found = known.find(name);
    EXPECT_NE(found, known.end()) << "say here what the function " << name << " touches";
    if (found == known.end()) continue;
    out.push_back(found->second);
    out.back().name = "function " + std::string(name);
  }
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> out;
  for (const auto& cases : {filter_cases(), method_cases(), test_cases(), operator_cases(), global_cases()})
    out.insert(out.end(), cases.begin(), cases.end());
  return out;
}

// Twice the input, at least twice the work; and no less of it than there are bytes.
TEST(JinjaWork, EveryOperationPaysForWhatItTouches) {
  const size_t bytes = 1 << 17;
  JinjaRenderLimits limits;
  limits.max_work = int64_t{1} << 40;
  limits.max_held_bytes = int64_t{1} << 40;
  const JinjaValue some = long_values(bytes, "a"), twice = long_values(2 * bytes, "a");
  for (const Case& one : all_cases()) {
    const std::string source = "{{ " + one.source + " }}";
    const Cost cost = cost_of(source, some, limits), larger = cost_of(source, twice, limits);
    if (!one.touches_all) continue;
    const bool of_text = one.source.find("text") != std::string::npos;
    EXPECT_GE(cost.work, static_cast<int64_t>(of_text ? bytes : bytes / 64))
        << one.name << ": " << one.source << " " << cost.message;
    const bool fixed = one.source.find("000") != std::string::npos || one.source.find("999") != std::string::npos;
    if (fixed) continue;
    EXPECT_GE(larger.work, cost.work * 19 / 10) << one.name << ": " << one.source << " " << cost.message;
  }
}

// A nanosecond's worth is about the same everywhere: what costs a unit here takes no
// twenty times of what it takes there. Texts of one byte again and again are the worst
// for what searches. What seems too dear is measured again beside the measure, since the
// machine may have had other things to do.
TEST(JinjaWork, AUnitTakesAboutTheSameTimeEverywhere) {
#if defined(LORALEI_THREAD_SANITIZER) || defined(LORALEI_ADDRESS_SANITIZER)
  GTEST_SKIP() << "a sanitizer makes some operations dear and others not";
#endif
  constexpr double kTimesMost = 20;
  constexpr int kLooksMost = 4;
  JinjaRenderLimits limits;
  limits.max_work = int64_t{1} << 40;
  limits.max_held_bytes = int64_t{1} << 40;
  for (const char* unit : {"a", " ", "ab- <", "a\n", "\xC3\x9F"}) {
    const JinjaValue context = long_values(1 << 16, unit);
    // The measure is an honest loop over values.
    const auto measured_ns = [&] {
      const Cost measure = cost_of("{% for row in rows %}{{ row.a }}{% endfor %}", context, limits, 5);
      return measure.ns / static_cast<double>(measure.work);
    };
    double unit_ns = measured_ns();
    for (const Case& one : all_cases()) {
      const auto look = [&] { return cost_of("{{ " + one.source + " }}", context, limits, 3); };
      Cost cost = look();
      for (int looks = 1; looks < kLooksMost && cost.ns > kTimesMost * unit_ns * static_cast<double>(cost.work);
           ++looks) {
        unit_ns = measured_ns();
        cost = look();
      }
      if (cost.ns < 5e5) continue;  // too short to be told from noise
      EXPECT_LT(cost.ns / static_cast<double>(cost.work), kTimesMost * unit_ns)
          << one.name << " on '" << unit << "': " << cost.ns / 1e6 << " ms, work " << cost.work
          << ", a unit of the measure " << unit_ns << " ns, " << one.source;
    }
  }
}

// Whatever is repeated, the render ends by its limit, and what is alive stays
// below its own.
TEST(JinjaWork, EveryOperationEndsByTheLimit) {
  JinjaRenderLimits limits;
  limits.max_work = 20 << 20;
  const JinjaValue context = long_values(1 << 16, "ab- ");
  for (const Case& one : all_cases()) {
    if (!one.touches_all || one.source.find("}}") != std::string::npos) continue;
    const std::string turn = "{% set x = " + one.source + " %}";
    std::string loops = "{% for i in range(9999) %}{% for j in range(9999) %}" + turn + "{% endfor %}{% endfor %}";
    const Cost cost = cost_of(loops, context, limits);
    EXPECT_FALSE(cost.ok) << one.name;
    // What is over the limit is one operation at most, which was not begun.
    EXPECT_LT(cost.work, 60 << 20) << one.name << " " << cost.message;
  }
}

TEST(JinjaWork, MemoryAliveIsBoundedAndGivenBack) {
  JinjaRenderLimits limits;
  limits.max_held_bytes = 4 << 20;
  const JinjaValue context = long_values(1 << 20, "ab- ");
  // Far more in all than may be alive at once.
  EXPECT_TRUE(cost_of("{% for i in range(50) %}{% set x = text ~ i %}{% endfor %}", context, limits).ok);
  EXPECT_TRUE(cost_of("{% macro m() %}{{ text }}{% endmacro %}{% for i in range(50) %}{% set x = m() %}{% endfor %}",
                      context, limits)
                  .ok);
  EXPECT_TRUE(cost_of("{% for i in range(50) %}{% set x = (text | upper).split('-') | length %}{% endfor %}",
                      long_values(1 << 14, "ab- "), limits)
                  .ok);
  for (const char* source :
       {"{% set ns = namespace(x='') %}{% for i in range(9) %}{% set ns.x = ns.x ~ text %}{% endfor %}",
        "{% for i in range(9) %}{{ text }}{% endfor %}", "{% set x = text * 9 %}", "{% set x = text.split('a') %}",
        "{{ text | list | length }}", "{{ text | tojson(indent=text) }}{{ [[text]] | tojson(indent=text * 3) }}",
        "{% macro m(n) %}{% set x = text ~ n %}{{ m(n + 1) }}{{ x }}{% endmacro %}{{ m(0) }}",
        "{{ text | escape | escape | replace('a', text) }}"}) {
    const Cost cost = cost_of(source, context, limits);
    EXPECT_FALSE(cost.ok) << source;
    EXPECT_NE(cost.message.find("4 MiB of intermediate values"), std::string::npos) << cost.message;
  }
}

class Stops final : public WorkWatch {
 public:
  explicit Stops(int looks) : left(looks) {}
  bool go_on(const Work&) override { return left-- > 0; }
  int left;
};

TEST(JinjaWork, ARenderThatNobodyWantsEndsSoonAndSaysSo) {
  const auto parsed = JinjaTemplate::parse("{% for i in range(99999) %}{% set x = text ~ i %}{% endfor %}");
  ASSERT_TRUE(parsed.ok());
  Stops watch(3);
  Work work(&watch);
  JinjaRenderOptions options;
  options.work = &work;
  const auto text = (*parsed)->render(long_values(1 << 16, "ab"), options);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kCancelled);
  EXPECT_LT(work.spent(), 9 * Work::kSlice);
  EXPECT_FALSE(work.spend(1)) << "nothing is granted any more";
  EXPECT_EQ(watch.left, -1) << "and nobody is asked any more";
}

TEST(JinjaWork, WhatATemplateSaysOfLongTextsIsCut) {
  const JinjaValue context = long_values(1 << 20, "\xC3\xA4");
  for (const char* source : {"{{ raise_exception(text) }}", "{{ many[text].x }}", "{{ namespace()[text].x }}",
                             "{{ (text ~ '{' ~ text ~ '}').format() }}"}) {
    const Cost cost = cost_of(source, context);
    EXPECT_FALSE(cost.ok) << source;
    EXPECT_LT(cost.message.size(), 5000u) << source;
    EXPECT_TRUE(is_valid_utf8(cost.message)) << source;
  }
}

TEST(JinjaWork, JsonTakesTimeLinearInItsKeys) {
  std::string json = "{";
  for (int i = 0; i < 200'000; ++i)
    json += (i == 0 ? "\"k" : ",\"k") + std::to_string(i % 199'999) + "\":" + std::to_string(i);
  json += "}";
  Work work;
  const auto value = jinja_from_json_text(json, work);
  ASSERT_TRUE(value.ok() && *value);
  const JinjaDict& dict = (*value)->as_dict();
  ASSERT_EQ(dict.items.size(), 199'999u);
  EXPECT_EQ(dict.items[0].second.as_int(), 199'999) << "of equal keys the last counts, at the place of the first";
  EXPECT_GE(work.spent(), static_cast<int64_t>(json.size()));
  EXPECT_FALSE(*jinja_from_json_text("{\"a\":1", work));
  EXPECT_FALSE(*jinja_from_json_text("{} x", work));
  EXPECT_EQ(jinja_from_json_text(std::string(200, '[') + std::string(200, ']'), work).error().code,
            ErrorCode::kInvalidArgument);
  Stops watch(0);
  Work stopped(&watch);
  EXPECT_EQ(jinja_from_json_text(json, stopped).error().code, ErrorCode::kCancelled);
}

TEST(Work, LimitsNestAndLeaveTheCountAlone) {
  Work work;
  EXPECT_TRUE(work.spend(100));
  {
    const WorkLimit outer(work, 50);
    EXPECT_TRUE(work.spend(50));
    {
      const WorkLimit inner(work, 1000);
      EXPECT_FALSE(work.spend(1)) << "the outer one holds, too";
    }
    EXPECT_FALSE(work.spend(1));
  }
  EXPECT_TRUE(work.spend(int64_t{1} << 40));
  EXPECT_EQ(work.spent(), 152 + (int64_t{1} << 40));
  EXPECT_FALSE(work.stopped());
}

}  // namespace
}  // namespace loralei
