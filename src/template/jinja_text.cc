// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_text.h"

#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"

namespace loralei::jinja {

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  int extra = 0;
  char32_t value = first;
  if (first >= 0xF0 && first < 0xF8) {
    extra = 3;
    value = first & 0x07;
  } else if (first >= 0xE0 && first < 0xF0) {
    extra = 2;
    value = first & 0x0F;
  } else if (first >= 0xC0 && first < 0xE0) {
    extra = 1;
    value = first & 0x1F;
  }
  if (extra == 0 || at + extra >= text.size()) {
    ++at;
    return first;
  }
  for (int i = 1; i <= extra; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) {
      ++at;
      return first;
    }
    value = (value << 6) | (byte(at + i) & 0x3F);
  }
  at += extra + 1;
  return value;
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) out += next_code_point(text, at);
  return out;
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char32_t c : text) utf8_append(out, c);
  return out;
}

bool is_ascii(std::string_view text) {
  for (char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

int64_t code_point_count(std::string_view text) {
  int64_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_UNASSIGNED:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
    case U_SPACE_SEPARATOR:
      return false;
    default:
      return true;
  }
}

bool is_alpha(char32_t c) { return u_isalpha(static_cast<UChar32>(c)); }
bool is_decimal(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER; }
bool is_upper(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE); }
bool is_lower(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE); }
bool is_word(char32_t c) { return c == '_' || u_isalnum(static_cast<UChar32>(c)); }

namespace {

enum class Case { kUpper, kLower, kTitle, kFold };

// Full case mapping of a whole string (or, for kTitle, of one character's title form).
std::string map_case(std::string_view text, Case which) {
  if (text.empty()) return {};
  std::u16string source;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c >= 0x10000) {
      source += static_cast<char16_t>(0xD7C0 + (c >> 10));
      source += static_cast<char16_t>(0xDC00 + (c & 0x3FF));
    } else {
      source += static_cast<char16_t>(c);
    }
  }
  std::u16string target(source.size() * 3 + 4, u'\0');  // full mappings grow one unit to at most three
  UErrorCode status = U_ZERO_ERROR;
  int32_t size = 0;
  const auto capacity = static_cast<int32_t>(target.size());
  const auto length = static_cast<int32_t>(source.size());
  if (which == Case::kUpper) size = u_strToUpper(target.data(), capacity, source.data(), length, "", &status);
  if (which == Case::kLower) size = u_strToLower(target.data(), capacity, source.data(), length, "", &status);
  if (which == Case::kFold)
    size = u_strFoldCase(target.data(), capacity, source.data(), length, U_FOLD_CASE_DEFAULT, &status);
  if (which == Case::kTitle) size = u_strToTitle(target.data(), capacity, source.data(), length, nullptr, "", &status);
  if (U_FAILURE(status)) return std::string(text);
  std::string out;
  for (int32_t i = 0; i < size; ++i) {
    char32_t c = target[i];
    if (c >= 0xD800 && c < 0xDC00 && i + 1 < size) c = ((c - 0xD7C0) << 10) + (target[++i] - 0xDC00);
    utf8_append(out, c);
  }
  return out;
}

bool is_cased(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED); }

std::string title_of(char32_t c) {
  std::string one;
  utf8_append(one, c);
  if (c < 0x80) {
    if (c >= 'a' && c <= 'z') one[0] = static_cast<char>(c - 32);
    return one;
  }
  const char32_t simple = static_cast<char32_t>(u_totitle(static_cast<UChar32>(c)));
  if (simple == c) return is_lower(c) ? map_case(one, Case::kTitle) : one;
  std::string out;
  utf8_append(out, simple);
  return out;
}

}  // namespace

std::string to_upper(std::string_view text) {
  if (!is_ascii(text)) return map_case(text, Case::kUpper);
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return out;
}

std::string to_lower(std::string_view text) {
  if (!is_ascii(text)) return map_case(text, Case::kLower);
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string to_casefold(std::string_view text) { return is_ascii(text) ? to_lower(text) : map_case(text, Case::kFold); }

// The first cased character of a run is title-cased, the others lowered one by one (a
// final sigma stays the plain small one).
std::string to_title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    out += inside ? to_lower(text.substr(begin, at - begin)) : title_of(c);
    inside = is_cased(c);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  if (text.empty()) return {};
  size_t at = 0;
  const char32_t first = next_code_point(text, at);
  return title_of(first) + to_lower(text.substr(at));
}

namespace {

template <typename Inside>
std::string strip_if(std::string_view text, bool left, bool right, Inside inside) {
  size_t begin = 0;
  while (left && begin < text.size()) {
    size_t at = begin;
    if (!inside(next_code_point(text, at))) break;
    begin = at;
  }
  size_t end = text.size();
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t at = start;
    if (!inside(next_code_point(text, at))) break;
    end = start;
  }
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

std::string strip(std::string_view text, bool left, bool right) { return strip_if(text, left, right, is_space); }

std::string strip(std::string_view text, std::string_view characters, bool left, bool right) {
  std::u32string set = decode_utf8(characters);
  std::sort(set.begin(), set.end());
  return strip_if(text, left, right, [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::string quote_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  char buffer[16];
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      utf8_append(out, c);
    } else {
      const char* form = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer, sizeof buffer, form, static_cast<unsigned>(c));
      out += buffer;
    }
  }
  out += quote;
  return out;
}

std::string quote_json(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  char buffer[16];
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    switch (c) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\f':
        out += "\\f";
        continue;
      default:
        break;
    }
    if (c >= 0x20 && (!ensure_ascii || c < 0x7F)) {
      utf8_append(out, c);
    } else if (c >= 0x10000) {
      std::snprintf(buffer, sizeof buffer, "\\u%04x\\u%04x", 0xD7C0 + (static_cast<unsigned>(c) >> 10),
                    0xDC00 + (static_cast<unsigned>(c) & 0x3FF));
      out += buffer;
    } else {
      std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
      out += buffer;
    }
  }
  out += '"';
  return out;
}

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto done = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view shortest(buffer, done.ptr - buffer);  // d.ddde+XX, the fewest digits that read back
  std::string digits;
  std::string out;
  if (shortest.front() == '-') {
    out = "-";
    shortest.remove_prefix(1);
  }
  const size_t mark = shortest.find('e');
  for (char c : shortest.substr(0, mark)) {
    if (c != '.') digits += c;
  }
  int exponent = 0;
  std::string_view power = shortest.substr(mark + 1);
  if (power.front() == '+') power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    std::snprintf(buffer, sizeof buffer, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + buffer;
  }
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(exponent + 1 - count, '0') + ".0";
  return out + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

}  // namespace loralei::jinja
