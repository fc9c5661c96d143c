// SPDX-License-Identifier: Apache-2.0
// The paper's encoding against equation 3 written out.
#include "codec/kv_paper.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codec/codec_test_util.h"

namespace loralei {
namespace {

constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

std::vector<std::byte> encoded_paper(const KvGrid& grid, const KvBlockAt& block, const KvBlockAt& anchor,
                                     const KvCodecPath& path) {
  std::vector<std::byte> blob(4 * kv_blob_bound(grid) + 600000);
  const size_t size = kv_encode_paper(grid, block, anchor, blob, path);
  CHECK(size > 0);
  blob.resize(size);
  return blob;
}

// Rounding of x to the cache.
double rounding(DType dtype, double x) {
  const double size = std::fabs(x);
  return dtype == DType::kF32   ? size * 0x1p-23
         : dtype == DType::kF16 ? std::fmax(size * 0x1p-10, 0x1p-24)
                                : size * 0x1p-7;
}

TEST(KvPaper, IsEquationThreeWithinItsBoundOnEveryPath) {
  Prng seeds(51);
  for (int round = 0; round < 30; ++round) {
    const uint64_t seed = seeds();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const KvGridShape shape = random_shape(prng, kFloatTypes[round % 3]);
    const std::vector<float> scales = random_scales(prng, shape);
    const KvGrid grid = grid_of(shape, scales, 1.0f);
    const TestCache anchor(shape, 1), own(shape, 1);
    fill_block(prng, shape, scales, anchor, 0);
    fill_near(prng, shape, scales, anchor, own, static_cast<float>(std::exp2(prng.uniform() * 10 - 8)));
    if (round % 4 == 0) own.set(0, 0, 1, 0, 3, 30000.0f);  // an exception
    const KvBlockAt block{own.view(), 0}, base{anchor.view(), 0};
    const auto blob = encoded_paper(grid, block, base, kv_codec_paths().front());
    const auto info = kv_blob_info(blob);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->kind, KvBlobKind::kPaper);
    for (const KvCodecPath& path : kv_codec_paths()) {
      SCOPED_TRACE(path.name);
      EXPECT_EQ(encoded_paper(grid, block, base, path), blob);
      const TestCache back(shape, 1);
      const auto held = exact_copy(blob);
      const Status status = kv_decode_paper(grid, {held.get(), blob.size()}, base, {back.view(), 0}, path);
      ASSERT_TRUE(status.ok()) << status.error().message;
      for_numbers(shape, [&](int32_t layer, int32_t v, int32_t head, int64_t i) {
        const auto token = static_cast<int32_t>(v == 0 ? i % 16 : i / shape.head_dim);
        const double epsilon =
            std::array{1e-4, 1e-3, 1e-2}[static_cast<size_t>(kv_paper_class(block, base, layer, v, token))];
        const double bound = std::log1p(epsilon);
        const double k = own.get(0, layer, v, head, i), ka = anchor.get(0, layer, v, head, i);
        const double q = std::floor((k - ka) / (2 * bound) + 0.5);
        const double got = back.get(0, layer, v, head, i);
        ASSERT_LE(std::fabs(got - k), bound * (1 + 1e-9) + rounding(shape.dtype, std::fabs(k) + bound));
        ASSERT_LE(std::fabs(got - (ka + 2 * bound * q)), rounding(shape.dtype, std::fabs(k) + bound) + 1e-9);
      });
    }
  }
}

TEST(KvPaper, ClassesFollowTheCosineOfAToken) {
  const KvGridShape shape{.layers = 2, .kv_heads = 2, .head_dim = 32, .dtype = DType::kF32};
  const TestCache anchor(shape, 1, 0), own(shape, 1, 0);
  const KvBlockAt block{own.view(), 0}, base{anchor.view(), 0};
  EXPECT_EQ(kv_paper_class(block, base, 0, 0, 0), 0);  // both zero
  for (int32_t v = 0; v < 2; ++v) {
    const auto number = [&](int64_t d) { return v == 0 ? d * 16 + 5 : 5 * 32 + d; };
    anchor.set(0, 1, v, 0, number(0), 1.0f);
    EXPECT_EQ(kv_paper_class(block, base, 1, v, 5), 2);  // one of them zero
    const struct {
      double cosine;
      int kind;
    } cases[] = {{0.99, 0}, {0.976, 0}, {0.974, 1}, {0.86, 1}, {0.84, 2}, {-0.99, 2}};
    for (const auto& [cosine, kind] : cases) {
      own.set(0, 1, v, 0, number(0), static_cast<float>(cosine * 3));
      own.set(0, 1, v, 1, number(7), static_cast<float>(std::sqrt(1 - cosine * cosine) * 3));  // another head
      EXPECT_EQ(kv_paper_class(block, base, 1, v, 5), kind) << cosine;
      EXPECT_EQ(kv_paper_class(block, base, 1, v, 6), 0);
      EXPECT_EQ(kv_paper_class(block, base, 0, v, 5), 0);
    }
  }
}

TEST(KvPaper, WhatCannotBeToldStaysRaw) {
  const KvGridShape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .dtype = DType::kF32};
  const KvGrid grid = grid_of(shape, std::vector<float>(32, 1.0f), 1.0f);
  const TestCache anchor(shape, 1, 0), own(shape, 1, 0);
  std::vector<std::byte> out(1 << 16);
  const KvBlockAt block{own.view(), 0}, base{anchor.view(), 0};
  EXPECT_GT(kv_encode_paper(grid, block, base, out), 0u);
  EXPECT_EQ(kv_encode_paper(grid, block, base, std::span(out).first(100)), 0u);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    own.set(0, 0, 0, 0, 40, bad);
    EXPECT_EQ(kv_encode_paper(grid, block, base, out), 0u);
    own.set(0, 0, 0, 0, 40, 0);
  }
}

TEST(KvPaper, CutChangedOrWithAnotherAnchorItIsRefused) {
  Prng prng(54);
  const KvGridShape shape{.layers = 1, .kv_heads = 1, .head_dim = 18, .dtype = DType::kF16};
  const std::vector<float> scales = random_scales(prng, shape);
  const KvGrid grid = grid_of(shape, scales, 1.0f);
  const TestCache anchor(shape), own(shape), back(shape);
  fill_block(prng, shape, scales, anchor, 0);
  fill_near(prng, shape, scales, anchor, own, 0.1f);
  own.set(0, 0, 0, 0, 100, 3000.0f);
  own.set(0, 0, 1, 0, 7, -3000.0f);
  const KvBlockAt block{own.view(), 0}, base{anchor.view(), 0}, to{back.view(), 0};
  auto blob = encoded_paper(grid, block, base, kv_codec_path());
  ASSERT_TRUE(kv_decode_paper(grid, blob, base, to).ok());
  for (size_t size = 0; size < blob.size(); ++size) {
    const auto held = exact_copy(std::span(blob).first(size));
    EXPECT_FALSE(kv_decode_paper(grid, {held.get(), size}, base, to).ok());
  }
  for (size_t bit = 0; bit < 8 * blob.size(); ++bit) {
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    blob[bit / 8] ^= mask;
    EXPECT_FALSE(kv_decode_paper(grid, blob, base, to).ok()) << bit;
    blob[bit / 8] ^= mask;
  }
  EXPECT_FALSE(kv_decode_paper(grid, blob, block, to).ok());
  KvNumbers numbers(grid), other(grid);
  EXPECT_FALSE(kv_decode(grid, blob, &other, numbers).ok());
  ASSERT_TRUE(kv_read(grid, own.view(), 0, numbers));
  EXPECT_FALSE(kv_decode_paper(grid, encoded(grid, numbers, nullptr), base, to).ok());
}

}  // namespace
}  // namespace loralei
