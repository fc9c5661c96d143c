// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

namespace loralei {

void put_digest_hex(const Digest& digest, std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  text.clear();
  for (const uint8_t byte : digest) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
}

std::string digest_hex(const Digest& digest) {
  std::string text;
  put_digest_hex(digest, text);
  return text;
}

}  // namespace loralei
