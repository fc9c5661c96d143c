// SPDX-License-Identifier: Apache-2.0
#include "wire/json_out.h"

#include <charconv>
#include <cmath>

namespace loralei {

void JsonOut::separate() {
  if (need_comma_) out_ += ',';
  need_comma_ = true;
}

JsonOut& JsonOut::open(char bracket) {
  separate();
  out_ += bracket;
  need_comma_ = false;
  return *this;
}

JsonOut& JsonOut::close(char bracket) {
  out_ += bracket;
  need_comma_ = true;
  return *this;
}

JsonOut& JsonOut::key(std::string_view name) {
  string(name);
  out_ += ':';
  need_comma_ = false;
  return *this;
}

JsonOut& JsonOut::string(std::string_view text) {
  separate();
  out_ += '"';
  append_json_escaped(out_, text);
  out_ += '"';
  return *this;
}

JsonOut& JsonOut::number(int64_t value) {
  separate();
  out_ += std::to_string(value);
  return *this;
}

JsonOut& JsonOut::real(double value) {
  if (!std::isfinite(value)) return null();
  separate();
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value);
  out_.append(text, end.ptr);
  return *this;
}

JsonOut& JsonOut::real(float value) {
  if (!std::isfinite(value)) return null();
  separate();
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value);
  out_.append(text, end.ptr);
  return *this;
}

JsonOut& JsonOut::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

void append_json_escaped(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      out += static_cast<char>(c);
      ++at;
      continue;
    }
    if (c >= 0x80) {
      const size_t n = utf8_sequence_length(text, at);
      if (n == 0) {
        out += "\xEF\xBF\xBD";
        // One mark for the whole broken sequence, not one for each of its bytes.
        do ++at;
        while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
      } else {
        out.append(text.substr(at, n));
        at += n;
      }
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += "\\u00";
        out += kHex[c >> 4];
        out += kHex[c & 15];
    }
    ++at;
  }
}

}  // namespace loralei
