// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

namespace loralei {

namespace {

// Bounds of the second byte for each lead byte (Unicode 15, table 3-7); length
// 0 = not a lead byte.
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

size_t utf8_sequence_length(std::string_view text, size_t at) {
  if (at >= text.size()) return 0;
  const Utf8Step step = utf8_step(text, at);
  return step.valid ? static_cast<size_t>(step.length) : 0;
}

bool is_valid_utf8(std::string_view text) {
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

std::u32string utf8_decode(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text, pos);
    out += step.code_point;
    pos += static_cast<size_t>(step.length);
  }
  return out;
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

}  // namespace loralei
