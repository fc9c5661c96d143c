// SPDX-License-Identifier: Apache-2.0
#include "tensor/tile_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/prng.h"
#include "tensor/codec.h"

namespace loralei {
namespace {

constexpr DType kQuantised[] = {DType::kQ8_0,   DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,
                                DType::kQ4_K,   DType::kQ5_K,   DType::kQ6_K,  DType::kQ2_K, DType::kQ3_K,
                                DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kInt4G};

std::vector<std::byte> random_bytes(Prng& prng, int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng());
  return bytes;
}

TEST(TileLayout, PackingLosesNothing) {
  Prng prng(71);
  for (DType dtype : kQuantised) {
    const int64_t cols = dtype_info(dtype).block_elems * 3;
    const int64_t bytes = row_bytes(dtype, cols);
    const std::vector<std::byte> source = random_bytes(prng, bytes * kRowTile);
    std::array<const std::byte*, kRowTile> rows;
    for (int r = 0; r < kRowTile; ++r) rows[static_cast<size_t>(r)] = source.data() + r * bytes;
    std::vector<std::byte> tile(static_cast<size_t>(tile_bytes(dtype, cols)));
    pack_tile(dtype, rows, cols, tile.data());
    for (int r = 0; r < kRowTile; ++r) {
      std::vector<std::byte> row(static_cast<size_t>(bytes));
      unpack_tile_row(dtype, tile.data(), r, cols, row.data());
      EXPECT_EQ(std::memcmp(row.data(), source.data() + r * bytes, static_cast<size_t>(bytes)), 0)
          << dtype_info(dtype).name << " row " << r;
      std::vector<float> decoded(static_cast<size_t>(cols)), expected(static_cast<size_t>(cols));
      decode_tile_row(dtype, tile.data(), r, cols, decoded.data());
      decode_row(dtype, row.data(), expected.data(), cols);
      EXPECT_EQ(std::memcmp(decoded.data(), expected.data(), decoded.size() * 4), 0);
    }
  }
}

// Every part of a source block is named once, and nothing else is.
TEST(TileLayout, PartsCoverTheBlock) {
  for (DType dtype : kQuantised) {
    const BlockParts parts = block_parts(dtype);
    std::vector<int> times(static_cast<size_t>(dtype_info(dtype).block_bytes));
    const auto mark = [&](int at, int count) {
      for (int i = at; i < at + count; ++i) ++times[static_cast<size_t>(i)];
    };
    mark(parts.byte_at, parts.byte_scales);
    mark(parts.half_at, 2 * parts.halves);
    mark(parts.scale_at, 4 * parts.scale_words);
    mark(parts.high_at, 4 * parts.high_words);
    mark(parts.quant_at, 4 * parts.quant_words);
    EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << dtype_info(dtype).name;
  }
}

TEST(TileLayout, AbsentRowsAreZeros) {
  const int64_t cols = 64;
  const std::vector<std::byte> source(static_cast<size_t>(row_bytes(DType::kQ4_0, cols)), std::byte{0x5A});
  std::array<const std::byte*, kRowTile> rows{};
  rows[0] = source.data();
  std::vector<std::byte> tile(static_cast<size_t>(tile_bytes(DType::kQ4_0, cols)), std::byte{0xFF});
  pack_tile(DType::kQ4_0, rows, cols, tile.data());
  std::vector<float> decoded(static_cast<size_t>(cols), 1.0f);
  decode_tile_row(DType::kQ4_0, tile.data(), 15, cols, decoded.data());
  EXPECT_EQ(decoded, std::vector<float>(static_cast<size_t>(cols), 0.0f));
}

TEST(TileLayout, TilesRoundRowsUp) {
  EXPECT_EQ(matrix_bytes(DType::kQ8_0, LayoutId::kTile16, 17, 32), 32 * 34);
  EXPECT_EQ(matrix_bytes(DType::kQ8_0, LayoutId::kPlain, 17, 32), 17 * 34);
}

}  // namespace
}  // namespace loralei
