// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <algorithm>
#include <cstdio>

#include "base/utf8.h"

namespace loralei {
namespace {

constexpr std::string_view kCut = " ...";

// Of a valid sequence.
char32_t code_point(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first;
  char32_t c = first & (0x7Fu >> sequence.size());
  for (const char next : sequence.substr(1)) c = c << 6 | (static_cast<unsigned char>(next) & 0x3Fu);
  return c;
}

// Control characters, line and paragraph separators, and what turns the direction of text
// or is not seen in it. Joiners (U+200C, U+200D) may stand: some scripts need them.
bool is_hidden(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range kHidden[] = {{0, 0x1F},        {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},
                                      {0x180E, 0x180E}, {0x200B, 0x200B}, {0x200E, 0x200F}, {0x2028, 0x202E},
                                      {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
  return std::any_of(std::begin(kHidden), std::end(kHidden),
                     [c](const Range& range) { return range.first <= c && c <= range.last; });
}

std::string escape(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  char text[16];
  std::snprintf(text, sizeof text,
                c < 0x80      ? "\\x%02x"
                : c < 0x10000 ? "\\u%04x"
                              : "\\U%08x",
                static_cast<unsigned>(c));
  return text;
}

std::string escape_byte(char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

std::string printable(std::string_view text, size_t bytes_max) {
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  size_t whole = 0;  // where it can be cut so that the mark has room
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_sequence_length(text, at);
    if (length == 0) {
      out += escape_byte(text[at]);
    } else if (const char32_t c = code_point(text.substr(at, length)); is_hidden(c)) {
      out += escape(c);
    } else {
      out += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
    if (out.size() > bytes_max) {
      out.resize(whole);
      out += kCut.substr(0, bytes_max - whole);
      return out;
    }
    if (out.size() + kCut.size() <= bytes_max) whole = out.size();
  }
  return out;
}

bool is_printable(std::string_view text, size_t bytes_max) { return printable(text, bytes_max) == text; }

}  // namespace loralei
