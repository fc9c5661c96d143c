// SPDX-License-Identifier: Apache-2.0
// Filters of sequences and dicts: their elements counted, picked, joined, sorted,
// grouped, mapped and selected.
#include <algorithm>
#include <charconv>

#include "template/jinja_filters.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Shape = JinjaList::Shape;

namespace {

JinjaValue ignore_case(JinjaRun& run, const JinjaValue& value) {
  return value.is_string() ? change_text(run, value.as_string(), to_lower) : value;
}

// "a.b.0": attributes and numbers, as jinja2's make_attrgetter takes them. `fallback`
// replaces what is undefined; may be null.
JinjaValue walk_attribute(JinjaRun& run, JinjaValue value, const JinjaValue& path, const JinjaValue* fallback) {
  if (path.is_int()) return get_subscript(run, value, path);
  if (!path.is_string()) return run.fail("an attribute must be a string or an integer");
  const std::string& text = path.as_string();
  if (!run.read(text.size())) return {};
  for (size_t begin = 0; begin <= text.size() && !run.failed();) {
    const size_t dot = std::min(text.find('.', begin), text.size());
    if (!run.step() || !run.allocate(2 * (dot - begin))) return {};
    const std::string part = text.substr(begin, dot - begin);
    int64_t number = 0;
    const auto done = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number =
        !part.empty() && part[0] != '-' && done.ec == std::errc() && done.ptr == part.data() + part.size();
    value = get_subscript(run, value, is_number ? JinjaValue(number) : JinjaValue(part));
    if (fallback != nullptr && value.is_undefined()) value = *fallback;
    begin = dot + 1;
  }
  return value;
}

// Sorts (key, item) pairs by key, keeping the order of equals. False when a comparison
// ended the render.
bool sort_by(JinjaRun& run, std::vector<std::pair<JinjaValue, JinjaValue>>& keyed, bool reverse) {
  if (!run.allocate_values(2 * keyed.size())) return false;  // what is merged stands beside it
  // A comparison that has failed answers false for everything, which is still an
  // ordering: the sort ends quickly.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(run, b.first, a.first) : less(run, a.first, b.first);
  });
  return !run.failed();
}

// "a,b" sorts by a, then by b.
JinjaValue sort_key(JinjaRun& run, const JinjaValue& item, const JinjaValue& attribute, bool case_sensitive) {
  if (attribute.is_undefined() || attribute.is_none()) return case_sensitive ? item : ignore_case(run, item);
  if (!attribute.is_string() || attribute.as_string().find(',') == std::string::npos) {
    const JinjaValue key = walk_attribute(run, item, attribute, nullptr);
    return case_sensitive ? key : ignore_case(run, key);
  }
  std::vector<JinjaValue> keys;
  const std::string& names = attribute.as_string();
  if (!run.read(2 * names.size()) || !run.allocate(names.size())) return {};
  for (size_t begin = 0; begin <= names.size();) {
    const size_t comma = std::min(names.find(',', begin), names.size());
    keys.push_back(
        sort_key(run, item, JinjaValue(strip(names.substr(begin, comma - begin), true, true)), case_sensitive));
    begin = comma + 1;
  }
  return run.failed() ? JinjaValue() : run.make_list(std::move(keys));
}

JinjaValue min_or_max(JinjaRun& run, const char* name, const JinjaValue& value, const Arguments& arguments,
                      bool largest) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"case_sensitive", "attribute"}, 0, a)) return {};
  const bool has_attribute = !a[1].is_undefined() && !a[1].is_none();
  JinjaValue best = JinjaValue::undefined("no aggregated item, the sequence was empty");
  JinjaValue best_key;
  bool first = true;
  for (const JinjaValue& item : elements(run, value)) {
    JinjaValue key = has_attribute ? walk_attribute(run, item, a[1], nullptr) : item;
    if (!truthy(a[0])) key = ignore_case(run, key);
    if (first || (largest ? less(run, best_key, key, ">") : less(run, key, best_key))) {
      best = item;
      best_key = key;
    }
    first = false;
    if (run.failed()) return {};
  }
  return best;
}

// Of what is false in Python, none and 0 too, map and the four that select make nothing
// and look at no argument.
JinjaValue select_items(JinjaRun& run, const JinjaValue& value, const Arguments& arguments, bool wanted,
                        bool by_attribute) {
  if (!truthy(value)) return run.make_list({}, Shape::kGenerator);
  const size_t skip = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skip) return run.fail("the name of the attribute is missing");
  std::string test;
  Arguments rest;
  if (arguments.positional.size() > skip) {
    if (!arguments.positional[skip].is_string()) return run.fail("the name of a test must be a string");
    if (!run.touch(arguments.positional[skip].as_string().size())) return {};
    test = arguments.positional[skip].as_string();
    rest.positional.assign(arguments.positional.begin() + skip + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  std::vector<JinjaValue> out;
  for (const JinjaValue& item : elements(run, value)) {
    if (!run.allocate_values(1)) return {};
    const JinjaValue subject = by_attribute ? walk_attribute(run, item, arguments.positional[0], nullptr) : item;
    const bool holds = test.empty() ? truthy(subject) : apply_test(run, test, subject, rest);
    if (run.failed()) return {};
    if (holds == wanted) out.push_back(item);
  }
  return run.make_list(std::move(out), Shape::kGenerator);
}

}  // namespace

JinjaValue filter_length(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return JinjaValue(length(run, value));
}

JinjaValue filter_list(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> items = elements(run, value);
  return run.failed() ? JinjaValue() : run.make_list(std::move(items));
}

JinjaValue filter_items(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> items;
  if (!value.is_undefined()) {
    if (!value.is_dict()) return run.fail("items needs a dict, not a value of type '" + type_name(value) + "'");
    for (const auto& [key, item] : value.as_dict().items) {
      if (!run.allocate_values(1)) return {};
      items.push_back(run.make_list({key, item}, Shape::kTuple));
      if (run.failed()) return {};
    }
  }
  return run.make_list(std::move(items), Shape::kGenerator);
}

JinjaValue filter_first(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_list() && value.as_list().is_sequence() && !value.as_list().items.empty())
    return value.as_list().items.front();
  const std::vector<JinjaValue> items = elements(run, value);
  return items.empty() ? JinjaValue::undefined("no first item, the sequence was empty") : items.front();
}

JinjaValue filter_last(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_list() && value.as_list().shape == Shape::kGenerator)
    return run.fail("last needs a sequence, not a generator");
  if (value.is_list() && !value.as_list().items.empty()) return value.as_list().items.back();
  const std::vector<JinjaValue> items = elements(run, value);
  return items.empty() ? JinjaValue::undefined("no last item, the sequence was empty") : items.back();
}

JinjaValue filter_reverse(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_string()) return slice(run, value, JinjaValue::none(), JinjaValue::none(), JinjaValue(-1));
  std::vector<JinjaValue> items = elements(run, value);
  if (run.failed()) return {};
  std::reverse(items.begin(), items.end());
  return run.make_list(std::move(items), Shape::kGenerator);
}

JinjaValue filter_join(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "join", arguments, {"d", "attribute"}, 0, a)) return {};
  const std::string separator = to_str(run, a[0]);
  const bool has_attribute = !a[1].is_undefined() && !a[1].is_none();
  std::string out;
  bool first = true;
  for (const JinjaValue& item : elements(run, value)) {
    const JinjaValue part = has_attribute ? walk_attribute(run, item, a[1], nullptr) : item;
    const std::string text = to_str(run, part);
    if (!run.step() || !run.allocate(separator.size() + text.size())) return {};
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return run.make_string(std::move(out));
}

JinjaValue filter_sort(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0, a)) return {};
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const JinjaValue& item : elements(run, value)) {
    if (!run.allocate_values(2)) return {};
    keyed.emplace_back(sort_key(run, item, a[2], truthy(a[1])), item);
    if (run.failed()) return {};
  }
  if (run.failed() || !sort_by(run, keyed, truthy(a[0]))) return {};
  std::vector<JinjaValue> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return run.make_list(std::move(items));
}

JinjaValue filter_dictsort(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0, a)) return {};
  if (!value.is_dict()) return run.fail("dictsort needs a dict, not a value of type '" + type_name(value) + "'");
  const bool by_value = a[1].is_string() && a[1].as_string() == "value";
  if (a[1].is_string() && !by_value && a[1].as_string() != "key") return run.fail("dictsort sorts by 'key' or 'value'");
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const auto& [key, item] : value.as_dict().items) {
    const JinjaValue& by = by_value ? item : key;
    if (!run.allocate_values(2)) return {};
    keyed.emplace_back(truthy(a[0]) ? by : ignore_case(run, by), run.make_list({key, item}, Shape::kTuple));
    if (run.failed()) return {};
  }
  if (!sort_by(run, keyed, truthy(a[2]))) return {};
  std::vector<JinjaValue> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return run.make_list(std::move(items));
}

JinjaValue filter_min(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return min_or_max(run, "min", value, arguments, false);
}
JinjaValue filter_max(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return min_or_max(run, "max", value, arguments, true);
}

JinjaValue filter_sum(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "sum", arguments, {"attribute", "start"}, 0, a)) return {};
  JinjaValue total = a[1].is_undefined() ? JinjaValue(0) : a[1];
  if (total.is_string()) return run.fail("sum cannot add strings; use join");
  for (const JinjaValue& item : elements(run, value)) {
    const bool has_attribute = !a[0].is_undefined() && !a[0].is_none();
    total = binary(run, '+', total, has_attribute ? walk_attribute(run, item, a[0], nullptr) : item);
    if (run.failed()) return {};
  }
  return total;
}

JinjaValue filter_unique(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "unique", arguments, {"case_sensitive", "attribute"}, 0, a)) return {};
  const bool has_attribute = !a[1].is_undefined() && !a[1].is_none();
  std::vector<JinjaValue> seen;
  std::vector<JinjaValue> items;
  for (const JinjaValue& item : elements(run, value)) {
    JinjaValue key = has_attribute ? walk_attribute(run, item, a[1], nullptr) : item;
    if (!truthy(a[0])) key = ignore_case(run, key);
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const JinjaValue& old) { return run.failed() || equals(run, old, key); });
    if (run.failed() || !run.allocate_values(2)) return {};
    if (known) continue;
    seen.push_back(std::move(key));
    items.push_back(item);
  }
  return run.make_list(std::move(items), Shape::kGenerator);
}

JinjaValue filter_batch(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "batch", arguments, {"linecount", "fill_with"}, 1, a)) return {};
  if (!a[0].is_int() || a[0].as_int() < 1 || a[0].as_int() > 4096)
    return run.fail("batch needs a count between 1 and 4096");
  std::vector<JinjaValue> lines;
  std::vector<JinjaValue> line;
  for (const JinjaValue& item : elements(run, value)) {
    if (!run.allocate_values(2)) return {};
    if (static_cast<int64_t>(line.size()) == a[0].as_int()) lines.push_back(run.make_list(std::exchange(line, {})));
    line.push_back(item);
  }
  const bool fill = !a[1].is_undefined() && !a[1].is_none();
  while (fill && !line.empty() && static_cast<int64_t>(line.size()) < a[0].as_int()) {
    if (!run.allocate_values(1)) return {};
    line.push_back(a[1]);
  }
  if (!line.empty()) lines.push_back(run.make_list(std::move(line)));
  return run.failed() ? JinjaValue() : run.make_list(std::move(lines), Shape::kGenerator);
}

JinjaValue filter_slice(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "slice", arguments, {"slices", "fill_with"}, 1, a)) return {};
  if (!a[0].is_int() || a[0].as_int() < 1 || a[0].as_int() > 4096)
    return run.fail("slice needs a count between 1 and 4096");
  const std::vector<JinjaValue> items = elements(run, value);
  const auto count = static_cast<size_t>(a[0].as_int());
  const size_t each = items.size() / count;
  const size_t longer = items.size() % count;
  std::vector<JinjaValue> out;
  size_t begin = 0;
  for (size_t i = 0; i < count && !run.failed(); ++i) {
    const size_t size = each + (i < longer ? 1 : 0);
    if (!run.allocate_values(size + 2)) return {};
    std::vector<JinjaValue> part(items.begin() + begin, items.begin() + begin + size);
    begin += size;
    if (!a[1].is_undefined() && !a[1].is_none() && i >= longer) part.push_back(a[1]);
    out.push_back(run.make_list(std::move(part)));
  }
  return run.failed() ? JinjaValue() : run.make_list(std::move(out), Shape::kGenerator);
}

JinjaValue filter_groupby(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "groupby", arguments, {"attribute", "default", "case_sensitive"}, 1, a)) return {};
  const JinjaValue* fallback = a[1].is_undefined() || a[1].is_none() ? nullptr : &a[1];
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const JinjaValue& item : elements(run, value)) {
    const JinjaValue key = walk_attribute(run, item, a[0], fallback);
    if (!run.allocate_values(2)) return {};
    keyed.emplace_back(truthy(a[2]) ? key : ignore_case(run, key), item);
    if (run.failed()) return {};
  }
  if (!sort_by(run, keyed, false)) return {};
  std::vector<JinjaValue> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<JinjaValue> items;
    size_t end = begin;
    for (; end < keyed.size() && equals(run, keyed[end].first, keyed[begin].first); ++end)
      items.push_back(keyed[end].second);
    if (run.failed() || !run.allocate_values(end - begin + 8)) return {};
    const JinjaValue grouper = walk_attribute(run, keyed[begin].second, a[0], fallback);
    const JinjaValue list = run.make_list(std::move(items));
    // A pair that also answers to .grouper and .list, as jinja2's named tuple does.
    auto pair = std::make_shared<JinjaList>();
    pair->shape = Shape::kTuple;
    pair->items = {grouper, list};
    pair->held = JinjaHeld(run, sizeof(JinjaList) + 2 * sizeof(JinjaValue));
    pair->depth = std::max(grouper.depth(), list.depth()) + 1;
    pair->is_group = true;
    groups.emplace_back(std::shared_ptr<const JinjaList>(std::move(pair)));
    begin = end;
  }
  return run.failed() ? JinjaValue() : run.make_list(std::move(groups));
}

JinjaValue filter_map(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (!truthy(value)) return run.make_list({}, Shape::kGenerator);
  std::vector<JinjaValue> out;
  if (arguments.positional.empty()) {
    std::vector<JinjaValue> a;
    if (!bind(run, "map", arguments, {"attribute", "default"}, 1, a)) return {};
    const bool has_default = !a[1].is_undefined() && !a[1].is_none();
    for (const JinjaValue& item : elements(run, value)) {
      if (!run.allocate_values(1)) return {};
      out.push_back(walk_attribute(run, item, a[0], has_default ? &a[1] : nullptr));
      if (run.failed()) return {};
    }
    return run.make_list(std::move(out), Shape::kGenerator);
  }
  if (!arguments.positional[0].is_string()) return run.fail("map needs the name of a filter");
  if (!run.touch(arguments.positional[0].as_string().size())) return {};
  const std::string name = arguments.positional[0].as_string();
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const JinjaValue& item : elements(run, value)) {
    if (!run.allocate_values(1)) return {};
    out.push_back(apply_filter(run, name, item, rest));
    if (run.failed()) return {};
  }
  return run.make_list(std::move(out), Shape::kGenerator);
}

JinjaValue filter_select(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return select_items(run, value, arguments, true, false);
}
JinjaValue filter_reject(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return select_items(run, value, arguments, false, false);
}
JinjaValue filter_selectattr(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return select_items(run, value, arguments, true, true);
}
JinjaValue filter_rejectattr(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return select_items(run, value, arguments, false, true);
}

}  // namespace loralei::jinja
