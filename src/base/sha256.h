// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) over a stream of bytes.
//
// One object per stream, one thread at a time; update() any number of times, then
// finish() once. Uses the processor's SHA instructions where it has them; both paths give
// the same result (the constructor's argument forces the plain one in tests). Those take
// two streams in little more time than one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.h"

namespace loralei {

class Sha256 {
 public:
  explicit Sha256(bool plain = false);
  void update(std::span<const std::byte> bytes);
  Digest finish();
  // x.update() and y.update(), at once as far as both have bytes.
  static void update_two(Sha256& x, std::span<const std::byte> x_bytes, Sha256& y, std::span<const std::byte> y_bytes);

 private:
  // Takes `count` blocks of 64 bytes into the state.
  using Blocks = void (*)(std::array<uint32_t, 8>& state, const uint8_t* bytes, size_t count);

  // The same of two streams.
  using TwoBlocks = void (*)(std::array<uint32_t, 8>& x_state, const uint8_t* x_bytes, std::array<uint32_t, 8>& y_state,
                             const uint8_t* y_bytes, size_t count);

  std::span<const std::byte> fill(std::span<const std::byte> bytes);

  Blocks blocks_;
  TwoBlocks two_ = nullptr;  // null: one after the other
  std::array<uint32_t, 8> state_{0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<uint8_t, 64> pending_{};
  uint64_t total_bytes_ = 0;
};

// The next bytes of a stream.
struct HashPiece {
  Sha256* sha = nullptr;
  std::span<const std::byte> bytes;
};
// update() of every piece, two streams at a time; each is another's. Their order and
// bytes are used up.
void update_all(std::span<HashPiece> pieces);

}  // namespace loralei
