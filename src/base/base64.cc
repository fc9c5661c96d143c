// SPDX-License-Identifier: Apache-2.0
#include "base/base64.h"

#include <array>
#include <cstdint>

namespace loralei {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNone = 64;

constexpr std::array<uint8_t, 256> make_values() {
  std::array<uint8_t, 256> values{};
  for (uint8_t& value : values) value = kNone;
  for (uint8_t i = 0; i < kAlphabet.size(); ++i) values[static_cast<unsigned char>(kAlphabet[i])] = i;
  return values;
}
constexpr std::array<uint8_t, 256> kValues = make_values();

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  const auto byte = [&](size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u; };
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const unsigned word = byte(at) << 16 | byte(at + 1) << 8 | byte(at + 2);
    out += kAlphabet[word >> 18];
    out += kAlphabet[word >> 12 & 63];
    out += at + 1 < bytes.size() ? kAlphabet[word >> 6 & 63] : '=';
    out += at + 2 < bytes.size() ? kAlphabet[word & 63] : '=';
  }
  return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const size_t padded = at + 4 == text.size() ? padding : 0;
    unsigned word = 0;
    for (size_t i = 0; i < 4; ++i) {
      const uint8_t value = i < 4 - padded ? kValues[static_cast<unsigned char>(text[at + i])] : 0;
      if (value == kNone) return std::nullopt;
      word = word << 6 | value;
    }
    if ((padded == 1 && (word & 0xff) != 0) || (padded == 2 && (word & 0xffff) != 0)) return std::nullopt;
    out += static_cast<char>(word >> 16);
    if (padded < 2) out += static_cast<char>(word >> 8 & 0xff);
    if (padded < 1) out += static_cast<char>(word & 0xff);
  }
  return out;
}

}  // namespace loralei
