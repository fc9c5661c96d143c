// SPDX-License-Identifier: Apache-2.0
// Attributes and methods of strings, dicts and lists, argument binding, and the global functions.
#include <algorithm>
#include <ctime>

#include "text/jinja_ast.h"
#include "text/jinja_call.h"
#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace loralei::jinja {

using Kind = JinjaValue::Kind;
using Shape = JinjaList::Shape;

bool bind(JinjaRun& run, const std::string& callee, const Arguments& arguments, const std::vector<const char*>& names,
          size_t required, std::vector<JinjaValue>& out) {
  out.assign(names.size(), JinjaValue());
  std::vector<bool> given(names.size(), false);
  if (arguments.positional.size() > names.size()) {
    run.fail(callee + " takes at most " + std::to_string(names.size()) + " arguments, not " +
             std::to_string(arguments.positional.size()));
    return false;
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    out[i] = arguments.positional[i];
    given[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    const size_t i = found - names.begin();
    if (found == names.end() || given[i]) {
      run.fail(callee + (found == names.end() ? " has no argument '" : " got two values for '") + name + "'");
      return false;
    }
    out[i] = value;
    given[i] = true;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!given[i]) {
      run.fail(callee + " needs the argument '" + names[i] + "'");
      return false;
    }
  }
  return true;
}

namespace {

constexpr std::string_view kStringMethods[] = {
    "strip",     "lstrip",     "rstrip",       "split",        "rsplit",     "splitlines", "startswith", "endswith",
    "replace",   "upper",      "lower",        "title",        "capitalize", "swapcase",   "join",       "find",
    "rfind",     "index",      "rindex",       "count",        "isdigit",    "isdecimal",  "isnumeric",  "isalpha",
    "isalnum",   "isspace",    "isupper",      "islower",      "zfill",      "ljust",      "rjust",      "center",
    "partition", "rpartition", "removeprefix", "removesuffix", "casefold",   "format",     "expandtabs"};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get", "copy"};
constexpr std::string_view kListMethods[] = {"index", "count", "copy"};
constexpr std::string_view kChangingMethods[] = {"append", "extend",  "insert", "pop",        "remove", "clear",
                                                 "sort",   "reverse", "update", "setdefault", "popitem"};

template <size_t N>
bool is_in(const std::string_view (&names)[N], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

JinjaValue make_method(const JinjaValue& value, const std::string& name) {
  auto method = std::make_shared<JinjaCallable>();
  method->type = JinjaCallable::Type::kMethod;
  method->name = name;
  method->receiver = value;
  return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(method)));
}

bool need_string(JinjaRun& run, const std::string& method, const JinjaValue& value) {
  if (value.is_string()) return true;
  run.fail(value.is_undefined() ? value.undefined_hint()
                                : method + " needs a string, not a value of type '" + type_name(value) + "'");
  return false;
}

bool need_int(JinjaRun& run, const std::string& method, const JinjaValue& value) {
  if (value.is_int()) return true;
  run.fail(value.is_undefined() ? value.undefined_hint()
                                : method + " needs an integer, not a value of type '" + type_name(value) + "'");
  return false;
}

JinjaValue strings_to_list(JinjaRun& run, std::vector<std::string> parts, Shape shape = Shape::kList) {
  std::vector<JinjaValue> items;
  size_t bytes = 0;
  for (const std::string& part : parts) bytes += part.size() + 48;
  if (!run.allocate(bytes)) return {};
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return run.make_list(std::move(items), shape);
}

// str.split without a separator: runs of white space, no empty parts.
std::vector<std::string> split_space(const std::string& text, int64_t limit, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    size_t next = at;
    while (next < text.size() && is_space(next_code_point(text, next))) begin = next;
    if (begin >= text.size()) break;
    size_t end = begin;
    for (next = begin; next < text.size();) {
      const size_t here = next;
      if (is_space(next_code_point(text, next))) {
        next = here;
        break;
      }
      end = next;
    }
    words.emplace_back(begin, end);
    at = end;
  }
  std::vector<std::string> out;
  const auto count = static_cast<int64_t>(words.size());
  if (limit < 0 || limit >= count) {
    for (const auto& [begin, end] : words) out.push_back(text.substr(begin, end - begin));
    return out;
  }
  if (from_right) {
    out.push_back(text.substr(0, words[count - limit - 1].second));
    for (int64_t i = count - limit; i < count; ++i)
      out.push_back(text.substr(words[i].first, words[i].second - words[i].first));
    return out;
  }
  for (int64_t i = 0; i < limit; ++i) out.push_back(text.substr(words[i].first, words[i].second - words[i].first));
  out.push_back(text.substr(words[limit].first));
  return out;
}

std::vector<std::string> split_at(const std::string& text, const std::string& separator, int64_t limit,
                                  bool from_right) {
  std::vector<std::string> out;
  if (from_right) {
    size_t end = text.size();
    while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
      if (end < separator.size()) break;
      const size_t found = text.rfind(separator, end - separator.size());
      if (found == std::string::npos) break;
      out.push_back(text.substr(found + separator.size(), end - found - separator.size()));
      end = found;
    }
    out.push_back(text.substr(0, end));
    std::reverse(out.begin(), out.end());
    return out;
  }
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t found = text.find(separator, begin);
    if (found == std::string::npos) break;
    out.push_back(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  out.push_back(text.substr(begin));
  return out;
}

JinjaValue method_split(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"sep", "maxsplit"}, 0, a)) return {};
  if (!a[1].is_undefined() && !need_int(run, name, a[1])) return {};
  const int64_t limit = a[1].is_undefined() ? -1 : a[1].as_int();
  const bool from_right = name == "rsplit";
  if (!run.allocate(text.size() * 33)) return {};  // every part may be one byte in an empty string object
  if (a[0].is_undefined() || a[0].is_none()) return strings_to_list(run, split_space(text, limit, from_right));
  if (!need_string(run, name, a[0])) return {};
  if (a[0].as_string().empty()) return run.fail("the separator of " + name + " is empty");
  return strings_to_list(run, split_at(text, a[0].as_string(), limit, from_right));
}

JinjaValue method_replace(JinjaRun& run, const std::string& text, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "replace", arguments, {"old", "new", "count"}, 2, a)) return {};
  if (!need_string(run, "replace", a[0]) || !need_string(run, "replace", a[1])) return {};
  if (!a[2].is_undefined() && !a[2].is_none() && !need_int(run, "replace", a[2])) return {};
  int64_t limit = a[2].is_int() ? a[2].as_int() : -1;
  const std::string& old = a[0].as_string();
  const std::string& fresh = a[1].as_string();
  std::string out;
  size_t begin = 0;
  while (limit != 0 && !run.failed()) {
    size_t found = begin;
    if (old.empty()) {  // before every character and at the end
      if (begin >= text.size()) {
        if (!run.allocate(fresh.size())) return {};
        out += fresh;
        break;
      }
      next_code_point(text, found);
      if (!run.allocate(fresh.size() + 1)) return {};
      out += fresh + text.substr(begin, found - begin);
      begin = found;
    } else {
      found = text.find(old, begin);
      if (found == std::string::npos) break;
      if (!run.allocate(fresh.size() + found - begin)) return {};
      out.append(text, begin, found - begin);
      out += fresh;
      begin = found + old.size();
    }
    if (limit > 0) --limit;
  }
  out.append(text, begin, std::string::npos);
  return run.make_string(std::move(out));
}

JinjaValue method_affix(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"prefix", "start", "end"}, 1, a)) return {};
  std::string whole = text;
  if (!a[1].is_undefined()) {
    const JinjaValue part =
        slice(run, JinjaValue(text), a[1], a[2].is_undefined() ? JinjaValue::none() : a[2], JinjaValue::none());
    if (run.failed()) return {};
    whole = part.as_string();
  }
  const auto matches = [&](const std::string& affix) {
    if (affix.size() > whole.size()) return false;
    return whole.compare(name == "startswith" ? 0 : whole.size() - affix.size(), affix.size(), affix) == 0;
  };
  if (a[0].is_list() && a[0].as_list().shape == Shape::kTuple) {
    for (const JinjaValue& affix : a[0].as_list().items) {
      if (!need_string(run, name, affix)) return {};
      if (matches(affix.as_string())) return JinjaValue(true);
    }
    return JinjaValue(false);
  }
  if (!need_string(run, name, a[0])) return {};
  return JinjaValue(matches(a[0].as_string()));
}

JinjaValue method_find(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"sub", "start", "end"}, 1, a) || !need_string(run, name, a[0])) return {};
  std::string whole = text;
  int64_t offset = 0;
  if (!a[1].is_undefined() && !a[1].is_none()) {
    if (!need_int(run, name, a[1])) return {};
    const JinjaValue part =
        slice(run, JinjaValue(text), a[1], a[2].is_undefined() ? JinjaValue::none() : a[2], JinjaValue::none());
    if (run.failed()) return {};
    whole = part.as_string();
    const int64_t size = code_point_count(text);
    offset = a[1].as_int() < 0 ? std::max<int64_t>(0, a[1].as_int() + size) : a[1].as_int();
    if (offset > size) whole.clear();
  }
  const std::string& sub = a[0].as_string();
  if (name == "count") {
    int64_t count = sub.empty() ? code_point_count(whole) + 1 : 0;
    for (size_t at = whole.find(sub); !sub.empty() && at != std::string::npos; at = whole.find(sub, at + sub.size()))
      ++count;
    return JinjaValue(count);
  }
  const size_t found = name[0] == 'r' ? whole.rfind(sub) : whole.find(sub);
  if (found != std::string::npos)
    return JinjaValue(offset + code_point_count(std::string_view(whole).substr(0, found)));
  if (name == "index" || name == "rindex") return run.fail("the substring was not found");
  return JinjaValue(int64_t{-1});
}

JinjaValue method_pad(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"width", "fillchar"}, 1, a) || !need_int(run, name, a[0])) return {};
  std::string fill = name == "zfill" ? "0" : " ";
  if (!a[1].is_undefined()) {
    if (!need_string(run, name, a[1])) return {};
    fill = a[1].as_string();
    if (code_point_count(fill) != 1) return run.fail("the fill of " + name + " must be one character");
  }
  const int64_t missing = std::max<int64_t>(0, a[0].as_int() - code_point_count(text));
  if (!run.allocate(static_cast<size_t>(std::min<int64_t>(missing, int64_t{1} << 40)) * fill.size())) return {};
  const auto times = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += fill;
    return out;
  };
  if (name == "ljust") return run.make_string(text + times(missing));
  if (name == "rjust") return run.make_string(times(missing) + text);
  if (name == "zfill") {
    const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    return run.make_string(text.substr(0, sign) + times(missing) + text.substr(sign));
  }
  const int64_t left = missing / 2 + (missing & a[0].as_int() & 1);  // CPython's rounding
  return run.make_string(times(left) + text + times(missing - left));
}

bool all_of(const std::string& text, bool (*is)(char32_t)) {
  for (size_t at = 0; at < text.size();) {
    if (!is(next_code_point(text, at))) return false;
  }
  return !text.empty();
}

// str.isupper and str.islower: some cased character, and none of the other case.
bool has_only_case(const std::string& text, bool upper) {
  bool some = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (upper ? is_lower(c) : is_upper(c)) return false;
    some |= upper ? is_upper(c) : is_lower(c);
  }
  return some;
}

JinjaValue method_partition(JinjaRun& run, const std::string& text, const std::string& name,
                            const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"sep"}, 1, a) || !need_string(run, name, a[0])) return {};
  const std::string& separator = a[0].as_string();
  if (separator.empty()) return run.fail("the separator of " + name + " is empty");
  const bool right = name == "rpartition";
  const size_t found = right ? text.rfind(separator) : text.find(separator);
  if (found == std::string::npos) {
    if (right) return strings_to_list(run, {"", "", text}, Shape::kTuple);
    return strings_to_list(run, {text, "", ""}, Shape::kTuple);
  }
  return strings_to_list(run, {text.substr(0, found), separator, text.substr(found + separator.size())}, Shape::kTuple);
}

JinjaValue method_join(JinjaRun& run, const std::string& separator, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "join", arguments, {"iterable"}, 1, a)) return {};
  std::string out;
  bool first = true;
  for (const JinjaValue& item : elements(run, a[0])) {
    if (!need_string(run, "join", item) || !run.allocate(item.as_string().size() + separator.size())) return {};
    if (!first) out += separator;
    first = false;
    out += item.as_string();
  }
  return run.make_string(std::move(out));
}

JinjaValue method_expandtabs(JinjaRun& run, const std::string& text, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "expandtabs", arguments, {"tabsize"}, 0, a) ||
      (!a[0].is_undefined() && !need_int(run, "expandtabs", a[0])))
    return {};
  const int64_t size = a[0].is_undefined() ? 8 : std::clamp<int64_t>(a[0].as_int(), 0, 4096);
  std::string out;
  int64_t column = 0;
  for (const char c : text) {
    if (c == '\t') {
      const int64_t blanks = size == 0 ? 0 : size - column % size;
      if (!run.allocate(static_cast<size_t>(blanks))) return {};
      out.append(blanks, ' ');
      column += blanks;
      continue;
    }
    out += c;
    column = c == '\n' || c == '\r' ? 0 : column + ((static_cast<unsigned char>(c) & 0xC0) != 0x80);
  }
  return run.make_string(std::move(out));
}

JinjaValue method_strip(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"chars"}, 0, a)) return {};
  const bool left = name != "rstrip";
  const bool right = name != "lstrip";
  if (a[0].is_undefined() || a[0].is_none()) return run.make_string(strip(text, left, right));
  if (!need_string(run, name, a[0])) return {};
  if (!run.step(static_cast<int64_t>(a[0].as_string().size()))) return {};
  // Each stripped character is looked for in the set.
  std::string out = strip(text, a[0].as_string(), left, right);
  if (!run.step(static_cast<int64_t>((text.size() - out.size()) * (1 + a[0].as_string().size() / 16)))) return {};
  return run.make_string(std::move(out));
}

std::string swap_case(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view one = std::string_view(text).substr(begin, at - begin);
    out += is_upper(c) ? to_lower(one) : is_lower(c) ? to_upper(one) : std::string(one);
  }
  return out;
}

JinjaValue plain_string_method(JinjaRun& run, const std::string& text, const std::string& name) {
  if (name == "upper") return run.make_string(to_upper(text));
  if (name == "lower") return run.make_string(to_lower(text));
  if (name == "casefold") return run.make_string(to_casefold(text));
  if (name == "title") return run.make_string(to_title(text));
  if (name == "capitalize") return run.make_string(to_capitalized(text));
  if (name == "swapcase") return run.make_string(swap_case(text));
  if (name == "isdigit" || name == "isdecimal" || name == "isnumeric") return JinjaValue(all_of(text, is_decimal));
  if (name == "isalpha") return JinjaValue(all_of(text, is_alpha));
  if (name == "isalnum") return JinjaValue(all_of(text, [](char32_t c) { return c != '_' && is_word(c); }));
  if (name == "isspace") return JinjaValue(all_of(text, is_space));
  return JinjaValue(has_only_case(text, name == "isupper"));
}

JinjaValue string_method(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (name == "strip" || name == "lstrip" || name == "rstrip") return method_strip(run, text, name, arguments);
  if (name == "split" || name == "rsplit") return method_split(run, text, name, arguments);
  if (name == "replace") return method_replace(run, text, arguments);
  if (name == "startswith" || name == "endswith") return method_affix(run, text, name, arguments);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count")
    return method_find(run, text, name, arguments);
  if (name == "ljust" || name == "rjust" || name == "center" || name == "zfill")
    return method_pad(run, text, name, arguments);
  if (name == "partition" || name == "rpartition") return method_partition(run, text, name, arguments);
  if (name == "join") return method_join(run, text, arguments);
  if (name == "format") return format_braces(run, text, arguments);
  if (name == "expandtabs") return method_expandtabs(run, text, arguments);
  if (name == "splitlines") {
    if (!bind(run, name, arguments, {"keepends"}, 0, a) || !run.allocate(text.size() * 33)) return {};
    return strings_to_list(run, split_lines(text, truthy(a[0])));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    if (!bind(run, name, arguments, {"affix"}, 1, a) || !need_string(run, name, a[0])) return {};
    const std::string& affix = a[0].as_string();
    const bool prefix = name == "removeprefix";
    if (affix.size() > text.size() || text.compare(prefix ? 0 : text.size() - affix.size(), affix.size(), affix) != 0) {
      return run.make_string(text);
    }
    return run.make_string(prefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
  }
  if (!bind(run, name, arguments, {}, 0, a) || !run.step(static_cast<int64_t>(text.size() / 16))) return {};
  return plain_string_method(run, text, name);
}

JinjaValue dict_method(JinjaRun& run, const JinjaValue& value, const std::string& name, const Arguments& arguments) {
  const JinjaDict& dict = value.as_dict();
  std::vector<JinjaValue> a;
  if (name == "get") {
    if (!bind(run, name, arguments, {"key", "default"}, 1, a) ||
        !run.step(1 + static_cast<int64_t>(dict.items.size() / 8)))
      return {};
    const JinjaValue* found = dict.find(a[0]);
    if (found != nullptr) return *found;
    return arguments.positional.size() + arguments.named.size() < 2 ? JinjaValue::none() : a[1];
  }
  if (!bind(run, name, arguments, {}, 0, a) || !run.step(static_cast<int64_t>(dict.items.size()))) return {};
  if (name == "copy") return value;
  std::vector<JinjaValue> items;
  for (const auto& [key, item] : dict.items) {
    if (name == "keys")
      items.push_back(key);
    else if (name == "values")
      items.push_back(item);
    else
      items.push_back(run.make_list({key, item}, Shape::kTuple));
    if (run.failed()) return {};
  }
  auto view = std::make_shared<JinjaList>();
  view->shape = Shape::kView;
  view->view_name = "dict_" + name;
  view->items = std::move(items);
  view->depth = dict.depth + 2;
  return JinjaValue(std::shared_ptr<const JinjaList>(std::move(view)));
}

JinjaValue list_method(JinjaRun& run, const JinjaValue& value, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (name == "copy") return bind(run, name, arguments, {}, 0, a) ? value : JinjaValue();
  if (!bind(run, name, arguments, {"value"}, 1, a)) return {};
  int64_t count = 0;
  const auto& items = value.as_list().items;
  for (size_t i = 0; i < items.size() && !run.failed(); ++i) {
    if (!equals(run, items[i], a[0])) continue;
    if (name == "index") return JinjaValue(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return run.fail("the value is not in the list");
  return JinjaValue(count);
}

}  // namespace

JinjaValue find_method(const JinjaValue& value, const std::string& name) {
  bool found = false;
  if (value.is_string()) found = is_in(kStringMethods, name);
  if (value.is_dict()) found = found || is_in(kDictMethods, name);
  if (value.is_list() && value.as_list().is_sequence()) found = found || is_in(kListMethods, name);
  return found ? make_method(value, name) : JinjaValue();
}

JinjaValue call_method(JinjaRun& run, const JinjaValue& receiver, const std::string& name, const Arguments& arguments) {
  if (!run.step()) return {};
  if (receiver.is_string()) return string_method(run, receiver.as_string(), name, arguments);
  if (receiver.is_dict()) return dict_method(run, receiver, name, arguments);
  if (receiver.is_int()) {
    std::vector<JinjaValue> none;
    if (!bind(run, name, arguments, {}, 0, none)) return {};
    const int64_t number = receiver.as_int();
    const uint64_t size = number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
    return JinjaValue(size == 0 ? 0 : 64 - __builtin_clzll(size));
  }
  return list_method(run, receiver, name, arguments);
}

namespace {

JinjaValue loop_attribute(const JinjaValue& value, const std::string& name) {
  const JinjaLoop& loop = *value.as_loop();
  const auto size = static_cast<int64_t>(loop.items.size());
  if (name == "index") return JinjaValue(loop.index0 + 1);
  if (name == "index0") return JinjaValue(loop.index0);
  if (name == "revindex") return JinjaValue(size - loop.index0);
  if (name == "revindex0") return JinjaValue(size - loop.index0 - 1);
  if (name == "first") return JinjaValue(loop.index0 == 0);
  if (name == "last") return JinjaValue(loop.index0 + 1 == size);
  if (name == "length") return JinjaValue(size);
  if (name == "depth") return JinjaValue(static_cast<int64_t>(loop.depth0 + 1));
  if (name == "depth0") return JinjaValue(static_cast<int64_t>(loop.depth0));
  if (name == "previtem")
    return loop.index0 > 0 ? loop.items[loop.index0 - 1] : JinjaValue::undefined("there is no previous item");
  if (name == "nextitem")
    return loop.index0 + 1 < size ? loop.items[loop.index0 + 1] : JinjaValue::undefined("there is no next item");
  if (name == "cycle" || name == "changed") return make_method(value, name);
  return JinjaValue::undefined("'loop' has no attribute '" + name + "'");
}

}  // namespace

namespace {

JinjaValue callable_attribute(JinjaRun& run, const JinjaValue& value, const std::string& name) {
  const JinjaCallable& callable = value.as_callable();
  if (callable.state && name == "current") return callable.state->items[callable.state->next];
  if (callable.state && name == "next") return value;
  if (callable.macro != nullptr && name == "name") return JinjaValue(callable.name);
  if (callable.macro != nullptr && name == "caller") return JinjaValue(callable.macro->uses_caller);
  if (callable.macro != nullptr && name == "arguments") {
    std::vector<JinjaValue> names;
    for (const Parameter& parameter : callable.macro->parameters) names.emplace_back(parameter.name);
    return run.make_list(std::move(names), Shape::kTuple);
  }
  return JinjaValue::undefined("a value of type 'function' has no attribute '" + name + "'");
}

}  // namespace

JinjaValue get_attribute(JinjaRun& run, const JinjaValue& value, const std::string& name) {
  if (!run.step()) return {};
  switch (value.kind()) {
    case Kind::kUndefined:
      return run.fail(value.undefined_hint());
    case Kind::kLoop:
      return loop_attribute(value, name);
    case Kind::kNamespace:
      for (const auto& [key, attribute] : value.as_namespace()->attributes) {
        if (key == name) return attribute;
      }
      return JinjaValue::undefined("the namespace has no attribute '" + name + "'");
    case Kind::kDict:
    case Kind::kList:
    case Kind::kString: {
      JinjaValue method = find_method(value, name);
      if (!method.is_undefined()) return method;
      if (is_in(kChangingMethods, name) && !value.is_string()) {
        return JinjaValue::undefined("'" + name + "' would change a value, which chat templates may not do");
      }
      if (value.is_list() && value.as_list().is_group && (name == "grouper" || name == "list")) {
        return value.as_list().items[name == "grouper" ? 0 : 1];
      }
      break;
    }
    case Kind::kCallable:
      return callable_attribute(run, value, name);
    case Kind::kInt:
      if (name == "bit_length") return make_method(value, name);
      break;
    default:
      break;
  }
  if (value.is_dict()) {
    if (const JinjaValue* found = value.as_dict().find(std::string_view(name))) return *found;
  }
  return JinjaValue::undefined("a value of type '" + type_name(value) + "' has no attribute '" + name + "'");
}

JinjaValue get_subscript(JinjaRun& run, const JinjaValue& value, const JinjaValue& key) {
  JinjaValue item = get_item(run, value, key);
  if (!item.is_undefined() || !key.is_string() || run.failed()) return item;
  if (value.is_dict() && value.as_dict().find(key) != nullptr) return item;
  return get_attribute(run, value, key.as_string());
}

// --- globals

namespace {

constexpr int64_t kMaxRange = 100000;  // jinja2's sandbox refuses more

JinjaValue make_range(JinjaRun& run, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "range", arguments, {"start", "stop", "step"}, 1, a)) return {};
  for (const JinjaValue& given : arguments.positional) {
    if (!need_int(run, "range", given)) return {};
  }
  for (const auto& [name, given] : arguments.named) {
    if (!need_int(run, "range", given)) return {};
  }
  const bool one = a[1].is_undefined();  // not given
  const int64_t start = one ? 0 : a[0].as_int();
  const int64_t stop = one ? a[0].as_int() : a[1].as_int();
  const int64_t step = a[2].is_undefined() ? 1 : a[2].as_int();
  if (step == 0) return run.fail("the step of range cannot be zero");
  std::vector<JinjaValue> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    items.emplace_back(i);
    if (static_cast<int64_t>(items.size()) > kMaxRange)
      return run.fail("range is longer than " + std::to_string(kMaxRange));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!run.step(static_cast<int64_t>(items.size()))) return {};
  return run.make_list(std::move(items), Shape::kRange);
}

JinjaValue make_dict(JinjaRun& run, const Arguments& arguments) {
  std::vector<JinjaDict::Item> items;
  if (arguments.positional.size() > 1) return run.fail("dict takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const JinjaValue& source = arguments.positional[0];
    if (source.is_dict()) {
      items = source.as_dict().items;
    } else {
      for (const JinjaValue& pair : elements(run, source)) {
        const std::vector<JinjaValue> two = elements(run, pair);
        if (two.size() != 2) return run.fail("dict needs pairs");
        items.emplace_back(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) items.emplace_back(JinjaValue(name), value);
  return run.failed() ? JinjaValue() : run.make_dict(std::move(items));
}

// joiner(sep): '' at the first call, then sep. cycler(a, b ...): .next() and .current.
JinjaValue make_stepper(JinjaRun& run, const std::string& name, const Arguments& arguments) {
  auto callable = std::make_shared<JinjaCallable>();
  callable->type = JinjaCallable::Type::kStepper;
  callable->name = name;
  callable->state = std::make_shared<JinjaStepper>();
  if (name == "joiner") {
    std::vector<JinjaValue> a;
    if (!bind(run, name, arguments, {"sep"}, 0, a)) return {};
    callable->state->items = {JinjaValue(""), a[0].is_undefined() ? JinjaValue(", ") : a[0]};
  } else {
    if (arguments.positional.empty() || !arguments.named.empty())
      return run.fail("cycler needs the values to cycle through");
    callable->state->items = arguments.positional;
  }
  for (const JinjaValue& item : callable->state->items) {
    if (!item.is_string() && !item.is_number() && !item.is_none())
      return run.fail(name + " takes strings, numbers and none only");
  }
  return JinjaValue(std::shared_ptr<const JinjaCallable>(std::move(callable)));
}

JinjaValue make_namespace(JinjaRun& run, const Arguments& arguments) {
  const JinjaValue source = make_dict(run, arguments);
  if (run.failed()) return {};
  std::shared_ptr<JinjaNamespace> space = run.make_namespace();
  if (!space) return {};
  for (const auto& [key, value] : source.as_dict().items) {
    if (!key.is_string()) return run.fail("namespace attributes need names");
    space->attributes.emplace_back(key.as_string(), value);
  }
  return JinjaValue(std::move(space));
}

JinjaValue format_time(JinjaRun& run, const Arguments& arguments, int64_t unix_time_s) {
  std::vector<JinjaValue> a;
  if (!bind(run, "strftime_now", arguments, {"format"}, 1, a) || !need_string(run, "strftime_now", a[0])) return {};
  const std::string& format = a[0].as_string();
  if (format.size() > 512) return run.fail("the format of strftime_now is longer than 512 bytes");
  if (format.empty()) return JinjaValue("");
  const std::time_t time = unix_time_s;
  std::tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return run.fail("the time is out of range");
  std::string out(8192, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &parts));
  return run.make_string(std::move(out));
}

}  // namespace

bool is_global_name(const std::string& name) {
  return name == "range" || name == "dict" || name == "namespace" || name == "raise_exception" ||
         name == "strftime_now" || name == "joiner" || name == "cycler";
}

JinjaValue call_global(JinjaRun& run, const std::string& name, const Arguments& arguments, int64_t unix_time_s) {
  if (name == "range") return make_range(run, arguments);
  if (name == "dict") return make_dict(run, arguments);
  if (name == "namespace") return make_namespace(run, arguments);
  if (name == "joiner" || name == "cycler") return make_stepper(run, name, arguments);
  if (name == "strftime_now") return format_time(run, arguments, unix_time_s);
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"message"}, 1, a)) return {};
  const std::string message = to_str(run, a[0]);
  return run.failed() ? JinjaValue() : run.fail_raised(message);
}

}  // namespace loralei::jinja
