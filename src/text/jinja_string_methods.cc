// SPDX-License-Identifier: Apache-2.0
// One function for each method or family of methods (find, rfind, index ...), and the table of their names.
#include "text/jinja_string_methods.h"

#include <algorithm>

#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace loralei::jinja {

using Shape = JinjaList::Shape;

namespace {

constexpr std::string_view kStringMethods[] = {
    "strip",     "lstrip",     "rstrip",       "split",        "rsplit",     "splitlines", "startswith", "endswith",
    "replace",   "upper",      "lower",        "title",        "capitalize", "swapcase",   "join",       "find",
    "rfind",     "index",      "rindex",       "count",        "isdigit",    "isdecimal",  "isnumeric",  "isalpha",
    "isalnum",   "isspace",    "isupper",      "islower",      "zfill",      "ljust",      "rjust",      "center",
    "partition", "rpartition", "removeprefix", "removesuffix", "casefold",   "format",     "expandtabs"};

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

}  // namespace

bool is_string_method(std::string_view name) {
  return std::find(std::begin(kStringMethods), std::end(kStringMethods), name) != std::end(kStringMethods);
}

JinjaValue call_string_method(JinjaRun& run, const std::string& text, const std::string& name,
                              const Arguments& arguments) {
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

}  // namespace loralei::jinja
