// SPDX-License-Identifier: Apache-2.0
// Python's view of strings for the template interpreter: code points, str methods'
// character classes, case mapping.
//
// Thread: pure functions. Strings are valid UTF-8 (the parser and the JSON reader have
// checked); a malformed byte is treated as one code point of its own value so that
// nothing here can fail.
// Source: CPython's unicodeobject (isspace, splitlines, isprintable, title); case mapping
// is ICU's full mapping, root locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace loralei::jinja {

// Reads the code point at `at` and moves behind it. at < text.size().
char32_t next_code_point(std::string_view text, size_t& at);
std::u32string decode_utf8(std::string_view text);
std::string encode_utf8(std::u32string_view text);
bool is_ascii(std::string_view text);
int64_t code_point_count(std::string_view text);

bool is_space(char32_t c);       // str.isspace of one character
bool is_line_break(char32_t c);  // what str.splitlines splits at
bool is_printable(char32_t c);   // what repr leaves unescaped
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_word(char32_t c);  // \w of Python's re: alphanumeric or underscore

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_casefold(std::string_view text);
std::string to_title(std::string_view text);        // str.title
std::string to_capitalized(std::string_view text);  // str.capitalize
std::string strip(std::string_view text, bool left, bool right);
std::string strip(std::string_view text, std::string_view characters, bool left, bool right);
// Calls visit(line) for each line as str.splitlines gives them.
template <typename Visit>
void for_each_line(std::string_view text, bool keep_ends, Visit&& visit) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    visit(text.substr(begin, (keep_ends ? at : here) - begin));
    begin = at;
  }
  if (begin < text.size()) visit(text.substr(begin));
}
std::string quote_repr(std::string_view text);                     // repr(str)
std::string quote_json(std::string_view text, bool ensure_ascii);  // json.dumps(str)
std::string format_float(double value);                            // repr(float)

}  // namespace loralei::jinja
