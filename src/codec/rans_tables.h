// SPDX-License-Identifier: Apache-2.0
// The fixed family of distributions with which small integers are entropy-coded, and how
// a group of integers is coded: its "choice", one byte.
//
// A table gives each of the symbols -127 .. 127, and the escape for all other integers, a
// frequency out of 4096. It is a symmetric distribution of mean 0, cut into integers:
// shapes Gaussian, Laplace and the mean of the two, each at kRansScales standard
// deviations from 1/8 on, four to an octave. They are computed once in integers, so that
// every compiler and machine has the same (rans_tables_hash()).
//
//   choice   0 .. 16          raw: so many bits a number, two's complement; 0: all zero
//            17 .. 124        a table
//            125 .. 220       a table of the largest scales for x >> shift, shift 1 .. 8,
//                             the low bits raw
//
// Thread: any, once made; the first call makes them (a few ms, under a lock of C++).
// Ownership: static. Failure: none; other choices are refused (RansChoice::valid).
#pragma once

#include <array>
#include <cstdint>

namespace loralei {

inline constexpr int kRansBits = 12;
inline constexpr uint32_t kRansTotal = 1u << kRansBits;
inline constexpr int kRansShapes = 3;
inline constexpr int kRansScales = 36;
inline constexpr int kRansTables = kRansShapes * kRansScales;
inline constexpr int kRansWidthMax = 16;
inline constexpr int kRansShiftMax = 8;
inline constexpr int kRansShiftScales = 4;  // the last of each shape
inline constexpr int kRansShiftTables = kRansShapes * kRansShiftScales;
inline constexpr int kRansFirstTable = kRansWidthMax + 1;
inline constexpr int kRansFirstShifted = kRansFirstTable + kRansTables;
inline constexpr int kRansChoices = kRansFirstShifted + kRansShiftMax * kRansShiftTables;
static_assert(kRansChoices <= 256, "a choice is a byte");

inline constexpr int kRansEscape = -128;  // as a symbol
inline constexpr int kRansEscapeBits = 16;
inline constexpr int kRansCostUnit = 256;  // of a bit

// Symbol s stands at place uint8_t(s) of the arrays of 256.
struct RansTable {
  // By slot: symbol << 24 | frequency << 12 | slot - start of the symbol.
  std::array<uint32_t, kRansTotal> decode{};
  // x / frequency = (x * reciprocal >> 32) >> shift, for x < 2^31; of frequency 1, which
  // has no such reciprocal, x - 1, which the bias makes good.
  std::array<uint32_t, 256> reciprocal{};
  // frequency | bias << 12 | shift << 25; frequency 0: has no symbol (escape)
  std::array<uint32_t, 256> encode{};
};

struct RansTables {
  std::array<RansTable, kRansTables> tables;
  // [symbol][table]: in kRansCostUnits of a bit; an integer that is an escape in a table
  // costs its bits as well.
  static constexpr int kCostStride = 112;  // whole vectors
  std::array<std::array<uint16_t, kCostStride>, 256> costs{};
};
const RansTables& rans_tables();
uint64_t rans_tables_hash();  // of all frequencies, in order

struct RansChoice {
  int table = -1;  // -1: raw
  int bits = 0;    // of each number that are raw
  static constexpr bool valid(uint8_t choice) { return choice < kRansChoices; }
  static constexpr RansChoice of(uint8_t choice) {
    const int number = choice;
    if (number < kRansFirstTable) return {-1, number};
    if (number < kRansFirstShifted) return {number - kRansFirstTable, 0};
    const int at = number - kRansFirstShifted, in_shift = at % kRansShiftTables;
    return {in_shift / kRansShiftScales * kRansScales + kRansScales - kRansShiftScales + in_shift % kRansShiftScales,
            1 + at / kRansShiftTables};
  }
  static constexpr uint8_t raw(int width) { return static_cast<uint8_t>(width); }
  static constexpr uint8_t plain(int table) { return static_cast<uint8_t>(kRansFirstTable + table); }
  static constexpr uint8_t shifted(int in_shift, int shift) {
    return static_cast<uint8_t>(kRansFirstShifted + (shift - 1) * kRansShiftTables + in_shift);
  }
};

}  // namespace loralei
