// SPDX-License-Identifier: Apache-2.0
// The table of filters and looking them up, with the two that take a value of any kind:
// default and attr.
#include "template/jinja_filters.h"

#include <algorithm>

#include "template/jinja_builtin_names.h"
#include "template/jinja_ops.h"

namespace loralei::jinja {

namespace {

JinjaValue filter_default(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "default", arguments, {"default_value", "boolean"}, 0, a)) return {};
  if (!value.is_undefined() && !(truthy(a[1]) && !truthy(value))) return value;
  return arguments.positional.empty() && a[0].is_undefined() ? JinjaValue("") : a[0];
}

JinjaValue filter_attr(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "attr", arguments, {"name"}, 1, a)) return {};
  if (value.is_dict()) return find_method(value, to_str(run, a[0]));  // Python: attributes only, never elements
  return get_attribute(run, value, to_str(run, a[0]));
}

struct NamedFilter {
  std::string_view name;
  Filter* filter;
};

constexpr NamedFilter kFilters[] = {{"abs", filter_abs},
                                    {"attr", filter_attr},
                                    {"batch", filter_batch},
                                    {"capitalize", filter_capitalize},
                                    {"center", filter_center},
                                    {"count", filter_length},
                                    {"d", filter_default},
                                    {"default", filter_default},
                                    {"dictsort", filter_dictsort},
                                    {"e", filter_escape},
                                    {"escape", filter_escape},
                                    {"filesizeformat", filter_filesizeformat},
                                    {"first", filter_first},
                                    {"float", filter_float},
                                    {"forceescape", filter_escape},
                                    {"format", filter_format},
                                    {"groupby", filter_groupby},
                                    {"indent", filter_indent},
                                    {"int", filter_int},
                                    {"items", filter_items},
                                    {"join", filter_join},
                                    {"last", filter_last},
                                    {"length", filter_length},
                                    {"list", filter_list},
                                    {"lower", filter_lower},
                                    {"map", filter_map},
                                    {"max", filter_max},
                                    {"min", filter_min},
                                    {"pprint", filter_pprint},
                                    {"reject", filter_reject},
                                    {"rejectattr", filter_rejectattr},
                                    {"replace", filter_replace},
                                    {"reverse", filter_reverse},
                                    {"round", filter_round},
                                    {"safe", filter_safe},
                                    {"select", filter_select},
                                    {"selectattr", filter_selectattr},
                                    {"slice", filter_slice},
                                    {"sort", filter_sort},
                                    {"string", filter_string},
                                    {"striptags", filter_striptags},
                                    {"sum", filter_sum},
                                    {"title", filter_title},
                                    {"tojson", filter_tojson},
                                    {"trim", filter_trim},
                                    {"truncate", filter_truncate},
                                    {"unique", filter_unique},
                                    {"upper", filter_upper},
                                    {"urlencode", filter_urlencode},
                                    {"wordcount", filter_wordcount},
                                    {"wordwrap", filter_wordwrap}};

const NamedFilter* find_filter(std::string_view name) {
  const auto* found =
      std::lower_bound(std::begin(kFilters), std::end(kFilters), name,
                       [](const NamedFilter& filter, std::string_view key) { return filter.name < key; });
  return found != std::end(kFilters) && found->name == name ? found : nullptr;
}

// Filters that take no argument do not look at any: they are checked here.
bool takes_no_argument(std::string_view name) {
  static constexpr std::string_view kPlain[] = {"abs",         "capitalize", "count",    "e",      "escape",    "first",
                                                "forceescape", "items",      "last",     "length", "list",      "lower",
                                                "pprint",      "reverse",    "safe",     "string", "striptags", "title",
                                                "upper",       "urlencode",  "wordcount"};
  return std::find(std::begin(kPlain), std::end(kPlain), name) != std::end(kPlain);
}

}  // namespace

std::vector<std::string_view> filter_names() {
  std::vector<std::string_view> names;
  for (const NamedFilter& filter : kFilters) names.push_back(filter.name);
  return names;
}

bool is_filter_name(std::string_view name) { return find_filter(name) != nullptr; }

JinjaValue apply_filter(JinjaRun& run, const std::string& name, const JinjaValue& value, const Arguments& arguments) {
  const JinjaRun::Operation operation(run);
  if (!run.step()) return {};
  const NamedFilter* filter = find_filter(name);
  if (filter == nullptr) return run.fail("no filter named '" + name + "' is supported");
  std::vector<JinjaValue> none;
  if (takes_no_argument(name) && !bind(run, name, arguments, {}, 0, none)) return {};
  return filter->filter(run, value, arguments);
}

}  // namespace loralei::jinja
