// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) over a stream of bytes.
//
// One object per stream, one thread at a time; update() any number of times, then
// finish() once. Uses the processor's SHA instructions where it has them; both paths give
// the same result (the constructor's argument forces the plain one in tests).
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

 private:
  // Takes `count` blocks of 64 bytes into the state.
  using Blocks = void (*)(std::array<uint32_t, 8>& state, const uint8_t* bytes, size_t count);

  Blocks blocks_;
  std::array<uint32_t, 8> state_{0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<uint8_t, 64> pending_{};
  uint64_t total_bytes_ = 0;
};

}  // namespace loralei
