// SPDX-License-Identifier: Apache-2.0
#include "base/fast_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/prng.h"

namespace loralei {
namespace {

std::vector<std::byte> random_bytes(size_t size, uint64_t seed) {
  Prng random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

uint64_t hash_of(const std::vector<std::byte>& bytes, uint64_t seed = 0) {
  return fast_hash(bytes.data(), bytes.size(), seed);
}

// Files of one machine are read on another.
TEST(FastHash, IsTheSameWithAndWithoutVectors) {
  for (size_t size = 0; size < 300; ++size) {
    const auto bytes = random_bytes(size + 3, size);
    for (size_t begin = 0; begin < 3; ++begin) {
      EXPECT_EQ(fast_hash(bytes.data() + begin, size, size), fast_hash_plain(bytes.data() + begin, size, size)) << size;
    }
  }
  const auto large = random_bytes(1 << 20, 7);
  EXPECT_EQ(hash_of(large, 9), fast_hash_plain(large.data(), large.size(), 9));
}

TEST(FastHash, KeepsItsValues) {
  std::vector<std::byte> bytes(200);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  EXPECT_EQ(fast_hash(bytes.data(), 0, 0), 0x504f87a9396cbb7cu);
  EXPECT_EQ(fast_hash(bytes.data(), 200, 5), 0x915abcc35d9ccb12u);
}

// Each half, as checks of tiles keep only the lower one.
TEST(FastHash, NoticesBitsPlacesLengthsAndSeeds) {
  const auto bytes = random_bytes(1000, 3);
  std::set<uint32_t> low, high;
  size_t count = 0;
  const auto note = [&](uint64_t hash) {
    low.insert(static_cast<uint32_t>(hash));
    high.insert(static_cast<uint32_t>(hash >> 32));
    ++count;
  };
  for (const std::vector<std::byte>& original : {bytes, std::vector<std::byte>(1000)}) {
    for (uint64_t seed = 0; seed < 50; ++seed) note(hash_of(original, seed));
    for (size_t size = 1; size < 1000; ++size) note(fast_hash(original.data(), size, 0));
    for (size_t bit = 0; bit < 8000; ++bit) {
      auto changed = original;
      changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      note(hash_of(changed));
    }
  }
  for (const size_t width : {1, 4, 8, 16, 32, 64, 128}) {  // neighbours that change places
    for (size_t at = 0; at + 2 * width <= bytes.size(); at += width) {
      auto changed = bytes;
      std::swap_ranges(changed.begin() + static_cast<std::ptrdiff_t>(at),
                       changed.begin() + static_cast<std::ptrdiff_t>(at + width),
                       changed.begin() + static_cast<std::ptrdiff_t>(at + width));
      if (changed != bytes) note(hash_of(changed));
    }
  }
  // Of 20,000 values of 32 bits one pair in twenty runs would be the same by chance.
  EXPECT_GE(low.size() + 1, count);
  EXPECT_GE(high.size() + 1, count);
}

// About half of all bits change with one of the input.
TEST(FastHash, SpreadsEveryBit) {
  const auto bytes = random_bytes(192, 5);
  const uint64_t plain = hash_of(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto changed = bytes;
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const int bits = __builtin_popcountll(hash_of(changed) ^ plain);
    EXPECT_TRUE(bits > 8 && bits < 56) << bit << ": " << bits;
  }
}

}  // namespace
}  // namespace loralei
