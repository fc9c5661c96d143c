// SPDX-License-Identifier: Apache-2.0
#include "term/terminal_text.h"

#include <unicode/uchar.h>

#include "base/utf8.h"

namespace loralei {

int terminal_columns(char32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  if (c >= 0x20 && c < 0x7F) return 1;
  switch (u_charType(c)) {
    case U_NON_SPACING_MARK:
    case U_ENCLOSING_MARK:
    case U_FORMAT_CHAR:
    case U_CONTROL_CHAR:
      return 0;
    default:
      break;
  }
  // Vowels and ends of a Hangul syllable join its beginning.
  if (c >= 0x1160 && c <= 0x11FF) return 0;
  const int width = u_getIntPropertyValue(c, UCHAR_EAST_ASIAN_WIDTH);
  return width == U_EA_WIDE || width == U_EA_FULLWIDTH ? 2 : 1;
}

int terminal_columns(std::string_view utf8) {
  int columns = 0;
  for (size_t at = 0; at < utf8.size();) {
    const Utf8Step step = utf8_step(utf8, at);
    columns += terminal_columns(step.code_point);
    at += static_cast<size_t>(step.length);
  }
  return columns;
}

namespace {

bool may_be_shown(char32_t c) {
  if (c == '\n' || c == '\t') return true;
  if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return false;
  return !((c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F || c == 0x61C);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (step.valid && may_be_shown(step.code_point)) {
      shown += text.substr(at, static_cast<size_t>(step.length));
    } else {
      shown += kReplacementUtf8;
    }
    at += static_cast<size_t>(step.length);
  }
  return shown;
}

}  // namespace loralei
