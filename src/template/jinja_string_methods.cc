// SPDX-License-Identifier: Apache-2.0
// One function for each method or family of methods (find, rfind, index ...), and the
// table of their names.
#include "template/jinja_string_methods.h"

#include <algorithm>

#include "template/jinja_builtin_names.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Shape = JinjaList::Shape;

namespace {

constexpr std::string_view kStringMethods[] = {
    "strip",     "lstrip",     "rstrip",       "split",        "rsplit",     "splitlines", "startswith", "endswith",
    "replace",   "upper",      "lower",        "title",        "capitalize", "swapcase",   "join",       "find",
    "rfind",     "index",      "rindex",       "count",        "isdigit",    "isdecimal",  "isnumeric",  "isalpha",
    "isalnum",   "isspace",    "isupper",      "islower",      "zfill",      "ljust",      "rjust",      "center",
    "partition", "rpartition", "removeprefix", "removesuffix", "casefold",   "format",     "expandtabs"};

// Parts of a text, which stays where it is until they are values.
using Parts = std::vector<std::string_view>;

bool add_part(JinjaRun& run, Parts& parts, std::string_view part) {
  if (!run.allocate(2 * sizeof part)) return false;
  parts.push_back(part);
  return true;
}

JinjaValue parts_to_list(JinjaRun& run, const Parts& parts, Shape shape = Shape::kList) {
  std::vector<JinjaValue> items;
  if (!run.allocate_values(parts.size())) return {};
  items.reserve(parts.size());
  for (const std::string_view part : parts) {
    if (!run.touch(part.size())) return {};
    items.push_back(run.make_string(std::string(part)));
    if (run.failed()) return {};
  }
  return run.make_list(std::move(items), shape);
}

// str.split without a separator: runs of white space, no empty parts.
Parts split_space(JinjaRun& run, std::string_view text, int64_t limit, bool from_right) {
  Parts words;
  if (!run.read(text.size())) return words;
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
    if (!add_part(run, words, text.substr(begin, end - begin))) return words;
    at = end;
  }
  const auto count = static_cast<int64_t>(words.size());
  if (limit < 0 || limit >= count) return words;
  const auto start_of = [&](int64_t word) { return static_cast<size_t>(words[word].data() - text.data()); };
  if (from_right) {
    const int64_t last = count - limit - 1;  // of the words that stay together
    words[last] = text.substr(0, start_of(last) + words[last].size());
    words.erase(words.begin(), words.begin() + last);
    return words;
  }
  words[limit] = text.substr(start_of(limit));
  words.resize(limit + 1);
  return words;
}

Parts split_at(JinjaRun& run, std::string_view text, std::string_view separator, int64_t limit, bool from_right) {
  Parts parts;
  if (from_right) {
    // As from the left, with both mirrored, so that it takes linear time.
    if (!run.allocate(text.size() + separator.size())) return parts;
    const std::string mirrored(text.rbegin(), text.rend()), mirrored_separator(separator.rbegin(), separator.rend());
    parts = split_at(run, mirrored, mirrored_separator, limit, false);
    for (std::string_view& part : parts) {
      const size_t behind = static_cast<size_t>(part.data() - mirrored.data());
      part = text.substr(text.size() - behind - part.size(), part.size());
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = find_first(run, text, separator, begin);
    if (found == std::string::npos || !add_part(run, parts, text.substr(begin, found - begin))) break;
    begin = found + separator.size();
  }
  add_part(run, parts, text.substr(begin));
  return parts;
}

JinjaValue method_split(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"sep", "maxsplit"}, 0, a)) return {};
  if (!a[1].is_undefined() && !need_int(run, name, a[1])) return {};
  const int64_t limit = a[1].is_undefined() ? -1 : a[1].as_int();
  const bool from_right = name == "rsplit";
  if (a[0].is_undefined() || a[0].is_none()) return parts_to_list(run, split_space(run, text, limit, from_right));
  if (!need_string(run, name, a[0])) return {};
  if (a[0].as_string().empty()) return run.fail("the separator of " + name + " is empty");
  return parts_to_list(run, split_at(run, text, a[0].as_string(), limit, from_right));
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
      if (!run.step() || !run.allocate(fresh.size() + found - begin)) return {};
      out += fresh + text.substr(begin, found - begin);
      begin = found;
    } else {
      found = run.step() ? find_first(run, text, old, begin) : std::string::npos;
      if (found == std::string::npos) break;
      if (!run.allocate(fresh.size() + found - begin)) return {};
      out.append(text, begin, found - begin);
      out += fresh;
      begin = found + old.size();
    }
    if (limit > 0) --limit;
  }
  if (!run.allocate(text.size() - begin)) return {};
  out.append(text, begin, std::string::npos);
  return run.make_string(std::move(out));
}

// text[start:end], as the methods take it that may look at a part only.
JinjaValue part_of(JinjaRun& run, const std::string& text, const JinjaValue& start, const JinjaValue& end) {
  if (!run.allocate(text.size())) return {};
  return slice(run, run.make_string(text), start, end.is_undefined() ? JinjaValue::none() : end, JinjaValue::none());
}

JinjaValue method_affix(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"prefix", "start", "end"}, 1, a)) return {};
  JinjaValue part;
  if (!a[1].is_undefined()) {
    part = part_of(run, text, a[1], a[2]);
    if (run.failed()) return {};
  }
  const std::string& whole = part.is_undefined() ? text : part.as_string();
  const auto matches = [&](const std::string& affix) {
    if (affix.size() > whole.size() || !run.step() || !run.touch(affix.size())) return false;
    return whole.compare(name == "startswith" ? 0 : whole.size() - affix.size(), affix.size(), affix) == 0;
  };
  if (a[0].is_list() && a[0].as_list().shape == Shape::kTuple) {
    for (const JinjaValue& affix : a[0].as_list().items) {
      if (!need_string(run, name, affix)) return {};
      if (matches(affix.as_string())) return JinjaValue(true);
      if (run.failed()) return {};
    }
    return JinjaValue(false);
  }
  if (!need_string(run, name, a[0])) return {};
  return JinjaValue(matches(a[0].as_string()));
}

JinjaValue method_find(JinjaRun& run, const std::string& text, const std::string& name, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, name, arguments, {"sub", "start", "end"}, 1, a) || !need_string(run, name, a[0])) return {};
  JinjaValue part;
  int64_t offset = 0;
  if (!a[1].is_undefined() && !a[1].is_none()) {
    if (!need_int(run, name, a[1])) return {};
    part = part_of(run, text, a[1], a[2]);
    if (run.failed() || !run.touch(text.size())) return {};
    const int64_t size = code_point_count(text);
    offset = a[1].as_int() < 0 ? std::max<int64_t>(0, a[1].as_int() + size) : a[1].as_int();
    if (offset > size) part = JinjaValue("");
  }
  const std::string& whole = part.is_undefined() ? text : part.as_string();
  const std::string& sub = a[0].as_string();
  if (name == "count") {
    if (!run.touch(whole.size())) return {};
    int64_t count = sub.empty() ? code_point_count(whole) + 1 : 0;
    for (size_t at = 0; !sub.empty() && (at = find_first(run, whole, sub, at)) != std::string::npos; at += sub.size())
      ++count;
    return JinjaValue(count);
  }
  const size_t found = name[0] == 'r' ? find_last(run, whole, sub) : find_first(run, whole, sub);
  if (run.failed() || (found != std::string::npos && !run.touch(found))) return {};
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
    if (!run.allocate(a[1].as_string().size())) return {};
    fill = a[1].as_string();
    if (code_point_count(fill) != 1) return run.fail("the fill of " + name + " must be one character");
  }
  // The padding, and the whole.
  if (!run.touch(text.size()) || !run.allocate(2 * text.size())) return {};
  const int64_t missing = std::max<int64_t>(0, a[0].as_int() - code_point_count(text));
  const auto padding = static_cast<size_t>(std::min<int64_t>(missing, int64_t{1} << 40));
  if (!run.read(padding) || !run.allocate(2 * padding * fill.size())) return {};
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
  const std::string_view whole = text;
  const size_t found = right ? find_last(run, whole, separator) : find_first(run, whole, separator);
  if (run.failed()) return {};
  if (found == std::string::npos)
    return parts_to_list(run, right ? Parts{"", "", whole} : Parts{whole, "", ""}, Shape::kTuple);
  return parts_to_list(run, {whole.substr(0, found), separator, whole.substr(found + separator.size())}, Shape::kTuple);
}

JinjaValue method_join(JinjaRun& run, const std::string& separator, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "join", arguments, {"iterable"}, 1, a)) return {};
  std::string out;
  bool first = true;
  for (const JinjaValue& item : elements(run, a[0])) {
    if (!need_string(run, "join", item) || !run.step()) return {};
    if (!run.allocate(item.as_string().size() + separator.size())) return {};
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
  if (!run.read(text.size()) || !run.allocate(text.size())) return {};
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
  // What stays is copied; what goes is read, and looked for in the sorted set
  // where there is one.
  if (!run.allocate(text.size())) return {};
  const bool any = !a[0].is_undefined() && !a[0].is_none();
  if (any && !need_string(run, name, a[0])) return {};
  if (any && (!run.map_text(a[0].as_string().size()) || !run.allocate(4 * a[0].as_string().size()))) return {};
  std::string out = any ? strip(text, a[0].as_string(), left, right) : strip(text, left, right);
  if (!run.read((any ? 4 : 1) * (text.size() - out.size()))) return {};
  return run.make_string(std::move(out));
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view one = text.substr(begin, at - begin);
    out += is_upper(c) ? to_lower(one) : is_lower(c) ? to_upper(one) : std::string(one);
  }
  return out;
}

JinjaValue plain_string_method(JinjaRun& run, const std::string& text, const std::string& name) {
  if (name == "upper") return change_text(run, text, to_upper);
  if (name == "lower") return change_text(run, text, to_lower);
  if (name == "casefold") return change_text(run, text, to_casefold);
  if ((name == "title" || name == "swapcase") && !run.map_text(text.size())) return {};  // each character by itself
  if (name == "title") return change_text(run, text, to_title);
  if (name == "capitalize") return change_text(run, text, to_capitalized);
  if (name == "swapcase") return change_text(run, text, swap_case);
  if (!run.map_text(text.size())) return {};
  if (name == "isdigit" || name == "isdecimal" || name == "isnumeric") return JinjaValue(all_of(text, is_decimal));
  if (name == "isalpha") return JinjaValue(all_of(text, is_alpha));
  if (name == "isalnum") return JinjaValue(all_of(text, [](char32_t c) { return c != '_' && is_word(c); }));
  if (name == "isspace") return JinjaValue(all_of(text, is_space));
  return JinjaValue(has_only_case(text, name == "isupper"));
}

}  // namespace

std::span<const std::string_view> string_method_names() { return kStringMethods; }

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
    if (!bind(run, name, arguments, {"keepends"}, 0, a) || !run.read(text.size())) return {};
    Parts lines;
    for_each_line(text, truthy(a[0]), [&](std::string_view line) { add_part(run, lines, line); });
    return parts_to_list(run, lines);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    if (!bind(run, name, arguments, {"affix"}, 1, a) || !need_string(run, name, a[0])) return {};
    const std::string& affix = a[0].as_string();
    const bool prefix = name == "removeprefix";
    if (!run.touch(affix.size()) || !run.allocate(text.size())) return {};
    if (affix.size() > text.size() || text.compare(prefix ? 0 : text.size() - affix.size(), affix.size(), affix) != 0) {
      return run.make_string(text);
    }
    return run.make_string(prefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
  }
  if (!bind(run, name, arguments, {}, 0, a)) return {};
  return plain_string_method(run, text, name);
}

}  // namespace loralei::jinja
