// SPDX-License-Identifier: Apache-2.0
// Lossless shrinking of 16-bit weights for the way from disk to memory: most numbers of
// a matrix share few exponents.
//
// A number is turned left by one bit, so that its exponent leads: eight bits in bf16,
// five in f16 (its "symbol", the other bits zero). The seven most frequent symbols of a
// matrix have a code of three bits; code 7 means that the symbol itself stands at the end
// ("escape"). A tile of `count` numbers, in groups of 64, the last filled up with zeros:
//
//   low      u8[64] for each group: the low byte of each number
//   planes   u64[3] for each group: bit i of the codes; f16 has three more planes, the
//            bits 8, 9 and 10 of the numbers
//   escapes  u8 each, in order
//
// Decoding is masks and one byte shuffle; 1.375 bytes a number in bf16 and 1.75 in f16,
// beside the escapes.
//
// Thread: pure functions, no allocation.
// Failure: any bytes decode to some numbers or are refused (false) where they ask
// for more escapes than there are; nothing outside `stored` is read and nothing
// outside `out` written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace loralei {

inline constexpr int kShrinkSymbols = 7;

struct ShrinkCode {
  std::array<uint8_t, kShrinkSymbols> symbols{};  // of codes 0 to 6
  friend bool operator==(const ShrinkCode&, const ShrinkCode&) = default;
};

bool can_shrink(DType dtype);             // bf16 and f16
uint8_t shrink_symbol_mask(DType dtype);  // the bits a symbol may have
// Bytes of a tile of `count` numbers, `escapes` of them without a code.
int64_t shrunk_bytes(DType dtype, int64_t count, int64_t escapes);

using SymbolCounts = std::array<uint32_t, 256>;
// Adds the symbols of `count` numbers.
void count_symbols(DType dtype, const std::byte* numbers, int64_t count, SymbolCounts& counts);
// The code for a matrix of these tiles, and the escapes of the tile that has most.
struct ShrinkFit {
  ShrinkCode code;
  int64_t escapes_max = 0;
};
ShrinkFit fit_shrink(std::span<const SymbolCounts> tiles);

// Fills all of `out`; false where it is too small for the tile's escapes.
[[nodiscard]] bool shrink(DType dtype, const ShrinkCode& code, const std::byte* numbers, int64_t count,
                          std::span<std::byte> out);
// Writes 2 * count bytes, with the best instruction set of this machine.
[[nodiscard]] bool unshrink(DType dtype, const ShrinkCode& code, std::span<const std::byte> stored, int64_t count,
                            std::byte* out);

// Every way of decoding that this machine has, the reference first and the one
// that is used last.
struct UnshrinkPath {
  const char* name;
  bool (*unshrink)(DType dtype, const ShrinkCode& code, std::span<const std::byte> stored, int64_t count,
                   std::byte* out);
};
std::span<const UnshrinkPath> unshrink_paths();

}  // namespace loralei
