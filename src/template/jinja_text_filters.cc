// SPDX-License-Identifier: Apache-2.0
// Filters whose input is read as text, and those that write any value as text:
// string, tojson, pprint.
// "safe" and "escape" give plain strings: Python's mark would only change what "+" does
// to other strings, as autoescape is off.
#include <algorithm>

#include "template/jinja_filters.h"
#include "template/jinja_ops.h"
#include "template/jinja_text.h"

namespace loralei::jinja {

using Shape = JinjaList::Shape;

JinjaValue filter_upper(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return change_text(run, to_str(run, value), to_upper);
}
JinjaValue filter_lower(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return change_text(run, to_str(run, value), to_lower);
}
JinjaValue filter_capitalize(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return change_text(run, to_str(run, value), to_capitalized);
}
JinjaValue filter_string(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(to_str(run, value));
}
JinjaValue filter_safe(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  return run.make_string(to_str(run, value));
}

namespace {

// A string as it is, any other value written out.
JinjaValue text_of(JinjaRun& run, const JinjaValue& value) {
  return value.is_string() ? value : run.make_string(to_str(run, value));
}

}  // namespace

JinjaValue filter_trim(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "trim", arguments, {"chars"}, 0, a)) return {};
  Arguments strip_arguments;
  if (!a[0].is_undefined()) strip_arguments.positional.push_back(a[0]);
  return call_method(run, text_of(run, value), "strip", strip_arguments);
}

// Words begin after spaces, hyphens and opening brackets; the first letter is raised,
// the rest lowered.
JinjaValue filter_title(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  const std::string text = to_str(run, value);
  // Each word is mapped by itself.
  if (!run.map_text(3 * text.size()) || !run.allocate(3 * text.size())) return {};
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
  strings.positional = {text_of(run, a[0]), text_of(run, a[1])};
  if (!a[2].is_undefined() && !a[2].is_none()) strings.positional.push_back(a[2]);
  return call_method(run, text_of(run, value), "replace", strings);
}

JinjaValue filter_center(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "center", arguments, {"width"}, 0, a)) return {};
  Arguments width;
  width.positional.push_back(a[0].is_undefined() ? JinjaValue(80) : a[0]);
  return call_method(run, text_of(run, value), "center", width);
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
  const size_t bytes = value.as_string().size();
  if (!run.allocate(indention.size()) || !run.read(bytes) || !run.allocate(bytes)) return {};
  std::string out = truthy(a[1]) ? indention : std::string();
  bool first = true;
  for_each_line(value.as_string() + "\n", false, [&](std::string_view line) {
    if (!run.allocate(line.size() + indention.size() + 1)) return;
    if (!first) out += '\n';
    if (!first && (blank || !line.empty())) out += indention;
    first = false;
    out += line;
  });
  if (run.failed()) return {};
  return run.make_string(std::move(out));
}

JinjaValue filter_truncate(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::vector<JinjaValue> a;
  if (!bind(run, "truncate", arguments, {"length", "killwords", "end", "leeway"}, 0, a)) return {};
  if (!value.is_string()) return run.fail("truncate needs a string, not a value of type '" + type_name(value) + "'");
  const int64_t size = a[0].is_int() ? a[0].as_int() : 255;
  const std::string end = a[2].is_string() ? a[2].as_string() : "...";
  const int64_t leeway = a[3].is_int() ? a[3].as_int() : 5;
  const size_t bytes = value.as_string().size();
  if (!run.allocate(3 * end.size()) || !run.read(2 * bytes) || !run.allocate(10 * bytes)) return {};
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
  const std::string text = to_str(run, value);
  if (!run.map_text(text.size())) return {};
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
    if (!run.allocate_values(2 * arguments.named.size())) return {};
    for (const auto& [name, item] : arguments.named) items.emplace_back(run.make_string(name), item);
    if (run.failed()) return {};
    values = run.make_dict(std::move(items));
  }
  return run.failed() ? JinjaValue() : format_percent(run, to_str(run, value), values);
}

JinjaValue filter_urlencode(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  if (value.is_dict() || value.is_list()) return run.fail("urlencode is supported for strings and numbers only");
  static constexpr char kHex[] = "0123456789ABCDEF";
  const std::string text = to_str(run, value);
  if (!run.read(2 * text.size()) || !run.allocate(3 * text.size())) return {};
  std::string out;
  for (const char c : text) {
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

JinjaValue filter_escape(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  const std::string text = to_str(run, value);
  if (!run.read(text.size()) || !run.allocate(5 * text.size())) return {};
  std::string out;
  for (const char c : text) {
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

// Removes comments and tags, joins white space to single blanks, and reads the entities
// that escape writes.
JinjaValue filter_striptags(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  const std::string text = to_str(run, value);
  if (!run.read(text.size()) || !run.allocate(text.size())) return {};
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
  const JinjaValue words = call_method(run, run.make_string(std::move(bare)), "split", {});
  Arguments joined;
  joined.positional.push_back(words);
  if (run.failed()) return {};
  JinjaValue out = call_method(run, JinjaValue(" "), "join", joined);
  if (run.failed()) return {};
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

// The end of the piece of a line that begins at `at`: a run of white space, or a word,
// which ends after a hyphen between letters where it may.
size_t piece_end(std::u32string_view line, size_t at, bool at_hyphens) {
  const size_t begin = at;
  const bool space = is_space(line[at]);
  while (at < line.size() && is_space(line[at]) == space) {
    const bool hyphen = !space && at_hyphens && line[at] == '-' && at > begin && is_alpha(line[at - 1]) &&
                        at + 1 < line.size() && is_alpha(line[at + 1]);
    ++at;
    if (hyphen) break;
  }
  return at;
}

// textwrap.wrap of one line; appends the wrapped lines, which are parts of it.
void wrap_line(std::u32string_view line, size_t width, bool break_words, bool at_hyphens,
               std::vector<std::u32string_view>& out) {
  size_t begin = 0, end = 0;  // of the line that is being filled
  const auto flush = [&] {
    while (end > begin && is_space(line[end - 1])) --end;
    if (end > begin) out.push_back(line.substr(begin, end - begin));
    begin = end;
  };
  bool started = false;
  for (size_t at = 0, next = 0; at < line.size(); at = next) {
    next = piece_end(line, at, at_hyphens);
    const bool space = is_space(line[at]);
    if (begin == end && started && space) continue;
    if (begin == end) begin = end = at;
    if (end - begin + next - at > width) {
      if (next - at > width && break_words) {
        while (next - at > width - std::min(width, end - begin)) {
          at += width - std::min(width, end - begin);
          end = at;
          flush();
          begin = end = at;
        }
      } else {
        flush();
        if (space) continue;
        begin = at;
      }
    }
    end = next;
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
  if (!run.allocate(joint.size()) || !run.map_text(value.as_string().size())) return {};
  std::string out;
  bool first = true;
  for_each_line(value.as_string(), false, [&](std::string_view line) {
    // Decoded, and cut into parts, of which one may be a character.
    const JinjaHeld held(run, 20 * line.size());
    if (!run.touch_values(16) || !run.touch(20 * line.size())) return;  // four allocations, however short it is
    const std::u32string characters = decode_utf8(line);
    std::vector<std::u32string_view> wrapped;
    wrap_line(characters, width, a[1].is_undefined() || truthy(a[1]), a[3].is_undefined() || truthy(a[3]), wrapped);
    if (wrapped.empty()) wrapped.emplace_back();
    for (const std::u32string_view part : wrapped) {
      if (!run.allocate(part.size() * 4 + joint.size())) return;
      if (!first) out += joint;
      first = false;
      out += encode_utf8(part);
    }
  });
  return run.failed() ? JinjaValue() : run.make_string(std::move(out));
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
    if (!run.allocate(a[1].as_string().size())) return {};
    style.indent = a[1].as_string();
  }
  if (style.has_indent) style.item_separator = ",";
  if (a[2].is_list()) {
    const auto& two = a[2].as_list().items;
    if (two.size() != 2 || !two[0].is_string() || !two[1].is_string())
      return run.fail("the separators of tojson must be two strings");
    if (!run.allocate(two[0].as_string().size() + two[1].as_string().size())) return {};
    style.item_separator = two[0].as_string();
    style.key_separator = two[1].as_string();
  }
  return run.make_string(to_json(run, value, style));
}

// repr on one line; Python would break longer ones in its own way.
JinjaValue filter_pprint(JinjaRun& run, const JinjaValue& value, const Arguments& arguments) {
  std::string text = to_repr(run, value);
  if (!run.failed() && text.size() > 78)
    return run.fail("pprint is supported for values that fit on one line; use tojson(indent=2)");
  return run.make_string(std::move(text));
}

}  // namespace loralei::jinja
