// SPDX-License-Identifier: Apache-2.0
// The filters of jinja2 that chat templates use, with transformers' tojson; jinja_more_filters.cc has the rarer ones.
// "safe" and "escape" give plain strings: Python's mark would only change what "+" does to other strings, as autoescape
// is off.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "text/jinja_builtin_names.h"
#include "text/jinja_call.h"
#include "text/jinja_more_filters.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

namespace {

std::string soft_str(JinjaRun& run, const JinjaValue& value) { return to_str(run, value); }

// --- text

JinjaValue filter_upper(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(to_upper(soft_str(run, value)));
}
JinjaValue filter_lower(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(to_lower(soft_str(run, value)));
}
JinjaValue filter_capitalize(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(to_capitalized(soft_str(run, value)));
}
JinjaValue filter_string(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(soft_str(run, value));
}
JinjaValue filter_safe(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(soft_str(run, value));
}

JinjaValue filter_trim(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "trim", arguments, {"chars"}, 0, a)) return {};
  Arguments strip_arguments;
  if (!a[0].is_undefined()) strip_arguments.positional.push_back(a[0]);
  return call_method(run, JinjaValue(soft_str(run, value)), "strip", strip_arguments);
}

// Words begin after spaces, hyphens and opening brackets; the first letter is raised, the rest lowered.
JinjaValue filter_title(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  const std::string text = soft_str(run, value);
  std::string out;
  size_t word = 0;
  const auto flush = [&](size_t end) {
    if (end <= word) return;
    size_t first = word;
    next_code_point(text, first);
    out += to_upper(std::string_view(text).substr(word, first - word));
    out += to_lower(std::string_view(text).substr(first, end - first));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (!is_space(c) && c != '-' && c != '(' && c != '{' && c != '[' && c != '<') continue;
    flush(begin);
    out.append(text, begin, at - begin);
    word = at;
  }
  flush(text.size());
  return run.make_string(std::move(out));
}

JinjaValue filter_replace(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "replace", arguments, {"old", "new", "count"}, 2, a)) return {};
  Arguments strings;
  strings.positional = {JinjaValue(soft_str(run, a[0])), JinjaValue(soft_str(run, a[1]))};
  if (!a[2].is_undefined() && !a[2].is_none()) strings.positional.push_back(a[2]);
  return call_method(run, JinjaValue(soft_str(run, value)), "replace", strings);
}

JinjaValue filter_center(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "center", arguments, {"width"}, 0, a)) return {};
  Arguments width;
  width.positional.push_back(a[0].is_undefined() ? JinjaValue(80) : a[0]);
  return call_method(run, JinjaValue(soft_str(run, value)), "center", width);
}

JinjaValue filter_indent(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "indent", arguments, {"width", "first", "blank"}, 0, a)) return {};
  if (!value.is_string()) return run.fail("indent needs a string, not a value of type '" + type_name(value) + "'");
  std::string indention = "    ";
  if (a[0].is_string()) {
    indention = a[0].as_string();
  } else if (a[0].is_int()) {
    if (a[0].as_int() > 4096) return run.fail("indent is wider than 4096");
    indention = std::string(std::max<int64_t>(0, a[0].as_int()), ' ');
  }
  const bool blank = truthy(a[2]);
  std::string out = truthy(a[1]) ? indention : std::string();
  bool first = true;
  for (const std::string& line : split_lines(value.as_string() + "\n", false)) {
    if (!run.allocate(line.size() + indention.size() + 1)) return {};
    if (!first) out += '\n';
    if (!first && (blank || !line.empty())) out += indention;
    first = false;
    out += line;
  }
  return run.make_string(std::move(out));
}

JinjaValue filter_truncate(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "truncate", arguments, {"length", "killwords", "end", "leeway"}, 0, a)) return {};
  if (!value.is_string()) return run.fail("truncate needs a string, not a value of type '" + type_name(value) + "'");
  const int64_t size = a[0].is_int() ? a[0].as_int() : 255;
  const std::string end = a[2].is_string() ? a[2].as_string() : "...";
  const int64_t leeway = a[3].is_int() ? a[3].as_int() : 5;
  const int64_t end_size = code_point_count(end);
  if (size < end_size || leeway < 0)
    return run.fail("truncate needs a length of at least its end mark's and a leeway of at least 0");
  const std::u32string text = decode_utf8(value.as_string());
  if (static_cast<int64_t>(text.size()) <= size || static_cast<int64_t>(text.size()) - size <= leeway) return value;
  std::u32string cut = text.substr(0, size - end_size);
  if (!truthy(a[1])) {
    const size_t space = cut.rfind(U' ');
    if (space != std::u32string::npos) cut.resize(space);
  }
  return run.make_string(encode_utf8(cut) + end);
}

JinjaValue filter_wordcount(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  const std::string text = soft_str(run, value);
  int64_t count = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const bool word = is_word(next_code_point(text, at));
    count += word && !inside;
    inside = word;
  }
  return JinjaValue(count);
}

JinjaValue filter_format(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    return run.fail("format takes positional or named arguments, not both");
  JinjaValue values;
  if (arguments.named.empty()) {
    values = run.make_list(arguments.positional, Shape::kTuple);
  } else {
    std::vector<JinjaDict::Item> items;
    for (const auto& [name, item] : arguments.named) items.emplace_back(JinjaValue(name), item);
    values = run.make_dict(std::move(items));
  }
  return run.failed() ? JinjaValue() : format_percent(run, soft_str(run, value), values);
}

JinjaValue filter_urlencode(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_dict() || value.is_list()) return run.fail("urlencode is supported for strings and numbers only");
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : soft_str(run, value)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && is_word(byte)) || std::string_view("-.~/").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return run.make_string(std::move(out));
}

JinjaValue filter_tojson(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, a)) return {};
  JsonStyle style;
  style.ensure_ascii = truthy(a[0]);
  style.sort_keys = truthy(a[3]);
  if (a[1].is_int()) {
    style.has_indent = true;
    style.indent = std::string(std::clamp<int64_t>(a[1].as_int(), 0, 64), ' ');
  } else if (a[1].is_string()) {
    style.has_indent = true;
    style.indent = a[1].as_string();
  }
  if (style.has_indent) style.item_separator = ",";
  if (a[2].is_list()) {
    const auto& two = a[2].as_list().items;
    if (two.size() != 2 || !two[0].is_string() || !two[1].is_string())
      return run.fail("the separators of tojson must be two strings");
    style.item_separator = two[0].as_string();
    style.key_separator = two[1].as_string();
  }
  return run.make_string(to_json(run, value, style));
}

// --- numbers

// Reads all of `text` as int() or float() do: outer space and underscores between digits are allowed.
template <typename Number>
bool read_all(const std::string& text, Number& out, int base) {
  std::string digits = strip(text, true, true);
  for (size_t i = 1; i + 1 < digits.size(); ++i) {
    if (digits[i] == '_' && std::isxdigit(static_cast<unsigned char>(digits[i - 1])) != 0 && digits[i + 1] != '_')
      digits.erase(i, 1);
  }
  if (!digits.empty() && digits[0] == '+' && digits.size() > 1 && digits[1] != '-' && digits[1] != '+')
    digits.erase(0, 1);
  if constexpr (std::is_same_v<Number, int64_t>) {
    const size_t sign = !digits.empty() && digits[0] == '-' ? 1 : 0;
    if (digits.size() > sign + 2 && digits[sign] == '0') {
      const char mark = static_cast<char>(digits[sign + 1] | 0x20);
      if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
        digits.erase(sign, 2);
    }
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
    return done.ec == std::errc() && done.ptr == digits.data() + digits.size();
  } else {
    const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), out);
    if (done.ptr != digits.data() + digits.size()) return false;
    // Out of range: strtod knows whether that is zero or infinity.
    if (done.ec == std::errc::result_out_of_range) out = std::strtod(digits.c_str(), nullptr);
    return done.ec != std::errc::invalid_argument;
  }
}

bool float_to_int(double value, int64_t& out) {
  if (!(std::fabs(value) < 9.2e18)) return false;
  out = static_cast<int64_t>(value);
  return true;
}

JinjaValue filter_int(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "int", arguments, {"default", "base"}, 0, a)) return {};
  if (value.is_undefined()) return run.fail(value.undefined_hint());
  const int64_t base = a[1].is_int() ? a[1].as_int() : 10;
  if (base < 2 || base > 36) return run.fail("the base of int must lie between 2 and 36");
  int64_t result = 0;
  if (value.is_int()) return JinjaValue(value.as_int());
  if (value.kind() == Kind::kFloat && float_to_int(value.as_float(), result)) return JinjaValue(result);
  if (value.is_string()) {
    if (read_all(value.as_string(), result, static_cast<int>(base))) return JinjaValue(result);
    double real = 0;
    if (read_all(value.as_string(), real, 10) && float_to_int(real, result)) return JinjaValue(result);
  }
  return a[0].is_undefined() ? JinjaValue(0) : a[0];
}

JinjaValue filter_float(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "float", arguments, {"default"}, 0, a)) return {};
  if (value.is_undefined()) return run.fail(value.undefined_hint());
  double result = 0;
  if (value.is_number()) return JinjaValue(value.as_float());
  if (value.is_string() && read_all(value.as_string(), result, 10)) return JinjaValue(result);
  return a[0].is_undefined() ? JinjaValue(0.0) : a[0];
}

JinjaValue filter_abs(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_int()) return value.as_int() < 0 ? negate(run, value) : JinjaValue(value.as_int());
  if (value.is_number()) return JinjaValue(std::fabs(value.as_float()));
  return run.fail(value.is_undefined() ? value.undefined_hint()
                                       : "abs needs a number, not a value of type '" + type_name(value) + "'");
}

// Python's round: exact halves go to the even neighbour, judged by the decimal text of the value.
double round_decimal(double value, int precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < 0) {
    const double power = std::pow(10.0, -precision);
    return std::nearbyint(value / power) * power;
  }
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", precision, value);  // printf rounds exactly, halves to even
  double out = 0;
  std::from_chars(buffer, buffer + std::char_traits<char>::length(buffer), out);
  return out;
}

JinjaValue filter_round(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "round", arguments, {"precision", "method"}, 0, a)) return {};
  if (!value.is_number()) return run.fail("round needs a number, not a value of type '" + type_name(value) + "'");
  const int64_t precision = a[0].is_int() ? std::clamp<int64_t>(a[0].as_int(), -300, 300) : 0;
  const std::string method = a[1].is_string() ? a[1].as_string() : "common";
  if (method == "common") {
    const double rounded = round_decimal(value.as_float(), static_cast<int>(precision));
    return value.is_int()
               ? JinjaValue(static_cast<int64_t>(precision >= 0 ? value.as_int() : static_cast<int64_t>(rounded)))
               : JinjaValue(rounded);
  }
  if (method != "ceil" && method != "floor") return run.fail("the method of round must be common, ceil or floor");
  const double power = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.as_float() * power;
  return JinjaValue((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / power);
}

// --- sequences

}  // namespace

JinjaValue ignore_case(const JinjaValue& value) {
  return value.is_string() ? JinjaValue(to_lower(value.as_string())) : value;
}

// "a.b.0": attributes and numbers, as jinja2's make_attrgetter takes them.
JinjaValue walk_attribute(JinjaRun& run, JinjaValue value, const JinjaValue& path, const JinjaValue* fallback) {
  if (path.is_int()) return get_subscript(run, value, path);
  if (!path.is_string()) return run.fail("an attribute must be a string or an integer");
  const std::string& text = path.as_string();
  for (size_t begin = 0; begin <= text.size() && !run.failed();) {
    const size_t dot = std::min(text.find('.', begin), text.size());
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

bool sort_by(JinjaRun& run, std::vector<std::pair<JinjaValue, JinjaValue>>& keyed, bool reverse) {
  // A comparison that has failed answers false for everything, which is still an ordering: the sort ends quickly.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(run, b.first, a.first) : less(run, a.first, b.first);
  });
  return !run.failed();
}

namespace {

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
  const std::string separator = soft_str(run, a[0]);
  const bool has_attribute = !a[1].is_undefined() && !a[1].is_none();
  std::string out;
  bool first = true;
  for (const JinjaValue& item : elements(run, value)) {
    if (!first) out += separator;
    first = false;
    out += soft_str(run, has_attribute ? walk_attribute(run, item, a[1], nullptr) : item);
    if (run.failed() || !run.allocate(separator.size())) return {};
  }
  return run.make_string(std::move(out));
}

JinjaValue filter_default(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "default", arguments, {"default_value", "boolean"}, 0, a)) return {};
  if (!value.is_undefined() && !(truthy(a[1]) && !truthy(value))) return value;
  return arguments.positional.empty() && a[0].is_undefined() ? JinjaValue("") : a[0];
}

JinjaValue filter_attr(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "attr", arguments, {"name"}, 1, a)) return {};
  if (value.is_dict()) return find_method(value, soft_str(run, a[0]));  // Python: attributes only, never elements
  return get_attribute(run, value, soft_str(run, a[0]));
}

// "a,b" sorts by a, then by b.
JinjaValue sort_key(JinjaRun& run, const JinjaValue& item, const JinjaValue& attribute, bool case_sensitive) {
  if (attribute.is_undefined() || attribute.is_none()) return case_sensitive ? item : ignore_case(item);
  if (!attribute.is_string() || attribute.as_string().find(',') == std::string::npos) {
    const JinjaValue key = walk_attribute(run, item, attribute, nullptr);
    return case_sensitive ? key : ignore_case(key);
  }
  std::vector<JinjaValue> keys;
  const std::string& names = attribute.as_string();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t comma = std::min(names.find(',', begin), names.size());
    keys.push_back(
        sort_key(run, item, JinjaValue(strip(names.substr(begin, comma - begin), true, true)), case_sensitive));
    begin = comma + 1;
  }
  return run.failed() ? JinjaValue() : run.make_list(std::move(keys));
}

JinjaValue filter_sort(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0, a)) return {};
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const JinjaValue& item : elements(run, value)) {
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
    keyed.emplace_back(truthy(a[0]) ? by : ignore_case(by), run.make_list({key, item}, Shape::kTuple));
    if (run.failed()) return {};
  }
  if (!sort_by(run, keyed, truthy(a[2]))) return {};
  std::vector<JinjaValue> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return run.make_list(std::move(items));
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
    if (!truthy(a[0])) key = ignore_case(key);
    if (first || (largest ? less(run, best_key, key, ">") : less(run, key, best_key))) {
      best = item;
      best_key = key;
    }
    first = false;
    if (run.failed()) return {};
  }
  return best;
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
    if (!truthy(a[0])) key = ignore_case(key);
    const bool known =
        std::any_of(seen.begin(), seen.end(), [&](const JinjaValue& old) { return equals(run, old, key); });
    if (run.failed()) return {};
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
    if (static_cast<int64_t>(line.size()) == a[0].as_int()) lines.push_back(run.make_list(std::exchange(line, {})));
    line.push_back(item);
  }
  const bool fill = !a[1].is_undefined() && !a[1].is_none();
  while (fill && !line.empty() && static_cast<int64_t>(line.size()) < a[0].as_int()) line.push_back(a[1]);
  if (!line.empty()) lines.push_back(run.make_list(std::move(line)));
  return run.failed() ? JinjaValue() : run.make_list(std::move(lines), Shape::kGenerator);
}

// --- map, select and their kin

JinjaValue filter_map(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> out;
  if (arguments.positional.empty()) {
    std::vector<JinjaValue> a;
    if (!bind(run, "map", arguments, {"attribute", "default"}, 1, a)) return {};
    const bool has_default = !a[1].is_undefined() && !a[1].is_none();
    for (const JinjaValue& item : elements(run, value)) {
      out.push_back(walk_attribute(run, item, a[0], has_default ? &a[1] : nullptr));
      if (run.failed()) return {};
    }
    return run.make_list(std::move(out), Shape::kGenerator);
  }
  if (!arguments.positional[0].is_string()) return run.fail("map needs the name of a filter");
  const std::string name = arguments.positional[0].as_string();
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const JinjaValue& item : elements(run, value)) {
    out.push_back(apply_filter(run, name, item, rest));
    if (run.failed()) return {};
  }
  return run.make_list(std::move(out), Shape::kGenerator);
}

JinjaValue select_items(JinjaRun& run, const JinjaValue& value, const Arguments& arguments, bool wanted,
                        bool by_attribute) {
  const size_t skip = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skip) return run.fail("the name of the attribute is missing");
  std::string test;
  Arguments rest;
  if (arguments.positional.size() > skip) {
    if (!arguments.positional[skip].is_string()) return run.fail("the name of a test must be a string");
    test = arguments.positional[skip].as_string();
    rest.positional.assign(arguments.positional.begin() + skip + 1, arguments.positional.end());
    rest.named = arguments.named;
  }
  std::vector<JinjaValue> out;
  for (const JinjaValue& item : elements(run, value)) {
    const JinjaValue subject = by_attribute ? walk_attribute(run, item, arguments.positional[0], nullptr) : item;
    const bool holds = test.empty() ? truthy(subject) : apply_test(run, test, subject, rest);
    if (run.failed()) return {};
    if (holds == wanted) out.push_back(item);
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

bool is_filter_name(std::string_view name) { return find_filter(name) != nullptr; }

JinjaValue apply_filter(JinjaRun& run, const std::string& name, const JinjaValue& value, const Arguments& arguments) {
  if (!run.step()) return {};
  const NamedFilter* filter = find_filter(name);
  if (filter == nullptr) return run.fail("no filter named '" + name + "' is supported");
  std::vector<JinjaValue> none;
  if (takes_no_argument(name) && !bind(run, name, arguments, {}, 0, none)) return {};
  return filter->filter(run, value, arguments);
}

}  // namespace loralei::jinja
