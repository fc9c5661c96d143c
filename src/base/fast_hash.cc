// SPDX-License-Identifier: Apache-2.0
#include "base/fast_hash.h"

#include <cstring>

namespace loralei {

uint64_t mix64(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 29;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 32);
}

uint64_t fast_hash(const std::byte* data, size_t size, uint64_t seed) {
  uint64_t lanes[4] = {seed, seed + 1, seed + 2, seed + 3};
  size_t offset = 0;
  for (; offset + 32 <= size; offset += 32) {
    uint64_t words[4];
    std::memcpy(words, data + offset, 32);
    for (int lane = 0; lane < 4; ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * 0x9e3779b97f4a7c15ULL;
      lanes[lane] ^= lanes[lane] >> 31;
    }
  }
  uint64_t tail = size;
  for (; offset < size; ++offset) tail = tail * 257 + static_cast<uint8_t>(data[offset]);
  return mix64(lanes[0] ^ mix64(lanes[1] ^ mix64(lanes[2] ^ mix64(lanes[3] ^ mix64(tail)))));
}

}  // namespace loralei
