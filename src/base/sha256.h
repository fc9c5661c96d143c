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

// The constants of the standard: of its rounds, and of the state before the first block.
inline constexpr std::array<uint32_t, 64> kSha256Rounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
inline constexpr std::array<uint32_t, 8> kSha256Begin = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

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
  std::array<uint32_t, 8> state_ = kSha256Begin;
  std::array<uint8_t, 64> pending_{};
  uint64_t total_bytes_ = 0;
};

}  // namespace loralei
