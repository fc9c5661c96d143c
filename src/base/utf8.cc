// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

namespace loralei {

size_t utf8_sequence_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned b0 = byte(0), b1 = byte(1);
  if (at >= text.size()) return 0;
  if (b0 < 0x80) return 1;
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  if (b0 >= 0xC2 && b0 <= 0xDF) return continues(1) ? 2 : 0;
  if (b0 >= 0xE0 && b0 <= 0xEF) {
    if ((b0 == 0xE0 && b1 < 0xA0) || (b0 == 0xED && b1 > 0x9F)) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (b0 >= 0xF0 && b0 <= 0xF4) {
    if ((b0 == 0xF0 && b1 < 0x90) || (b0 == 0xF4 && b1 > 0x8F)) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t n = utf8_sequence_length(text, at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

}  // namespace loralei
