// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC'11). The n-th number of a key is a pure function,
// so a sampled token depends on (seed, choice, position) alone and never on what else
// was in the batch.
#pragma once

#include <array>
#include <cstdint>

namespace loralei {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits, for a (seed, choice, position) triple.
constexpr double uniform_at(uint64_t seed, uint32_t choice, uint64_t position) {
  const auto words = philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

// Seeds that differ for every index, for draws that are to be independent of each other
// though only one was drawn.
constexpr uint64_t derived_seed(uint64_t seed, uint32_t index) {
  const auto words = philox4x32({index, 0, 0, 2}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (uint64_t{words[0]} << 32) | words[1];
}

// A small sequential generator over the same function; for tests and data generation.
// Satisfies UniformRandomBitGenerator.
class Prng {
 public:
  using result_type = uint64_t;
  explicit constexpr Prng(uint64_t seed) : seed_(seed) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }
  constexpr uint64_t operator()() {
    const auto words = philox4x32({static_cast<uint32_t>(count_), static_cast<uint32_t>(count_ >> 32), 0, 1},
                                  {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    ++count_;
    return (uint64_t{words[0]} << 32) | words[1];
  }
  constexpr double uniform() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
  constexpr uint64_t below(uint64_t bound) { return bound == 0 ? 0 : (*this)() % bound; }  // tiny bias accepted

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

}  // namespace loralei
