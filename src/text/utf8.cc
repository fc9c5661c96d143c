// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <utf8proc.h>

namespace loralei {

namespace {

// Bounds of the second byte for each lead byte (Unicode 15, table 3-7); length 0 = not a lead byte.
struct Lead {
  int length;
  unsigned char low, high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t pos) {
  const auto byte_at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte_at(pos);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {first, 1, true, false};
  if (lead.length == 0) return {};
  char32_t code_point = first & (0xFF >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    if (pos + i >= text.size()) return {0xFFFD, i, false, true};
    const unsigned char byte = byte_at(pos + i);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {0xFFFD, i, false, false};
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {code_point, lead.length, true, false};
}

bool utf8_valid(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Utf8Step step = utf8_step(text, pos);
    if (!step.valid) return false;
    pos += step.length;
  }
  return true;
}

void utf8_append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string utf8_repair(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, pos);
    out.append(step.valid ? bytes.substr(pos, step.length) : kReplacementUtf8);
    pos += step.length;
  }
  return out;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined.append(bytes);
    bytes = joined;
    held_.clear();
  }
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, pos);
    if (step.truncated) {
      held_.assign(bytes.substr(pos));
      return;
    }
    out.append(step.valid ? bytes.substr(pos, step.length) : kReplacementUtf8);
    pos += step.length;
  }
}

void Utf8Assembler::flush(std::string& out) {
  if (held_.empty()) return;
  out.append(kReplacementUtf8);
  held_.clear();
}

bool is_unicode_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  if (c == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_unicode_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_unicode_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_unicode_mark(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_unicode_word(char32_t c) {
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  // Other_Alphabetic outside of the marks: circled and squared letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME) || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC;
}

}  // namespace loralei
