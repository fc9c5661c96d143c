// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_more_filters.h"

#include <algorithm>
#include <cstdio>

#include "text/jinja_ops.h"
#include "text/jinja_text.h"

namespace loralei::jinja {

using Shape = JinjaList::Shape;

JinjaValue filter_escape(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::string out;
  for (const char c : to_str(run, value)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return run.make_string(std::move(out));
}

JinjaValue filter_filesizeformat(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "filesizeformat", arguments, {"binary"}, 0, a)) return {};
  if (!value.is_number())
    return run.fail("filesizeformat needs a number, not a value of type '" + type_name(value) + "'");
  const bool is_binary = truthy(a[0]);
  const double base = is_binary ? 1024 : 1000;
  const double bytes = value.as_float();
  if (bytes == 1) return JinjaValue("1 Byte");
  char buffer[400];
  if (bytes < base) {
    std::snprintf(buffer, sizeof buffer, "%.0f Bytes", std::max(-1e300, bytes));
    return run.make_string(buffer);
  }
  static constexpr const char* kUnits[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                               {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
  double unit = base * base;
  int index = 0;
  for (; index < 7 && bytes >= unit; ++index) unit *= base;
  std::snprintf(buffer, sizeof buffer, "%.1f %s", base * bytes / unit, kUnits[is_binary ? 1 : 0][index]);
  return run.make_string(buffer);
}

JinjaValue filter_groupby(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "groupby", arguments, {"attribute", "default", "case_sensitive"}, 1, a)) return {};
  const JinjaValue* fallback = a[1].is_undefined() || a[1].is_none() ? nullptr : &a[1];
  std::vector<std::pair<JinjaValue, JinjaValue>> keyed;
  for (const JinjaValue& item : elements(run, value)) {
    const JinjaValue key = walk_attribute(run, item, a[0], fallback);
    keyed.emplace_back(truthy(a[2]) ? key : ignore_case(key), item);
    if (run.failed()) return {};
  }
  if (!sort_by(run, keyed, false)) return {};
  std::vector<JinjaValue> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<JinjaValue> items;
    size_t end = begin;
    for (; end < keyed.size() && equals(run, keyed[end].first, keyed[begin].first); ++end)
      items.push_back(keyed[end].second);
    if (run.failed()) return {};
    const JinjaValue grouper = walk_attribute(run, keyed[begin].second, a[0], fallback);
    const JinjaValue list = run.make_list(std::move(items));
    // A pair that also answers to .grouper and .list, as jinja2's named tuple does.
    auto pair = std::make_shared<JinjaList>();
    pair->shape = Shape::kTuple;
    pair->items = {grouper, list};
    pair->depth = std::max(grouper.depth(), list.depth()) + 1;
    pair->is_group = true;
    groups.emplace_back(std::shared_ptr<const JinjaList>(std::move(pair)));
    begin = end;
  }
  return run.failed() ? JinjaValue() : run.make_list(std::move(groups));
}

// repr on one line; Python would break longer ones in its own way.
JinjaValue filter_pprint(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::string text = to_repr(run, value);
  if (!run.failed() && text.size() > 78)
    return run.fail("pprint is supported for values that fit on one line; use tojson(indent=2)");
  return run.make_string(std::move(text));
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
    std::vector<JinjaValue> part(items.begin() + begin, items.begin() + begin + size);
    begin += size;
    if (!a[1].is_undefined() && !a[1].is_none() && i >= longer) part.push_back(a[1]);
    out.push_back(run.make_list(std::move(part)));
  }
  return run.failed() ? JinjaValue() : run.make_list(std::move(out), Shape::kGenerator);
}

// Removes comments and tags, joins white space to single blanks, and reads the entities that escape writes.
JinjaValue filter_striptags(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  const std::string text = to_str(run, value);
  std::string bare;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '<') {
      bare += text[at++];
      continue;
    }
    const bool comment = text.compare(at, 4, "<!--") == 0;
    const size_t end = text.find(comment ? "-->" : ">", at);
    if (end == std::string::npos) {
      bare.append(text, at, std::string::npos);
      break;
    }
    at = end + (comment ? 3 : 1);
  }
  const JinjaValue words = call_method(run, JinjaValue(std::move(bare)), "split", {});
  Arguments joined;
  joined.positional.push_back(words);
  JinjaValue out = call_method(run, JinjaValue(" "), "join", joined);
  static constexpr const char* kEntities[][2] = {{"&lt;", "<"},   {"&gt;", ">"},    {"&#39;", "'"},
                                                 {"&#34;", "\""}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [entity, character] : kEntities) {
    Arguments replace;
    replace.positional = {JinjaValue(entity), JinjaValue(character)};
    out = call_method(run, out, "replace", replace);
    if (run.failed()) return {};
  }
  return out;
}

namespace {

// The pieces a line may be broken between: runs of white space, words, and words cut after a hyphen between letters.
std::vector<std::u32string> wrap_pieces(const std::u32string& line, bool at_hyphens) {
  std::vector<std::u32string> pieces;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = at;
    const bool space = is_space(line[at]);
    while (at < line.size() && is_space(line[at]) == space) {
      const bool hyphen = !space && at_hyphens && line[at] == '-' && at > begin && is_alpha(line[at - 1]) &&
                          at + 1 < line.size() && is_alpha(line[at + 1]);
      ++at;
      if (hyphen) break;
    }
    pieces.push_back(line.substr(begin, at - begin));
  }
  return pieces;
}

// textwrap.wrap of one line; appends the wrapped lines.
void wrap_line(const std::u32string& line, size_t width, bool break_words, bool at_hyphens,
               std::vector<std::u32string>& out) {
  std::u32string current;
  const auto flush = [&] {
    while (!current.empty() && is_space(current.back())) current.pop_back();
    if (!current.empty()) out.push_back(std::move(current));
    current.clear();
  };
  bool started = false;
  for (std::u32string& piece : wrap_pieces(line, at_hyphens)) {
    if (current.empty() && started && is_space(piece[0])) continue;
    if (current.size() + piece.size() > width) {
      if (piece.size() > width && break_words) {
        while (piece.size() > width - std::min(width, current.size())) {
          const size_t room = width - std::min(width, current.size());
          current += piece.substr(0, room);
          piece.erase(0, room);
          flush();
        }
      } else {
        flush();
        if (is_space(piece[0])) continue;
      }
    }
    current += piece;
    started = true;
  }
  flush();
}

}  // namespace

JinjaValue filter_wordwrap(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "wordwrap", arguments, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}, 0, a))
    return {};
  if (!value.is_string()) return run.fail("wordwrap needs a string, not a value of type '" + type_name(value) + "'");
  const int64_t width = a[0].is_int() ? a[0].as_int() : 79;
  if (width < 1 || width > 65536) return run.fail("wordwrap needs a width between 1 and 65536");
  const std::string joint = a[2].is_string() ? a[2].as_string() : "\n";
  std::string out;
  bool first = true;
  for (const std::string& line : split_lines(value.as_string(), false)) {
    std::vector<std::u32string> wrapped;
    wrap_line(decode_utf8(line), width, a[1].is_undefined() || truthy(a[1]), a[3].is_undefined() || truthy(a[3]),
              wrapped);
    if (wrapped.empty()) wrapped.emplace_back();
    for (const std::u32string& part : wrapped) {
      if (!run.allocate(part.size() * 4 + joint.size())) return {};
      if (!first) out += joint;
      first = false;
      out += encode_utf8(part);
    }
  }
  return run.make_string(std::move(out));
}

}  // namespace loralei::jinja
