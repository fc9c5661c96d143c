// SPDX-License-Identifier: Apache-2.0
#include "tensor/shrink.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <vector>

#include "base/prng.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

using Bytes = std::vector<std::byte>;

Bytes numbers_of(int64_t count, const std::function<uint16_t(int64_t)>& bits_at) {
  Bytes bytes(static_cast<size_t>(2 * count));
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = bits_at(i);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}
double normal(Prng& prng) {
  return std::sqrt(-2 * std::log(1 - prng.uniform())) * std::cos(2 * std::numbers::pi * prng.uniform());
}
Bytes normal_weights(DType dtype, int64_t count, double sigma, Prng& prng) {
  return numbers_of(count, [&](int64_t) {
    const auto value = static_cast<float>(normal(prng) * sigma);
    return dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  });
}

struct Shrunk {
  ShrinkFit fit;
  std::vector<Bytes> tiles;
};
Shrunk shrunk_tiles(DType dtype, const Bytes& numbers, int64_t tile) {
  const auto count = static_cast<int64_t>(numbers.size() / 2);
  std::vector<SymbolCounts> counts;
  for (int64_t at = 0; at < count; at += tile)
    count_symbols(dtype, numbers.data() + 2 * at, std::min(tile, count - at), counts.emplace_back());
  Shrunk shrunk;
  shrunk.fit = fit_shrink(counts);
  for (int64_t at = 0; at < count; at += tile) {
    Bytes& out = shrunk.tiles.emplace_back(
        static_cast<size_t>(shrunk_bytes(dtype, std::min(tile, count), shrunk.fit.escapes_max)));
    EXPECT_TRUE(shrink(dtype, shrunk.fit.code, numbers.data() + 2 * at, std::min(tile, count - at), out));
  }
  return shrunk;
}

// Every path gives the numbers back and writes nothing behind them.
void expect_round_trip(DType dtype, const Bytes& numbers, int64_t tile) {
  const auto count = static_cast<int64_t>(numbers.size() / 2);
  const Shrunk shrunk = shrunk_tiles(dtype, numbers, tile);
  for (const UnshrinkPath& path : unshrink_paths()) {
    SCOPED_TRACE(std::string(path.name) + " " + dtype_info(dtype).name + " " + std::to_string(count));
    for (size_t i = 0; i < shrunk.tiles.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) * tile, here = std::min(tile, count - at);
      Bytes out(static_cast<size_t>(2 * here + 8), std::byte{0xA5});
      ASSERT_TRUE(path.unshrink(dtype, shrunk.fit.code, shrunk.tiles[i], here, out.data()));
      ASSERT_EQ(std::memcmp(out.data(), numbers.data() + 2 * at, static_cast<size_t>(2 * here)), 0) << "tile " << i;
      for (size_t byte = out.size() - 8; byte < out.size(); ++byte) ASSERT_EQ(out[byte], std::byte{0xA5});
    }
  }
}

constexpr DType kTypes[] = {DType::kBF16, DType::kF16};

TEST(Shrink, GivesEveryBitBack) {
  const uint64_t seed = 20261121;
  Prng prng(seed);
  for (const DType dtype : kTypes) {
    // Every number there is: all exponents, infinities, NaN, denormals and both zeros.
    expect_round_trip(dtype, numbers_of(65536, [](int64_t i) { return static_cast<uint16_t>(i); }), 4096);
    expect_round_trip(dtype, numbers_of(1000, [](int64_t) { return uint16_t{0}; }), 256);
    expect_round_trip(dtype, numbers_of(512, [](int64_t i) { return static_cast<uint16_t>(i % 2 << 15); }), 512);
    for (const int64_t count : {1, 3, 63, 64, 65, 127, 128, 200, 768, 1000, 4099}) {
      expect_round_trip(dtype, numbers_of(count, [&](int64_t) { return static_cast<uint16_t>(prng.below(65536)); }),
                        320);
      expect_round_trip(dtype, normal_weights(dtype, count, 0.02, prng), 768);
    }
  }
}

TEST(Shrink, NormalWeightsTakeTheBytesThatWerePromised) {
  Prng prng(5);
  for (const double sigma : {0.02, 0.03, 1.0}) {
    for (const DType dtype : kTypes) {
      const int64_t tile = 16 * 2048, count = 16 * tile;
      const Shrunk shrunk = shrunk_tiles(dtype, normal_weights(dtype, count, sigma, prng), tile);
      const double ratio =
          static_cast<double>(2 * tile) / static_cast<double>(shrunk_bytes(dtype, tile, shrunk.fit.escapes_max));
      EXPECT_GE(ratio, dtype == DType::kBF16 ? 1.40 : 1.12) << dtype_info(dtype).name << " sigma " << sigma;
    }
  }
}

TEST(Shrink, DamageIsRefusedOrDecodesToSomeNumbers) {
  Prng prng(9);
  for (const DType dtype : kTypes) {
    const int64_t count = 1000;
    const Shrunk shrunk = shrunk_tiles(dtype, normal_weights(dtype, count, 0.02, prng), count);
    const Bytes& good = shrunk.tiles.front();
    Bytes out(2 * count);
    for (const UnshrinkPath& path : unshrink_paths()) {
      SCOPED_TRACE(path.name);
      // All planes set: every number asks for an escape.
      Bytes all = good;
      std::fill(all.begin() + 1024, all.end(), std::byte{0xFF});
      EXPECT_FALSE(path.unshrink(dtype, shrunk.fit.code, all, count, out.data()));
      // Cut: too short for its escapes, then for its numbers. Copies of their own size,
      // so that overruns are seen.
      for (const int64_t size : {shrunk_bytes(dtype, count, shrunk.fit.escapes_max - 1), shrunk_bytes(dtype, count, 0),
                                 shrunk_bytes(dtype, count, -1), int64_t{8}, int64_t{0}}) {
        const Bytes cut(good.begin(), good.begin() + size);
        EXPECT_FALSE(path.unshrink(dtype, shrunk.fit.code, cut, count, out.data())) << size;
      }
    }
    // Any bytes: all paths agree.
    for (int round = 0; round < 300; ++round) {
      Bytes damaged = good;
      for (uint64_t flips = 1 + prng.below(6); flips > 0; --flips)
        damaged[prng.below(damaged.size())] ^= std::byte{static_cast<uint8_t>(1 << prng.below(8))};
      Bytes want(2 * count);
      const bool taken = unshrink_paths().front().unshrink(dtype, shrunk.fit.code, damaged, count, want.data());
      for (const UnshrinkPath& path : unshrink_paths()) {
        ASSERT_EQ(path.unshrink(dtype, shrunk.fit.code, damaged, count, out.data()), taken) << path.name;
        if (taken) {
          ASSERT_TRUE(out == want) << path.name;
        }
      }
    }
  }
}

TEST(Shrink, OtherFormatsAreLeftAlone) {
  EXPECT_FALSE(can_shrink(DType::kF32));
  EXPECT_FALSE(can_shrink(DType::kQ4_0));
  EXPECT_FALSE(unshrink(DType::kF32, {}, {}, 0, nullptr));
}

}  // namespace
}  // namespace loralei
