// SPDX-License-Identifier: Apache-2.0
// One step of the stream of codec/path.h in plain code: the reference, and what the other
// paths use for half steps and at the ends of their buffers.
//
// Thread: pure but for the state that is passed. Failure: false where the words do not
// reach, or have no room; nothing outside [at, end) or [floor, at) is touched.
#pragma once

#include <bit>
#include <cstring>

#include "codec/path.h"

namespace loralei {

inline bool take_word(RansReader& reader, uint32_t& word) {
  if (reader.end - reader.at < 2) return false;
  uint16_t bits;
  std::memcpy(&bits, reader.at, sizeof bits);
  reader.at += sizeof bits;
  word = bits;
  return true;
}

inline bool put_word(RansWriter& writer, uint32_t word) {
  if (writer.at - writer.floor < 2) return false;
  const auto bits = static_cast<uint16_t>(word);
  writer.at -= sizeof bits;
  std::memcpy(writer.at, &bits, sizeof bits);
  return true;
}

// The escapes of a step to their places, one for each bit.
inline bool take_escapes(RansReader& reader, uint32_t escaped, int16_t* out) {
  for (; escaped != 0; escaped &= escaped - 1) {
    uint32_t word;
    if (!take_word(reader, word)) return false;
    out[std::countr_zero(escaped)] = static_cast<int16_t>(word);
  }
  return true;
}

// `lanes` integers (16 or 32).
inline bool decode_step(RansReader& reader, const RansChoice& choice, int lanes, int16_t* out) {
  int16_t symbols[kRansLanes] = {};
  if (choice.table >= 0) {
    const RansTable& table = rans_tables().tables[static_cast<size_t>(choice.table)];
    for (int i = 0; i < lanes; ++i) {
      uint32_t& x = reader.x[static_cast<size_t>(i)];
      const uint32_t entry = table.decode[x & (kRansTotal - 1)];
      symbols[i] = static_cast<int16_t>(static_cast<int32_t>(entry) >> 24);
      x = (entry >> 12 & (kRansTotal - 1)) * (x >> kRansBits) + (entry & (kRansTotal - 1));
      if (x >= kRansLow) continue;
      uint32_t word;
      if (!take_word(reader, word)) return false;
      x = x << 16 | word;
    }
  }
  uint32_t escaped = 0, low[kRansLanes] = {};
  for (int i = 0; i < lanes; ++i) escaped |= static_cast<uint32_t>(symbols[i] == kRansEscape) << i;
  int16_t words[kRansLanes] = {};
  if (!take_escapes(reader, escaped, words)) return false;
  for (int bit = 0; bit < choice.bits; ++bit) {
    for (int begin = 0; begin < lanes; begin += 16) {
      uint32_t plane;
      if (!take_word(reader, plane)) return false;
      for (int i = 0; i < 16; ++i) low[begin + i] |= (plane >> i & 1) << bit;
    }
  }
  for (int i = 0; i < lanes; ++i) {
    if ((escaped >> i & 1) != 0) {
      out[i] = words[i];
    } else if (choice.table >= 0) {
      out[i] = static_cast<int16_t>(static_cast<uint32_t>(symbols[i]) << choice.bits | low[i]);
    } else {  // two's complement of so many bits
      const int unused = 32 - choice.bits;
      out[i] = static_cast<int16_t>(unused < 32 ? static_cast<int32_t>(low[i] << unused) >> unused : 0);
    }
  }
  return true;
}

// The symbol of an integer under a choice with a table: the escape where it has none.
inline int rans_symbol(const RansTable& table, int shift, int16_t integer) {
  const int symbol = integer >> shift;
  if (symbol < -127 || symbol > 127) return kRansEscape;
  return table.encode[static_cast<uint8_t>(symbol)] == 0 ? kRansEscape : symbol;
}

inline bool encode_symbol(RansWriter& writer, const RansTable& table, int symbol, uint32_t& x) {
  const uint32_t entry = table.encode[static_cast<uint8_t>(symbol)];
  const uint32_t frequency = entry & (kRansTotal - 1);
  if (x >= frequency << 19) {
    if (!put_word(writer, x & 0xFFFF)) return false;
    x >>= 16;
  }
  const uint32_t reciprocal = table.reciprocal[static_cast<uint8_t>(symbol)];
  const auto quotient = static_cast<uint32_t>((uint64_t{x} * reciprocal >> 32) >> (entry >> 25));
  x += (entry >> 12 & 0x1FFF) + quotient * (kRansTotal - frequency);
  return true;
}

inline bool encode_step(RansWriter& writer, const RansChoice& choice, const int16_t* integers, int lanes) {
  for (int bit = choice.bits; bit-- > 0;) {
    for (int begin = lanes - 16; begin >= 0; begin -= 16) {
      uint32_t plane = 0;
      for (int i = 0; i < 16; ++i) plane |= (static_cast<uint16_t>(integers[begin + i]) >> bit & 1u) << i;
      if (!put_word(writer, plane)) return false;
    }
  }
  if (choice.table < 0) return true;
  const RansTable& table = rans_tables().tables[static_cast<size_t>(choice.table)];
  int symbols[kRansLanes];
  for (int i = lanes; i-- > 0;) {
    symbols[i] = rans_symbol(table, choice.bits, integers[i]);
    if (symbols[i] == kRansEscape && !put_word(writer, static_cast<uint16_t>(integers[i]))) return false;
  }
  for (int i = lanes; i-- > 0;) {
    if (!encode_symbol(writer, table, symbols[i], writer.x[static_cast<size_t>(i)])) return false;
  }
  return true;
}

}  // namespace loralei
