// SPDX-License-Identifier: Apache-2.0
#include "adapters/adapter.h"

namespace loralei {

std::string digest_hex(const Digest& digest) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

}  // namespace loralei
