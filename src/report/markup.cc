// SPDX-License-Identifier: Apache-2.0
#include "report/markup.h"

#include "base/printable.h"
#include "base/utf8.h"

namespace loralei {

std::string markup_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string shortened(std::string_view text, size_t characters) {
  const std::string whole = printable(text);
  const std::u32string decoded = utf8_decode(whole);
  if (decoded.size() <= characters || characters == 0) return whole;
  std::string out;
  for (size_t i = 0; i + 1 < characters; ++i) utf8_append(out, decoded[i]);
  return out + "\xe2\x80\xa6";
}

size_t characters_of(std::string_view text) { return utf8_decode(printable(text)).size(); }

}  // namespace loralei
